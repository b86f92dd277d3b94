"""NVFlare's controller against one hostile client: whatever it sends, the server goes on."""

import logging

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'cvrcore[nvflare]'")

import numpy as np
from fuzzing import fuzz
from hostile import COUNTS, VALUES, arrays, is_loss, models, same
from hypothesis import given
from hypothesis import strategies as st
from nvflare.app_common.abstract.fl_model import ParamsType
from nvflare_fakes import Controller, honest, quiet_context  # noqa: F401

HOSTILE, ROUNDS = "site-3", 3
SHAPES = {"weight": (3, 4), "bias": (3,)}


def params():
    return models(SHAPES, VALUES)


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("params"), params()),
        st.tuples(st.just("params"), params()),
        st.tuples(st.just("params"), st.one_of(params(), VALUES)),
        st.tuples(st.just("params_type"), st.sampled_from([*ParamsType, None, "odd"])),
        st.tuples(st.just("metrics"), VALUES),
        st.tuples(
            st.just("metric"),
            st.tuples(
                st.sampled_from(["train_loss", "loss", "x"]), st.one_of(VALUES, arrays((2,)))
            ),
        ),
        st.tuples(st.just("meta"), st.sampled_from([{}, None])),
        st.tuples(
            st.just("fact"),
            st.one_of(
                st.tuples(st.just("label_counts"), COUNTS),
                st.tuples(
                    st.sampled_from(["n_samples", "selection_loss", "NUM_STEPS_CURRENT_ROUND"]),
                    VALUES,
                ),
            ),
        ),
    ),
    min_size=1,
    max_size=2,
)
PLANS = st.fixed_dictionaries(
    {
        "train": st.lists(CHANGES, min_size=ROUNDS, max_size=ROUNDS),
        "introduce": st.one_of(st.just([]), st.just([]), CHANGES),
        "probe": st.one_of(st.just([]), CHANGES),
    }
)


def spoilt(result, changes):
    for what, value in changes:
        if what == "metric":
            if isinstance(result.metrics, dict):
                result.metrics[value[0]] = value[1]
        elif what == "fact":
            result.meta = {**(result.meta or {}), value[0]: value[1]}
        else:
            copied = dict(value) if isinstance(value, dict) else value
            setattr(result, what, copied)
    if result.meta is None:
        result.meta = {}  # the server itself writes the name of the client there
    return result


class Fake(Controller):
    def fire_event(self, *args):
        pass

    def exception(self, text):
        raise AssertionError(text)

    def panic(self, text):
        raise AssertionError(text)


def run(policy, plan, refused=None, **options):
    n_trained = [0]

    def answer(name, task, data):
        (result,) = honest(name, task, data)
        if name != HOSTILE:
            yield result
            return
        kind = "train" if task == "train" else "introduce" if "introduce" in data.meta else "probe"
        changes = plan[kind]
        if kind == "train":
            n_trained[0] += 1
            changes = plan[kind][n_trained[0] - 1]
            no = refused and refused["train"][n_trained[0] - 1]
        elif kind == "introduce":
            no = refused and refused["introduce"]
        else:
            told = spoilt(result, changes).metrics if refused else {}
            loss = told if isinstance(told, dict) else {}
            loss = loss.get("loss") if isinstance(loss, dict) else None
            no = refused and not is_loss(loss)
        if no:
            yield "EXECUTION_EXCEPTION"
        else:
            yield spoilt(result, changes)

    controller = Fake(
        policy, n_select=5, seed=1, num_rounds=ROUNDS, introduce="validate", answer=answer,
        timeout=5, wait=1, **options,
    )  # fmt: skip
    controller.run()
    return controller


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@fuzz(100)
@given(
    policy=st.sampled_from(
        ["uniform", "fedcvr-bolt", "power-of-choice", "oort", "active", "fedcbs"]
    ),
    aggregator=st.sampled_from([None, None, "memory"]),
    plan=PLANS,
)
def test_one_hostile_client_ends_nothing_and_changes_nobody_else(policy, aggregator, plan):
    options = {"aggregator": aggregator}
    if policy == "fedcvr-bolt":
        options["warmup"] = 1
    controller = run(policy, plan, **options)
    assert len(controller.rounds) == ROUNDS
    for one in controller.rounds:
        assert set(one.failed) <= {HOSTILE}, one.failed
    failed = [bool(one.failed) for one in controller.rounds if HOSTILE in one.selected]
    refused = {"train": failed, "introduce": HOSTILE not in controller.roster.ids}
    twin = run(policy, plan, refused, **options)
    assert [one.selected for one in twin.rounds] == [one.selected for one in controller.rounds]
    assert same(controller.roster.state_dict(), twin.roster.state_dict())
    for ours, theirs in zip(controller.merged, twin.merged, strict=True):
        assert same(ours.params, theirs.params)
        assert all(np.isfinite(array).all() for array in ours.params.values())
