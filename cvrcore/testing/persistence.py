"""Checks of state: taken, written, read back, and gone on from."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ..selectors.base import Selector
from .claims import Broken, difference, require
from .subject import Subject
from .world import World

POINTS = ("between rounds", "after probe", "after select")


def paused(subject: Subject, point: str, n_rounds: int, seed: int = 4) -> World:
    """Return a world that stopped somewhere in a round."""
    world = subject.world(seed, n_rounds)
    if point != "between rounds":
        world.probe()
    if point == "after select":
        world.select()
    return world


def go_on(world: World, point: str, n_rounds: int) -> list[list[int]]:
    """Finish the round that was begun, then go through more."""
    if point == "after probe":
        world.select()
    if point != "between rounds":
        world.observe()
    return world.rounds(n_rounds)


def same_future(world: World, twin: World, point: str, how: str) -> None:
    """Refuse a twin that goes on otherwise than its original."""
    found = difference(twin.selector.state_dict(), world.selector.state_dict())
    require(found is None, f"{how} {point} must give the same state, but {found}")
    original, restored = go_on(world, point, 8), go_on(twin, point, 8)
    for t, (ours, theirs) in enumerate(zip(original, restored, strict=True)):
        require(
            ours == theirs,
            f"{how} {point} must go on to the same selections, got {theirs} instead of {ours} "
            f"{t + 1} rounds later: does state_dict() hold all that the policy has learned?",
        )
    found = difference(twin.selector.state_dict(), world.selector.state_dict())
    require(found is None, f"{how} {point} must go on to the same state, but {found}")


def plain_state(subject: Subject) -> None:
    """State is arrays and plain values only: nothing that needs pickle."""
    world = paused(subject, "after select", 6)
    _plain(world.selector.state_dict(), "state")


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


def snapshot(subject: Subject) -> None:
    """A state that was taken does not move with its selector, nor with one made from it."""
    world = paused(subject, "after select", 8)
    state = world.selector.state_dict()
    frozen = copy.deepcopy(state)
    twin = world.continued(type(world.selector).from_state_dict(state))
    for each, whose in ((world, "the selector"), (twin, "a selector made from it")):
        go_on(each, "after select", 8)
        found = difference(state, frozen)
        require(
            found is None,
            f"state_dict() must return copies: it changed when {whose} went on: {found}",
        )


def restore(subject: Subject) -> None:
    """from_state_dict and load_state_dict go on to the same selections, at any point."""
    for point in POINTS:
        for n_rounds in (0, 1, 9, 35):
            world = paused(subject, point, n_rounds)
            state = world.selector.state_dict()
            restored = type(world.selector).from_state_dict(state)
            same_future(world, world.continued(restored), point, "from_state_dict")
    world, other = paused(subject, "between rounds", 7), paused(subject, "after select", 3, seed=5)
    other.selector.load_state_dict(world.selector.state_dict())
    twin = world.continued(other.selector)
    same_future(world, twin, "between rounds", "load_state_dict")


def file(subject: Subject) -> None:
    """Save and load go on to the same selections."""
    with tempfile.TemporaryDirectory() as folder:
        for point in POINTS:
            world = paused(subject, point, 7)
            path = Path(folder) / "state.npz"
            world.selector.save(path)
            restored = type(world.selector).load(path)
            same_future(world, world.continued(restored), point, "save and load")


def foreign_state(subject: Subject) -> None:
    """A state of another policy, or half a state, is refused and changes nothing."""
    selector = paused(subject, "after select", 4).selector
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
    raise Broken(f"load_state_dict must refuse a state {what} with ValueError")
