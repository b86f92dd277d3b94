"""pfl adapter: a central model and users in, cohorts selected by cvrcore out."""

from __future__ import annotations

import logging
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

from ..features import FeatureMap
from ..selectors.base import Selector
from ..selectors.guards import Guards
from ..state import load_state, save_state
from .options import adapter_keywords
from .roster import ClientInfo, Reply, Roster, Round, Utility
from .untrusted import MAX_COUNT, Layer, as_number, brief, check_layers, layers_of

logger = logging.getLogger(__name__)

#: What the caller must give for each need of a policy.
HINTS = {
    "probe": "losses= must return the loss of each sample of a user's data set",
    "losses": "losses= must return the loss of each sample of a user's data set",
    "label_counts": "label_counts= must give the number of samples of each class, by user id",
}


class SelectedUsers(FederatedDatasetBase, Postprocessor):  # type: ignore[misc, unused-ignore]
    """A federated data set whose cohorts are selected by cvrcore.

    pfl asks its data set for a cohort, and passes each user's update to postprocessors: this
    object is both. Give it to the backend twice, first among the postprocessors, so that it
    reads updates before they are weighted, clipped or noised::

        users = SelectedUsers(model, make_dataset, sizes, "fedcvr-bolt", n_select=10, seed=0)
        backend = SimulatedBackend(users, val_data, postprocessors=[users])

    It works in one process: pfl's distributed workers draw users ahead of time, each for
    itself. An update that is not finite, or of other names, shapes or kinds than the model, is
    reported as failed, and has no weight in the average; so is a user whose data or losses cannot
    be computed. If a policy of random size picks nobody, one user trains in vain: pfl expects an
    update, and gets zeros.

    Parameters
    ----------
    model : pfl model
        The central model; its parameters are read at the start of each cohort.
    make_dataset : callable
        Given a user id, returns its `pfl.data.dataset.Dataset`.
    sizes : mapping
        Number of training samples of every user, by id (str or int).
    selector : str or Selector
        A policy of cvrcore by name, or a ready selector.
    n_select : int, optional
        Users per cohort, the same as ``cohort_size``; required with a name.
    seed : int, optional
        Seed of the policy, and of the local seeds that pfl gives to users.
    losses : callable, optional
        Given the central model and a user's data set, returns the loss of each of its
        samples. Needed by policies that use losses.
    label_counts : mapping, optional
        Number of samples of each class, by user id, for policies that need them.
    available : callable, optional
        Given the number of the cohort, from 0, returns the ids of the users that can take
        part. Default: all.
    features : FeatureMap, optional
        What the policy watches of a model. Default: the last layer.
    guards : Guards or "recommended", optional
        Limits on hostile and broken users.
    utility : callable, optional
        Given a model as a dict of arrays, returns its worth on validation samples, the larger the
        better; for policies that need utilities.
    **options
        Further arguments of the policy, among them ``n_features``: watch only that many
        coordinates of the last layer, drawn with `seed`.

    Examples
    --------
    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> from cvrcore.integrations.pfl import SelectedUsers
    >>> from pfl.data.dataset import Dataset
    >>> def make_dataset(user):
    ...     return Dataset([np.ones((5, 2))], user_id=user)
    >>> model = SimpleNamespace()  # yours: a model of pfl
    >>> sizes = {"ann": 5, "bob": 5, "eve": 5}
    >>> users = SelectedUsers(model, make_dataset, sizes, "uniform", n_select=2, seed=0)
    >>> len(users.rounds)
    0
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
        guards: Guards | str | None = None,
        utility: Utility | None = None,
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
            n_features=options.pop("n_features", None),
            options=options,
            guards=guards,
            utility=utility,
            hints=HINTS,
            keywords=adapter_keywords(SelectedUsers),
        )
        if self.roster.needs & {"losses", "probe"} and losses is None:
            raise ValueError("losses must be given to a policy that wants losses, got None")
        if self.roster.wants_label_counts and not (label_counts or "label_counts" in options):
            raise ValueError("label_counts must be given to a policy that wants them, got None")
        if self.roster.watches:
            self.roster.watch(self._parameters())
        counts = label_counts or {}
        clients = {id: ClientInfo(size, counts.get(id)) for id, size in sizes.items()}
        refused = self.roster.register(clients)
        if self.roster.watches:  # once more: options of the policy may ask for it
            self.roster.watch(self._parameters())
        if self.roster.selector is None:
            id, why = next(iter(refused.items()), (None, "sizes is empty"))
            raise ValueError(f"sizes must describe users that can be selected, got {id!r}: {why}")
        self._central: dict[str, Any] = {}  # the central model of the present cohort
        self._layers: dict[str, Layer] = {}  # and the shapes and dtypes of its arrays
        self._replies: dict[Any, Reply] = {}
        self._failed: dict[Any, str] = {}
        self._reported: dict[Any, float | None] = {}  # losses of the cohort
        self._n_left = 0  # users of the cohort without an update yet

    @property
    def rounds(self) -> list[Round]:
        """The record of each cohort: users available, selected, reported and failed."""
        return self.roster.rounds

    # -- pfl's methods ------------------------------------------------------------

    def get_cohort(self, cohort_size: int) -> Iterator[tuple[Any, int]]:
        """Select a cohort; when pfl has iterated over it, report the updates to the policy."""
        selector = self.roster.selector
        assert selector is not None
        if cohort_size != selector.n_select:
            raise ValueError(
                f"cohort_size must be n_select, {selector.n_select}, got {cohort_size}"
            )
        if has_framework_module() and get_default_framework_module().distributed.world_size > 1:
            raise RuntimeError("SelectedUsers must run in one process, got several workers")
        self._central = self._parameters()
        self._layers = layers_of(self._central)
        present: Iterable[Any] = self.roster.ids.ids(np.arange(len(self.roster.ids)))
        if self._available is not None:
            present = list(self._available(selector.round))
        selected = self.roster.select(present, self._ask, self._central)
        self._replies, self._failed, self._reported = {}, {}, {}
        statistic = self.roster.loss_statistic
        if statistic is not None:
            self._reported = {id: self._loss(id, statistic) for id in selected}
        yield from self._users(selected or self._idle(present), idle=not selected)
        self.roster.report(self._replies, self._failed, self._central)

    def _idle(self, present: Iterable[Any]) -> list[Any]:
        """Return a user to train in vain: pfl cannot end a round without any update."""
        return [id for id in present if id in self.roster.ids][:1]

    def _users(self, ids: list[Any], idle: bool) -> Iterator[tuple[Any, int]]:
        """Give data and seed of each user; a user without data counts as failed."""
        self._n_left = len(ids)
        error: Exception | None = None
        n_given = 0
        for id in ids:
            seed = int(self._seeds.integers(2**32))
            if idle:
                self._failed[id] = "nobody was selected"
            try:
                data = self._make_dataset(id)
            except Exception as failure:  # the data of one user may not end the run
                self._n_left -= 1
                self._failed[id], error = f"its data cannot be read: {brief(failure)}", failure
                continue
            n_given += 1
            yield data, seed
        if error is not None and not n_given:
            raise error

    def __next__(self) -> tuple[Any, int]:
        """Refuse: users are selected by the cohort."""
        raise TypeError("SelectedUsers gives whole cohorts: call get_cohort")

    def postprocess_one_user(self, *, stats: Any, user_context: Any) -> tuple[Any, Metrics]:
        """Keep the user's update for the policy; an invalid one becomes zeros."""
        self._n_left -= 1
        id = user_context.user_id
        try:
            if id in self._failed:
                raise ValueError(self._failed[id])
            as_number(getattr(stats, "weight", 1.0), "its weight", minimum=0.0, maximum=MAX_COUNT)
            steps = {str(name): _numpy(stats[name]) for name in stats}
            check_layers(steps, self._layers)
            # A sum, hence a copy: pfl reuses the memory for the next user's update.
            model = {name: self._central[name] + step for name, step in steps.items()}
            reply = Reply(model=model, loss=self._reported.get(id))
            self.roster.check(id, reply, self._central)
        except Exception as error:  # no content of an update may end the run
            self._failed[id] = brief(error)
            return self._zeroed(), Metrics()
        self._replies[id] = reply
        return stats, Metrics()

    # -- state ------------------------------------------------------------------

    def forget(self, user: Any) -> None:
        """Erase a user between cohorts: from selector, ids and `rounds`; it is never selected."""
        self.roster.forget(user)

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
        losses = {id: self._loss(id, "mean") for id in ids}
        return {id: loss for id, loss in losses.items() if loss is not None}

    def _loss(self, id: Any, statistic: str) -> float | None:
        """Return the loss of the central model over a user's samples; None if it has none."""
        assert self._losses is not None
        try:
            values = np.asarray(self._losses(self._model, self._make_dataset(id)), np.float64)
            mean = values.mean() if statistic == "mean" else np.sqrt(np.square(values).mean())
            return as_number(float(mean), f"its {statistic} loss")
        except Exception as error:  # the data of one user may not end the run
            logger.warning("user %r has no loss: %s", id, brief(error))
            return None

    def _zeroed(self) -> Any:
        """Return an update of zeros of weight 0; of weight 1 if the cohort has no other."""
        zeroed = self._model.get_parameters().apply_elementwise(_zeros)
        # The average over weights of 0 would be NaN: the last update then has weight 1.
        zeroed.weight = 0.0 if self._replies or self._n_left else 1.0
        return zeroed


def _numpy(tensor: Any) -> Any:
    """Return a tensor of any framework as an array."""
    for step in ("detach", "cpu", "numpy"):
        if hasattr(tensor, step):
            tensor = getattr(tensor, step)()
    return np.asarray(tensor)


def _zeros(tensor: Any) -> Any:
    """Return zeros of the same framework, shape and device; NaN times 0 would be NaN."""
    clone = getattr(tensor, "clone", None)
    if clone is None:
        return np.zeros_like(tensor)
    return clone().zero_()
