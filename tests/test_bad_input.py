"""Every public function names the argument, the rule and the value; state stays as it was."""

import numpy as np
import pytest
from numpy.testing import assert_equal

import cvrcore
from cvrcore.features import FeatureMap

MODELS = np.random.default_rng(0).normal(size=(6, 3))
COV = np.stack([np.eye(6)] * 3)
LABELS = np.array([0, 0, 1, 1, 2, 2])
NAN = MODELS.copy()
NAN[2, 1] = np.nan
NEGATIVE = COV.copy()
NEGATIVE[0, 3, 3] = -1.0


def select(**changes):
    return cvrcore.select(**{"models": MODELS, "n_select": 2, "seed": 0, **changes})


def selector(**changes):
    settings = {"n_clients": 6, "n_features": 3, "n_select": 2, **changes}
    return cvrcore.CoalitionSelector(**settings)


def update(**changes):
    settings = {"covariance": COV, "models": MODELS, "clients": [0, 2], "coalitions": LABELS}
    return cvrcore.update_covariance(**{**settings, "rate": 0.5, **changes})


CASES = [
    (select, {"models": np.ones(6)}, r"models must have shape \(any, any\), got \(6,\)"),
    (select, {"models": np.empty((0, 3))}, r"models must not be empty, got shape \(0, 3\)"),
    (select, {"models": NAN}, r"models must be finite, got nan at \[2, 1\]"),
    (select, {"models": MODELS * np.inf}, "models must be finite"),
    (select, {"models": MODELS + 1j}, "models must be a real numeric array, got dtype complex128"),
    (select, {"models": [["a", "b"]]}, "models must be a real numeric array"),
    (select, {"models": [[1.0, 2.0], [3.0]]}, "models must be a numeric array"),
    (select, {"n_select": 7}, "n_select must be at most 6, got 7"),
    (select, {"n_select": 0}, "n_select must be at least 1, got 0"),
    (select, {"n_select": 2.5}, "n_select must be an integer, got 2.5"),
    (select, {"n_select": True}, "n_select must be an integer, got True"),
    (select, {"weights": np.ones(5)}, r"weights must have shape \(6,\), got \(5,\)"),
    (select, {"weights": [1, 1, -2, 1, 1, 1]}, r"weights must be non-negative, got -2 at \[2\]"),
    (select, {"weights": np.zeros(6)}, "weights must not be all zero"),
    (select, {"covariance": COV[:2]}, "one matrix for each of 3 features, got 2"),
    (select, {"covariance": COV[0]}, r"covariance must have shape \(n_features, 6, 6\)"),
    (select, {"covariance": NEGATIVE}, "covariance must have a non-negative diagonal, got -1"),
    (select, {"covariance": COV * np.nan}, "covariance must be finite"),
    (select, {"covariance": COV * 1j}, "covariance must be a real numeric array, got dtype compl"),
    (cvrcore.variance_reduction, {"covariance": np.empty((0, 2, 2)), "weights": [1, 1]}, "empty"),
    (select, {"kernel": "linear"}, "kernel must be one of 'rbf', .*, got 'linear'"),
    (select, {"gamma": -1.0}, "gamma must be positive, got -1"),
    (select, {"gamma": "mean"}, "gamma must be a positive number or 'median', got 'mean'"),
    (select, {"temperature": 0.0}, "temperature must be positive, got 0"),
    (select, {"temperature": np.nan}, "temperature must be finite, got nan"),
    (select, {"temperature": "hot"}, "temperature must be a number, got 'hot'"),
    (select, {"available": np.zeros(6, dtype=bool)}, "available must contain at least one client"),
    (select, {"available": np.ones(5, dtype=bool)}, r"a mask of shape \(6,\) or ids"),
    (select, {"available": [0, 6]}, r"available must be ids in 0..5, got 6"),
    (select, {"available": [-1, 2]}, r"available must be ids in 0..5, got -1"),
    (select, {"available": [2, 2]}, "available must be distinct, got 2 more than once"),
    (select, {"available": [0.5]}, "available must be integer ids, got dtype float64"),
    (select, {"score": "rank"}, "score must be one of 'raw', 'zscore', 'log', got 'rank'"),
    (select, {"within": "best"}, "within must be one of"),
    (selector, {"preset": "authors"}, "preset must be one of 'paper', 'scripts', got 'authors'"),
    (selector, {"predictor": "ols"}, "predictor must be one of"),
    (selector, {"warmup": -1}, "warmup must be at least 0, got -1"),
    (selector, {"rate": 1.0}, "rate must be below 1, got 1"),
    (selector, {"rate": "fast"}, "rate must be one of 'decay', got 'fast'"),
    (selector, {"rate": [0.1]}, "rate must be a number"),
    (selector, {"predictor": ""}, "predictor must be one of"),
    (selector, {"initial": [1e200, 0, 0]}, "initial must stay within"),
    (selector, {"seed": np.random.default_rng(0)}, "seed must be .*, got a Generator"),
    (select, {"available": [0, 1, 1, 0, 1, 0]}, "must be a boolean mask or ids, got a mask of int"),
    (selector, {"dtype": "float16"}, "dtype must be float32 or float64, got float16"),
    (selector, {"dtype": "real"}, "dtype must be float32 or float64, got 'real'"),
    (selector, {"store": "disk"}, "store must be one of"),
    (selector, {"store": "none"}, "store must not be 'none' with predictor 'regression'"),
    (selector, {"recluster_every": 0}, "recluster_every must be at least 1, got 0"),
    (selector, {"initial": np.ones(4)}, r"initial must have shape \(3,\), got \(4,\)"),
    (selector, {"initial": np.ones((5, 3))}, r"initial must have shape \(6, 3\), got \(5, 3\)"),
    (selector, {"n_select": 7}, r"n_select must be at most n_clients \(6\), got 7"),
    (selector, {"seed": "x"}, "seed must be"),
    (update, {"clients": [0, 1]}, "one representative a coalition, got 2 in coalition 0"),
    (update, {"clients": [9]}, r"clients must be ids in 0..5, got 9"),
    (update, {"coalitions": [0, 0, 1, 1, 3, 3]}, "must use every label, got none in coalition 2"),
    (update, {"coalitions": [0, 1]}, r"coalitions must have shape \(6,\), got \(2,\)"),
    (update, {"coalitions": []}, r"coalitions must have shape \(6,\), got \(0,\)"),
    (update, {"coalitions": LABELS + 0.5}, "coalitions must be integer labels"),
    (update, {"coalitions": LABELS - 1}, r"coalitions must be labels in 0..5, got -1"),
    (update, {"rate": 1.5}, "rate must be at most 1, got 1.5"),
    (update, {"predictor": "cosine"}, "previous rows are required by predictor 'cosine'"),
    (update, {"models": MODELS[:, :2]}, r"models must have shape \(6, 3\), got \(6, 2\)"),
]


@pytest.mark.parametrize(("function", "change", "message"), CASES)
def test_message_names_argument_rule_and_value(function, change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        function(**change)


def test_steps_check_their_own_arguments():
    with pytest.raises(ValueError, match="scores must be finite, got nan"):
        cvrcore.boltzmann([np.nan, 1.0], [0, 0])
    with pytest.raises(ValueError, match=r"coalitions must have shape \(3,\), got \(2,\)"):
        cvrcore.boltzmann([0.0, 1.0, 2.0], [0, 0])
    with pytest.raises(ValueError, match="n_coalitions must be at most 6, got 9"):
        cvrcore.coalitions(MODELS, 9)
    with pytest.raises(ValueError, match="kernel must be one of"):
        cvrcore.influence(MODELS, "poly")
    with pytest.raises(ValueError, match="name must be one of .*, got 'random'"):
        cvrcore.make_selector("random", 6, 2)
    with pytest.raises(TypeError, match="temprature is not an option of uniform"):
        cvrcore.make_selector("uniform", 6, 2, temprature=1)


def rounds_in(n_rounds, pending):
    rng = np.random.default_rng(1)
    found = selector(warmup=1, seed=0)
    for _ in range(n_rounds):
        picked = found.select()
        found.observe(picked.clients, rng.normal(size=(len(picked), 3)))
    return found, found.select() if pending else None


BAD_REPORTS = {
    "NaN": (lambda c: (c, np.full((2, 3), np.nan)), {}, "models must be finite"),
    "huge": (lambda c: (c, np.full((2, 3), 1e160)), {}, "models must stay within .* got 1e\\+160"),
    "huge below 0": (lambda c: (c, np.full((2, 3), -1e160)), {}, "models must stay within"),
    "shape": (lambda c: (c, np.ones((2, 4))), {}, r"models must have shape \(2, 3\)"),
    "rows": (lambda c: (c[:1], np.ones((2, 3))), {}, r"models must have shape \(1, 3\)"),
    "missing": (lambda c: (c, None), {}, "models of the 2 clients are required, got None"),
    "stranger": (lambda c: ([c[0], 5 if 5 not in c else 4], np.ones((2, 3))), {}, "selected this"),
    "range": (lambda c: ([c[0], 6], np.ones((2, 3))), {}, r"clients must be ids in 0..5, got 6"),
    "repeated": (lambda c: ([c[0], c[0]], np.ones((2, 3))), {}, "clients must be distinct"),
    "both": (lambda c: (c, np.ones((2, 3))), {"failed": 0}, "failed must not name clients"),
    "duration": (lambda c: (c, np.ones((2, 3))), {"durations": [1, -1]}, "must be positive"),
    "losses": (lambda c: (c, np.ones((2, 3))), {"losses": [1.0]}, r"losses must have shape"),
}


@pytest.mark.parametrize("case", BAD_REPORTS)
@pytest.mark.parametrize("n_rounds", [0, 5])
def test_rejected_report_leaves_the_state_as_it_was(case, n_rounds):
    found, picked = rounds_in(n_rounds, pending=True)
    make, options, message = BAD_REPORTS[case]
    clients, models = make(picked.clients)
    if "failed" in options:
        options = {"failed": picked.clients[:1]}
    before = found.state_dict()
    with pytest.raises((ValueError, TypeError), match=message):
        found.observe(clients, models, **options)
    assert_equal(found.state_dict(), before)
    found.observe(picked.clients, np.ones((2, 3)))  # the round is still open


def test_float32_refuses_rows_whose_squares_overflow():
    found = selector(dtype="float32", seed=0)
    picked = found.select()
    for value in (1e39, 1e20):
        with pytest.raises(ValueError, match="models must"):
            found.observe(picked.clients, np.full((2, 3), value))


@pytest.mark.parametrize("n_rounds", [0, 5])
def test_rejected_select_and_resize_leave_the_state_as_it_was(n_rounds):
    found, _ = rounds_in(n_rounds, pending=False)
    before = found.state_dict()
    for bad in ([7], np.zeros(6, dtype=bool), [1, 1], ["a"]):
        with pytest.raises((ValueError, TypeError), match="available"):
            found.select(bad)
    with pytest.raises(ValueError, match="losses must follow probe"):
        found.select(losses=[1.0])
    with pytest.raises(ValueError, match="observe must follow select: no round is pending"):
        found.observe([0], np.ones((1, 3)))
    with pytest.raises(ValueError, match="n_clients must be at least 6, got 5"):
        found.resize(5, [])
    with pytest.raises(ValueError, match=r"weights must have shape \(2,\), got \(1,\)"):
        found.resize(8, [1.0])
    with pytest.raises(ValueError, match="weights must be non-negative, got -1"):
        found.resize(7, [-1.0])
    assert_equal(found.state_dict(), before)


def test_foreign_state_is_refused_and_the_selector_kept():
    found, _ = rounds_in(3, pending=False)
    before = found.state_dict()
    other = cvrcore.make_selector("uniform", 6, 2).state_dict()
    with pytest.raises(ValueError, match="state must be of policy 'fedcvr-bolt', got 'uniform'"):
        found.load_state_dict(other)
    for name in ("rows", "moment", "labels", "stale", "scores"):
        broken = found.state_dict()
        broken["learned"][name] = np.ones(2)
        with pytest.raises(ValueError, match="must|malformed"):
            found.load_state_dict(broken)
    with pytest.raises(ValueError, match="incomplete or malformed"):
        found.load_state_dict({"policy": "fedcvr-bolt", "format": 1})
    assert_equal(found.state_dict(), before)


def test_features_name_the_array_that_does_not_fit():
    watched = FeatureMap.last_layer([np.ones((4, 3)), np.ones(4)])
    with pytest.raises(ValueError, match=r"array '0' must have shape \(4, 3\), got \(4, 2\)"):
        watched.extract([np.ones((4, 2)), np.ones(4)])
    with pytest.raises(ValueError, match="model must hold the array '1'"):
        watched.extract([np.ones((4, 3))])
    with pytest.raises(TypeError, match="model must be a list or a dict of arrays, got str"):
        watched.extract("weights")
    with pytest.raises(ValueError, match="model must hold at least one array"):
        FeatureMap.whole([])
