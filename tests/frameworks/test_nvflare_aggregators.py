"""Aggregators of cvrcore inside NVFlare's controller."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'cvrcore[nvflare]'")

from by_hand import rounds_by_hand  # noqa: E402
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType  # noqa: E402
from nvflare.app_common.utils.fl_model_utils import FLModelUtils  # noqa: E402
from nvflare.job_config.api import FedJob  # noqa: E402
from test_nvflare import NAMES, Controller, honest, picks, quiet_context, trained  # noqa: E402

from cvrcore.aggregators import AGGREGATORS, ModelAverage, make_aggregator  # noqa: E402
from cvrcore.integrations.nvflare import SelectingController  # noqa: E402
from cvrcore.state import load_state  # noqa: E402

__all__ = ["quiet_context"]  # a fixture that acts by itself

SIZES = {name: 10.0 + 3 * k for k, name in enumerate(NAMES)}


class Updating(Controller):
    """Takes over what was merged as NVFlare does."""

    def update_model(self, model, merged):
        self.merged.append(merged)
        return FLModelUtils.update_model(model, merged)


def make_controller(**settings):
    settings = {
        "selector": "fedcvr-bolt", "n_select": 3, "seed": 0, "num_rounds": 8, "clients": SIZES,
        "options": {"warmup": 2}, "answer": honest, **settings,
    }  # fmt: skip
    return Updating(**settings)


def run(**settings):
    controller = make_controller(**settings)
    controller.run()
    return controller


def plain_start():
    return {"weight": np.zeros((3, 4)), "bias": np.zeros(3)}


def plain_loop(aggregator, rounds=8, updates=False):
    """FedCVR-Bolt and an aggregator by hand: picks, and the model after each round."""
    done = list(
        rounds_by_hand(
            aggregator, plain_start(), lambda k, model, t: trained(NAMES[k], model, t),
            list(SIZES.values()), 3, 0, rounds, updates,
        )
    )  # fmt: skip
    return [[NAMES[k] for k in clients] for clients, _ in done], [model for _, model in done]


@pytest.mark.parametrize("name", AGGREGATORS)
def test_merges_as_the_plain_loop_does(name):
    controller = run(aggregator=name)
    expected, models = plain_loop(make_aggregator(name))
    assert picks(controller) == expected
    for merged, model in zip(controller.merged, models, strict=True):
        for key, array in model.items():
            assert_array_equal(merged.params[key], array)


def test_ready_aggregator_serves_too():
    controller = run(aggregator=make_aggregator("memory", unseen="zero"))
    _, models = plain_loop(make_aggregator("memory", unseen="zero"))
    assert_array_equal(controller.merged[-1].params["bias"], models[-1]["bias"])


def test_differences_are_merged_as_whole_models():
    def differing(name, task, data):
        for result in honest(name, task, data):
            step = {k: result.params[k] - data.params[k] for k in result.params}
            yield FLModel(params=step, params_type=ParamsType.DIFF)

    controller = run(aggregator="memory", answer=differing)
    _, models = plain_loop(make_aggregator("memory"))
    assert controller.merged[-1].params_type == ParamsType.FULL
    for key, array in models[-1].items():
        # A difference, added again, rounds; what is remembered is in float32.
        np.testing.assert_allclose(controller.merged[-1].params[key], array, rtol=1e-6)


@pytest.mark.parametrize("name", ["memory", "coalition-memory", "factor-memory"])
def test_restored_state_continues_to_the_same_model(name, tmp_path):
    whole = run(aggregator=name)
    first = run(aggregator=name, num_rounds=4, tmp_path=tmp_path, checkpoint="{round}.npz")
    second = make_controller(
        aggregator=name, num_rounds=4, start_round=4, seed=99, restore=str(tmp_path / "4.npz"),
        tmp_path=tmp_path,
    )  # fmt: skip
    second.start = first.start
    second.run()
    assert picks(first) + picks(second) == picks(whole)
    for key, array in whole.merged[-1].params.items():
        assert_array_equal(second.merged[-1].params[key], array)


def test_state_of_another_aggregator_is_refused(tmp_path):
    run(num_rounds=1, tmp_path=tmp_path, checkpoint="state.npz")
    with pytest.raises(ValueError, match="aggregator must be None, as in the saved state"):
        run(aggregator="memory", restore="state.npz", tmp_path=tmp_path)


def test_metrics_and_the_default_are_still_nvflares():
    plain, ours = run(num_rounds=1), run(num_rounds=1, aggregator="memory")
    assert plain.roster.aggregator is None
    assert ours.merged[0].metrics == plain.merged[0].metrics
    assert "train_loss" in ours.merged[0].metrics
    assert ours.merged[0].meta == plain.merged[0].meta
    models = [trained(name, plain_start(), 0) for name in plain.rounds[0].reported]
    for key, array in plain.merged[0].params.items():
        mean = np.mean([one[key] for one in models], axis=0)
        np.testing.assert_allclose(array, mean, rtol=1e-12)


def test_model_too_far_away_fails_alone():
    def far(name, task, data):
        for result in honest(name, task, data):
            if name == "site-3":
                result.params["bias"] = np.full(3, 1e300)
            yield result

    controller = run(aggregator="memory", selector="uniform", options=None, n_select=7, answer=far)
    for one in controller.rounds:
        assert list(one.failed) == ["site-3"]
        assert "must stay within 1e+17, got 1e+300" in one.failed["site-3"]
    assert np.isfinite(controller.merged[-1].params["bias"]).all()


def test_updates_are_watched_instead_of_models():
    expected, _ = plain_loop(make_aggregator("mean"), rounds=12, updates=True)
    assert expected != plain_loop(make_aggregator("mean"), rounds=12)[0]
    controller = run(aggregator="mean", features="update", num_rounds=12)
    assert picks(controller) == expected


def test_name_travels_in_a_job(tmp_path):
    job = FedJob("kept", min_clients=2)
    job.set_app_packages(["cvrcore"])
    job.to_server(
        SelectingController(
            "pivotal", n_select=2, aggregator="memory", features="head", average=0.5
        )
    )
    job.export_job(str(tmp_path))
    (config,) = tmp_path.rglob("config_fed_server.json")
    (workflow,) = json.loads(config.read_text())["workflows"]
    again = SelectingController(**workflow["args"])
    assert again.roster.aggregator.name == "memory"
    assert (again.features, again.average) == ("head", 0.5)


def test_documented_snippets_run():
    """docs/nvflare.md, its job, options and aggregator, as printed."""
    text = (Path(__file__).parents[2] / "docs" / "nvflare.md").read_text()
    job, balanced, options, aggregation = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {}
    exec(job, names)
    exec(balanced, names)
    controller = names["Balanced"](n_clients=1000, model_size=160_000, num_rounds=100)
    assert controller.roster.aggregator.name == "factor-memory"
    assert (controller.average, controller.features) == (0.8, "head")
    exec(options, names)
    assert names["controller"].waiting.grace == 5
    assert names["controller"].guards.max_share == 1.25
    exec(aggregation, names)
    assert names["controller"].roster.aggregator.name == "memory"


def test_unknown_name_is_refused():
    with pytest.raises(ValueError, match="aggregator must be one of .*did you mean 'memory'"):
        SelectingController("uniform", n_select=2, aggregator="memmory")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "must give an initial model to aggregator 'memory'; got none"),
        ({"bias": [0.0]}, "must give NumPy arrays to aggregator 'memory', got list as 'bias'"),
    ],
)
def test_initial_model_that_cannot_be_merged_is_refused(params, message):
    controller = make_controller(selector="uniform", options=None, aggregator="memory")
    controller.start = FLModel(params=params)
    with pytest.raises(ValueError, match=message):
        controller.run()
    assert controller.sent == []


def test_the_persistor_saves_the_average(tmp_path):
    saved = []

    class Saving(Updating):
        def save_model(self, model):
            saved.append({name: array.copy() for name, array in model.params.items()})

    settings = {"aggregator": "memory", "average": 0.5, "checkpoint": str(tmp_path / "{round}.npz")}
    controller = Saving(
        selector="fedcvr-bolt", n_select=3, seed=0, num_rounds=8, clients=SIZES,
        options={"warmup": 2}, answer=honest, **settings,
    )  # fmt: skip
    controller.persistor = object()
    controller.run()
    _, models = plain_loop(make_aggregator("memory"))
    average = ModelAverage(0.5)
    for found, model in zip(saved, models, strict=True):
        for array, wanted in zip(found.values(), average.update(list(model.values())), strict=True):
            assert_array_equal(array, wanted)
    state = load_state(tmp_path / "8.npz")["average"]
    assert (state["names"], state["count"]) == (["weight", "bias"], 8)
