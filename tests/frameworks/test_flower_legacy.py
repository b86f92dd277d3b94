"""The thin adapter for `configure_fit`: the same picks as the Message API's."""

import threading
import time

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed here: run `make test-frameworks`")

from flower_fakes import INITIAL, N_CLIENTS, SIZES, FakeGrid, loss_of, make_strategy, picks, trained
from flower_fakes import run as run_messages
from flwr.common import (
    Code,
    EvaluateRes,
    FitRes,
    GetPropertiesRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.server import fit_clients
from flwr.server.strategy import FedAvg

from cvrcore.integrations.flower import LegacySelectingStrategy

OK = Status(Code.OK, "")


class Proxy(ClientProxy):
    def __init__(self, cid, k, broken=False, odd=False):
        super().__init__(cid)
        self.k, self.broken, self.odd = k, broken, odd

    def get_properties(self, ins, timeout, group_id):
        return GetPropertiesRes(OK, {"partition-id": self.k, "num-examples": SIZES[self.k]})

    def fit(self, ins, timeout, group_id):
        model = dict(zip(INITIAL, parameters_to_ndarrays(ins.parameters), strict=True))
        arrays = list(trained(model, self.k).values())
        if self.odd:
            arrays[-1] = np.full(2, np.nan)
        status = Status(Code.FIT_NOT_IMPLEMENTED, "broken") if self.broken else OK
        metrics = {"cvrcore_loss": loss_of(model, self.k)}
        return FitRes(status, ndarrays_to_parameters(arrays), SIZES[self.k], metrics)

    def evaluate(self, ins, timeout, group_id):
        model = dict(zip(INITIAL, parameters_to_ndarrays(ins.parameters), strict=True))
        return EvaluateRes(OK, loss_of(model, self.k), SIZES[self.k], {})

    def get_parameters(self, ins, timeout, group_id):
        raise AssertionError("the adapter must not ask for a client's parameters")

    def reconnect(self, ins, timeout, group_id):
        raise AssertionError("the adapter must not send a client away")


def make_manager(seed=0, **traits):
    """Clients under random cids, in random order."""
    rng = np.random.default_rng(seed)
    manager = SimpleClientManager()
    for k in rng.permutation(N_CLIENTS):
        options = {name: int(k) in chosen for name, chosen in traits.items()}
        manager.register(Proxy(f"{rng.integers(1 << 40)}", int(k), **options))
    return manager


def run(strategy, manager, rounds=6):
    parameters = ndarrays_to_parameters(list(INITIAL.values()))
    for t in range(1, rounds + 1):
        asked = strategy.configure_fit(t, parameters, manager)
        results, failures = fit_clients(asked, max_workers=4, timeout=10, group_id=t)
        parameters = strategy.aggregate_fit(t, results, failures)[0] or parameters
    return parameters_to_ndarrays(parameters)


@pytest.mark.parametrize(
    ("policy", "options"),
    [("fedcvr-bolt", {"warmup": 2}), ("oort", {}), ("active", {}), ("power-of-choice", {})],
)
def test_picks_as_the_message_api_does(policy, options):
    strategy = LegacySelectingStrategy(
        FedAvg(min_available_clients=99), policy, n_select=4, seed=7, **options
    )
    model = run(strategy, make_manager())
    twin = make_strategy(policy)
    arrays = run_messages(twin, FakeGrid()).arrays
    assert picks(strategy) == picks(twin)
    for ours, theirs in zip(model, arrays.values(), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12)


def test_failures_and_invalid_results_are_reported():
    strategy = LegacySelectingStrategy(FedAvg(), "uniform", n_select=N_CLIENTS, seed=0)
    model = run(strategy, make_manager(broken={1}, odd={5}), rounds=2)
    for found in strategy.rounds:
        assert found.failed[1] == "broken"
        assert "must be finite" in found.failed[5]
        assert len(found.reported) == N_CLIENTS - 2
    assert all(np.isfinite(array).all() for array in model)


def test_two_clients_of_one_identity(caplog):
    manager = make_manager()
    manager.register(Proxy("zzz", 4))
    strategy = LegacySelectingStrategy(FedAvg(), "uniform", n_select=4, seed=7)
    run(strategy, manager)
    assert "id 4 is taken" in caplog.text
    assert all(len(found.available) == N_CLIENTS for found in strategy.rounds)


def test_clients_that_connect_late_are_waited_for_in_bounded_time(caplog):
    """Otherwise every round would be over before the first client is there."""
    crowd, manager = make_manager(), SimpleClientManager()

    def connect():
        for proxy in crowd.all().values():
            manager.register(proxy)

    strategy = LegacySelectingStrategy(FedAvg(), "uniform", n_select=4, seed=7, n_clients=N_CLIENTS)
    late = threading.Timer(0.3, connect)
    late.start()
    run(strategy, manager)
    late.join(timeout=10)
    assert [len(found.available) for found in strategy.rounds] == [N_CLIENTS] * 6

    strategy = LegacySelectingStrategy(FedAvg(), "uniform", n_select=4, seed=7, wait=0.2)
    began = time.monotonic()
    assert strategy.configure_fit(1, ndarrays_to_parameters([]), SimpleClientManager()) == []
    assert time.monotonic() - began < 10
    assert "0 clients connected within wait=0.2 s, 1 wanted" in caplog.text
    assert "round 1 is skipped" in caplog.text
