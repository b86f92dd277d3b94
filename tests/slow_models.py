"""What each policy must know and say, kept the slow and obvious way; imports no cvrcore."""

import math

import naive
import numpy as np


class Model:
    """Any policy: who exists and how often each was picked."""

    def __init__(self, weights):
        self.weights = [float(w) for w in weights]
        self.rounds = 0

    def join(self, weights):
        self.weights += [float(w) for w in weights]

    def check(self, picked, eligible, asked, answers):
        """Compare one selection with what it should say."""

    def learn(self, picked, clients, models, losses, durations, failed):
        self.rounds += 1


class Uniform(Model):
    def check(self, picked, eligible, asked, answers):
        law = eligible / eligible.sum()
        np.testing.assert_allclose(picked.probabilities, law, rtol=1e-12)


class PowerOfChoice(Model):
    def check(self, picked, eligible, asked, answers):
        known = {int(k): loss for k, loss in zip(asked, answers, strict=True) if eligible[k]}
        ranked = sorted(known, key=lambda k: -math.inf if math.isnan(known[k]) else known[k])
        n = len(picked)
        if len(ranked) >= n:
            worst_in = min(_rank(known[int(k)]) for k in picked.clients)
            outside = [k for k in ranked if k not in set(picked.clients.tolist())]
            assert all(_rank(known[k]) <= worst_in for k in outside)
        else:
            assert set(ranked) <= set(picked.clients.tolist())


def _rank(loss):
    return -math.inf if math.isnan(loss) else loss


class Active(Model):
    def __init__(self, weights):
        super().__init__(weights)
        self.losses = {}

    def check(self, picked, eligible, asked, answers):
        if asked is not None:
            self.losses |= {
                int(k): float(v) for k, v in zip(asked, answers, strict=True) if not math.isnan(v)
            }
        if picked.scores is None:  # nobody has a value yet
            return
        expected = [math.sqrt(w) * self.losses.get(k, math.nan) for k, w in enumerate(self.weights)]
        np.testing.assert_allclose(picked.scores, expected, rtol=1e-12)

    def learn(self, picked, clients, models, losses, durations, failed):
        super().learn(picked, clients, models, losses, durations, failed)
        self.losses |= {int(k): float(v) for k, v in zip(clients, losses, strict=True)}


class Oort(Model):
    """Utility, bonus for staleness; no durations are told, so speed plays no part."""

    def __init__(self, weights):
        super().__init__(weights)
        self.utility, self.last = {}, {}

    def check(self, picked, eligible, asked, answers):
        if picked.warmup:
            assert self.rounds == 0
            return
        tried = [k for k in self.last if eligible[k]]
        untried = [k for k in range(len(self.weights)) if eligible[k] and k not in self.last]
        utilities = [self.utility.get(k, 0.0) for k in tried]
        scale = sorted([u for u in utilities if u > 0] + [self.weights[k] for k in untried])
        for k, u in zip(tried, utilities, strict=True):
            score = 0.0
            if scale:
                cap = scale[min(int(0.95 * len(scale) + 1e-9), len(scale) - 1)]
                low = 0.999 * scale[0]
                score = max((min(u, cap) - low) / (scale[-1] - low), 0.0)
            score += math.sqrt(0.1 * math.log(self.rounds + 1) / self.last[k])
            np.testing.assert_allclose(picked.scores[k], score, rtol=1e-9, atol=1e-12)

    def learn(self, picked, clients, models, losses, durations, failed):
        super().learn(picked, clients, models, losses, durations, failed)
        for k, loss in zip(clients, losses, strict=True):
            self.utility[int(k)] = self.weights[k] * float(loss)
        for k in [*clients, *failed]:
            self.last[int(k)] = self.rounds


class ClassBalanced(Model):
    """The law of the first draw, from inner products of class counts as the article has it."""

    def __init__(self, weights, counts):
        super().__init__(weights)
        self.counts = [list(map(float, row)) for row in counts]
        self.picked = [0] * len(weights)

    def join(self, weights, counts):
        super().join(weights)
        self.counts += [list(map(float, row)) for row in counts]
        self.picked += [0] * len(weights)

    def check(self, picked, eligible, asked, answers):
        odds = []
        for k, row in enumerate(self.counts):
            if not eligible[k]:
                odds.append(0.0)
                continue
            imbalance = sum(c * c for c in row) / sum(row) ** 2 - 1 / len(row)
            bonus = 10.0 * math.sqrt(1.5 * math.log(self.rounds + 1) / (self.picked[k] + 1))
            odds.append(1.0 / max(imbalance, 1e-12) + bonus)
        np.testing.assert_allclose(picked.probabilities, np.array(odds) / sum(odds), rtol=1e-4)

    def learn(self, picked, clients, models, losses, durations, failed):
        super().learn(picked, clients, models, losses, durations, failed)
        for k in picked.clients:
            self.picked[k] += 1


class Coalition(Model):
    """Dense covariance, updated by the plain twin; a joiner's residual was 0 so far."""

    def __init__(self, weights, n_features, warmup):
        super().__init__(weights)
        self.rows = np.zeros((len(weights), n_features))
        self.cov = np.ones((n_features, len(weights), len(weights)))
        self.ones, self.updates, self.warmup = 1.0, 0, warmup

    def join(self, weights):
        old, added = len(self.weights), len(weights)
        super().join(weights)
        grown = np.full((self.cov.shape[0], old + added, old + added), self.ones)
        grown[:, :old, :old] = self.cov
        self.cov = grown
        self.rows = np.vstack([self.rows, np.zeros((added, self.rows.shape[1]))])

    def scores(self):
        return naive.variance_reduction(self.cov, self.weights)

    def check(self, picked, eligible, asked, answers):
        assert picked.warmup == (self.rounds < self.warmup)
        if picked.warmup:
            return
        np.testing.assert_allclose(picked.scores, self.scores(), rtol=1e-7)
        law = naive.boltzmann(picked.scores, picked.coalitions, mask=eligible)
        np.testing.assert_allclose(picked.probabilities, law, rtol=1e-9)
        assert np.unique(picked.coalitions).size == picked.coalitions.max() + 1

    def learn(self, picked, clients, models, losses, durations, failed):
        super().learn(picked, clients, models, losses, durations, failed)
        for k, row in zip(clients, models, strict=True):
            self.rows[k] = row
        if picked.coalitions is None or len(clients) == 0:
            return
        first = {}
        for k in picked.clients:
            if k in clients:
                first.setdefault(int(picked.coalitions[k]), int(k))
        rate = 1.0 / (self.updates + 2)
        self.cov = naive.update_covariance(
            self.cov, self.rows, list(first.values()), picked.coalitions, rate
        )
        self.ones *= 1.0 - rate
        self.updates += 1
