"""Checks of selection: a policy under test in, an error if it selects wrong clients out."""

from __future__ import annotations

import functools
import random

import numpy as np

from ..selection import Selection
from ..selectors.needs import NEEDS
from ..selectors.registry import BUILT_IN, policy_class
from ..validation import Mask
from .assertions import refused, require, valid
from .policy_under_test import N_CLIENTS, N_SELECT, PolicyUnderTest, sample_counts
from .simulation import Simulation


def identity(policy: PolicyUnderTest) -> None:
    """A policy has a name and a valid loss statistic, and keeps its arguments."""
    selector = policy(seed=0)
    cls = type(selector)
    name = getattr(cls, "name", None)
    require(isinstance(name, str) and name, f"the class attribute name must be a str, got {name!r}")
    require(
        name not in BUILT_IN or policy_class(str(name)) is cls,
        f"name must not be that of a policy of cvrcore, got {name!r}",
    )
    statistic = cls.loss_statistic
    require(
        statistic in (None, "mean", "rms"),
        f"loss_statistic must be None, 'mean' or 'rms', got {statistic!r}",
    )
    rule = selector.size_rule
    require(
        rule in ("fixed", "at-most", "random"),
        f"size_rule must be 'fixed', 'at-most' or 'random', got {rule!r}",
    )
    unknown = sorted(set(selector.needs) - set(NEEDS))
    require(not unknown, f"needs must be among {', '.join(NEEDS)}, got {unknown[:1]}")
    kept = (selector.n_clients, selector.n_select, selector.round)
    require(
        kept == (N_CLIENTS, N_SELECT, 0),
        f"(n_clients, n_select, round) must be {(N_CLIENTS, N_SELECT, 0)}, got {kept}: is "
        "super().__init__ called?",
    )
    require(
        np.array_equal(selector.weights, sample_counts(N_CLIENTS)),
        "weights must be kept raw, as they were given",
    )


def same_seed(policy: PolicyUnderTest) -> None:
    """The same seed gives the same selections."""
    first, second = (policy.simulation(seed=7).rounds(30) for _ in range(2))
    for t, (a, b) in enumerate(zip(first, second, strict=True)):
        require(
            a == b,
            f"seed=7 must give the same selections twice, got {a} and {b} in round {t}: draw "
            "from self._rng only, and never iterate over a set",
        )


def other_seed(policy: PolicyUnderTest) -> None:
    """Another seed gives other selections."""
    futures = []
    for seed in (7, 8):
        simulation = Simulation(policy(seed=seed), 0, policy.n_features)
        futures.append(simulation.rounds(20))
    require(
        futures[0] != futures[1],
        "seeds 7 and 8 must give different selections, got the same for 20 rounds: draw from "
        "self._rng, or pass deterministic=True",
    )


def global_random(policy: PolicyUnderTest) -> None:
    """The global generators of NumPy and Python are neither read nor advanced."""
    kept_numpy, kept_python = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        futures = []
        for state in (1, 2):
            np.random.seed(state)  # noqa: NPY002
            random.seed(state)
            before = (np.random.get_state()[1].tolist(), random.getstate())  # type: ignore[index]  # noqa: NPY002
            futures.append(policy.simulation(seed=7).rounds(15))
            after = (np.random.get_state()[1].tolist(), random.getstate())  # type: ignore[index]  # noqa: NPY002
            require(
                before == after,
                "the global random state must not be moved, but it was: draw from self._rng",
            )
        require(
            futures[0] == futures[1],
            "selections must not depend on the global random state, but they do: draw from "
            "self._rng",
        )
    finally:
        np.random.set_state(kept_numpy)  # noqa: NPY002
        random.setstate(kept_python)


def picks(policy: PolicyUnderTest) -> None:
    """Every round selects distinct eligible clients, as many as `size_rule` says."""
    simulation = policy.simulation(seed=1)
    for t in range(120):
        require(
            simulation.selector.round == t,
            f"round must count the closed rounds: {t}, got {simulation.selector.round}",
        )
        simulation.probe()
        rule = simulation.selector.size_rule
        valid(simulation.select(), simulation.eligible(), N_SELECT, t, rule)
        simulation.observe()


def availability(policy: PolicyUnderTest) -> None:
    """A mask and ids mean the same; one client is enough; no client is an error."""
    by_mask, by_ids = policy.simulation(seed=2, n_rounds=5), policy.simulation(seed=2, n_rounds=5)
    rng = np.random.default_rng(2)
    for _ in range(10):
        mask = rng.random(N_CLIENTS) < 0.5
        mask[0] = True
        by_mask.available, by_ids.available = mask, rng.permutation(np.flatnonzero(mask))
        chosen = []
        for simulation in (by_mask, by_ids):
            asked = simulation.selector.probe(simulation.available)
            simulation.losses = None if asked is None else np.linspace(0.0, 1.0, asked.size)
            chosen.append(simulation.select().clients.tolist())
            simulation.observe()
        require(
            chosen[0] == chosen[1],
            f"available must mean the same as a mask and as ids, got {chosen[0]} and {chosen[1]}",
        )
    simulation = policy.simulation(seed=3, n_rounds=5)
    for only in np.flatnonzero(simulation.selector.weights > 0):
        asked = simulation.selector.probe([only])
        losses = None if asked is None else np.ones(asked.size)
        picked = simulation.selector.select([only], losses, **simulation.context())
        nobody = len(picked) == 0 and simulation.selector.size_rule == "random"
        require(
            picked.clients.tolist() == [only] or nobody,
            f"the only available client {only} must be picked, got {picked.clients.tolist()}",
        )
    for empty in (np.zeros(N_CLIENTS, dtype=bool), [], [3]):
        call = functools.partial(simulation.selector.select, empty)
        refused(simulation.selector, call, "no eligible client")


def sizes(policy: PolicyUnderTest) -> None:
    """One client, all clients, and fewer clients than n_select are valid sizes."""
    for n_clients, n_select in ((1, 1), (2, 2), (N_SELECT, N_SELECT), (40, 1)):
        weights = np.ones(n_clients)
        selector = policy(seed=3, n_clients=n_clients, n_select=n_select, weights=weights)
        simulation = Simulation(selector, 3, policy.n_features)
        for t in range(25):
            simulation.probe()
            valid(simulation.select(), simulation.eligible(), n_select, t, selector.size_rule)
            simulation.observe()


def laws(policy: PolicyUnderTest) -> None:
    """Probabilities and inclusion probabilities, where given, are valid."""
    simulation = policy.simulation(seed=4)
    for _ in range(60):
        simulation.probe()
        picked = simulation.select()
        absent = ~simulation.eligible()
        for name in ("probabilities", "inclusion"):
            values = getattr(picked, name)
            if values is None:
                continue
            require(
                values.shape == (N_CLIENTS,),
                f"{name} must have shape ({N_CLIENTS},), got {values.shape}",
            )
            ends = (float(values.min()), float(values.max()))
            require(
                ends[0] >= 0 and ends[1] <= 1 + 1e-9,
                f"{name} must lie in [0, 1], got {ends[0]:g}..{ends[1]:g}",
            )
            require(not values[absent].any(), f"{name} must be 0 for those who cannot be picked")
        if picked.probabilities is not None:
            groups = np.zeros_like(absent, int) if picked.coalitions is None else picked.coalitions
            for group in np.unique(groups[~absent]):
                total = float(picked.probabilities[groups == group].sum())
                require(
                    abs(total - 1) < 1e-9,
                    f"probabilities must sum to 1 (in each coalition, if any), got {total:.12g}",
                )
        if picked.inclusion is not None:
            total = float(picked.inclusion.sum())
            require(
                abs(total - len(picked)) < 1e-6 or simulation.selector.size_rule != "fixed",
                f"inclusion must sum to the {len(picked)} clients picked, got {total:.12g}",
            )
            require(
                (picked.inclusion[picked.clients] > 0).all(),
                "inclusion must be positive for those who were picked",
            )
        if picked.expected is not None:
            _expected_counts(picked, absent)
        simulation.observe()


def _expected_counts(picked: Selection, absent: Mask) -> None:
    """Fail unless expected counts sum to the draws, and are 0 for absent clients alone."""
    expected = picked.expected
    assert expected is not None
    require(
        expected.shape == absent.shape and not expected[absent].any(),
        "expected must hold one count for each client, 0 for those who cannot be picked",
    )
    require(
        (expected[picked.clients] > 0).all(), "expected must be positive for those who were picked"
    )
    total, n_draws = float(expected.sum()), int(picked.times_drawn.sum())
    require(abs(total - n_draws) < 1e-6, f"expected must sum to {n_draws} draws, got {total:.12g}")
