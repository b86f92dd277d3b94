"""Flower's legacy API against one hostile client: whatever it sends, the server goes on."""

import logging

import pytest

pytest.importorskip("flwr", reason="flwr is not installed here: run `make test-frameworks`")

import numpy as np
from flower_fakes import INITIAL, SIZES, loss_of, trained
from flwr.common import (
    Code,
    EvaluateRes,
    FitRes,
    GetPropertiesRes,
    Parameters,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAdam, FedAvg, FedMedian
from fuzzing import fuzz
from hostile import VALUES, arrays, is_loss, models, same, stranger
from hypothesis import given
from hypothesis import strategies as st

from cvrcore.integrations.flower import LegacySelectingStrategy

N, HOSTILE, ROUNDS = 6, 3, 3
OK = Status(Code.OK, "")


class Proxy(ClientProxy):
    """A client that follows a plan; `refused` says where it states an error instead."""

    def __init__(self, cid, k, plan, refused):
        super().__init__(cid)
        self.k, self.n_fits = k, 0
        self.plan = plan if k == HOSTILE else None
        self.refused = refused

    def get_properties(self, ins, timeout, group_id):
        facts = {"partition-id": self.k, "num-examples": SIZES[self.k]}
        if self.plan and self.plan["facts"] is not None:
            if self.refused and self.refused["facts"]:
                raise RuntimeError("refused")
            facts = {**facts, **self.plan["facts"]}
        return GetPropertiesRes(OK, facts)

    def fit(self, ins, timeout, group_id):
        model = dict(zip(INITIAL, parameters_to_ndarrays(ins.parameters), strict=True))
        metrics = {"cvrcore_loss": loss_of(model, self.k), "x": 1.0}
        parameters = ndarrays_to_parameters(list(trained(model, self.k).values()))
        result = FitRes(OK, parameters, SIZES[self.k], metrics)
        if self.plan:
            self.n_fits += 1
            if self.refused and self.refused["fit"][self.n_fits - 1]:
                raise RuntimeError("refused")
            for what, value in self.plan["fit"][self.n_fits - 1]:
                if what == "metric" and isinstance(result.metrics, dict):
                    result.metrics[value[0]] = value[1]
                elif what != "metric":
                    setattr(result, what, dict(value) if isinstance(value, dict) else value)
        return result

    def evaluate(self, ins, timeout, group_id):
        model = dict(zip(INITIAL, parameters_to_ndarrays(ins.parameters), strict=True))
        result = EvaluateRes(OK, loss_of(model, self.k), SIZES[self.k], {"a": 1.0})
        if self.plan and self.plan["loss"] is not None:
            if self.refused and group_id != "evaluate" and not is_loss(self.plan["loss"]):
                raise RuntimeError("refused")
            result.loss = self.plan["loss"]
        if self.plan and group_id == "evaluate":
            result.num_examples, result.metrics = self.plan["evaluation"]
        return result

    def get_parameters(self, ins, timeout, group_id):
        raise AssertionError("the adapter must not ask for a client's parameters")

    def reconnect(self, ins, timeout, group_id):
        raise AssertionError("the adapter must not send a client away")


@st.composite
def parameters(draw):
    """Return parameters: some arrays as sent, some odd, some only bytes."""
    shapes = {name: array.shape for name, array in INITIAL.items()}
    found = [np.asarray(one) for one in draw(models(shapes, arrays((2,)))).values()]
    made = ndarrays_to_parameters(found)
    if draw(st.sampled_from([False, False, True])):
        made = Parameters([*made.tensors[:-1], draw(st.binary(max_size=99))], made.tensor_type)
    return made


def _is_honest(value):
    """Whether a value is the id of another client: who comes first, by cid, would keep it."""
    return isinstance(value, (int, np.integer)) and 0 <= value < N


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("parameters"), parameters()),
        st.tuples(st.just("parameters"), parameters()),
        st.tuples(st.just("parameters"), st.just(Parameters([], ""))),
        st.tuples(st.just("num_examples"), VALUES),
        st.tuples(st.just("metrics"), st.sampled_from([None, {}, [], {"y": 1}])),
        st.tuples(
            st.just("metric"), st.tuples(st.sampled_from(["cvrcore_loss", "x", "z"]), VALUES)
        ),
    ),
    min_size=1,
    max_size=2,
)
PLANS = st.fixed_dictionaries(
    {
        "facts": st.one_of(
            st.none(),
            st.none(),
            st.fixed_dictionaries({"partition-id": VALUES.filter(lambda v: not _is_honest(v))}),
            st.fixed_dictionaries({"num-examples": VALUES}),
        ),
        "fit": st.lists(CHANGES, min_size=ROUNDS, max_size=ROUNDS),
        "loss": st.one_of(st.none(), VALUES),
        "evaluation": st.tuples(VALUES, st.one_of(st.none(), st.just({"b": 2.0}), VALUES)),
    }
)


def mean_of(pairs):
    """A function of the caller's own that averages metrics, and expects them to be there."""
    return {"x": sum(n * metrics["x"] for n, metrics in pairs) / sum(n for n, _ in pairs)}


def run(policy, inner, plan, refused=None, **options):
    initial = ndarrays_to_parameters(list(INITIAL.values()))
    settings = {"fit_metrics_aggregation_fn": mean_of}
    if inner is FedAdam:
        settings["initial_parameters"] = initial
    strategy = LegacySelectingStrategy(
        inner(**settings), policy, n_select=4, seed=7, timeout=5, wait=1, **options
    )
    manager = SimpleClientManager()
    for k in range(N):
        manager.register(Proxy(f"cid-{k}", k, plan, refused))
    current = initial
    for t in range(1, ROUNDS + 1):
        results, failures = [], []
        for proxy, ins in strategy.configure_fit(t, current, manager):
            try:
                results.append((proxy, proxy.fit(ins, 5, t)))
            except RuntimeError as error:
                failures.append(error)
        current = strategy.aggregate_fit(t, results, failures)[0] or current
        asked = strategy.configure_evaluate(t, current, manager)
        said = [(proxy, proxy.evaluate(ins, 5, "evaluate")) for proxy, ins in asked]
        strategy.aggregate_evaluate(t, said, [])
    return strategy, parameters_to_ndarrays(current)


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@fuzz(60)
@given(
    policy=st.sampled_from(["uniform", "fedcvr-bolt", "power-of-choice", "oort", "active"]),
    inner=st.sampled_from([FedAvg, FedAdam, FedMedian]),
    aggregator=st.sampled_from([None, None, "memory"]),
    plan=PLANS,
)
def test_one_hostile_client_ends_nothing_and_changes_nobody_else(policy, inner, aggregator, plan):
    options = {"aggregator": aggregator} if inner is FedAvg else {}
    if policy == "fedcvr-bolt":
        options["warmup"] = 1
    strategy, model = run(policy, inner, plan, **options)
    assert len(strategy.rounds) == ROUNDS
    me = stranger(strategy.roster.ids, set(range(N)) - {HOSTILE})
    refused = {"facts": me is None, "fit": []}
    for one in strategy.rounds:
        assert set(one.failed) <= {me}, one.failed
        refused["fit"] += [me in one.failed] * (me in one.selected)
    twin, expected = run(policy, inner, plan, refused, **options)
    assert [one.selected for one in twin.rounds] == [one.selected for one in strategy.rounds]
    assert same(strategy.roster.state_dict(), twin.roster.state_dict())
    assert same(list(model), list(expected))
    assert all(np.isfinite(array).all() for array in model)
