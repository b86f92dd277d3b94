"""APPFL adapter: a server agent and results of clients in, cohorts selected by cvrcore out."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .extras import require

require("appfl", "1.12", "appfl")

import torch

from ..features import FeatureMap
from ..selectors.base import Selector
from ..selectors.guards import Guards
from ..state import load_state, save_state
from .options import adapter_keywords
from .roster import ClientInfo, Reply, Roster, Round, Utility
from .untrusted import Layer, as_number, as_sent, brief, check_layers, layers_of

logger = logging.getLogger(__name__)

#: Rounds in a row in which no reply can be used, after which `SelectingServer.run` gives up.
MAX_EMPTY = 100
#: Names that `ServerAgent.global_update` keeps for itself.
_RESERVED = frozenset({"client_id", "local_model", "blocking"})

#: What the caller must give for each need of a policy.
HINTS = {
    "probe": "ask= of select, or losses= of run, must return the loss of each client asked",
    "losses": "the metadata of a client's result must hold loss_key=, by default the loss that "
    "APPFL's trainer computes before training with do_pre_validation: true",
    "label_counts": "label_counts= must give the number of samples of each class, by client id",
}


class SelectingServer:
    """A server agent of APPFL whose cohorts are selected by cvrcore.

    APPFL lets every client train in every round. Here a policy selects some of them, and APPFL's
    aggregator merges their models. A model that is not finite, or of other names, shapes or kinds
    than the model that was sent, is reported as failed, and is not aggregated::

        server = SelectingServer(server_agent, "fedcvr-bolt", n_select=4, seed=0)
        server.run(client_agents)

    Parameters
    ----------
    agent : appfl.agent.ServerAgent
        With a synchronous scheduler (``SyncScheduler``).
    selector : str or Selector
        A policy of cvrcore by name, or a ready selector.
    n_select : int, optional
        Clients per round; required with a name.
    seed : int, optional
    loss_key : str
        Entry of a result's metadata with the loss of the model that the client received, for
        policies that use losses.
    label_counts : mapping, optional
        Number of samples of each class, by client id, for policies that need them.
    features : FeatureMap, "update" or "head", optional
        What the policy watches of a model. Default: the last layer.
    guards : Guards or "recommended", optional
        Limits on hostile and broken clients.
    utility : callable, optional
        Given a model as a dict of arrays, returns its worth on samples of the server.
    **options
        Further arguments of the policy, among them ``n_features``: watch only that many
        coordinates of the last layer, drawn with `seed`.
    """

    def __init__(
        self,
        agent: Any,
        selector: str | Selector = "fedcvr-bolt",
        *,
        n_select: int | None = None,
        seed: int | None = None,
        loss_key: str = "pre_val_loss",
        label_counts: Mapping[Any, Sequence[int]] | None = None,
        features: FeatureMap | str | None = None,
        guards: Guards | str | None = None,
        utility: Utility | None = None,
        **options: Any,
    ) -> None:
        if not hasattr(agent.scheduler, "set_num_clients"):
            raise TypeError(
                "agent must have a synchronous scheduler, such as SyncScheduler, got "
                f"{type(agent.scheduler).__name__}"
            )
        self.agent, self._loss_key = agent, loss_key
        self._label_counts = dict(label_counts or {})
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
            keywords=adapter_keywords(SelectingServer),
        )
        epochs = agent.server_agent_config.server_configs.num_global_epochs
        self.roster.announce(int(epochs))
        self._sent: dict[str, NDArray[Any]] = {}  # the model of the open round, by name
        self._layers: dict[str, Layer] = {}
        self._replies: dict[Any, Reply] = {}
        self._metadata: dict[Any, dict[str, Any]] = {}
        self._failed: dict[Any, str] = {}
        self._selected: list[Any] | None = None  # None: no round is open

    @property
    def rounds(self) -> list[Round]:
        """The record of each round: clients available, selected, reported and failed."""
        return self.roster.rounds

    # -- a round ------------------------------------------------------------------

    def register(self, sizes: Mapping[Any, float]) -> dict[Any, str]:
        """Introduce clients with their numbers of samples; return why any of them are refused."""
        self.roster.watch(self._parameters())
        counts = self._label_counts
        refused = self.roster.register(
            {id: ClientInfo(n, counts.get(id)) for id, n in sizes.items()}
        )
        self.roster.watch(self._parameters())  # once more: options of the policy may ask for it
        for id, why in refused.items():
            logger.warning("client %r is refused: %s", id, why)
        known = {id: float(size) for id, size in sizes.items() if id not in refused}
        for id, size in self.roster.bounded_weights(known).items():
            self.agent.set_sample_size(id, size)
        return refused

    def select(
        self,
        present: Iterable[Any] | None = None,
        ask: Callable[[list[Any]], Mapping[Any, float]] | None = None,
    ) -> list[Any]:
        """Select the clients of the next round.

        Parameters
        ----------
        present : iterable of ids, optional
            Clients that can take part. Default: all that are registered.
        ask : callable, optional
            Given ids, returns the losses of the present model by id. Needed by policies that
            probe.

        Returns
        -------
        list of ids
            Give each the model of ``agent.get_parameters(serial_run=True)``. It is empty if a
            policy of random size picked no client: then `finish` follows at once.
        """
        if self._selected is not None:
            raise ValueError("select must follow finish: a round is open")
        self._sent = self._parameters()
        self._layers = layers_of(self._sent)
        everyone = self.roster.ids.ids(np.arange(len(self.roster.ids)))
        selected = self.roster.select(everyone if present is None else present, ask, self._sent)
        self._replies, self._metadata, self._failed = {}, {}, {}
        self._selected = selected
        return selected

    def receive(self, client: Any, result: Any) -> None:
        """Take what ``ClientAgent.get_parameters`` returned: a model, or model and metadata.

        An invalid result makes its client fail; nothing is raised.
        """
        if client not in (self._selected or ()):
            logger.warning("client %r sent a model and is not selected: ignored", client)
            return
        try:
            model, metadata = result if isinstance(result, tuple) else (result, {})
            if not isinstance(model, Mapping) or not isinstance(metadata, Mapping):
                raise ValueError(
                    "its result must be a state dict, with a dict of metadata or without, got "
                    f"{type(model).__name__} and {type(metadata).__name__}"
                )
            arrays = {str(name): _array(tensor) for name, tensor in model.items()}
            check_layers(arrays, self._layers)
            arrays = {name: as_sent(array, self._layers[name]) for name, array in arrays.items()}
            reply = Reply(model=arrays, loss=self._loss(metadata))
            self.roster.check(client, reply, self._sent)
        except Exception as error:  # no content of a result may end the run
            self.fail(client, brief(error))
            return
        self._replies[client], self._metadata[client] = reply, _plain(metadata)
        self._failed.pop(client, None)

    def fail(self, client: Any, why: str) -> None:
        """Tell that a selected client gave no result."""
        self._failed[client] = why
        self._replies.pop(client, None)

    def finish(self) -> list[Any]:
        """Report the round to the policy, and let APPFL aggregate the valid models.

        Returns
        -------
        list of ids
            Clients whose models were used. If it is empty the model stays, and APPFL does not
            count the round.
        """
        if self._selected is None:
            raise ValueError("finish must follow select: no round is open")
        used = self.roster.report(self._replies, self._failed, self._sent)
        self._selected = None
        if used:
            self._aggregate(used)
        return used

    def run(
        self,
        clients: Iterable[Any],
        losses: Callable[[Any], float] | None = None,
    ) -> None:
        """Run the federation in this process until APPFL says that training has finished.

        Parameters
        ----------
        clients : iterable of appfl.agent.ClientAgent
            A client whose training raises has failed in that round.
        losses : callable, optional
            Given a client agent that has loaded the present model, returns its loss; for
            policies that probe.
        """
        agents = {one.get_id(): one for one in clients}
        new = {id: one.get_sample_size() for id, one in agents.items() if id not in self.roster.ids}
        if new:
            self.register(new)

        def ask(ids: list[Any]) -> dict[Any, float]:
            assert losses is not None
            model = self.agent.get_parameters(serial_run=True)
            found = {}
            for id in ids:
                agents[id].load_parameters(model)
                found[id] = losses(agents[id])
            return found

        empty = 0
        while not self.agent.training_finished():
            for id in self.select(agents, None if losses is None else ask):
                self._train(id, agents[id])
            empty = 0 if self.finish() else empty + 1
            if empty >= MAX_EMPTY:
                last = next(iter(self.rounds[-1].failed.items()), "no client was selected")
                raise RuntimeError(f"no reply was used in {empty} rounds, the last failure: {last}")

    # -- state ------------------------------------------------------------------

    def forget(self, client: Any) -> None:
        """Erase a client between rounds: from selector, ids and `rounds`."""
        self.roster.forget(client)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write selector, ids and watched coordinates to one ``.npz`` file, atomically.

        The model is APPFL's: save it beside this file.
        """
        save_state(path, {"roster": self.roster.state_dict()})

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from what `save` wrote."""
        state = load_state(path)
        try:
            roster = state["roster"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"state is incomplete or malformed: {error!r}") from error
        self.roster.load_state_dict(roster)
        self._selected = None

    # -- parts ------------------------------------------------------------------

    def _parameters(self) -> dict[str, NDArray[Any]]:
        found = self.agent.get_parameters(serial_run=True)
        model = found[0] if isinstance(found, tuple) else found
        return {str(name): _array(tensor) for name, tensor in model.items()}

    def _loss(self, metadata: Mapping[str, Any]) -> float | None:
        if self.roster.loss_statistic is None or self._loss_key not in metadata:
            return None
        return as_number(metadata[self._loss_key], f"its {self._loss_key}")

    def _train(self, id: Any, client: Any) -> None:
        try:
            client.load_parameters(self.agent.get_parameters(serial_run=True))
            client.train()
            result = client.get_parameters()
        except Exception as error:  # one client may not end the run
            self.fail(id, brief(error))
            return
        self.receive(id, result)

    def _aggregate(self, used: list[Any]) -> None:
        """Give the models to APPFL, whose scheduler waits for as many as it is told."""
        scheduler = self.agent.scheduler
        n_clients = scheduler.num_clients
        scheduler.set_num_clients(len(used))
        try:
            for id in used:
                model = self._replies[id].model
                assert isinstance(model, Mapping)
                tensors = {name: torch.from_numpy(array) for name, array in model.items()}
                last = self.agent.global_update(
                    client_id=id, local_model=tensors, blocking=False, **self._metadata[id]
                )
        finally:
            scheduler.set_num_clients(n_clients)
        if isinstance(last, Future) and not last.done():
            raise RuntimeError(f"APPFL has not aggregated the {len(used)} models of the round")


def _array(tensor: Any) -> NDArray[Any]:
    """Return a copy of a tensor as an array; bfloat16, which NumPy lacks, becomes float32."""
    if isinstance(tensor, torch.Tensor):
        tensor = tensor.detach().cpu()
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.float()
        return np.array(tensor.numpy())
    return np.array(tensor)


def _plain(metadata: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the metadata that APPFL's aggregators may read.

    Names that begin with an underscore steer APPFL's transfer in chunks, which is not used here.
    """
    return {
        name: value
        for name, value in metadata.items()
        if isinstance(name, str) and not name.startswith("_") and name not in _RESERVED
    }
