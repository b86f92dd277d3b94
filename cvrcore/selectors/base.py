"""The protocol of every selection policy: ask (`select`) and tell (`observe`).

`Selector` owns what all policies share: checking of arguments, the life of a round, the
random stream and the state. A policy writes `_choose` and, if it learns, `_learn`. Hooks
named ``_check_*`` run before anything changes, so a rejected call leaves no trace.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import os
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from .._validation import (
    Float,
    Ids,
    Mask,
    check_available,
    check_count,
    check_ids,
    check_seed,
    check_vector,
    check_weights,
)
from ..selection import Selection

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Probe:
    """Answers to `Selector.probe`: the current loss of each client that was asked.

    A NaN loss means that the client did not answer.
    """

    clients: Ids
    losses: Float


@dataclasses.dataclass(frozen=True)
class Report:
    """What came back from a round: arrays aligned with `clients`, and who failed."""

    selection: Selection
    clients: Ids
    models: Float | None
    losses: Float | None
    durations: Float | None
    failed: Ids


class Selector(abc.ABC):
    """A client-selection policy; see the module docstring for how to write one.

    Parameters
    ----------
    n_clients : int
        Number of slots K; ids are 0 .. K - 1.
    n_select : int
        Clients to pick each round, P.
    weights : array-like of shape (n_clients,), optional
        Raw sample counts n_k; a client of weight 0 is never eligible. Default: ones.
    seed : int, SeedSequence or None
        Seeds the policy's own random stream; no global state is read or written.
    """

    name: ClassVar[str]
    #: Which loss `observe` wants from each client: None, "mean" or "rms" (of the model
    #: that was sent, over the client's training samples).
    loss_statistic: ClassVar[str | None] = None

    def __init__(
        self,
        n_clients: int,
        n_select: int,
        weights: ArrayLike | None = None,
        seed: int | np.random.SeedSequence | None = None,
    ) -> None:
        self.n_clients = check_count(n_clients, "n_clients")
        self.n_select = check_count(n_select, "n_select", maximum=self.n_clients)
        self.weights = check_weights(weights, self.n_clients)
        self.round = 0
        if isinstance(seed, np.random.Generator):
            raise TypeError("seed must be an integer, a SeedSequence or None, got a Generator")
        self._rng = check_seed(seed)
        self._pending: Selection | None = None
        self._probed: Ids | None = None

    # -- the four verbs ---------------------------------------------------------

    def probe(self, available: ArrayLike | None = None) -> Ids | None:
        """Return ids whose current loss the policy wants before it selects, or None."""
        eligible = self._eligible(available)
        self._probed = self._candidates(eligible)
        return None if self._probed is None else self._probed.copy()

    def select(
        self, available: ArrayLike | None = None, losses: ArrayLike | None = None
    ) -> Selection:
        """Pick clients for one round.

        Parameters
        ----------
        available : mask of shape (n_clients,) or array of ids, optional
            Who can be reached now. Default: everybody.
        losses : array-like, optional
            Losses of the clients that `probe` returned, in that order; NaN where a
            client did not answer.

        Returns
        -------
        Selection
            ``min(n_select, eligible)`` distinct eligible clients.

        Raises
        ------
        ValueError
            If nobody is eligible, or `losses` does not fit what `probe` returned.
        """
        eligible = self._eligible(available)
        selection = self._choose(eligible, self._check_probe(losses))
        # A copy: what the caller does to its Selection must not reach the pending round.
        self._pending, self._probed = Selection(**_as_plain(selection)), None
        return selection

    def observe(
        self,
        clients: ArrayLike,
        models: ArrayLike | None = None,
        losses: ArrayLike | None = None,
        durations: ArrayLike | None = None,
        failed: ArrayLike = (),
    ) -> None:
        """Tell what came back from the pending round, and close it.

        Parameters
        ----------
        clients : array-like of int
            Those that reported: any subset of the picked, in any order; may be empty.
        models : array-like of shape (len(clients), n_features), optional
            Their watched coordinates (see `cvrcore.features`), for policies that use them.
        losses, durations : array-like of shape (len(clients),), optional
            Their losses (see `loss_statistic`) and seconds taken.
        failed : array-like of int
            Those picked that are known to have failed.
        """
        report = self._check_report(clients, models, losses, durations, failed)
        self._learn(report)
        self.round += 1
        self._pending = None

    def resize(self, n_clients: int, weights: ArrayLike) -> None:
        """Add slots for clients that joined; old slots keep their id and weight.

        A round that is pending is dropped: select again.

        Parameters
        ----------
        n_clients : int
            New number of slots, at least the present one.
        weights : array-like of shape (n_clients - present,)
            Sample counts of the newcomers.
        """
        n_clients = check_count(n_clients, "n_clients", minimum=self.n_clients)
        added = check_vector(weights, "weights", n_clients - self.n_clients)
        if (added < 0).any():
            raise ValueError(f"weights must be non-negative, got {added.min():g}")
        if added.size == 0:
            return
        self._grow(n_clients, added)
        self.weights = np.concatenate([self.weights, added])
        self.n_clients = n_clients
        self._pending = self._probed = None

    # -- state ------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values, the random stream included."""
        return {
            "format": FORMAT,
            "policy": self.name,
            "config": {
                "n_clients": self.n_clients,
                "n_select": self.n_select,
                "weights": self.weights.copy(),
                **self._config(),
            },
            "round": self.round,
            "rng": self._rng.bit_generator.state,
            "pending": None if self._pending is None else _as_plain(self._pending),
            "probed": None if self._probed is None else self._probed.copy(),
            "learned": self._learned(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace all state by that of `state_dict`, taken from the same policy."""
        restored = type(self).from_state_dict(state)
        self.__dict__.clear()
        self.__dict__.update(restored.__dict__)

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Self:
        """Build a selector from `state_dict`'s result."""
        if not isinstance(state, dict) or "policy" not in state:
            raise ValueError("state must be a dict made by state_dict()")
        if state["policy"] != cls.name:
            raise ValueError(f"state must be of policy {cls.name!r}, got {state['policy']!r}")
        if state.get("format") != FORMAT:
            raise ValueError(f"state must be of format {FORMAT}, got {state.get('format')!r}")
        try:
            restored = cls(**state["config"])
            restored.round = check_count(state["round"], "round", minimum=0)
            restored._rng.bit_generator.state = state["rng"]
            if state["pending"] is not None:
                restored._pending = Selection(**copy.deepcopy(state["pending"]))
            if state["probed"] is not None:
                restored._probed = check_ids(state["probed"], "probed", restored.n_clients)
            restored._restore(state["learned"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"state is incomplete or malformed: {error!r}") from error
        return restored

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to one ``.npz`` file, atomically and without pickle."""
        from ..state import save_state

        save_state(path, self.state_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a selector that `save` wrote; ``Selector.load`` reads any policy's."""
        from ..state import load_state
        from . import policy_class

        state = load_state(path)
        if cls is Selector:
            found: Self = policy_class(state["policy"]).from_state_dict(state)  # type: ignore[assignment]
            return found
        return cls.from_state_dict(state)

    # -- what a policy writes ----------------------------------------------------

    @abc.abstractmethod
    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        """Return the round's Selection; at least one client is eligible."""

    def _candidates(self, eligible: Mask) -> Ids | None:
        """Return whose loss the policy wants first, or None."""
        return None

    def _check_learnable(self, report: Report) -> None:
        """Raise if the report lacks something that this policy needs."""

    def _learn(self, report: Report) -> None:
        """Take in a checked report."""

    def _grow(self, n_clients: int, added: Float) -> None:
        """Extend per-client state; `self.n_clients` and `self.weights` are still old."""

    def _config(self) -> dict[str, Any]:
        """Return the policy's own constructor arguments, as plain values."""
        return {}

    def _learned(self) -> dict[str, Any]:
        """Return the policy's own state, as arrays and plain values."""
        return {}

    def _restore(self, learned: dict[str, Any]) -> None:
        """Take back what `_learned` returned."""

    # -- checks -----------------------------------------------------------------

    def _eligible(self, available: ArrayLike | None) -> Mask:
        eligible = self.weights > 0
        if available is not None:
            eligible &= check_available(available, self.n_clients)
        if not eligible.any():
            raise ValueError(
                "available must contain at least one client of positive weight, got none"
            )
        return eligible

    def _check_probe(self, losses: ArrayLike | None) -> Probe | None:
        if self._probed is None:
            if losses is not None:
                raise ValueError("losses must follow probe(): no client was asked for its loss")
            return None
        if losses is None:
            raise ValueError(f"losses of the {self._probed.size} probed clients are required")
        values = np.asarray(losses)
        if values.shape != self._probed.shape:
            raise ValueError(f"losses must have shape {self._probed.shape}, got {values.shape}")
        known = ~np.isnan(values.astype(np.float64))
        checked = np.full(values.shape, np.nan)
        checked[known] = check_vector(values[known], "losses")
        return Probe(self._probed, checked)

    def _check_report(
        self,
        clients: ArrayLike,
        models: ArrayLike | None,
        losses: ArrayLike | None,
        durations: ArrayLike | None,
        failed: ArrayLike,
    ) -> Report:
        pending = self._pending
        if pending is None:
            raise ValueError("observe must follow select: no round is pending")
        picked = np.zeros(self.n_clients, dtype=bool)
        picked[pending.clients] = True
        ids = check_ids(clients, "clients", self.n_clients)
        lost = check_ids(failed, "failed", self.n_clients)
        for array, name in ((ids, "clients"), (lost, "failed")):
            if array.size and not picked[array].all():
                stranger = array[~picked[array]][0]
                raise ValueError(f"{name} must have been selected this round, got {stranger}")
            picked[array] = False  # so that `failed` cannot repeat `clients`
        report = Report(
            selection=pending,
            clients=ids,
            models=None if models is None else self._check_models(models, ids.size),
            losses=None if losses is None else check_vector(losses, "losses", ids.size),
            durations=None if durations is None else check_vector(durations, "durations", ids.size),
            failed=lost,
        )
        if report.durations is not None and (report.durations <= 0).any():
            raise ValueError(f"durations must be positive, got {report.durations.min():g}")
        self._check_learnable(report)
        return report

    def _check_models(self, models: ArrayLike, n_reported: int) -> Float | None:
        """Policies that use no models ignore them unread."""
        return None


def _as_plain(selection: Selection) -> dict[str, Any]:
    return {field.name: _copy(getattr(selection, field.name)) for field in _FIELDS}


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


_FIELDS = dataclasses.fields(Selection)
