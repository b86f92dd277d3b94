"""Checks of sizes, quotas and overlap: a policy under test in, an error if one fails out."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..selection import Selection
from .assertions import refused, require
from .policy_under_test import N_CLIENTS, N_SELECT, PolicyUnderTest
from .simulation import Simulation


def _selected(simulation: Simulation, **how: Any) -> Selection:
    """Probe and select among all clients, in a way that `how` says."""
    selector = simulation.selector
    asked = selector.probe()
    losses = None if asked is None else np.ones(asked.size)
    return selector.select(losses=losses, **simulation.context(), **how)


def asked_sizes(policy: PolicyUnderTest) -> None:
    """``select(n=...)`` picks that many clients, and the next round `n_select` again."""
    simulation = policy.simulation(seed=14, n_rounds=6)
    selector = simulation.selector
    for n in (1, 2, N_SELECT, N_SELECT + 3):
        if n > N_SELECT and not selector.any_size:
            continue
        picked = _selected(simulation, n=n)
        _as_many(picked, n, selector.size_rule, f"select(n={n})")
        selector.observe(picked.clients, **simulation.report(len(picked)))
        require(selector.n_select == N_SELECT, f"n_select must stay {N_SELECT} after select(n={n})")
    simulation.rounds(5)


def _as_many(picked: Selection, n: int, rule: str, call: str) -> None:
    found = int(picked.times_drawn.sum())
    require(found == n or rule == "random", f"{call} must pick {n} clients, got {found}")
    require(np.unique(picked.clients).size == len(picked), f"{call} must pick distinct clients")


def quotas(policy: PolicyUnderTest) -> None:
    """Quotas per tag are kept, with the inclusion of each tag's own draw."""
    simulation = policy.simulation(seed=15, n_rounds=6)
    selector = simulation.selector
    tags = np.array(["a", "b", "c"])[np.arange(N_CLIENTS) % 3]
    selector.set_tags(tags.tolist())
    for _ in range(8):
        picked = _selected(simulation, quotas={"a": 2, "b": 1})
        for tag, n in (("a", 2), ("b", 1), ("c", 0)):
            mine = tags[picked.clients] == tag
            found = int(picked.times_drawn[mine].sum())
            require(
                found == n or (selector.size_rule == "random" and n > 0),
                f"quotas must be kept: {n} of tag {tag!r}, got {found}",
            )
        require((selector.weights[picked.clients] > 0).all(), "quotas must go to eligible clients")
        if picked.inclusion is not None:
            require(
                not picked.inclusion[tags == "c"].any(),
                "inclusion must be 0 for tags without a quota",
            )
        selector.observe(picked.clients, **simulation.report(len(picked)))
    twin = type(selector).from_state_dict(selector.state_dict())
    require(twin.tags == selector.tags, "tags must be part of the state")
    refused(selector, lambda: selector.select(quotas={"d": 1}), "a quota of an unknown tag")


def overlap(policy: PolicyUnderTest) -> None:
    """Concurrent rounds have clients and numbers of their own and close in any order."""
    simulation = policy.simulation(seed=16, n_rounds=3)
    selector = simulation.selector
    if not selector.asynchronous:
        refused(selector, lambda: selector.select(n=1, concurrent=True), "overlapping rounds")
        return
    for _ in range(6):
        begun = selector.round
        rounds = [_selected(simulation, n=1, concurrent=True) for _ in range(3)]
        numbers = [picked.round for picked in rounds]
        require(len(set(numbers)) == 3, f"open rounds must have numbers of their own: {numbers}")
        busy = np.concatenate([picked.clients for picked in rounds])
        require(np.unique(busy).size == busy.size, f"a busy client must not be picked: {busy}")
        selector = type(selector).from_state_dict(selector.state_dict())
        simulation = simulation.continued(selector)
        require(selector.open_rounds == sorted(numbers), "open rounds must be part of the state")
        for picked in rounds[::-1]:
            report = simulation.report(len(picked))
            selector.observe(picked.clients, round=picked.round, **report)
        require(
            selector.round == begun + 3 and not selector.open_rounds,
            "each report must close the round that it names",
        )
    simulation.rounds(5)
