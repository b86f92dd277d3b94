"""State of a policy: a selector in, a plain dict or an ``.npz`` file out, and back."""

from __future__ import annotations

import copy
import os
import threading
from typing import Any, ClassVar, Self

import numpy as np

from ..guards import Gate, Guards
from ..runtime.threads import own_lock, serialised
from ..selection import Selection
from ..validation import (
    Float,
    Ids,
    check_count,
    check_ids,
    check_labels,
    check_shape,
    check_stored,
    check_vector,
)
from .budgets import Budgeted
from .groups import Grouped
from .overlap import Overlapping

#: 1: without guards; 2: with guards, of older versions; 3: with guards.
FORMATS = (1, 2, 3)
LARGEST = 2**53  # count of rounds: floats hold it exactly
_OWN = ("_lock", "_process")  # attributes that belong to the object, not to its state


class Saved(Grouped, Budgeted, Overlapping):
    """The part of `Selector` that saves and restores."""

    name: ClassVar[str]
    n_clients: int
    n_select: int
    weights: Float
    round: int
    guards: Guards
    _rng: np.random.Generator
    _pending: Selection | None
    _probed: Ids | None
    _gate: Gate | None

    @serialised
    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values, the random stream included."""
        state: dict[str, Any] = {
            "format": 1 if self._gate is None else 3,
            "policy": self.name,
            "config": {
                "n_clients": self.n_clients,
                "n_select": self.n_select,
                "weights": self.weights.copy(),
                **self._config(),
            },
            "round": self.round,
            "rng": self._rng.bit_generator.state,
            "pending": None if self._pending is None else self._pending.plain(),
            "probed": None if self._probed is None else self._probed.copy(),
            "learned": self._learned(),
        }
        if self._gate is not None:
            state["guards"] = self._gate.state()
        if self._open or self._issued:
            rounds = [selection.plain() for selection in self._open.values()]
            state["open"] = {"rounds": rounds, "issued": self._issued}
        if self._tags is not None:
            state["tags"] = {"names": list(self._tag_names), "of_client": self._tags.copy()}
        if self._budgets is not None:
            state["budgets"] = self._budget_state()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace all state by the result of `state_dict`, taken from the same policy.

        Settings are part of it: `n_clients`, `n_select`, weights and options become the saved ones.
        """
        restored = type(self).from_state_dict(state)
        self._become(restored)

    def _become(self, other: Saved) -> None:
        """Take over all state of another selector of the same class, but keep the lock.

        Other threads may be waiting for the lock. One assignment, so that a signal finds the
        old state or the new one; it also mends a selector of which a call was cut off.
        """
        with own_lock(self):
            kept = {name: self.__dict__[name] for name in _OWN if name in self.__dict__}
            self.__dict__ = {**other.__dict__, "_journal": None, **kept}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Self:
        """Build a selector from `state_dict`'s result."""
        if not isinstance(state, dict) or "policy" not in state:
            raise ValueError("state must be a dict made by state_dict()")
        # Check the type first: an array compares element by element.
        if not isinstance(state["policy"], str) or state["policy"] != cls.name:
            raise ValueError(f"state must be of policy {cls.name!r}, got {state['policy']!r}")
        if not isinstance(state.get("format"), int) or state["format"] not in FORMATS:
            known = " or ".join(map(str, FORMATS))
            raise ValueError(f"state must be of format {known}, got {state.get('format')!r}")
        try:
            cls._check_sizes(state["config"], state["learned"])
            restored = cls(**state["config"])
            restored.round = check_count(state["round"], "round", 0, LARGEST)
            restored._rng.bit_generator.state = state["rng"]
            if state["pending"] is not None:
                restored._pending = _check_pending(state["pending"], restored.n_clients)
            if state["probed"] is not None:
                restored._probed = check_ids(state["probed"], "probed", restored.n_clients)
            restored._restore(state["learned"])
            restored._restore_rounds(state)
            for selection in (restored._pending, *restored._open.values()):
                if selection is not None:
                    restored._check_open(selection)
            if state["format"] > 1:
                restored._restore_gate(state["guards"], state["format"])
        except ValueError:
            raise
        except Exception as error:  # a malformed state can raise nearly anything
            raise ValueError(f"state is incomplete or malformed: {error!r}") from error
        return restored

    def _restore_rounds(self, state: dict[str, Any]) -> None:
        """Restore open rounds, tags and budgets, which a state has where they are used."""
        if "open" in state:
            self._issued = check_count(state["open"]["issued"], "issued", minimum=0)
            for stored in state["open"]["rounds"]:
                selection = _check_pending(stored, self.n_clients)
                number = check_count(selection.round, "round of an open selection", minimum=0)
                self._open[number] = selection
        if "tags" in state:
            names = state["tags"]["names"]
            codes = check_stored(state["tags"]["of_client"], "tags", self.n_clients, np.int64)
            if (codes < -1).any() or (codes >= len(names)).any():
                raise ValueError(f"tags must be positions among {len(names)} names, or -1")
            self.set_tags([names[code] if code >= 0 else None for code in codes])
        if "budgets" in state:
            self._restore_budgets(state["budgets"])

    def _restore_gate(self, stored: dict[str, Any], version: int) -> None:
        """Restore the guards; not `_use_guards`, which would clip sample counts again."""
        self.guards = Guards(**stored["settings"])
        self._gate = Gate(self.guards, self.n_clients, self._rng, self.weights)
        self._gate.restore(stored)
        if version == 2 and self._pending is not None:  # it charged a round when it closed
            eligible = check_stored(stored["eligible"], "eligible", self.n_clients, bool)
            self._gate.charge(eligible, self._pending, self.weights)

    @serialised
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to one ``.npz`` file, atomically and without pickle."""
        from ..state import save_state

        save_state(path, self.state_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a selector that `save` wrote; ``Selector.load`` reads every policy."""
        from ..state import load_state
        from . import policy_class

        state = load_state(path)
        if not hasattr(cls, "name"):  # a base class: the file names the policy
            if not isinstance(state.get("policy"), str):
                raise ValueError(f"{os.fspath(path)!r} must hold the state of a selector")
            found: Self = policy_class(state["policy"]).from_state_dict(state)  # type: ignore[assignment]
            return found
        return cls.from_state_dict(state)

    @serialised
    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the lock: selectors can be copied and pickled."""
        return {name: value for name, value in self.__dict__.items() if name not in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the attributes with a new lock."""
        self.__dict__.update(state, _lock=threading.RLock())

    @classmethod
    def _check_sizes(cls, config: dict[str, Any], learned: dict[str, Any]) -> None:
        """Compare the sizes that a state claims with its arrays, before anything is allocated.

        A policy overrides it whose constructor allocates more than a few numbers per client.
        """
        n_clients = check_count(config["n_clients"], "n_clients")
        check_shape(config["weights"], "weights", (n_clients,))

    # -- overridden by policies --------------------------------------------------

    def _check_open(self, selection: Selection) -> None:
        """Raise ValueError if an open round of a saved state lacks what `_learn` will read."""

    def _config(self) -> dict[str, Any]:
        """Return the policy's own constructor arguments, as plain values."""
        return {}

    def _learned(self) -> dict[str, Any]:
        """Return the policy's own state, as arrays and plain values."""
        return {}

    def _restore(self, learned: dict[str, Any]) -> None:
        """Restore the policy's own state from the result of `_learned`."""


def _check_pending(stored: dict[str, Any], n_clients: int) -> Selection:
    """Return a pending round from a saved state."""
    pending = Selection(**copy.deepcopy(stored))
    check_ids(pending.clients, "pending clients", n_clients)
    check_count(pending.round, "pending round", 0, LARGEST)
    for name in ("scores", "probabilities", "inclusion"):
        if getattr(pending, name) is not None:
            check_shape(getattr(pending, name), f"pending {name}", (n_clients,))
    if pending.coalitions is not None:
        check_labels(pending.coalitions, n_clients, "pending coalitions")
    if pending.counts is not None:
        counts = check_vector(pending.counts, "pending counts", len(pending), np.int64)
        if (counts < 1).any():
            raise ValueError(f"pending counts must be at least 1, got {counts.min()}")
    if pending.expected is not None:
        check_vector(pending.expected, "pending expected", n_clients)
    if pending.sent is not None:
        check_vector(pending.sent, "pending sent")
    return pending
