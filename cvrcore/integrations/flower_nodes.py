"""Which node of a Flower grid is which client."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Message, RecordDict

from .answers import Newcomer
from .backoff import Backoff
from .flower_client import HELLO, RECORD
from .flower_grid import Patience, exchange, reason

logger = logging.getLogger(__name__)

Identity = str | Callable[[Any], str | int]
#: Ways to tell clients apart by name; a callable of Flower's ``NodeInfo`` is one more.
IDENTITIES = ("query", "name", "key", "node-id")
#: Seconds between two looks at who has connected.
LOOK = 0.5


class Nodes:
    """Tells nodes apart by an identity that outlives a run; Flower's node ids do not.

    Parameters
    ----------
    identity : {"query", "name", "key", "node-id"} or callable
        The client's own word (see `flower_client.selectable`), the name or the public key
        under which the SuperLink knows the node, the node id, or a function of `NodeInfo`.
    sizes : mapping, optional
        Training samples of clients known beforehand, by id.
    patience : Patience
        How long to wait for an introduction.

    Attributes
    ----------
    refused : dict
        Why, for each node that is left out for now.
    """

    def __init__(
        self, identity: Identity, sizes: Mapping[Any, float] | None, patience: Patience
    ) -> None:
        if not callable(identity) and identity not in IDENTITIES:
            allowed = ", ".join(map(repr, IDENTITIES))
            raise ValueError(f"identity must be one of {allowed} or a function, got {identity!r}")
        self._identity = identity
        self._sizes = dict(sizes or {})
        self._patience = patience
        self._client_of: dict[int, Any] = {}
        self._looks = 0
        self._again = Backoff()
        self.refused: dict[int, str] = {}

    @property
    def met(self) -> bool:
        """Whether any client was ever met."""
        return bool(self._client_of)

    def wait(self, grid: Any, n_wanted: int, settled: bool, seconds: float) -> int:
        """Wait until nodes have connected, no longer than `seconds`.

        Parameters
        ----------
        n_wanted : int
            Go on when that many are there.
        settled : bool
            Go on only when their number did not change between two looks.
        """
        end, before = time.monotonic() + seconds, -1
        while True:
            n_nodes = len(set(grid.get_node_ids()))
            if n_nodes >= n_wanted and (n_nodes == before or not settled):
                return n_nodes
            if time.monotonic() >= end:
                return n_nodes
            before = n_nodes
            time.sleep(min(LOOK, max(end - time.monotonic(), 0.0)))

    def meet(self, grid: Any) -> tuple[dict[Any, int], dict[Any, Newcomer]]:
        """Look who is connected, and ask those never met who they are.

        Returns
        -------
        present : dict
            Node of each client that is connected, by id.
        newcomers : dict
            What is known of those met just now, by id.
        """
        self._looks += 1
        nodes = sorted(set(grid.get_node_ids()))
        unknown = [node for node in nodes if node not in self._client_of]
        strangers = [node for node in unknown if self._again.due(node, self._looks)]
        present = {self._client_of[node]: node for node in nodes if node in self._client_of}
        newcomers: dict[Any, Newcomer] = {}
        for node, found in self._introduce(grid, strangers).items():
            id, newcomer = found
            if id in present:
                self._refuse(node, f"node {present[id]} is client {id!r} already")
                continue
            self._again.forget(node)
            self.refused.pop(node, None)
            # It may have come back on another node: the old one is a stranger from now on.
            self._client_of = {n: c for n, c in self._client_of.items() if c != id}
            self._client_of[node], present[id], newcomers[id] = id, node, newcomer
        return present, newcomers

    def _introduce(self, grid: Any, nodes: list[int]) -> dict[int, tuple[Any, Newcomer]]:
        """Return id and facts of each of `nodes` that can be told apart."""
        found: dict[int, tuple[Any, Newcomer]] = {}
        if not nodes:
            return found
        names = self._names(grid, nodes)
        # No question is needed where the id and the number of samples are known.
        silent = [n for n in nodes if n in names and names[n] in self._sizes]
        facts = self._ask(grid, [node for node in nodes if node not in silent])
        for node in nodes:
            try:
                told = facts.get(node, {})
                if isinstance(told, str):
                    raise ValueError(told)
                # Never its own word where the SuperLink's was asked for: it may lie.
                id = told.get("id") if self._identity == "query" else names.get(node)
                if id in ("", None) and self._identity in ("name", "key"):
                    raise ValueError(
                        f"the SuperLink knows no {self._identity} of it: "
                        "flwr supernode register KEY.pub --name NAME"
                    )
                if isinstance(id, bool) or not isinstance(id, (str, int)) or id == "":
                    raise ValueError(f"its id must be a string or an integer, got {id!r}")
                weight = self._sizes.get(id, told.get("num-examples"))
                if weight is None:
                    raise ValueError("it did not say its number of samples")
                found[node] = id, Newcomer(float(weight), told.get("label-counts"))
            except (TypeError, ValueError) as error:
                self._refuse(node, str(error))
        return found

    def _names(self, grid: Any, nodes: list[int]) -> dict[int, Any]:
        """Return the ids that the SuperLink vouches for."""
        if self._identity == "query":
            return {}
        if self._identity == "node-id":
            return {node: node for node in nodes}
        if not hasattr(grid, "get_nodes"):
            raise ValueError(f"identity {self._identity!r} wants a newer flwr: use 'query'")
        known = {info.node_id: info for info in grid.get_nodes()}
        if callable(self._identity):
            return {node: self._identity(known[node]) for node in nodes if node in known}
        if self._identity == "key":
            return {node: known[node].public_key.hex() for node in nodes if node in known}
        return {node: known[node].name for node in nodes if node in known}

    def _ask(self, grid: Any, nodes: list[int]) -> dict[int, Any]:
        """Return the facts that each node tells, or why there are none, as text."""
        questions = [Message(RecordDict(), node, f"query.{HELLO}") for node in nodes]
        answers: dict[int, Any] = {node: "it did not introduce itself in time" for node in nodes}
        for reply in exchange(grid, questions, self._patience) if questions else ():
            node = reply.metadata.src_node_id
            if node not in answers:
                logger.warning("node %d introduced itself and was not asked: ignored", node)
            elif reply.has_error():
                answers[node] = f"it could not introduce itself: {reason(reply)}"
            else:
                answers[node] = dict(reply.content.config_records.get(RECORD, {}))
        return answers

    def _refuse(self, node: int, why: str) -> None:
        """Leave a node out for now; it is asked again, each time after twice as long."""
        self._again.put_off(node, self._looks)
        self.refused[node] = why
        logger.warning("node %d is left out: %s", node, why)
