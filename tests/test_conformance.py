"""check_selector passes every policy of ours, and each check catches what it is for."""

import random
import re

import numpy as np
import pytest

from cvrcore import Selection, Selector
from cvrcore.selectors import BUILT_IN
from cvrcore.selectors.uniform import UniformSelector
from cvrcore.testing import ConformanceError, check_selector, selector_checks
from cvrcore.testing.assertions import difference
from cvrcore.testing.checks import CHECKS

VARIANTS = {
    "power-of-choice": [{}, {"candidates": "uniform", "n_candidates": 4}],
    "active": [{}, {"preset": "goetz"}, {"alpha3": 1.0}],
    "oort": [{}, {"preset": "repo"}, {"preset": "fedscale"}],
    "fedcbs": [{}, {"beta": 0.0, "exploration": 0.0}],
    "pivotal": [{}, {"law": "even", "neighbours": "approximate"}],
    "drift": [{}, {"design": "pivotal"}, {"design": "poisson"}],
    "optimal": [{}, {"design": "poisson"}, {"form": "approximate"}, {"norms": "probed"}],
    "k-vib": [{}, {"design": "poisson"}],
    "multinomial": [{}, {"design": "systematic"}],
    "clustered": [{}, {"form": "similarity"}],
    "divfl": [{}, {"epsilon": 0.3}],
    "learned": [{"explore": 0.4}],  # without it only ties are drawn at random
    "fedcvr-bolt": [
        {"warmup": 3},
        {"warmup": 0, "store": "dense", "recluster_every": 3},
        {"warmup": 0, "n_coalitions": "eigengap", "balance": "within"},
        {"warmup": 0, "within": "size", "balance": "across"},
    ],
}
CASES = [
    pytest.param(name, options, id="-".join([name, *map(str, options.values())]))
    for name in BUILT_IN
    for options in VARIANTS.get(name, [{}])
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_every_built_in_policy_conforms(name, options):
    assert check_selector(name, **options) == [check.name for check in CHECKS]


class Counting(Selector):
    """Right in every way: the lightest count first, ties at random. Others below break it."""

    name = "counting"

    def __init__(self, n_clients, n_select, weights=None, seed=None):
        super().__init__(n_clients, n_select, weights, seed)
        self._counts = np.zeros(self.n_clients)

    def _order(self, ids):
        return np.lexsort((self._rng.random(ids.size), self._counts[ids]))

    def _choose(self, eligible, probe):
        ids = np.flatnonzero(eligible)
        return Selection(clients=ids[self._order(ids)[: self.n_select]], round=self.round)

    def _learn(self, report):
        self._counts[report.clients] += 1.0

    def _grow(self, n_clients, added):
        self._counts = np.append(self._counts, np.zeros(added.size))

    def _learned(self):
        return {"counts": self._counts.copy()}

    def _restore(self, learned):
        self._counts = np.array(learned["counts"])


class Nameless(Counting):
    name = ""


class TakesOurName(Counting):
    name = "oort"


class SeedsItself(Counting):
    def __init__(self, n_clients, n_select, weights=None, seed=None):
        super().__init__(n_clients, n_select, weights, None)


class IgnoresSeed(Counting):
    def __init__(self, n_clients, n_select, weights=None, seed=None):
        super().__init__(n_clients, n_select, weights, 0)


class DrawsGlobally(Counting):
    def _order(self, ids):
        return np.lexsort((np.random.rand(ids.size), self._counts[ids]))  # noqa: NPY002


class ShufflesGlobally(Counting):
    def _choose(self, eligible, probe):
        random.random()
        return super()._choose(eligible, probe)


class PicksTwice(Counting):
    def _choose(self, eligible, probe):
        ids = np.flatnonzero(eligible)
        clients = self._rng.choice(ids, size=min(self.n_select, ids.size))
        return Selection(clients=clients, round=self.round)


class PicksAnybody(Counting):
    def _choose(self, eligible, probe):
        return super()._choose(np.ones_like(eligible), probe)


class PicksPositions(Counting):
    """Positions among the eligible taken for ids: the bug of a public Power-of-Choice."""

    def _choose(self, eligible, probe):
        order = self._order(np.flatnonzero(eligible))
        return Selection(clients=order[: self.n_select], round=self.round)


class ForgetsTheRound(Counting):
    def _choose(self, eligible, probe):
        return Selection(clients=super()._choose(eligible, probe).clients)


class NeedsACrowd(Counting):
    def _choose(self, eligible, probe):
        ids = self._rng.permutation(np.flatnonzero(eligible))[: self.n_select]
        return Selection(clients=ids[: max(1, ids.size - 1)], round=self.round)


class FixesItsSize(Counting):
    def __init__(self, n_clients, n_select, weights=None, seed=None):
        super().__init__(n_clients, n_select, weights, seed)
        self._places = n_select

    def _choose(self, eligible, probe):
        ids = self._rng.permutation(np.flatnonzero(eligible))[: self._places]
        return Selection(clients=ids, round=self.round)


class PicksBusy(Counting):
    def _choose(self, eligible, probe):
        clients = np.flatnonzero(self.weights > 0)[: self.n_select]
        return Selection(clients=clients, round=self.round)


class StatesNoLaw(Counting):
    def _choose(self, eligible, probe):
        picked = super()._choose(eligible, probe)
        law = np.full(self.n_clients, 1.0 / self.n_clients)
        return Selection(clients=picked.clients, probabilities=law, round=self.round)


class StatesWrongInclusion(Counting):
    def _choose(self, eligible, probe):
        picked = super()._choose(eligible, probe)
        share = eligible / np.count_nonzero(eligible)
        return Selection(clients=picked.clients, inclusion=share, round=self.round)


class NeedsEverybodyBack(Counting):
    def _learn(self, report):
        self._counts[report.selection.clients] += np.ones(report.clients.size)


class MistakesTheOrder(Counting):
    loss_statistic = "mean"

    def _learn(self, report):
        if report.losses is not None:
            self._counts[report.selection.clients[: report.clients.size]] += report.losses


class WantsUnsaidLosses(Counting):
    def _learn(self, report):
        if report.clients.size:
            self._counts[report.clients] += report.losses


class WantsDurations(Counting):
    def _check_learnable(self, report):
        if report.clients.size and report.durations is None:
            raise ValueError("durations must be given")


class CannotFail(Counting):
    def _learn(self, report):
        if not report.clients.size:
            raise RuntimeError("no client reported")
        super()._learn(report)


class ReportsForEver(Counting):
    def observe(self, clients, models=None, losses=None, durations=None, failed=()):
        pending = self._pending
        super().observe(clients, models, losses, durations, failed)
        self._pending = pending


class CountsQuestions(Counting):
    def _choose(self, eligible, probe):
        picked = super()._choose(eligible, probe)
        self.round += 1
        return picked


class LearnsBeforeItChecks(Counting):
    def observe(self, clients, models=None, losses=None, durations=None, failed=()):
        self._counts[np.asarray(clients, dtype=int)] += 1.0
        super().observe(clients, models, losses, durations, failed)


class AcceptsUnselected(Counting):
    def observe(self, clients, models=None, losses=None, durations=None, failed=()):
        known = np.intersect1d(clients, self._pending.clients) if self._pending else clients
        super().observe(known, failed=[])


class DoesNotGrow(Counting):
    def _grow(self, n_clients, added):
        pass


class KeepsThePast(Counting):
    def resize(self, n_clients, weights):
        pending = self._pending
        super().resize(n_clients, weights)
        self._pending = pending


class KeepsWeightsAsGiven(Counting):
    def __init__(self, n_clients, n_select, weights=None, seed=None):
        super().__init__(n_clients, n_select, weights, seed)
        self._counts = -np.asarray(weights)
        self.weights = np.asarray(weights)


class KeepsLossesAsGiven(Counting):
    loss_statistic = "mean"
    _last = np.empty(0)

    def _learn(self, report):
        if report.losses is not None:
            self._last = report.losses

    def _learned(self):
        return {**super()._learned(), "last": self._last.copy()}

    def _restore(self, learned):
        super()._restore(learned)
        self._last = np.array(learned["last"])


class KeepsObjects(Counting):
    def _learned(self):
        return {"counts": self._counts.copy(), "seen": {1, 2}}


class GivesViews(Counting):
    def _learned(self):
        return {"counts": self._counts}


class TakesViews(Counting):
    def _restore(self, learned):
        self._counts = learned["counts"]


class ForgetsWhatItLearned(Counting):
    def _learned(self):
        return {}

    def _restore(self, learned):
        pass


class KeysByClient(Counting):
    def _learned(self):
        return {"counts": self._counts.copy(), "by_client": {1: 2.0}}


class ChangesOnDisk(Counting):
    """A file knows lists, no tuples: a policy that cares must convert."""

    _span = (0, 1)

    def _learned(self):
        return {**super()._learned(), "span": self._span}

    def _restore(self, learned):
        super()._restore(learned)
        self._span = learned["span"]


class LoadsAnything(Counting):
    @classmethod
    def from_state_dict(cls, state):
        return super().from_state_dict({**state, "policy": cls.name})


class NotASelector:
    def __init__(self, n_clients, n_select, weights, seed):
        pass


BROKEN = [
    (Nameless, "identity", "name must be a str, got ''"),
    (TakesOurName, "identity", "must not be that of a policy of cvrcore, got 'oort'"),
    (NotASelector, "identity", "must be a cvrcore.Selector, got NotASelector"),
    (SeedsItself, "same-seed", "seed=7 must give the same selections twice"),
    (IgnoresSeed, "other-seed", "seeds 7 and 8 must give different selections"),
    (DrawsGlobally, "global-random", "global random state must not be moved"),
    (ShufflesGlobally, "global-random", "global random state must not be moved"),
    (PicksTwice, "picks", "clients must be distinct"),
    (PicksAnybody, "availability", "only available client 0 must be picked"),
    (PicksAnybody, "picks", "must be available and of positive weight"),
    (PicksPositions, "picks", "must be available and of positive weight"),
    (FixesItsSize, "asked-sizes", "select(n=1) must pick 1 clients, got 4"),
    (PicksAnybody, "quotas", "quotas must be kept: "),
    (PicksBusy, "overlap", "a busy client must not be picked"),
    (ForgetsTheRound, "picks", "round must be the selector's round 1, got 0"),
    (NeedsACrowd, "sizes", "min(n_select, eligible) = 2 clients must be picked, got 1"),
    (NeedsACrowd, "partial-reports", "4 clients must be picked when so many are eligible"),
    (StatesNoLaw, "laws", "probabilities must be 0 for those who cannot be picked"),
    (StatesWrongInclusion, "laws", "inclusion must sum to the"),
    (NeedsEverybodyBack, "partial-reports", "raised ValueError"),
    (MistakesTheOrder, "report-order", "must not depend on the order"),
    (WantsUnsaidLosses, "stated-needs", "loss_statistic"),
    (WantsDurations, "stated-needs", "durations must be given"),
    (CannotFail, "failures", "raised RuntimeError: no client reported"),
    (ReportsForEver, "one-report", "a second observe of one round must be refused"),
    (CountsQuestions, "abandoned-round", "must be the selector's round"),
    (
        LearnsBeforeItChecks,
        "rejected-calls",
        "leave the state as it was, but state['learned']",
    ),
    (AcceptsUnselected, "rejected-calls", "the report of a client not selected must be refused"),
    (DoesNotGrow, "resize", "raised IndexError"),
    (KeepsThePast, "resize", "must drop the pending round"),
    (KeepsWeightsAsGiven, "copies", "arrays must be copied"),
    (KeepsLossesAsGiven, "copies", "arrays must be copied"),
    (KeepsObjects, "plain-state", "state['learned']['seen'] must be an array or a plain value"),
    (GivesViews, "snapshot", "changed when the selector went on: state['learned']['counts']"),
    (TakesViews, "snapshot", "changed when a selector made from it went on"),
    (ForgetsWhatItLearned, "restore", "from_state_dict between rounds must go on to the same"),
    (KeysByClient, "plain-state", "must have str keys, got 1"),
    (ChangesOnDisk, "file", "save and load between rounds must give the same state"),
    (LoadsAnything, "foreign-state", "must refuse a state of another policy"),
]


def test_a_correct_policy_passes():
    check_selector(Counting)


@pytest.mark.parametrize(("policy", "check", "message"), BROKEN)
def test_a_broken_policy_is_caught_by_the_check_for_it(policy, check, message):
    with pytest.raises(ConformanceError) as caught:
        check_selector(policy, only=[check])
    assert message in caught.value.failures[check]
    assert f"- {check}: " in str(caught.value)


def test_all_failures_are_listed_together():
    with pytest.raises(
        ConformanceError, match=r"(?s)counting fails \d of 25 checks:.*- sizes: .*- "
    ) as caught:
        check_selector(NeedsACrowd)
    assert {"picks", "sizes", "partial-reports", "resize"} <= set(caught.value.failures)


def test_every_check_catches_something():
    assert {check for _, check, _ in BROKEN} == {check.name for check in CHECKS}


def test_a_deterministic_policy_may_ignore_its_seed():
    class Largest(UniformSelector):
        name = "largest"

        def _choose(self, eligible, probe):
            order = np.argsort(np.where(eligible, -self.weights, np.inf), kind="stable")
            wanted = min(self.n_select, np.count_nonzero(eligible))
            return Selection(clients=order[:wanted], round=self.round)

    with pytest.raises(ConformanceError) as caught:
        check_selector(Largest)
    assert list(caught.value.failures) == ["other-seed"]
    assert "other-seed" not in check_selector(Largest, deterministic=True)


@pytest.mark.parametrize("check", selector_checks(), ids=repr)
def test_checks_run_one_by_one(check):
    assert check_selector(Counting, only=[check.name]) == [check.name]


def test_a_function_may_build_the_policy():
    def build(n_clients, n_select, weights, seed, label_counts):
        assert label_counts.shape[0] == n_clients
        return Counting(n_clients, n_select, weights, seed)

    check_selector(build)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="only must hold names of checks .*, got 'seed'"):
        check_selector("uniform", only=["seed"])
    with pytest.raises(ValueError, match="name must be one of .*, got 'unifrom'"):
        check_selector("unifrom")
    with pytest.raises(TypeError, match="policy must be a name, a subclass"):
        check_selector(3)
    with pytest.raises(ConformanceError, match="unexpected keyword argument 'alpha'"):
        check_selector("uniform", alpha=1)


def test_the_global_random_state_is_put_back():
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    check_selector("uniform", only=["global-random"])
    after = np.random.rand(), random.random()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    assert after == (np.random.rand(), random.random())  # noqa: NPY002


@pytest.mark.parametrize(
    ("other", "where"),
    [
        ({"a": [1, 2]}, "state has the keys"),
        ({"a": [1, 2], "b": [3]}, r"state\['b'\] has 2 and 1 items"),
        ({"a": [1, 2.0], "b": [3, 4]}, r"state\['a'\]\[1\] is int and float"),
        ({"a": [1, 2], "b": [3, 5]}, r"state\['b'\]\[1\]"),
    ],
)
def test_the_difference_of_two_states_is_located(other, where):
    assert re.search(where, difference({"a": [1, 2], "b": [3, 4]}, other))
    assert difference(other, other) is None
