"""pfl: users of a simulation picked by cvrcore."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .extras import require

require("pfl", "0.6", "pfl")

from pfl.data.federated_dataset import FederatedDatasetBase
from pfl.internal.ops.selector import get_default_framework_module, has_framework_module
from pfl.metrics import Metrics
from pfl.postprocessor.base import Postprocessor

from .._validation import check_finite
from ..features import FeatureMap
from ..selectors.base import Selector
from ..state import load_state, save_state
from .roster import Answer, Newcomer, Roster, Round


class SelectedUsers(FederatedDatasetBase, Postprocessor):  # type: ignore[misc, unused-ignore]
    """A federated data set whose cohorts cvrcore picks.

    pfl asks its data set for a cohort, and shows each user's update to postprocessors: this
    object is both. Give it to the backend twice, first among the postprocessors, so that it
    sees updates before they are weighted, clipped or noised::

        users = SelectedUsers(model, make_dataset, sizes, "fedcvr-bolt", n_select=10, seed=0)
        backend = SimulatedBackend(users, val_data, postprocessors=[users])

    It works in one process: pfl's distributed workers draw users ahead of time, and apart. An
    update that is not finite is told as failed, and counts for nothing in the average.

    Parameters
    ----------
    model : pfl model
        The central model; its parameters are read at the start of each cohort.
    make_dataset : callable
        Given a user id, returns its `pfl.data.dataset.Dataset`.
    sizes : mapping
        Number of training samples of every user, by id (str or int).
    selector : str or Selector
        A policy of cvrcore by name, or a ready one.
    n_select : int, optional
        Users a cohort, the same as ``cohort_size``; required with a name.
    seed : int, optional
        Of the policy, and of the local seeds that pfl hands to users.
    losses : callable, optional
        Given the central model and a user's data set, returns the loss of each of its
        samples. Needed by policies that want to know losses.
    label_counts : mapping, optional
        Samples of each class, by user id, for policies that want them.
    available : callable, optional
        Given the number of the cohort, from 0, returns the ids of users that are there.
        Default: all.
    features : FeatureMap, optional
        What the policy watches of a model. Default: the last layer.
    n_features : int, optional
        Watch only that many coordinates of the last layer, drawn with `seed`.
    **options
        Further arguments of the policy.
    """

    def __init__(
        self,
        model: Any,
        make_dataset: Callable[[Any], Any],
        sizes: Mapping[Any, float],
        selector: str | Selector = "fedcvr-bolt",
        *,
        n_select: int | None = None,
        seed: int | None = None,
        losses: Callable[[Any, Any], ArrayLike] | None = None,
        label_counts: Mapping[Any, Sequence[int]] | None = None,
        available: Callable[[int], Iterable[Any]] | None = None,
        features: FeatureMap | None = None,
        n_features: int | None = None,
        **options: Any,
    ) -> None:
        # Not FederatedDatasetBase.__init__: it draws from the global random state.
        self._seeds = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
        self._model, self._make_dataset, self._losses = model, make_dataset, losses
        self._available = available
        self.roster = Roster(
            selector,
            n_select=n_select,
            seed=seed,
            features=features,
            n_features=n_features,
            options=options,
        )
        if self.roster.loss_statistic is not None and losses is None:
            raise ValueError("losses must be given to a policy that wants to know losses, got None")
        if self.roster.watches:
            self.roster.watch(self._parameters())
        counts = label_counts or {}
        newcomers = {id: Newcomer(float(size), counts.get(id)) for id, size in sizes.items()}
        refused = self.roster.welcome(newcomers)
        if refused:
            id, why = next(iter(refused.items()))
            raise ValueError(f"sizes must describe users that can be picked, got {id!r}: {why}")
        self._central: dict[str, Any] = {}
        self._answers: dict[Any, Answer] = {}
        self._failed: dict[Any, str] = {}
        self._told: dict[Any, float] = {}
        self._left = 0

    @property
    def rounds(self) -> list[Round]:
        """Who was there, who was picked and why, and what came of it, round by round."""
        return self.roster.rounds

    # -- what pfl calls -----------------------------------------------------------

    def get_cohort(self, cohort_size: int) -> Iterator[tuple[Any, int]]:
        """Pick a cohort; when pfl has gone through it, tell the selector what came back."""
        selector = self.roster.selector
        assert selector is not None
        if cohort_size != selector.n_select:
            raise ValueError(
                f"cohort_size must be n_select, {selector.n_select}, got {cohort_size}"
            )
        if has_framework_module() and get_default_framework_module().distributed.world_size > 1:
            raise RuntimeError("SelectedUsers must run in one process, got several workers")
        self._central = self._parameters()
        everybody = self.roster.ids.ids(np.arange(len(self.roster.ids)))
        present = everybody if self._available is None else self._available(selector.round)
        picked = self.roster.choose(present, self._ask)
        self._answers, self._failed, self._told = {}, {}, {}
        if self.roster.loss_statistic is not None:
            self._told = {id: self._loss(id, self.roster.loss_statistic) for id in picked}
        self._left = len(picked)
        for id in picked:
            yield self._make_dataset(id), int(self._seeds.integers(2**32))
        self.roster.report(self._answers, self._failed)

    def __next__(self) -> tuple[Any, int]:
        """Refuse: users are picked by the cohort."""
        raise TypeError("SelectedUsers gives whole cohorts: call get_cohort")

    def postprocess_one_user(self, *, stats: Any, user_context: Any) -> tuple[Any, Metrics]:
        """Keep the user's update for the selector; one that is not finite is emptied."""
        self._left -= 1
        id = user_context.user_id
        steps = {name: _numpy(stats[name]) for name in stats}
        try:
            for step in steps.values():
                check_finite(step, "its update")
        except ValueError as error:
            self._failed[id] = str(error)
            return self._emptied(stats), Metrics()
        # A sum, hence a copy: pfl uses the same memory for the next user's update.
        model = {name: self._central[name] + step for name, step in steps.items()}
        self._answers[id] = Answer(model=model, loss=self._told.get(id))
        return stats, Metrics()

    # -- state ------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write selector, ids, watched coordinates and seeds to one ``.npz`` file, atomically."""
        seeds = self._seeds.bit_generator.state
        save_state(path, {"roster": self.roster.state_dict(), "seeds": seeds})

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from what `save` wrote."""
        state = load_state(path)
        try:
            roster, seeds = state["roster"], state["seeds"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"state is incomplete or malformed: {error!r}") from error
        self.roster.load_state_dict(roster)
        self._seeds.bit_generator.state = seeds

    # -- parts ------------------------------------------------------------------

    def _parameters(self) -> dict[str, Any]:
        found = self._model.get_parameters()
        return {name: _numpy(found[name]).copy() for name in found}

    def _ask(self, ids: list[Any]) -> dict[Any, float]:
        return {id: self._loss(id, "mean") for id in ids}

    def _loss(self, id: Any, statistic: str) -> float:
        if self._losses is None:
            raise ValueError("losses must be given to a policy that wants to know losses, got None")
        values = np.asarray(self._losses(self._model, self._make_dataset(id)), dtype=np.float64)
        return float(values.mean() if statistic == "mean" else np.sqrt(np.square(values).mean()))

    def _emptied(self, stats: Any) -> Any:
        """Return an update of zeros that weighs nothing, unless there is no other."""
        empty = stats.apply_elementwise(_zeros)
        # An average over nobody would be NaN: the last one stands in with a step of zero.
        empty.weight = 0.0 if self._answers or self._left else 1.0
        return empty


def _numpy(tensor: Any) -> Any:
    """Return a tensor of any framework as an array."""
    for step in ("detach", "cpu", "numpy"):
        if hasattr(tensor, step):
            tensor = getattr(tensor, step)()
    return np.asarray(tensor)


def _zeros(tensor: Any) -> Any:
    """Return zeros of the same framework, shape and place; NaN times 0 is NaN."""
    clone = getattr(tensor, "clone", None)
    if clone is None:
        return np.zeros_like(tensor)
    return clone().zero_()
