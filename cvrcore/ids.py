"""IdMap: client ids of any framework in, slots 0 .. K - 1 out, and back."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from .validation import Ids, Mask, check_ids


class IdMap:
    """Append-only map from hashable ids to slots.

    An id gets its slot when it is first used and keeps it: a client that leaves and returns
    has the same slot, and a slot is never reused. Ids that compare equal share a slot, as in
    a dict: ``1`` and ``1.0``, but not ``1`` and ``"1"``.

    Parameters
    ----------
    ids : iterable of hashable
        Ids to add, in order; repeated ids are ignored.

    Examples
    --------
    >>> clients = IdMap(["ann", "bob"])
    >>> clients.slot("eve"), clients.slot("ann")  # an unknown id is added
    (2, 0)
    >>> clients.ids([2, 0])
    ['eve', 'ann']
    >>> clients.mask(["eve", "bob"])  # for select(available=...)
    array([False,  True,  True])
    """

    def __init__(self, ids: Iterable[Hashable] = ()) -> None:
        self._ids: list[Hashable] = []
        self._slots: dict[Hashable, int] = {}
        for id in ids:
            self.slot(id)

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, id: Hashable) -> bool:
        return id in self._slots

    def __repr__(self) -> str:
        return f"IdMap({len(self)} ids)"

    def slot(self, id: Hashable) -> int:
        """Return the slot of `id`, adding it if it is new."""
        slot = self._slots.setdefault(id, len(self._ids))
        if slot == len(self._ids):
            self._ids.append(id)
        return slot

    def slots(self, ids: Iterable[Hashable]) -> Ids:
        """Return the slot of each of `ids`, adding the new ones."""
        return np.array([self.slot(id) for id in ids], dtype=np.int64)

    def id(self, slot: int) -> Hashable:
        """Return the id that holds `slot`."""
        return self.ids([slot])[0]

    def ids(self, slots: ArrayLike) -> list[Hashable]:
        """Return the id of each of the distinct `slots`, such as ``Selection.clients``."""
        return [self._ids[slot] for slot in check_ids(slots, "slots", len(self))]

    def mask(self, present_ids: Iterable[Hashable]) -> Mask:
        """Return a mask of the present ids, shape (len(self),); every id must be known."""
        mask = np.zeros(len(self), dtype=bool)
        for id in present_ids:
            if id not in self._slots:
                raise ValueError(f"present_ids must be ids in the map, got {id!r}")
            mask[self._slots[id]] = True
        return mask

    def forget(self, id: Hashable) -> int:
        """Erase an id and return its slot, which stays taken; a returning client gets a new one.

        Raises
        ------
        ValueError
            If the id is not in the map.
        """
        if id not in self._slots:
            raise ValueError(f"id must be in the map, got {id!r}")
        slot = self._slots.pop(id)
        self._ids[slot] = forgotten_name(slot)
        self._slots[self._ids[slot]] = slot
        return slot

    def state_dict(self) -> dict[str, Any]:
        """Return the ids in slot order, as plain values.

        Raises
        ------
        TypeError
            If an id is neither str nor int: a file would not restore it exactly.
        """
        return {"ids": [_as_plain(id) for id in self._ids]}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Self:
        """Build a map from `state_dict`'s result."""
        if not isinstance(state, dict) or not isinstance(state.get("ids"), list):
            raise ValueError("state must be a dict made by state_dict()")
        restored = cls(_as_plain(id) for id in state["ids"])
        if len(restored) != len(state["ids"]):
            raise ValueError("state must hold distinct ids, got one more than once")
        return restored


def forgotten_name(slot: int) -> str:
    """Return what stands for the id of a client that was forgotten."""
    return f"(forgotten {slot})"


def _as_plain(id: Any) -> str | int:
    if isinstance(id, str):
        return str(id)
    if isinstance(id, (int, np.integer)) and not isinstance(id, bool):
        return int(id)
    raise TypeError(f"ids must be str or int to be saved, got {id!r}")
