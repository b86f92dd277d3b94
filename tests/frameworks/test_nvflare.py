"""The NVFlare controller, its messages replaced by a table of answers."""

import json
import logging

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'cvrcore[nvflare]'")

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType  # noqa: E402
from nvflare.app_common.np.np_model_persistor import NPModelPersistor  # noqa: E402
from nvflare.fuel.utils.component_builder import ComponentBuilder  # noqa: E402
from nvflare.job_config.api import FedJob  # noqa: E402
from nvflare_fakes import NAMES, Controller, honest, quiet_context, trained  # noqa: E402, F401

import cvrcore  # noqa: E402
from cvrcore.features import FeatureMap  # noqa: E402
from cvrcore.integrations.nvflare import (  # noqa: E402
    Guards,
    Reports,
    SelectingController,
    Waiting,
    Workflow,
)
from cvrcore.integrations.roster import ClientInfo  # noqa: E402


def picks(controller):
    return [one.selected for one in controller.rounds]


def run(*args, **kwargs):
    kwargs.setdefault("answer", honest)
    controller = Controller(*args, **{"n_select": 3, "seed": 0, "num_rounds": 8, **kwargs})
    controller.run()
    return controller


@pytest.mark.parametrize(
    "policy", ["uniform", "power-of-choice", "active", "oort", "fedcbs", "fedcvr-bolt"]
)
def test_every_policy_runs_and_repeats_itself(policy):
    options = {"warmup": 2} if policy == "fedcvr-bolt" else {}
    runs = [run(policy, introduce="validate", options=options) for _ in range(2)]
    assert picks(runs[0]) == picks(runs[1])
    assert len(runs[0].merged) == 8
    assert all(sorted(one.reported) == sorted(one.selected) for one in runs[0].rounds)


def test_picks_are_those_of_the_selector_by_hand():
    controller = run("fedcvr-bolt", options={"warmup": 2}, n_features=10)
    start = {"weight": np.zeros((3, 4)), "bias": np.zeros(3)}
    watched = FeatureMap.last_layer(start, 10, 0)
    selector = cvrcore.make_selector(
        "fedcvr-bolt", 7, 3, seed=0, n_features=10, warmup=2, initial=watched.extract(start)
    )
    params, expected = start, []
    for t in range(8):
        clients = selector.select().clients
        models = [trained(NAMES[k], params, t) for k in clients]
        selector.observe(clients, watched.extract_all(models))
        order = np.argsort(clients)
        params = {k: np.mean([models[i][k] for i in order], axis=0) for k in params}
        expected.append([NAMES[k] for k in clients])
    assert picks(controller) == expected


def test_a_ready_selector_is_taken():
    selector = cvrcore.make_selector("uniform", 7, 3, seed=5)
    again = cvrcore.make_selector("uniform", 7, 3, seed=5)
    controller = Controller(selector, num_rounds=3, answer=honest)
    controller.run()
    assert picks(controller) == [[NAMES[k] for k in again.select().clients] for _ in range(3)]


def test_differences_are_watched_as_whole_models():
    def differing(name, task, data):
        for result in honest(name, task, data):
            step = {k: result.params[k] - data.params[k] for k in result.params}
            yield FLModel(params=step, params_type=ParamsType.DIFF)

    class Adding(Controller):
        def update_model(self, model, merged):
            model.params = {k: model.params[k] + merged.params[k] for k in model.params}
            return model

    settings = {"n_select": 3, "seed": 0, "num_rounds": 8, "options": {"warmup": 2}}
    by_steps = Adding("fedcvr-bolt", answer=differing, **settings)
    by_steps.run()
    assert picks(by_steps) == picks(run("fedcvr-bolt", options={"warmup": 2}))


def test_invalid_answers_are_reported_as_failed():
    def faulty(name, task, data):
        (sound,) = honest(name, task, data)
        if name == "site-1":
            yield "EXECUTION_EXCEPTION"
        elif name == "site-2":
            yield FLModel(params={"weight": np.full((3, 4), np.nan), "bias": np.zeros(3)})
        elif name == "site-3":
            yield FLModel(params={"weight": np.zeros((4, 3)), "bias": np.zeros(3)})
        elif name == "site-4":
            yield FLModel(metrics={})
        elif name == "site-5":
            yield sound
            yield FLModel(params=trained("site-5", data.params, 99))
        elif name == "site-7":
            yield sound

    controller = run("uniform", n_select=7, answer=faulty, num_rounds=2)
    for one in controller.rounds:
        assert one.reported == ["site-5", "site-7"]
        assert one.failed["site-1"] == "its return code is EXECUTION_EXCEPTION"
        assert "finite" in one.failed["site-2"]
        assert "must have shape (3, 4), got (4, 3)" in one.failed["site-3"]
        assert "no parameters" in one.failed["site-4"]
        assert one.failed["site-6"] == "no answer in time"
    assert any("answered twice" in text for text in controller.logged)
    expected = [trained(n, {"bias": np.zeros(3)}, 0) for n in ("site-5", "site-7")]
    assert controller.merged[0].params["weight"].shape == (3, 4)
    assert len(expected) == controller.merged[0].meta["nr_aggregated"]


def test_an_unasked_answer_is_logged_and_left_out(caplog):
    class Crowded(Controller):
        def broadcast_model(self, data, *, targets, **settings):
            (uninvited,) = honest(next(n for n in NAMES if n not in targets), "train", data)
            uninvited.meta["client_name"] = next(n for n in NAMES if n not in targets)
            return [uninvited, *super().broadcast_model(data, targets=targets, **settings)]

    controller = Crowded("uniform", n_select=3, seed=0, num_rounds=2, answer=honest)
    controller.run()
    for one, merged in zip(controller.rounds, controller.merged, strict=True):
        assert sorted(one.reported) == sorted(one.selected)
        assert one.failed == {}
        assert merged.meta["nr_aggregated"] == 3
    assert caplog.text.count("replied and was not selected: ignored") == 2


def test_a_round_without_answers_keeps_the_model_and_goes_on():
    def silent(name, task, data):
        if data.current_round != 1:
            yield from honest(name, task, data)

    controller = run("fedcvr-bolt", answer=silent, num_rounds=4, options={"warmup": 1})
    assert [len(one.reported) for one in controller.rounds] == [3, 0, 3, 3]
    assert len(controller.merged) == 3


def test_clients_join_leave_and_come_back():
    def present(t):
        return {0: NAMES[:4], 1: NAMES[1:6], 2: [], 3: NAMES}.get(t, NAMES[2:])

    controller = run("fedcvr-bolt", present=present, options={"warmup": 1}, num_rounds=7)
    assert len(controller.rounds) == 6  # no client was connected in round 2
    assert any("is skipped" in text for text in controller.logged)
    for t, one in zip([0, 1, 3, 4, 5, 6], controller.rounds, strict=True):
        assert set(one.selected) <= set(present(t))
    slots = [controller.roster.ids.slot(name) for name in NAMES]
    assert slots == list(range(7))


def test_an_introduction_gives_weights_and_a_client_without_one_is_left_out():
    def shy(name, task, data):
        if name != "site-2" or task != "validate":
            yield from honest(name, task, data)

    controller = run("fedcbs", introduce="validate", answer=shy)
    weights = controller.roster.selector.weights
    assert weights.tolist() == [6, 8, 9, 10, 11, 12]
    assert "site-2" not in controller.roster.ids
    assert any("site-2 is left out" in text for text in controller.logged)
    # It holds up rounds 0, 1, 3 and 7, for no longer than `wait`, and no others.
    asked = [sent for sent in controller.sent if sent["task"] == "validate"]
    assert [sent["targets"] for sent in asked] == [NAMES, *[["site-2"]] * 3]
    assert [sent["timeout"] for sent in asked] == [67, 61, 61, 61]
    known = run("uniform", clients={name: 10.0 for name in NAMES[:3]}, num_rounds=1)
    assert known.roster.selector.weights.tolist() == [10, 10, 10, 1, 1, 1, 1]


def test_patience_is_handed_to_nvflare():
    waiting = run("uniform", num_rounds=1, timeout=30).sent[-1]
    assert (waiting["min_responses"], waiting["wait_time_after_min_received"]) == (0, 0)
    assert waiting["timeout"] == 30
    hasty = run("uniform", num_rounds=1, n_select=5, enough=0.5, grace=1.5).sent[-1]
    assert (hasty["min_responses"], hasty["wait_time_after_min_received"]) == (3, 2)


def test_other_shapes_are_left_to_an_aggregator_of_theirs():
    class Last:
        def reset_stats(self):
            pass

        def accept_model(self, model):
            self.params = model.params

        def aggregate_model(self):
            return FLModel(params=self.params)

    def growing(name, task, data):
        size = 1 + data.current_round
        yield FLModel(params={"tree": np.ones(size)})

    controller = run(
        "uniform", answer=growing, num_rounds=3, aggregator=Last(),
        reports=Reports(same_shape=False),
    )  # fmt: skip
    assert [merged.params["tree"].size for merged in controller.merged] == [1, 2, 3]
    refused = run("uniform", answer=growing, num_rounds=1)
    assert all("must be weight, bias; got tree" in w for w in refused.rounds[0].failed.values())


def test_earlier_import_path_gives_the_same_class():
    from cvrcore.integrations import nvflare, nvflare_tasks

    assert issubclass(nvflare.SelectingController, nvflare_tasks.AskingController)


def test_the_wanted_loss_is_said_and_a_missing_one_is_a_failure():
    controller = run("oort", num_rounds=1)
    assert controller.sent[-1]["meta"]["loss_statistic"] == "rms"

    def shy(name, task, data):
        for result in honest(name, task, data):
            if name != "site-1":
                result.meta.clear()
            yield result

    controller = run("oort", n_select=7, num_rounds=1, answer=shy)
    assert controller.rounds[0].reported == ["site-1"]
    assert all("rms loss is wanted" in why for why in controller.rounds[0].failed.values())


def test_probed_losses_decide_and_silence_is_no_answer():
    def half(name, task, data):
        if task != "validate" or name in NAMES[:5]:
            yield from honest(name, task, data)

    controller = run("power-of-choice", answer=half, options={"n_candidates": 7}, num_rounds=3)
    assert controller.sent[0]["task"] == "validate"
    for one in controller.rounds:  # the losses grow with the number; 6 and 7 say nothing
        assert sorted(one.selected) == ["site-3", "site-4", "site-5"]


def test_state_is_saved_and_a_restored_run_goes_on(tmp_path):
    whole = run("fedcvr-bolt", options={"warmup": 2})
    first = run(
        "fedcvr-bolt", options={"warmup": 2}, num_rounds=4, tmp_path=tmp_path,
        checkpoint="states/{round}.npz", record="picks.jsonl",
    )  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "states").iterdir()) == [
        "1.npz", "2.npz", "3.npz", "4.npz",
    ]  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "picks.jsonl").read_text().splitlines()]
    assert [line["selected"] for line in lines] == picks(first)
    second = Controller(
        "fedcvr-bolt", n_select=3, seed=99, num_rounds=4, start_round=4, answer=honest,
        restore=str(tmp_path / "states/4.npz"), tmp_path=tmp_path, options={"warmup": 2},
    )  # fmt: skip
    second.start = first.start
    second.run()
    assert picks(first) + picks(second) == picks(whole)


def test_an_aggregator_of_theirs_is_used():
    class Sum:
        def reset_stats(self):
            self.models = []

        def accept_model(self, model):
            self.models.append(model.meta["client_name"])

        def aggregate_model(self):
            return FLModel(params={"weight": np.ones((3, 4)), "bias": np.ones(3)})

    controller = run("uniform", aggregator=Sum(), num_rounds=2)
    assert controller.aggregator.models == sorted(controller.rounds[-1].selected)
    assert controller.merged[-1].params["bias"].tolist() == [1, 1, 1]


def exported(controller, folder):
    """Write a job with the controller; return the server's entry for it."""
    job = FedJob("kept", min_clients=2)
    job.set_app_packages(["cvrcore"])
    job.to_server(NPModelPersistor(), id="keeper")
    job.to_server(controller)
    job.export_job(str(folder))
    (config,) = folder.rglob("config_fed_server.json")
    (workflow,) = json.loads(config.read_text())["workflows"]
    assert not list(folder.rglob("cvrcore"))  # no copy of cvrcore is part of the job
    return workflow


class Builder(ComponentBuilder):
    """Builds the components of a saved job as NVFlare's server does."""

    def get_module_scanner(self):
        raise AssertionError("components of these jobs are named by their path")


PLAIN = {
    "n_select": 4, "seed": 7, "num_rounds": 9, "n_clients": 2, "introduce": "validate",
    "checkpoint": "a.npz", "clients": {"site-1": 5.0},
}  # fmt: skip
SINGLE = {
    "timeout": 50, "enough": 0.5, "grace": 3.0, "wait": 9.0, "durations": True, "loss_key": "nll",
    "probe": "score", "probe_key": "nll", "task": "fit", "start_round": 2,
    "persistor_id": "keeper", "task_check_period": 0.1,
}  # fmt: skip
GROUPED = {
    "waiting": Waiting(timeout=50, enough=0.5, grace=3.0, connect=9.0),
    "reports": Reports(durations=True, loss_key="nll", probe="score", probe_key="nll"),
    "workflow": Workflow("fit", "keeper", start_round=2, task_check_period=0.1),
}


@pytest.mark.parametrize("options", [SINGLE, GROUPED], ids=["keywords", "objects"])
def test_a_job_keeps_every_argument(options, tmp_path):
    policy = {"warmup": 3, "n_features": 20}
    guards = {"guards": Guards(max_share=1.25)}
    controller = SelectingController("fedcvr-bolt", **PLAIN, **options, **policy, **guards)
    workflow = exported(controller, tmp_path)
    assert workflow["path"] == "cvrcore.integrations.nvflare.SelectingController"
    assert {k: workflow["args"][k] for k in PLAIN} == PLAIN
    assert workflow["args"]["options"] == policy
    again = Builder().build_component(workflow)
    for name, group in {**GROUPED, **guards}.items():
        assert getattr(again, name) == group, name
    assert (again.start_round, again.num_rounds) == (2, 9)


def test_a_job_of_defaults_names_no_option_objects(tmp_path):
    workflow = exported(SelectingController("uniform", n_select=2), tmp_path)
    assert workflow["args"] == {"selector": "uniform", "n_select": 2}


def test_a_job_saved_by_an_earlier_version_still_loads():
    """Its arguments are plain values, policy options in a mapping of their own."""
    arguments = {**PLAIN, **SINGLE, "n_features": 20, "options": {"warmup": 3, "max_share": 1.25}}
    path = "cvrcore.integrations.nvflare.SelectingController"
    again = Builder().build_component({"path": path, "args": arguments})
    for name, group in GROUPED.items():
        assert getattr(again, name) == group, name
    again.roster.watch({"weight": np.zeros((3, 10))})
    again.roster.register({name: ClientInfo() for name in NAMES})
    assert again.roster.selector.guards.max_share == 1.25
    assert again.roster.selector.n_features == 20


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"selector": "unifrom"}, "name must be one of"),
        ({"selector": "uniform", "n_select": None}, "n_select must be given"),
        ({"selector": 3}, "selector must be a name or a Selector"),
        ({"timeout": 0}, "timeout must be positive, got 0"),
        ({"enough": 1.5}, "enough must be at most 1, got 1.5"),
        ({"grace": -1.0}, "grace must be at least 0 seconds, got -1"),
        ({"wait": 0.0}, r"connect \(keyword: wait\) must be positive, got 0"),
        ({"num_rounds": 0}, "num_rounds must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_named(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        SelectingController(**{"selector": "uniform", "n_select": 2, **settings})


def test_no_initial_model_is_an_error_before_any_client_is_asked():
    controller = Controller("fedcvr-bolt", n_select=2, answer=honest)
    controller.start = FLModel(params={})
    with pytest.raises(ValueError, match="the persistor must give an initial model"):
        controller.run()
    assert controller.sent == []


def test_waiting_for_clients_is_bounded(caplog):
    controller = run("uniform", num_rounds=1, n_clients=9, wait=0.2)
    assert "7 clients connected within wait=0.2 s, 9 wanted." in controller.logged
    assert logging.getLogger("cvrcore").level == logging.NOTSET
