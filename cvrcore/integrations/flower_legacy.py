"""Flower's legacy API: a strategy of `configure_fit` with clients picked by cvrcore.

Thin, for apps not yet moved to the Message API: identity by `get_properties`, losses by
`evaluate`, features out of full updates. What `SelectingStrategy` has besides (private mode,
grace, checkpoints after each round) is there alone.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from .extras import require

require("flwr", "1.22", "flower")  # the oldest that the tests were run with

from flwr.common import (
    Code,
    EvaluateIns,
    GetPropertiesIns,
    Parameters,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server.strategy import Strategy

from .._validation import check_count, check_number
from ..aggregators import Aggregator
from ..features import FeatureMap
from ..selectors.base import Selector
from .merging import check_no_noise
from .roster import Answer, Newcomer, NobodyEligibleError, Roster, Round

logger = logging.getLogger(__name__)


class LegacySelectingStrategy(Strategy):
    """Any legacy strategy: selection is cvrcore's, aggregation too if you like.

    A client's ``get_properties`` must return its ``"partition-id"`` (or another lasting
    ``"id"``) and its ``"num-examples"``; ``fit`` the metric `loss_key`, for policies that
    learn from losses.

    Parameters
    ----------
    strategy : flwr.server.strategy.Strategy
    selector, n_select, seed, features, n_features, aggregator, **options
        See `flower.SelectingStrategy`.
    n_clients : int, optional
        Clients to wait for before the first round. Default: one.
    loss_key : str
        Metric of a fit result that is taken as the loss.
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
        features: FeatureMap | str | None = None,
        n_features: int | None = None,
        aggregator: str | Aggregator | None = None,
        n_clients: int | None = None,
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
            n_features=n_features,
            options=options,
            aggregator=aggregator,
        )
        if self.roster.aggregator is not None:
            check_no_noise(strategy)
        self._n_clients = check_count(1 if n_clients is None else n_clients, "n_clients")
        self._loss_key, self._timeout = loss_key, check_number(timeout, "timeout", above=0)
        self._wait = check_number(wait, "wait", above=0)
        self._client_of: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}
        self._sent: list[Any] = []  # the model of this round

    @property
    def rounds(self) -> list[Round]:
        """Who was there, who was picked and why, and what came of it, round by round."""
        return self.roster.rounds

    def initialize_parameters(self, client_manager: Any) -> Any:
        """Let the strategy do it."""
        return self.strategy.initialize_parameters(client_manager)

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: Any
    ) -> list[tuple[Any, Any]]:
        """Pick clients, and let the strategy write their instructions."""
        self._asked = {}
        self._sent = parameters_to_ndarrays(parameters)
        self.roster.watch(self._sent)
        self._await_clients(client_manager)
        proxies = self._meet(client_manager.all(), server_round)

        def losses(clients: list[Any]) -> dict[Any, float]:
            def one(proxy: Any) -> float:
                question = EvaluateIns(parameters, {"server_round": server_round})
                answer = proxy.evaluate(question, self._timeout, server_round)
                return float(answer.loss) if answer.status.code == Code.OK else np.nan

            return self._each({client: proxies[client] for client in clients}, one)

        try:
            picked = self.roster.choose(proxies, losses)
        except NobodyEligibleError as error:
            logger.warning("round %d is skipped: %s", server_round, error)
            return []
        chosen = [proxies[client] for client in picked]
        self._asked = {proxy.cid: client for proxy, client in zip(chosen, picked, strict=True)}
        return list(self.strategy.configure_fit(server_round, parameters, _Picked(chosen)))

    def aggregate_fit(
        self, server_round: int, results: list[tuple[Any, Any]], failures: list[Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Tell the selector what came back; merge it, or let the strategy aggregate."""
        if not self._asked:
            return self.strategy.aggregate_fit(server_round, results, failures)
        sound: dict[Any, tuple[Any, Any]] = {}
        answers: dict[Any, Answer] = {}
        failed: dict[Any, str] = {}
        for failure in failures:  # a bare exception does not say whose it is: no answer then
            if isinstance(failure, tuple) and failure[0].cid in self._asked:
                failed[self._asked[failure[0].cid]] = str(failure[1].status.message)
        for proxy, result in results:
            client = self._asked.get(proxy.cid)
            if proxy.cid not in self._asked or client in sound or client in failed:
                logger.warning("client %r was not asked, or answered twice: ignored", proxy.cid)
                continue
            try:
                model = parameters_to_ndarrays(result.parameters)
                answers[client] = Answer(model=model, loss=result.metrics.get(self._loss_key))
                sound[client] = proxy, result
            except Exception as error:  # whatever a client can send must not end the run
                failed[client] = str(error) or repr(error)
        taken = self.roster.report(answers, failed, self._sent)
        self._asked = {}
        good = [sound[client] for client in taken]
        if good and self.roster.aggregator is not None:
            model = ndarrays_to_parameters(list(self.roster.merge(self._sent, answers).values()))
            good = [(who, dataclasses.replace(result, parameters=model)) for who, result in good]
        return self.strategy.aggregate_fit(server_round, good, failures)

    def configure_evaluate(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        """Let the strategy do it."""
        return self.strategy.configure_evaluate(server_round, parameters, client_manager)

    def aggregate_evaluate(self, server_round: int, results: Any, failures: Any) -> Any:
        """Let the strategy do it."""
        return self.strategy.aggregate_evaluate(server_round, results, failures)

    def evaluate(self, server_round: int, parameters: Any) -> Any:
        """Let the strategy do it."""
        return self.strategy.evaluate(server_round, parameters)

    def _await_clients(self, manager: Any) -> None:
        """Wait for clients, for a bounded time: a round without any would be over at once."""
        wanted = 1 if self._client_of else self._n_clients
        if not manager.wait_for(wanted, timeout=self._wait):
            found = manager.num_available()
            logger.warning("%d clients connected in %g s, %d wanted", found, self._wait, wanted)

    def _meet(self, proxies: dict[str, Any], server_round: int) -> dict[Any, Any]:
        """Return the proxy of each client that is connected, newcomers welcomed."""

        def properties(proxy: Any) -> dict[str, Any]:
            answer = proxy.get_properties(GetPropertiesIns({}), self._timeout, server_round)
            if answer.status.code != Code.OK:
                raise ValueError(answer.status.message)
            return dict(answer.properties)

        present = {self._client_of[c]: p for c, p in proxies.items() if c in self._client_of}
        strangers = {cid: p for cid, p in proxies.items() if cid not in self._client_of}
        newcomers = {}
        for cid, facts in sorted(self._each(strangers, properties).items()):
            client = facts.get("partition-id", facts.get("id"))
            if not isinstance(client, (str, int)) or client in present:
                logger.warning("client %s is left out: id %r is taken or unsound", cid, client)
                continue
            self._client_of[cid], present[client] = client, strangers[cid]
            if client not in self.roster.ids:
                newcomers[client] = Newcomer(float(facts.get("num-examples", np.nan)))
        self.roster.welcome(newcomers)
        return present

    def _each(self, proxies: dict[Any, Any], ask: Callable[[Any], Any]) -> dict[Any, Any]:
        """Ask several clients at once; who fails is logged and left out."""
        found = {}
        with ThreadPoolExecutor(max_workers=16) as pool:
            futures = {key: pool.submit(ask, proxy) for key, proxy in proxies.items()}
            for key, future in futures.items():
                try:
                    found[key] = future.result()
                except Exception as error:  # a client's own trouble, of any kind
                    logger.warning("client %r did not answer: %s", key, error)
        return found


class _Picked(collections.UserList[Any]):
    """A client manager that holds the picked clients alone, and samples all of them."""

    def num_available(self) -> int:
        """Return how many were picked."""
        return len(self)

    def all(self) -> dict[str, Any]:
        """Return the picked clients by cid."""
        return {proxy.cid: proxy for proxy in self}

    def wait_for(self, num_clients: int, timeout: int = 0) -> bool:
        """Return at once: nobody else will come."""
        return len(self) >= num_clients

    def sample(self, num_clients: int, min_num_clients: Any = None, criterion: Any = None) -> Any:
        """Return all picked clients, whatever number is asked for."""
        return list(self)
