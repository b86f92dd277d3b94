"""Flower's legacy API: a strategy of `configure_fit` in, the same with selected clients out.

For apps not yet moved to the Message API: a client is identified by `get_properties`, losses
come from `evaluate`, watched coordinates from full updates. The private mode, stragglers' grace
and checkpoints after each round are part of `SelectingStrategy` alone.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from flwr.common import (
    Code,
    EvaluateIns,
    GetPropertiesIns,
    Parameters,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server.strategy import Strategy

from ...aggregators import Aggregator
from ...features import FeatureMap
from ...selectors.base import Selector
from ...selectors.guards import Guards
from ...validation import check_count, check_number
from ..aggregation import check_no_noise
from ..options import adapter_keywords
from ..roster import ClientInfo, NoEligibleClientError, Reply, Roster, Round

logger = logging.getLogger(__name__)


class LegacySelectingStrategy(Strategy):
    """Any legacy strategy, with clients selected by cvrcore.

    A client's ``get_properties`` must return its ``"partition-id"`` (or another permanent
    ``"id"``) and its ``"num-examples"``; ``fit`` the metric `loss_key`, for policies that
    learn from losses.

    Parameters
    ----------
    strategy : flwr.server.strategy.Strategy
    selector, n_select, seed, features, aggregator, guards, **options
        See `SelectingStrategy`.
    n_clients : int, optional
        Clients to wait for before the first round. Default: one.
    loss_key : str
        Metric of a fit result that holds the loss.
    timeout : float
        Seconds to wait for a client's properties, and for its loss when it is probed.
    wait : float
        Seconds to wait for clients to connect.
    """

    def __init__(
        self,
        strategy: Strategy,
        selector: str | Selector = "fedcvr-bolt",
        *,
        n_select: int | None = None,
        seed: int | np.random.SeedSequence | None = None,
        n_clients: int | None = None,
        features: FeatureMap | str | None = None,
        aggregator: str | Aggregator | None = None,
        guards: Guards | None = None,
        loss_key: str = "train_loss",
        timeout: float = 60.0,
        wait: float = 60.0,
        **options: Any,
    ) -> None:
        if not isinstance(strategy, Strategy):
            raise TypeError(f"strategy must be a legacy strategy, got {type(strategy).__name__}")
        self.strategy = strategy
        self.roster = Roster(
            selector,
            n_select=n_select,
            seed=seed,
            features=features,
            n_features=options.pop("n_features", None),
            options=options,
            aggregator=aggregator,
            guards=guards,
            keywords=adapter_keywords(LegacySelectingStrategy),
        )
        if self.roster.aggregator is not None:
            check_no_noise(strategy)
        self._n_clients = check_count(1 if n_clients is None else n_clients, "n_clients")
        self._loss_key, self._timeout = loss_key, check_number(timeout, "timeout", above=0)
        self._wait = check_number(wait, "wait", above=0)
        self._client_of: dict[str, Any] = {}  # by Flower's cid
        self._asked: dict[str, Any] = {}  # clients that train in this round, by cid
        self._sent: list[Any] = []  # the model of this round

    @property
    def rounds(self) -> list[Round]:
        """The record of each round: clients available, selected, reported and failed."""
        return self.roster.rounds

    def initialize_parameters(self, client_manager: Any) -> Any:
        """Delegate to the strategy."""
        return self.strategy.initialize_parameters(client_manager)

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: Any
    ) -> list[tuple[Any, Any]]:
        """Select clients, and let the strategy write their instructions."""
        self._asked = {}
        self._sent = parameters_to_ndarrays(parameters)
        self.roster.watch(self._sent)
        self._await_clients(client_manager)
        proxies = self._register(client_manager.all(), server_round)

        def losses(clients: list[Any]) -> dict[Any, float]:
            def one(proxy: Any) -> float:
                request = EvaluateIns(parameters, {"server_round": server_round})
                result = proxy.evaluate(request, self._timeout, server_round)
                return float(result.loss) if result.status.code == Code.OK else np.nan

            return self._ask_all({client: proxies[client] for client in clients}, one)

        try:
            selected = self.roster.select(proxies, losses)
        except NoEligibleClientError as error:
            logger.warning("round %d is skipped: %s", server_round, error)
            return []
        chosen = [proxies[client] for client in selected]
        self._asked = {proxy.cid: client for proxy, client in zip(chosen, selected, strict=True)}
        return list(self.strategy.configure_fit(server_round, parameters, _SelectedClients(chosen)))

    def aggregate_fit(
        self, server_round: int, results: list[tuple[Any, Any]], failures: list[Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Report the results to the policy; aggregate them, or let the strategy do it."""
        if not self._asked:
            return self.strategy.aggregate_fit(server_round, results, failures)
        valid: dict[Any, tuple[Any, Any]] = {}
        replies: dict[Any, Reply] = {}
        failed: dict[Any, str] = {}
        for failure in failures:  # an exception alone does not name its client: no answer then
            if isinstance(failure, tuple) and failure[0].cid in self._asked:
                failed[self._asked[failure[0].cid]] = str(failure[1].status.message)
        for proxy, result in results:
            client = self._asked.get(proxy.cid)
            if proxy.cid not in self._asked or client in valid or client in failed:
                logger.warning("client %r was not asked, or replied twice: ignored", proxy.cid)
                continue
            try:
                model = parameters_to_ndarrays(result.parameters)
                replies[client] = Reply(model=model, loss=result.metrics.get(self._loss_key))
                valid[client] = proxy, result
            except Exception as error:  # no content of a result may end the run
                failed[client] = str(error) or repr(error)
        used = self.roster.report(replies, failed, self._sent)
        self._asked = {}
        good = [valid[client] for client in used]
        if good and self.roster.aggregator is not None:
            model = ndarrays_to_parameters(list(self.roster.merge(self._sent, replies).values()))
            good = [(p, dataclasses.replace(result, parameters=model)) for p, result in good]
        return self.strategy.aggregate_fit(server_round, good, failures)

    def configure_evaluate(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        """Delegate to the strategy."""
        return self.strategy.configure_evaluate(server_round, parameters, client_manager)

    def aggregate_evaluate(self, server_round: int, results: Any, failures: Any) -> Any:
        """Delegate to the strategy."""
        return self.strategy.aggregate_evaluate(server_round, results, failures)

    def evaluate(self, server_round: int, parameters: Any) -> Any:
        """Delegate to the strategy."""
        return self.strategy.evaluate(server_round, parameters)

    def _await_clients(self, manager: Any) -> None:
        """Wait for clients for a bounded time: a round without any would end at once."""
        wanted = 1 if self._client_of else self._n_clients
        if not manager.wait_for(wanted, timeout=self._wait):
            found = manager.num_available()
            logger.warning("%d clients connected in %g s, %d wanted", found, self._wait, wanted)

    def _register(self, proxies: dict[str, Any], server_round: int) -> dict[Any, Any]:
        """Return the proxy of each connected client, after new clients were registered."""

        def properties(proxy: Any) -> dict[str, Any]:
            result = proxy.get_properties(GetPropertiesIns({}), self._timeout, server_round)
            if result.status.code != Code.OK:
                raise ValueError(result.status.message)
            return dict(result.properties)

        present = {self._client_of[c]: p for c, p in proxies.items() if c in self._client_of}
        unknown = {cid: p for cid, p in proxies.items() if cid not in self._client_of}
        new = {}
        for cid, facts in sorted(self._ask_all(unknown, properties).items()):
            client = facts.get("partition-id", facts.get("id"))
            if not isinstance(client, (str, int)) or client in present:
                logger.warning("client %s is left out: id %r is taken or invalid", cid, client)
                continue
            self._client_of[cid], present[client] = client, unknown[cid]
            if client not in self.roster.ids:
                new[client] = ClientInfo(float(facts.get("num-examples", np.nan)))
        self.roster.register(new)
        return present

    def _ask_all(self, proxies: dict[Any, Any], ask: Callable[[Any], Any]) -> dict[Any, Any]:
        """Call `ask` for several clients at once; failures are logged and left out."""
        found = {}
        with ThreadPoolExecutor(max_workers=16) as pool:
            futures = {key: pool.submit(ask, proxy) for key, proxy in proxies.items()}
            for key, future in futures.items():
                try:
                    found[key] = future.result()
                except Exception as error:  # an error of any kind on the client's side
                    logger.warning("client %r did not answer: %s", key, error)
        return found


class _SelectedClients(collections.UserList[Any]):
    """A client manager that holds the selected clients alone, and samples all of them."""

    def num_available(self) -> int:
        """Return how many clients were selected."""
        return len(self)

    def all(self) -> dict[str, Any]:
        """Return the selected clients by cid."""
        return {proxy.cid: proxy for proxy in self}

    def wait_for(self, num_clients: int, timeout: int = 0) -> bool:
        """Return at once: the number of selected clients does not change."""
        return len(self) >= num_clients

    def sample(self, num_clients: int, min_num_clients: Any = None, criterion: Any = None) -> Any:
        """Return all selected clients, for any requested number."""
        return list(self)
