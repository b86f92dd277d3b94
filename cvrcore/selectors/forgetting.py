"""Erasure of one client: a selector in, the same selector without that client's numbers out."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from ..runtime.threads import serialised
from ..validation import check_ids
from .persistence import Saved


class Forgetting(Saved):
    """The part of `Selector` that erases what it knows of a client."""

    @serialised
    def forget(self, client: int) -> None:
        """Erase everything that this client reported; its slot stays, with weight 0.

        The client is never picked again: if it returns, it joins as a new client. Numbers of
        other clients stay as they are. Coalitions are made again from the other clients' rows.
        A round that is pending is dropped: select again. Save the selector afterwards, and
        delete or rewrite older files: `cvrcore.erasure.forget_in_file`.

        Parameters
        ----------
        client : int
            The id of the client.
        """
        k = int(check_ids([client], "client", self.n_clients)[0])
        others = np.flatnonzero(self.weights > 0)
        if not np.setdiff1d(others, [k]).size:
            raise ValueError(f"client must not be the only one of positive weight, got {k}")
        without = copy.deepcopy(self)  # so that a signal finds all of the client or nothing
        without._forget(k)
        if without._gate is not None:
            without._gate.forget(k)
        without.weights[k] = 0.0
        without._pending = without._probed = None
        self._become(without)

    def _forget(self, client: int) -> None:
        """Erase what the policy itself learned of one client; `self.weights` are still old.

        This default replaces row `client` of every array of `_learned` that has a row for each
        client by the row of a client that joins now. A policy that keeps sums over clients
        overrides it.
        """
        learned = self._learned()
        if not learned:
            return
        config: dict[str, Any] = {
            "n_clients": self.n_clients,
            "n_select": self.n_select,
            "weights": self.weights,
            **self._config(),
        }
        fresh = type(self)(**config)._learned()
        self._restore(blank_rows(learned, fresh, client, self.n_clients))


def blank_rows(
    learned: dict[str, Any], fresh: dict[str, Any], client: int, n_clients: int
) -> dict[str, Any]:
    """Return `learned` with one client's row of each array taken from `fresh`.

    An array that `fresh` lacks gets NaN or 0. One that `fresh` has in another shape is no array of
    rows of clients, whatever its length.
    """
    found: dict[str, Any] = {}
    for name, value in learned.items():
        if isinstance(value, dict):
            inner = fresh.get(name)
            inner = inner if isinstance(inner, dict) else {}
            value = blank_rows(value, inner, client, n_clients)
        elif isinstance(value, np.ndarray) and value.ndim and value.shape[0] == n_clients:
            value = value.copy()
            initial = fresh.get(name)
            if initial is None:
                value[client] = np.nan if value.dtype.kind == "f" else 0
            elif np.shape(initial) == value.shape:
                value[client] = initial[client]
        found[name] = value
    return found
