"""Checks of reporting: how a policy takes what it is told, right or wrong."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .claims import Broken, difference, refused, require, valid
from .subject import N_CLIENTS, N_SELECT, Subject, sample_counts
from .world import World


def partial_reports(subject: Subject) -> None:
    """Any subset of the picked may report, even none; the round is closed all the same."""
    world = subject.world(seed=5, n_rounds=2)
    for n_back in (0, 1, 2, 3, 4, 0, 0, 1):
        picked = world.until_pending(N_SELECT)
        round = world.selector.round
        world.selector.observe(picked.clients[:n_back], **world.report(n_back))
        require(
            world.selector.round == round + 1,
            f"a report of {n_back} of {len(picked)} clients must close the round, got round "
            f"{world.selector.round} after {round}",
        )
    world.rounds(10)


def report_order(subject: Subject) -> None:
    """What is reported is aligned with `clients`, in whatever order these are named."""
    futures = []
    for step in (1, -1):
        world = subject.world(seed=6)
        future = []
        for _ in range(25):
            world.probe()
            picked = world.select()
            said = world.report(len(picked))
            said = {k: None if v is None else v[::step] for k, v in said.items()}
            world.selector.observe(picked.clients[::step], **said)
            future.append(picked.clients.tolist())
        futures.append(future)
    require(
        futures[0] == futures[1],
        "selections must not depend on the order in which clients are reported: models, losses "
        "and durations belong to report.clients, not to the clients picked",
    )


def stated_needs(subject: Subject) -> None:
    """A policy needs no losses unless `loss_statistic` says so, nor durations or models."""
    world = subject.world(seed=7)
    for t in range(10):
        world.probe()
        picked = world.select()
        said = world.report(len(picked))
        said["durations"] = None
        if not subject.watches:
            said["models"] = None
        try:
            world.selector.observe(picked.clients, **said)
        except (TypeError, ValueError) as error:
            given = ", ".join(name for name, value in said.items() if value is not None)
            raise Broken(
                f"observe with {given or 'nothing but clients'} must be enough in round {t}: set "
                f"loss_statistic, or name n_features in the constructor, to be given more ({error})"
            ) from error


def failures(subject: Subject) -> None:
    """Rounds in which everybody fails are taken, and do not end the work."""
    world = subject.world(seed=8, n_rounds=2)
    for _ in range(8):
        world.probe()
        picked, round = world.select(), world.selector.round
        world.selector.observe([], failed=picked.clients)
        require(world.selector.round == round + 1, "a round that failed must be closed")
    for t in range(12):
        world.probe()
        valid(world.select(), world.eligible(), N_SELECT, world.selector.round)
        lost = world.pending().clients[: t % 3]
        back = world.pending().clients[t % 3 :]
        world.selector.observe(back, failed=lost, **world.report(back.size))


def one_report(subject: Subject) -> None:
    """A round is observed once, and not before it was selected."""
    world = subject.world(seed=9)
    refused(world.selector, lambda: world.selector.observe([]), "observe before select")
    world.round()
    refused(world.selector, world.observe, "a second observe of one round")


def abandoned_round(subject: Subject) -> None:
    """Select again abandons the pending round; the new one is open to its own clients."""
    world = subject.world(seed=10, n_rounds=3)
    for _ in range(10):
        world.probe()
        valid(world.select(), world.eligible(), N_SELECT, world.selector.round)
    world.observe()
    require(
        world.selector.round == 4,
        f"rounds that were abandoned must not count: 4 are closed, got {world.selector.round}",
    )


def bad_calls(subject: Subject, world: World) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield calls that break one rule each, while a round is pending."""
    selector, picked = world.selector, world.pending().clients
    stranger = int(np.setdiff1d(np.arange(N_CLIENTS), picked)[0])
    ones = np.ones(picked.size)
    models = np.ones((picked.size, subject.n_features))
    said = {"models": models, "losses": ones}
    observe = selector.observe
    yield "nobody available", lambda: selector.select(np.zeros(N_CLIENTS, dtype=bool))
    yield "an unknown id", lambda: selector.select([N_CLIENTS])
    yield "a mask of another size", lambda: selector.probe(np.ones(N_CLIENTS + 1, dtype=bool))
    yield "losses that no probe asked for", lambda: selector.select(losses=[1.0])
    yield "the report of a stranger", lambda: observe([stranger], models[:1], [1.0])
    yield "the failure of a stranger", lambda: observe(picked, failed=[stranger], **said)
    yield "a client both failed and back", lambda: observe(picked, failed=picked[:1], **said)
    yield "a client named twice", lambda: observe(picked[[0, 0]], models[:2], ones[:2])
    for value in (np.nan, np.inf):
        yield f"losses of {value}", functools.partial(observe, picked, models, ones * value)
    yield "too few losses", lambda: observe(picked, models, ones[1:])
    yield "durations of 0", lambda: observe(picked, durations=ones * 0, **said)
    if subject.watches:
        yield "models of NaN", lambda: observe(picked, models * np.nan, ones)
        yield "models too narrow", lambda: observe(picked, models[:, 1:], ones)
        yield "too few models", lambda: observe(picked, models[1:], ones)
    yield "fewer clients", lambda: selector.resize(N_CLIENTS - 1, [])
    yield "too few weights", lambda: subject.join(selector, [1.0], n_added=2)
    yield "negative weights", lambda: subject.join(selector, [1.0, -1.0])
    yield "weights of NaN", lambda: subject.join(selector, [1.0, np.nan])


def rejected_calls(subject: Subject) -> None:
    """A call that breaks a rule raises ValueError or TypeError and leaves no trace."""
    world = subject.world(seed=11, n_rounds=6)
    world.until_pending(2)
    for rule, call in bad_calls(subject, world):
        refused(world.selector, call, rule)
    world.observe()  # the round is still open


def resize(subject: Subject) -> None:
    """Newcomers get the next slots and can be picked; the old keep their id and weight."""
    world = subject.world(seed=12, n_rounds=10)
    world.probe()
    world.select()
    subject.join(world.selector, [150.0, 0.0, 150.0])
    selector, total = world.selector, N_CLIENTS + 3
    weights = [*sample_counts(N_CLIENTS), 150.0, 0.0, 150.0]
    require(selector.n_clients == total, f"n_clients must be {total}, got {selector.n_clients}")
    require(
        np.array_equal(selector.weights, weights),
        "resize must append the weights of newcomers and keep the old",
    )
    try:
        selector.observe([])
    except ValueError:
        pass
    else:
        raise Broken("resize must drop the pending round: select again")
    world.available = np.arange(total) >= N_CLIENTS  # newcomers only
    asked = selector.probe(world.available)
    world.answers = None if asked is None else np.ones(asked.size)
    valid(world.select(), world.eligible(), N_SELECT, selector.round)
    world.observe()
    for _ in range(15):
        world.probe()
        valid(world.select(), world.eligible(), N_SELECT, selector.round)
        world.observe()
    twin = world.continued(type(selector).from_state_dict(selector.state_dict()))
    require(
        twin.rounds(5) == world.rounds(5),
        "a selector that was resized must be restored to the same selections",
    )


def copies(subject: Subject) -> None:
    """Nothing that is handed over is kept as a view: neither ours by them nor theirs by us."""
    weights = sample_counts(N_CLIENTS)
    careful = World(subject(seed=13), 13, subject.n_features)
    rough = World(subject(seed=13, weights=weights), 13, subject.n_features)
    weights[:] = 1.0
    for _ in range(20):
        for world in (careful, rough):
            asked = world.probe()
            if world is rough and asked is not None:
                asked[:] = 0
            picked = world.select()
            clients, said = picked.clients.copy(), world.report(len(picked))
            arrays = [array for array in said.values() if array is not None]
            originals = [array.copy() for array in arrays]
            if world is rough:
                values = [getattr(picked, field.name) for field in dataclasses.fields(picked)]
                _scribble([value for value in values if isinstance(value, np.ndarray)])
                for array in arrays:
                    array.flags.writeable = False  # a policy that writes to it raises
            world.selector.observe(clients, **said)
            if world is rough:
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
