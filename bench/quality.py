"""Quality of the approximations: numbers of landmarks and lengths of windows in, errors out.

Two worlds of K = 1,000 clients: planted coalitions, and last layers trained on MNIST
(`bench.heads`). Landmarks: adjusted Rand index with the exact path and with the truth (the
planted group, the client's most frequent digit), k-means inertia in the exact embedding
relative to the exact path, and total variation between the laws of the draw. Windows change
the predictor and not the coalitions: total variation of the law in the same coalitions. The
law may concentrate on one client of a coalition, whose residual is 0 with every window
(planted, K = 100); for that reason there are also runs that draw uniformly inside coalitions.
The exact path with another seed of k-means shows the effect of chance alone.
"""

import numpy as np
from sklearn.metrics import adjusted_rand_score

import cvrcore
from bench.heads import Heads
from bench.peers import inertia
from bench.rows import Found, Row, part_main
from bench.workloads import Models
from cvrcore.clustering.affinity import Affinity
from cvrcore.clustering.eigensolver import spectral_points
from cvrcore.clustering.landmarks import nystrom_points
from cvrcore.clustering.lloyd import lloyd
from cvrcore.clustering.partitions import Effort, cluster_points
from cvrcore.covariance.estimator import Estimator
from cvrcore.covariance.pairs import representatives
from cvrcore.covariance.store import CovarianceStore

PART = "quality"
RUNS = 3  # seeds averaged in each point


class Planted(Models):
    """The planted world, with the true groups."""

    def __init__(self, n_clients, n_features, n_groups):
        super().__init__("planted", n_clients, n_features, n_groups)
        self.name, self.truth = "planted", np.arange(n_clients) % n_groups

    def learn(self, clients, models):
        """Do nothing: planted models do not learn."""


def law(scores, labels):
    """Return the probability of each client if one coalition is drawn, then one client of it."""
    return cvrcore.boltzmann(scores, labels) / (labels.max() + 1)


def variation(one, other):
    return 0.5 * float(np.abs(one - other).sum())


def drive(world, n_select, n_rounds, windows, within="boltzmann"):
    """Run the exact selector, and estimators with shorter windows on the same rounds.

    Returns final rows and scores, and over the second half of the rounds the mean total
    variation of laws and the mean relative error of scores.
    """
    shape = world.initial.shape
    selector = cvrcore.CoalitionSelector(
        *shape, n_select, weights=world.weights, warmup=0, seed=0, initial=world.initial,
        clustering="exact", store="factored", within=within,
    )  # fmt: skip
    shorter = {
        w: Estimator(*shape, np.float64, CovarianceStore(*shape, "window", np.float64, w, False))
        for w in windows
    }
    alpha = world.weights / world.weights.sum()
    apart, errors = {w: [] for w in windows}, {w: [] for w in windows}
    for t in range(n_rounds):
        picked = selector.select()
        for w, kept in shorter.items():
            if 2 * t >= n_rounds:
                exact = law(picked.scores, picked.coalitions)
                apart[w].append(variation(law(kept.scores, picked.coalitions), exact))
                errors[w].append(np.abs(kept.scores / picked.scores - 1.0).mean())
        models = world.draw(picked.clients)
        selector.observe(picked.clients, models)
        world.learn(picked.clients, models)
        first, rows = representatives(picked.clients, picked.coalitions), selector.rows
        for kept in shorter.values():
            kept.step(rows, picked.coalitions, first, alpha, 1.0 / (kept.updates + 2))
    found = [
        {
            "window": w,
            "tv": float(np.mean(apart[w])),
            "score_error": float(np.mean(errors[w])),
            "dropped": shorter[w].store.log.dropped,
        }
        for w in windows
    ]
    return selector.rows, selector.scores, found


def judged(labels, exact, points, scores, truth, held):
    """Compare a partition with the partition of the exact path."""
    return {
        "ari_exact": adjusted_rand_score(exact, labels),
        "ari_truth": adjusted_rand_score(truth[held], labels[held]),
        "inertia": inertia(points, labels) / inertia(points, exact),
        "tv": variation(law(scores, labels), law(scores, exact)),
    }


def landmark_quality(world, rows, scores, n_select, sizes):
    """Return quality against m for both choices of landmarks, and for the exact path."""
    points, _ = spectral_points(Affinity(rows, "rbf", 1.0), n_select)
    held = world.weights > 0

    def exact_labels(seed):
        return cluster_points(points, n_select, np.random.default_rng(seed), Effort(10))

    exact = exact_labels(0)

    def mean_of(make):
        runs = [
            judged(make(1 + seed), exact, points, scores, world.truth, held) for seed in range(RUNS)
        ]
        return {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}

    def approximate(m, how):
        def make(seed):
            rng = np.random.default_rng(seed)
            return lloyd(nystrom_points(rows, n_select, rng, "rbf", 1.0, m, how), n_select, rng)

        return make

    curves = {
        how: [{"m": m, **mean_of(approximate(m, how))} for m in sizes]
        for how in ("uniform", "kmeans++")
    }
    own = judged(exact, exact, points, scores, world.truth, held)
    return curves, mean_of(exact_labels) | {"ari_truth_exact": own["ari_truth"]}


def measure(short=False):
    n_clients, n_select, n_rounds = (100, 10, 20) if short else (1000, 50, 100)
    windows = (2, 4, 8) if short else (2, 4, 8, 16, 32, 64)
    sizes = (20, 50, 100) if short else (50, 100, 200, 350, 500, 700, 1000)
    curves = {"landmarks": {}, "reference": {}, "window": {}}
    rows = []
    for world in (Planted(n_clients, 300, n_select), Heads(n_clients)):
        last, scores, kept = drive(world, n_select, n_rounds, windows)
        curves["window"][world.name] = kept
        fitting = [m for m in sizes if m <= len(last)]
        found, other = landmark_quality(world, last, scores, n_select, fitting)
        curves["landmarks"][world.name], curves["reference"][world.name] = found, other
        rows += _rows(world.name, found, other)
        rows.append(_window_row(world.name, kept))
        name = f"{world.name}, uniform draws"
        _, _, kept = drive(world, n_select, n_rounds, windows, within="uniform")
        curves["window"][name] = kept
        rows.append(_window_row(name, kept))
    return Found(rows, {"quality": curves})


def _rows(world, found, other):
    """Yield rows of the defaults (500 landmarks, 32 residuals), or of the largest sizes run."""
    yield Row(
        PART, f"{world}: exact, another seed: Rand index", other["ari_exact"], "", ">=",
        note=f"with truth {other['ari_truth']:.3f}, inertia {other['inertia']:.3f}, "
        f"total variation {other['tv']:.3f}",
    )  # fmt: skip
    for how, points in found.items():
        point = max((p for p in points if p["m"] <= 500), key=lambda p: p["m"])
        yield Row(
            PART, f"{world}: m={point['m']}, {how}: Rand index", point["ari_exact"], "", ">=",
            note=f"with truth {point['ari_truth']:.3f}, inertia {point['inertia']:.3f}, "
            f"total variation {point['tv']:.3f}",
        )  # fmt: skip


def _window_row(name, windows):
    point = max((p for p in windows if p["window"] <= 32), key=lambda p: p["window"])
    return Row(
        PART, f"{name}, window {point['window']}: total variation", point["tv"], "",
        note=f"scores {point['score_error']:.2g} off, dropped {point['dropped']:.3f} of the weight",
    )  # fmt: skip


if __name__ == "__main__":
    part_main(measure, __doc__)
