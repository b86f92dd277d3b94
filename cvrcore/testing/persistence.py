"""Checks of state: a policy under test in, an error if its saved state is not complete out."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ..selectors.base import Selector
from .assertions import CheckFailed, difference, require
from .policy_under_test import PolicyUnderTest
from .simulation import Simulation

POINTS = ("between rounds", "after probe", "after select")


def paused(policy: PolicyUnderTest, point: str, n_rounds: int, seed: int = 4) -> Simulation:
    """Return a simulation that stopped at a point of a round, one of `POINTS`."""
    simulation = policy.simulation(seed, n_rounds)
    if point != "between rounds":
        simulation.probe()
    if point == "after select":
        simulation.select()
    return simulation


def go_on(simulation: Simulation, point: str, n_rounds: int) -> list[list[int]]:
    """Finish the open round, then run more rounds; return the clients selected in those."""
    if point == "after probe":
        simulation.select()
    if point != "between rounds":
        simulation.observe()
    return simulation.rounds(n_rounds)


def same_future(simulation: Simulation, twin: Simulation, point: str, how: str) -> None:
    """Fail if a restored selector continues differently from its original."""
    found = difference(twin.selector.state_dict(), simulation.selector.state_dict())
    require(found is None, f"{how} {point} must give the same state, but {found}")
    original, restored = go_on(simulation, point, 8), go_on(twin, point, 8)
    for t, (ours, theirs) in enumerate(zip(original, restored, strict=True)):
        require(
            ours == theirs,
            f"{how} {point} must go on to the same selections, got {theirs} instead of {ours} "
            f"{t + 1} rounds later: does state_dict() hold all that the policy has learned?",
        )
    found = difference(twin.selector.state_dict(), simulation.selector.state_dict())
    require(found is None, f"{how} {point} must go on to the same state, but {found}")


def plain_state(policy: PolicyUnderTest) -> None:
    """State holds arrays and plain values only, so that it can be saved without pickle."""
    simulation = paused(policy, "after select", 6)
    _plain(simulation.selector.state_dict(), "state")


def _plain(value: Any, path: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            require(isinstance(key, str), f"{path} must have str keys, got {key!r}")
            _plain(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _plain(item, f"{path}[{i}]")
    elif isinstance(value, np.ndarray):
        require(value.dtype.kind in "fiubU", f"{path} must not be of dtype {value.dtype}")
    else:
        kinds = (str, int, float, bool, np.generic, type(None))
        require(
            isinstance(value, kinds),
            f"{path} must be an array or a plain value, got {type(value).__name__}",
        )


def snapshot(policy: PolicyUnderTest) -> None:
    """A state does not change with its selector, nor with a selector restored from it."""
    simulation = paused(policy, "after select", 8)
    state = simulation.selector.state_dict()
    frozen = copy.deepcopy(state)
    twin = simulation.continued(type(simulation.selector).from_state_dict(state))
    for each, whose in ((simulation, "the selector"), (twin, "a selector made from it")):
        go_on(each, "after select", 8)
        found = difference(state, frozen)
        require(
            found is None,
            f"state_dict() must return copies: it changed when {whose} went on: {found}",
        )


def restore(policy: PolicyUnderTest) -> None:
    """from_state_dict and load_state_dict continue to the same selections, at any point."""
    for point in POINTS:
        for n_rounds in (0, 1, 9, 35):
            simulation = paused(policy, point, n_rounds)
            state = simulation.selector.state_dict()
            restored = type(simulation.selector).from_state_dict(state)
            same_future(simulation, simulation.continued(restored), point, "from_state_dict")
    simulation, other = (
        paused(policy, "between rounds", 7),
        paused(policy, "after select", 3, seed=5),
    )
    other.selector.load_state_dict(simulation.selector.state_dict())
    twin = simulation.continued(other.selector)
    same_future(simulation, twin, "between rounds", "load_state_dict")


def file(policy: PolicyUnderTest) -> None:
    """Save and load continue to the same selections."""
    with tempfile.TemporaryDirectory() as folder:
        for point in POINTS:
            simulation = paused(policy, point, 7)
            path = Path(folder) / "state.npz"
            simulation.selector.save(path)
            restored = type(simulation.selector).load(path)
            same_future(simulation, simulation.continued(restored), point, "save and load")


def foreign_state(policy: PolicyUnderTest) -> None:
    """A state of another policy, or an incomplete one, is refused and changes nothing."""
    selector = paused(policy, "after select", 4).selector
    good = selector.state_dict()
    bad = {
        "of another policy": {**good, "policy": "another"},
        "of another format": {**good, "format": -1},
        "without its config": {k: v for k, v in good.items() if k != "config"},
        "without its random stream": {k: v for k, v in good.items() if k != "rng"},
    }
    for what, state in bad.items():
        _refuses(selector, state, what)
        found = difference(selector.state_dict(), good)
        require(found is None, f"a refused state {what} must change nothing, but {found}")


def _refuses(selector: Selector, state: dict[str, Any], what: str) -> None:
    try:
        selector.load_state_dict(state)
    except ValueError:
        return
    raise CheckFailed(f"load_state_dict must refuse a state {what} with ValueError")
