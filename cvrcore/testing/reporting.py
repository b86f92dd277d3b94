"""Checks of reports: a policy under test in, an error if it mishandles a report out."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..selectors.base import Selector
from .assertions import CheckFailed, difference, refused, require
from .policy_under_test import N_CLIENTS, N_SELECT, PolicyUnderTest, sample_counts
from .simulation import Simulation


def partial_reports(policy: PolicyUnderTest) -> None:
    """Any subset of the selected clients may report, even none: the round is closed."""
    simulation = policy.simulation(seed=5, n_rounds=2)
    for n_reported in (0, 1, 2, 3, 4, 0, 0, 1):
        picked = simulation.until_pending(N_SELECT)
        round = simulation.selector.round
        simulation.selector.observe(picked.clients[:n_reported], **simulation.report(n_reported))
        require(
            simulation.selector.round == round + 1,
            f"a report of {n_reported} of {len(picked)} clients must close the round, got round "
            f"{simulation.selector.round} after {round}",
        )
    simulation.rounds(10)


def report_order(policy: PolicyUnderTest) -> None:
    """Reports are aligned with `clients`, in any order."""
    futures = []
    for step in (1, -1):
        simulation = policy.simulation(seed=6)
        future = []
        for _ in range(25):
            simulation.probe()
            picked = simulation.select()
            report = simulation.report(len(picked))
            report = {k: None if v is None else v[::step] for k, v in report.items()}
            simulation.selector.observe(picked.clients[::step], **report)
            future.append(picked.clients.tolist())
        futures.append(future)
    require(
        futures[0] == futures[1],
        "selections must not depend on the order in which clients are reported: models, losses "
        "and durations belong to report.clients, not to the clients picked",
    )


def stated_needs(policy: PolicyUnderTest) -> None:
    """What `needs`, `loss_statistic` and the constructor name is enough, and is required."""
    simulation = policy.simulation(seed=7)
    for t in range(10):
        simulation.probe()
        picked = simulation.select()
        report = simulation.report(len(picked))
        if "durations" not in simulation.selector.needs:
            report["durations"] = None
        if not policy.watches:
            report["models"] = None
        try:
            simulation.selector.observe(picked.clients, **report)
        except (TypeError, ValueError) as error:
            given = ", ".join(name for name, value in report.items() if value is not None)
            raise CheckFailed(
                f"observe with {given or 'nothing but clients'} must be enough in round {t}: set "
                f"loss_statistic, or name n_features in the constructor, to be given more ({error})"
            ) from error
    picked = simulation.until_pending(2)
    complete = simulation.report(len(picked))
    for name in sorted(simulation.selector.needs & complete.keys()):
        lacking = functools.partial(
            simulation.selector.observe, picked.clients, **{**complete, name: None}
        )
        refused(simulation.selector, lacking, f"a report without {name}, which needs names")


def failures(policy: PolicyUnderTest) -> None:
    """Rounds in which all clients fail are accepted, and selection continues."""
    simulation = policy.simulation(seed=8, n_rounds=2)
    for _ in range(8):
        simulation.probe()
        picked, round = simulation.select(), simulation.selector.round
        simulation.selector.observe([], failed=picked.clients)
        require(simulation.selector.round == round + 1, "a round that failed must be closed")
    for t in range(12):
        simulation.probe()
        simulation.select_valid(N_SELECT)
        lost = simulation.pending().clients[: t % 3]
        reported = simulation.pending().clients[t % 3 :]
        simulation.selector.observe(reported, failed=lost, **simulation.report(reported.size))


def one_report(policy: PolicyUnderTest) -> None:
    """A round is observed once, and not before it was selected."""
    simulation = policy.simulation(seed=9)
    refused(simulation.selector, lambda: simulation.selector.observe([]), "observe before select")
    simulation.round()
    refused(simulation.selector, simulation.observe, "a second observe of one round")


def abandoned_round(policy: PolicyUnderTest) -> None:
    """A second select replaces the pending round."""
    simulation = policy.simulation(seed=10, n_rounds=3)
    for _ in range(10):
        simulation.probe()
        simulation.select_valid(N_SELECT)
    simulation.observe()
    require(
        simulation.selector.round == 4,
        f"rounds that were abandoned must not count: 4 are closed, got {simulation.selector.round}",
    )


def bad_calls(
    policy: PolicyUnderTest, simulation: Simulation
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield calls that break one rule each, while a round is pending."""
    selector, picked = simulation.selector, simulation.pending().clients
    unselected = int(np.setdiff1d(np.arange(N_CLIENTS), picked)[0])
    ones = np.ones(picked.size)
    models = np.ones((picked.size, policy.n_features))
    report: dict[str, Any] = {"models": models, "losses": ones}
    signals = simulation.signals(picked.size)
    report |= signals
    observe = selector.observe
    yield "no available client", lambda: selector.select(np.zeros(N_CLIENTS, dtype=bool))
    yield "an unknown id", lambda: selector.select([N_CLIENTS])
    yield "a mask of another size", lambda: selector.probe(np.ones(N_CLIENTS + 1, dtype=bool))
    yield "losses that no probe asked for", lambda: selector.select(losses=[1.0])
    yield "the report of a client not selected", lambda: observe([unselected], models[:1], [1.0])
    yield (
        "the failure of a client not selected",
        lambda: observe(picked, failed=[unselected], **report),
    )
    yield "a client both failed and reported", lambda: observe(picked, failed=picked[:1], **report)
    yield "a client named twice", lambda: observe(picked[[0, 0]], models[:2], ones[:2])
    for value in (np.nan, np.inf):
        yield f"losses of {value}", functools.partial(observe, picked, models, ones * value)
    yield "too few losses", lambda: observe(picked, models, ones[1:])
    yield "durations of 0", lambda: observe(picked, durations=ones * 0, **report)
    if policy.watches and type(selector)._check_models is not Selector._check_models:
        yield "models of NaN", lambda: observe(picked, models * np.nan, ones)
        yield "models too narrow", lambda: observe(picked, models[:, 1:], ones)
        yield "too few models", lambda: observe(picked, models[1:], ones)
    for name, value in signals.items():
        wrong: tuple[tuple[str, Any], ...] = (("NaN", value * np.nan), ("too few", value[1:]))
        for what, bad in wrong:
            told = {**report, name: bad}
            yield f"{what} of {name}", functools.partial(observe, picked, **told)
    yield "fewer clients", lambda: selector.resize(N_CLIENTS - 1, [])
    yield "too few weights", lambda: policy.join(selector, [1.0], n_added=2)
    yield "negative weights", lambda: policy.join(selector, [1.0, -1.0])
    yield "weights of NaN", lambda: policy.join(selector, [1.0, np.nan])


def rejected_calls(policy: PolicyUnderTest) -> None:
    """A call that breaks a rule raises ValueError or TypeError and changes nothing."""
    simulation = policy.simulation(seed=11, n_rounds=6)
    simulation.until_pending(2)
    for rule, call in bad_calls(policy, simulation):
        refused(simulation.selector, call, rule)
    simulation.observe()  # the round is still open


def resize(policy: PolicyUnderTest) -> None:
    """New clients get the next slots and can be selected; old ones keep id and weight."""
    simulation = policy.simulation(seed=12, n_rounds=10)
    simulation.probe()
    simulation.select()
    policy.join(simulation.selector, [150.0, 0.0, 150.0])
    selector, total = simulation.selector, N_CLIENTS + 3
    weights = [*sample_counts(N_CLIENTS), 150.0, 0.0, 150.0]
    require(selector.n_clients == total, f"n_clients must be {total}, got {selector.n_clients}")
    require(
        np.array_equal(selector.weights, weights),
        "resize must append the weights of new clients and keep the old",
    )
    try:
        selector.observe([])
    except ValueError:
        pass
    else:
        raise CheckFailed("resize must drop the pending round: select again")
    simulation.available = np.arange(total) >= N_CLIENTS  # new clients only
    asked = selector.probe(simulation.available)
    simulation.losses = None if asked is None else np.ones(asked.size)
    simulation.select_valid(N_SELECT)
    simulation.observe()
    for _ in range(15):
        simulation.probe()
        simulation.select_valid(N_SELECT)
        simulation.observe()
    twin = simulation.continued(type(selector).from_state_dict(selector.state_dict()))
    require(
        twin.rounds(5) == simulation.rounds(5),
        "a selector that was resized must be restored to the same selections",
    )


def copies(policy: PolicyUnderTest) -> None:
    """Arrays are copied: neither arguments nor return values share memory with the state."""
    weights = sample_counts(N_CLIENTS)
    careful = Simulation(policy(seed=13), 13, policy.n_features)
    rough = Simulation(policy(seed=13, weights=weights), 13, policy.n_features)
    weights[:] = 1.0
    for _ in range(20):
        for simulation in (careful, rough):
            asked = simulation.probe()
            if simulation is rough and asked is not None:
                asked[:] = 0
            picked = simulation.select()
            clients, report = picked.clients.copy(), simulation.report(len(picked))
            arrays = [array for array in report.values() if array is not None]
            originals = [array.copy() for array in arrays]
            if simulation is rough:
                values = [getattr(picked, field.name) for field in dataclasses.fields(picked)]
                _scribble([value for value in values if isinstance(value, np.ndarray)])
                for array in arrays:
                    array.flags.writeable = False  # a policy that writes to it raises
            simulation.selector.observe(clients, **report)
            if simulation is rough:
                for array, original in zip(arrays, originals, strict=True):
                    require(np.array_equal(array, original), "reports must not be written to")
                    array.flags.writeable = True
                _scribble(arrays)
        found = difference(rough.selector.state_dict(), careful.selector.state_dict())
        require(
            found is None,
            "arrays must be copied, not kept: writing to arrays that the policy was given, or "
            f"that it returned, changed its state: {found}",
        )


def _scribble(arrays: list[Any]) -> None:
    for array in arrays:
        array[...] = 1
