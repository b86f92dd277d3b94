"""Shapley values through NVFlare, with validation samples of the server."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'cvrcore[nvflare]'")

from nvflare.app_common.abstract.fl_model import FLModel  # noqa: E402
from nvflare_fakes import NAMES, Controller, quiet_context  # noqa: E402, F401

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import softmax_digits as digits  # noqa: E402

import cvrcore  # noqa: E402

N_ROUNDS, N_SELECT = 9, 3
WRONG = {"site-6", "site-7"}  # their labels are random
VALIDATION = slice(1200, 1500)  # samples of the server, which no client has


def samples(name):
    """Return images and labels of a client: an even seventh of the first 1,200 samples."""
    x, y, _ = digits.digits(10)
    own = np.arange(NAMES.index(name), 1200, len(NAMES))
    labels = y[own]
    if name in WRONG:
        labels = np.random.default_rng(NAMES.index(name)).permutation(labels)
    return x[own], labels


def improved(name, model):
    """Return what a client makes of a model, by gradient descent."""
    x, y = samples(name)
    wanted = np.eye(digits.N_CLASSES)[y]
    model = np.array(model, dtype=np.float64)
    for _ in range(20):
        model -= 0.5 / len(y) * (digits.probabilities(model, x) - wanted).T @ x
    return model


def worth(model):
    """Return minus the loss of a model on the server's own samples."""
    x, y, _ = digits.digits(10)
    law = digits.probabilities(model["weight"], x[VALIDATION])
    return float(np.log(law[np.arange(len(law)), y[VALIDATION]] + 1e-12).mean())


def answer(name, task, data):
    yield FLModel(params={"weight": improved(name, data.params["weight"])})


def played(**options):
    controller = Controller(
        "shapley",
        N_SELECT,
        seed=0,
        num_rounds=N_ROUNDS,
        utility=worth,
        aggregator="sizes",
        answer=answer,
        options=options,
    )
    controller.start = FLModel(params={"weight": np.zeros((digits.N_CLASSES, 65))})
    controller.run()
    return controller


def test_values_are_those_of_a_loop_by_hand():
    """The worth of every group is computed here from the clients' models, without the adapter."""
    controller = played()
    selector = cvrcore.make_selector("shapley", len(NAMES), N_SELECT, seed=0)
    model = np.zeros((digits.N_CLASSES, 65))
    for one in controller.rounds:
        clients = selector.select().clients
        assert sorted(one.selected) == sorted(NAMES[k] for k in clients)
        models = {int(k): improved(NAMES[k], model) for k in clients}

        def utility(group, sent=model, models=models):
            average = np.mean([models[int(k)] for k in group], axis=0) if len(group) else sent
            return worth({"weight": average})

        # In the order of the reports: the values are estimated from random orders of it.
        selector.observe([NAMES.index(name) for name in one.reported], utilities=utility)
        model = np.mean(list(models.values()), axis=0)
    np.testing.assert_allclose(controller.roster.selector.values, selector.values, atol=1e-9)
    np.testing.assert_allclose(controller.merged[-1].params["weight"], model, atol=1e-9)


def test_clients_with_random_labels_have_the_least_value_and_are_left_out():
    controller = played()
    values = dict(zip(NAMES, controller.roster.selector.values, strict=True))
    assert set(sorted(NAMES, key=values.get)[:2]) == WRONG
    first_turns = -(-len(NAMES) // N_SELECT)  # every client once
    later = [set(one.selected) for one in controller.rounds[first_turns:]]
    assert len(later) == N_ROUNDS - first_turns
    assert not any(picked & WRONG for picked in later)


def test_a_policy_that_needs_utilities_refuses_to_start_without_them():
    with pytest.raises(ValueError, match="utility must be given to policy 'shapley'"):
        Controller("shapley", N_SELECT, seed=0)


def test_probed_norms_are_refused_before_any_client_trains():
    asked = []

    def listening(name, task, data):
        asked.append(task)
        yield from answer(name, task, data)

    controller = Controller(
        "optimal", N_SELECT, seed=0, answer=listening, options={"norms": "probed"}
    )
    with pytest.raises(ValueError, match="use norms='remembered'"):
        controller.run()
    assert "train" not in asked


def test_rounds_of_random_size_may_be_empty_and_the_job_goes_on():
    controller = Controller(
        "optimal",
        1,
        seed=1,
        num_rounds=25,
        answer=answer,
        aggregator="importance",
        options={"design": "poisson"},
    )
    controller.start = FLModel(params={"weight": np.zeros((digits.N_CLASSES, 65))})
    controller.run()
    sizes = [len(one.selected) for one in controller.rounds]
    assert len(sizes) == 25
    assert 0 in sizes
    assert max(sizes) > 1
    assert np.isfinite(controller.merged[-1].params["weight"]).all()
