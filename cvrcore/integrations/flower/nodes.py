"""Nodes of a Flower grid in, the client on each of them and facts about new clients out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Message, RecordDict

from ...validation import check_count
from ..backoff import Backoff
from ..options import Waiting
from ..roster import ClientInfo, Roster
from ..untrusted import brief, check_id
from .client import HELLO, RECORD
from .grid import error_text, exchange

logger = logging.getLogger(__name__)

Identity = str | Callable[[Any], str | int]
#: Named ways to identify clients; a function of Flower's ``NodeInfo`` is one more.
IDENTITIES = ("query", "name", "key", "node-id")
#: Seconds between two polls of the connected nodes.
POLL = 0.5
#: Why a silent node is left out.
LATE = "it did not introduce itself in time"


class Nodes:
    """Identifies the client on each node by an id that outlives a run; node ids do not.

    Parameters
    ----------
    identity : {"query", "name", "key", "node-id"} or callable
        The id that the client itself states (see `client.selectable`), the name or the public
        key that the SuperLink has verified, the node id, or a function of `NodeInfo`.
    n_clients : int, optional
        Nodes to wait for at first. Default: until their number has settled.
    sizes : mapping, optional
        Number of training samples of clients known beforehand, by id.
    waiting : Waiting
        Its `connect` bounds the waits for nodes and for their introductions.

    Attributes
    ----------
    refused : dict
        The reason for each node that is left out at present.
    """

    def __init__(
        self,
        identity: Identity,
        n_clients: int | None,
        sizes: Mapping[Any, float] | None,
        waiting: Waiting,
    ) -> None:
        if not callable(identity) and identity not in IDENTITIES:
            allowed = ", ".join(map(repr, IDENTITIES))
            raise ValueError(f"identity must be one of {allowed} or a function, got {identity!r}")
        self._identity = identity
        self._n_clients = None if n_clients is None else check_count(n_clients, "n_clients")
        self._sizes = dict(sizes or {})
        self._unregistered = {id: ClientInfo(float(size)) for id, size in self._sizes.items()}
        self._waiting = waiting
        self._client_of: dict[int, Any] = {}
        self._n_meetings = 0
        self._retries = Backoff()
        self.refused: dict[int, str] = {}

    def register(self, grid: Any, roster: Roster) -> dict[Any, int]:
        """Return the node of each connected client, after new clients were registered."""
        first = not self._client_of
        n_wanted = (self._n_clients or 1) if first else 1
        n_nodes = self._wait(grid, n_wanted, settled=first and not self._n_clients)
        if n_nodes < n_wanted:
            given = self._waiting.connect_text(n_wanted)
            logger.warning("%d nodes connected within %s, %d wanted", n_nodes, given, n_wanted)
        if self._unregistered:
            roster.register(self._unregistered)
            self._unregistered = {}
        present, new = self._meet(grid)
        newcomers = {id: info for id, info in new.items() if id not in roster.ids}
        for id, why in roster.register(newcomers).items():
            node = present.pop(id)
            del self._client_of[node]  # asked again later: it may state better facts
            self._refuse(node, why, logged=True)
        # One node alone never ends the run: it may be the only one that cannot.
        if first and n_nodes > 1 and not self._client_of and len(self.refused) >= n_nodes:
            raise RuntimeError(self._failure(n_nodes))
        return present

    def forget(self, client: Any) -> None:
        """Erase a client: its node, if it is still connected, counts as a new one."""
        self._client_of = {node: id for node, id in self._client_of.items() if id != client}
        self._sizes.pop(client, None)

    def _failure(self, n_nodes: int) -> str:
        """Return why no node could be identified, and what to change."""
        text = f"none of {n_nodes} nodes could be told apart: "
        late = sum(why == LATE for why in self.refused.values())
        others = [why for why in self.refused.values() if why != LATE]
        if late:
            text += (
                f"{late} did not introduce themselves within {self._waiting.connect_text(n_nodes)}"
                " (on a busy host give more: wait=600)"
            )
        if others:
            text += (
                f"{'; ' if late else ''}{len(others)} answered and were refused: does the "
                f"ClientApp call cvrcore.integrations.flower.selectable? One of them: {others[0]}"
            )
        return text

    def _wait(self, grid: Any, n_wanted: int, settled: bool) -> int:
        """Wait until `n_wanted` nodes have connected; return how many have.

        With `settled`, their number must also be the same in two polls.
        """
        began, before = time.monotonic(), -1
        while True:
            n_nodes = len(set(grid.get_node_ids()))
            end = began + self._waiting.connect_seconds(max(n_wanted, n_nodes))
            if n_nodes >= n_wanted and (n_nodes == before or not settled):
                return n_nodes
            if time.monotonic() >= end:
                return n_nodes
            before = n_nodes
            time.sleep(min(POLL, max(end - time.monotonic(), 0.0)))

    def _meet(self, grid: Any) -> tuple[dict[Any, int], dict[Any, ClientInfo]]:
        """Return the node of each connected client, and facts about new clients, by id."""
        self._n_meetings += 1
        nodes = sorted(set(grid.get_node_ids()))
        unknown = [node for node in nodes if node not in self._client_of]
        asked = [node for node in unknown if self._retries.due(node, self._n_meetings)]
        present = {self._client_of[node]: node for node in nodes if node in self._client_of}
        new: dict[Any, ClientInfo] = {}
        for node, (id, info) in self._identify(grid, asked).items():
            if id in present:
                self._refuse(node, f"node {present[id]} is client {id!r} already")
                continue
            self._retries.reset(node)
            self.refused.pop(node, None)
            # The client may have moved to another node: its old node becomes unknown.
            self._client_of = {n: c for n, c in self._client_of.items() if c != id}
            self._client_of[node], present[id], new[id] = id, node, info
        return present, new

    def _identify(self, grid: Any, nodes: list[int]) -> dict[int, tuple[Any, ClientInfo]]:
        """Return id and facts of each of `nodes` that can be identified; refuse the others."""
        found: dict[int, tuple[Any, ClientInfo]] = {}
        if not nodes:
            return found
        verified = self._verified_ids(grid, nodes)
        # A node whose id and number of samples are known is not asked.
        known = [n for n in nodes if n in verified and verified[n] in self._sizes]
        facts = self._introductions(grid, [node for node in nodes if node not in known])
        for node in nodes:
            try:
                found[node] = self._facts(facts.get(node, {}), verified.get(node))
            except Exception as error:  # nothing that a client states may end the run
                self._refuse(node, brief(error))
        late = sum(self.refused.get(node) == LATE for node in nodes if node not in found)
        if late:
            logger.warning(
                "%d of %d nodes introduced themselves within %s; the others are asked again in "
                "later rounds",
                len(nodes) - late,
                len(nodes),
                self._waiting.connect_text(len(nodes)),
            )
        return found

    def _facts(self, stated: dict[str, Any] | str, verified: Any) -> tuple[Any, ClientInfo]:
        """Return id and facts from an introduction and the verified id; an error says why not."""
        if isinstance(stated, str):
            raise ValueError(stated)
        # Where a verified id is wanted, the stated one never replaces it: it may be a lie.
        id = stated.get("id") if self._identity == "query" else verified
        if id in ("", None) and self._identity in ("name", "key"):
            raise ValueError(
                f"the SuperLink knows no {self._identity} of it: "
                "flwr supernode register KEY.pub --name NAME"
            )
        id = check_id(id)
        weight = self._sizes.get(id, stated.get("num-examples"))
        if weight is None:
            raise ValueError("it did not say its number of samples")
        return id, ClientInfo(weight, stated.get("label-counts"))

    def _verified_ids(self, grid: Any, nodes: list[int]) -> dict[int, Any]:
        """Return the ids that the SuperLink has verified, by node."""
        if self._identity == "query":
            return {}
        if self._identity == "node-id":
            return {node: node for node in nodes}
        if not hasattr(grid, "get_nodes"):
            raise ValueError(f"identity {self._identity!r} wants a newer flwr: use 'query'")
        known = {info.node_id: info for info in grid.get_nodes()}
        found = {}
        for node in nodes:
            try:
                found[node] = self._verified_id(known[node])
            except Exception as error:  # of a function of the caller, for this node alone
                logger.warning("node %d has no verified id: %s", node, brief(repr(error)))
        return found

    def _verified_id(self, info: Any) -> Any:
        if callable(self._identity):
            return check_id(self._identity(info))
        return info.public_key.hex() if self._identity == "key" else info.name

    def _introductions(self, grid: Any, nodes: list[int]) -> dict[int, Any]:
        """Return the facts that each node states, or as text why there are none."""
        queries = [Message(RecordDict(), node, f"query.{HELLO}") for node in nodes]
        found: dict[int, Any] = dict.fromkeys(nodes, LATE)
        waiting = Waiting(timeout=self._waiting.connect_seconds(len(nodes)))
        for reply in exchange(grid, queries, waiting) if queries else ():
            node = reply.metadata.src_node_id
            try:
                if node not in found or found[node] is not LATE:
                    logger.warning("node %d was not asked, or answered twice: ignored", node)
                elif reply.has_error():
                    found[node] = f"it could not introduce itself: {error_text(reply)}"
                else:
                    found[node] = dict(reply.content.config_records.get(RECORD, {}))
            except Exception as error:  # nothing that a client states may end the run
                found[node] = brief(error)
        return found

    def _refuse(self, node: int, why: str, logged: bool = False) -> None:
        """Leave a node out for now; it is asked again with exponential backoff."""
        self._retries.delay(node, self._n_meetings)
        self.refused[node] = why
        if not logged and why != LATE:  # silent nodes are logged together
            logger.warning("node %d is left out: %s", node, why)
