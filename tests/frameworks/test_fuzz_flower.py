"""Flower's Message API against one hostile client: whatever it sends, the server goes on.

A run with the hostile client is repeated with a client that states an error wherever the
server refused the hostile content: models, states and selections must be the same to the bit.
"""

import logging

import pytest

pytest.importorskip("flwr", reason="flwr is not installed here: run `make test-frameworks`")

import numpy as np
from flower_fakes import INITIAL, FakeGrid, make_app, make_strategy, record
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian
from fuzzing import fuzz
from hostile import COUNTS, NUMBERS, VALUES, is_loss, models, same, stranger
from hypothesis import given
from hypothesis import strategies as st

from cvrcore.integrations.flower import Reveal
from cvrcore.integrations.flower.client import RECORD

N, HOSTILE, ROUNDS = 6, 3, 3
POLICIES = {
    "uniform": {},
    "fedcvr-bolt": {"warmup": 1, "guards": None},
    "power-of-choice": {"n_candidates": N},
    "oort": {"durations": True},
    "active": {},
    "fedcbs": {},
}


def force(target, key, value):
    """Write a value into a record past its own checks: no transport is trusted here."""
    target._data[key] = value


@st.composite
def broken_arrays(draw):
    """Return an array of Flower whose bytes are not what it says."""
    made = Array(np.ones(1))
    made.data = draw(st.one_of(st.binary(max_size=200), st.just(b"\x93NUMPY" * 30)))
    made.stype = draw(st.sampled_from(["numpy.ndarray", "", "torch"]))
    return made


SHAPES = {name: array.shape for name, array in INITIAL.items()}


def packed(found):
    return {n: a if isinstance(a, Array) else Array(np.asarray(a)) for n, a in found.items()}


@st.composite
def replies(draw):
    """Return a function that spoils an honest training reply."""
    changes = draw(
        st.lists(
            st.one_of(
                st.tuples(st.just("arrays"), models(SHAPES, broken_arrays()).map(packed)),
                st.tuples(st.just("arrays"), models(SHAPES, broken_arrays()).map(packed)),
                st.tuples(st.just("arrays"), models(SHAPES, broken_arrays()).map(packed)),
                st.tuples(
                    st.just("metric"),
                    st.tuples(st.sampled_from(["num-examples", "train_loss", "x"]), VALUES),
                ),
                st.tuples(
                    st.just("ours"),
                    st.tuples(st.sampled_from(["loss", "features", "seconds", "norm"]), VALUES),
                ),
                st.tuples(st.just("drop"), st.sampled_from(["arrays", "metrics"])),
                st.tuples(st.just("add"), st.sampled_from(["arrays", "metrics", "config"])),
                st.tuples(st.just("claim"), NUMBERS),
            ),
            min_size=1,
            max_size=2,
        )
    )

    def spoil(reply):
        for what, value in changes:
            content = reply.content
            if what == "arrays":
                content["arrays"] = ArrayRecord(value)
            elif what == "metric" and "metrics" in content:
                force(content["metrics"], *value)
            elif what == "ours":
                if RECORD not in content:
                    content[RECORD] = MetricRecord()
                force(content[RECORD], *value)
            elif what == "claim":
                content[RECORD] = MetricRecord()
                force(content[RECORD], "seconds", value)
                force(content[RECORD], "loss", value)
            elif what == "drop" and value in content:
                del content[value]
            elif what == "add":
                kinds = {"arrays": record({"x": np.ones(2)}), "metrics": MetricRecord({"y": 1.0})}
                content["more"] = kinds.get(value, ConfigRecord({"z": "text"}))
        return reply

    return spoil


@st.composite
def plans(draw):
    """Return what the hostile client does in a run: the honest thing where it is None."""
    return {
        "train": draw(st.lists(replies(), min_size=ROUNDS, max_size=ROUNDS)),
        "facts": draw(
            st.one_of(
                st.none(),
                st.none(),
                st.none(),
                st.fixed_dictionaries({"num-examples": VALUES}),
                st.fixed_dictionaries({"label-counts": COUNTS}),
                st.fixed_dictionaries({"id": VALUES}),
            )
        ),
        "probe": draw(st.one_of(st.none(), VALUES)),
        "evaluate": draw(st.one_of(st.none(), replies())),
    }


class Grid(FakeGrid):
    """Nodes of which one follows a plan; `refused` says where it states an error instead."""

    def __init__(self, plan, refused=None, private=False):
        super().__init__(make_app(mods=[Reveal()] if private else ()), range(N), seed=5)
        self.plan, self.refused, self.n_trained = plan, refused, 0

    def _reply(self, message, partition):
        reply = super()._reply(message, partition)
        if partition != HOSTILE:
            return reply
        kind = message.metadata.message_type
        try:
            return self._spoilt(kind, reply, message)
        except Refused:
            from flwr.app import Error

            return Message(Error(code=0, reason="refused"), reply_to=message)

    def _spoilt(self, kind, reply, message):
        plan, refused = self.plan, self.refused
        if kind == "train":
            self.n_trained += 1
            spoil = plan["train"][(self.n_trained - 1) % ROUNDS]
            if refused is not None and refused["train"][self.n_trained - 1]:
                raise Refused
            return reply if spoil is None else spoil(reply)
        if kind.endswith("hello") and plan["facts"] is not None:
            if refused is not None and refused["facts"]:
                raise Refused
            facts = ConfigRecord(dict(reply.content[RECORD]))
            for key, value in plan["facts"].items():
                force(facts, key, value)
            return Message(RecordDict({RECORD: facts}), reply_to=message)
        if kind.endswith("loss") and plan["probe"] is not None:
            if refused is not None and not is_loss(plan["probe"]):
                raise Refused
            force(reply.content[RECORD], "loss", plan["probe"])
        if kind == "evaluate" and plan["evaluate"] is not None:
            return plan["evaluate"](reply)
        return reply


class Refused(Exception):
    """The honest way to say nothing."""


def run(policy, inner, plan, refused=None, **options):
    options = {**POLICIES[policy], **options}
    strategy = make_strategy(policy, inner(), n_select=4, wait=1, **options)
    strategy.roster._log = lambda text: None
    grid = Grid(plan, refused, options.get("private", False))
    result = strategy.start(grid, record(INITIAL), ROUNDS, timeout=5)
    return strategy, result, grid


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@fuzz(60)
@given(
    policy=st.sampled_from(list(POLICIES)),
    inner=st.sampled_from([FedAvg, FedAdam, FedMedian]),
    private=st.booleans(),
    aggregator=st.sampled_from([None, None, "memory"]),
    plan=plans(),
)
def test_one_hostile_client_ends_nothing_and_changes_nobody_else(
    policy, inner, private, aggregator, plan
):
    options = {"private": private and policy == "fedcvr-bolt"}
    if aggregator and inner is FedAvg and not options["private"]:
        options["aggregator"] = aggregator
    if policy == "oort":
        options["durations"] = False  # clocks differ; the claims are still sent
    strategy, result, grid = run(policy, inner, plan, **options)
    assert len(strategy.rounds) == ROUNDS
    # It may call itself anything, even like an honest client: then the first one counts.
    honest = set(range(N)) - {HOSTILE}
    me = stranger(strategy.roster.ids, honest)
    refused = {"facts": me is None, "train": []}
    for one in strategy.rounds:
        assert set(one.failed) <= {me}, one.failed
        refused["train"] += [me in one.failed] * (me in one.selected)
    twin, expected, _ = run(policy, inner, plan, refused, **options)
    assert [one.selected for one in twin.rounds] == [one.selected for one in strategy.rounds]
    assert same(strategy.roster.state_dict(), twin.roster.state_dict())
    for name, array in expected.arrays.items():
        assert same(result.arrays[name].numpy(), array.numpy()), name
