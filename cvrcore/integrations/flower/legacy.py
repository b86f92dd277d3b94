"""Flower's legacy API: a strategy of `configure_fit` in, the same with selected clients out.

For apps not yet moved to the Message API: a client is identified by `get_properties`, losses
come from `evaluate`, watched coordinates from full updates. The private mode, stragglers' grace
and checkpoints after each round are part of `SelectingStrategy` alone.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import weakref
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
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
from ...validation import check_count
from ..aggregation import check_no_noise
from ..backoff import Backoff
from ..options import (
    TRACKING,
    Tracking,
    Waiting,
    adapter_keywords,
    log_loss_statistic,
    take_group,
)
from ..roster import ClientInfo, NoEligibleClientError, Reply, Roster, Round, Utility
from ..tracked import TrackedRounds
from ..untrusted import (
    MAX_COUNT,
    UsualForm,
    as_number,
    as_sent,
    brief,
    by_name,
    check_id,
    check_layers,
    layers_of,
    metric_form,
)
from .grid import write_log

logger = logging.getLogger(__name__)

#: Metric of a fit result that holds the loss that the policy needs.
LOSS_METRIC = "cvrcore_loss"
#: Clients that are asked at the same time.
MAX_THREADS = 16
#: What a client must do for each need of a policy.
HINTS = {
    "probe": "clients must implement evaluate: it returns the loss of the model received",
    "losses": (
        f"fit must return the metric {LOSS_METRIC!r}, the loss of the model received over the "
        "training samples; or name another metric that holds this loss, loss_key=..."
    ),
    "label_counts": "properties of the legacy API hold no lists: use SelectingStrategy",
}


class LegacySelectingStrategy(Strategy):
    """Any legacy strategy, with clients selected by cvrcore.

    A client's ``get_properties`` must return its ``"partition-id"`` (or another permanent
    ``"id"``) and its ``"num-examples"``; ``fit`` the metric ``"cvrcore_loss"`` (or `loss_key`),
    for policies that learn from losses: the loss of the model received over the training
    samples. Properties may not hold lists: policies that need label counts want
    `SelectingStrategy`.

    Parameters
    ----------
    strategy : flwr.server.strategy.Strategy
    selector, n_select, seed, features, aggregator, guards, **options
        See `SelectingStrategy`.
    n_clients : int, optional
        Clients to wait for before the first round. Default: one.
    loss_key : str
        Metric of a fit result that holds the loss.
    timeout : float, optional
        Seconds to wait for a client's properties, and for its loss when it is probed. Default:
        60, and one more for each client that is asked.
    wait : float, optional
        Seconds to wait for clients to connect. Default: 60, and one more for each client.
    utility : callable, optional
        See `SelectingStrategy`; arrays are named by their position.
    same_shape : bool
        Whether results must have the shapes and kinds of the arrays that were sent.
    tracking : Tracking
        Where rounds are logged and shown; its fields are accepted as single keywords too. The
        legacy API does not say when a run ends: call `close`, or let the process end.

    Examples
    --------
    >>> from flwr.server.strategy import FedAvg
    >>> from cvrcore.integrations.flower import LegacySelectingStrategy
    >>> strategy = LegacySelectingStrategy(FedAvg(), "oort", n_select=10, seed=0)
    >>> callable(strategy.configure_fit)
    True
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
        guards: Guards | str | None = None,
        loss_key: str = LOSS_METRIC,
        timeout: float | None = None,
        wait: float | None = None,
        utility: Utility | None = None,
        same_shape: bool = True,
        tracking: Tracking = TRACKING,
        **options: Any,
    ) -> None:
        if not isinstance(strategy, Strategy):
            raise TypeError(f"strategy must be a legacy strategy, got {type(strategy).__name__}")
        self.strategy = strategy
        self.tracking = take_group("tracking", tracking, TRACKING, options)
        self.roster = Roster(
            selector,
            n_select=n_select,
            seed=seed,
            features=features,
            n_features=options.pop("n_features", None),
            options=options,
            aggregator=aggregator,
            guards=guards,
            utility=utility,
            hints=HINTS,
            log=write_log,
            keywords=adapter_keywords(LegacySelectingStrategy, TRACKING),
        )
        if self.roster.aggregator is not None:
            check_no_noise(strategy)
        self._n_clients = check_count(1 if n_clients is None else n_clients, "n_clients")
        self._loss_key, self._same_shape = loss_key, same_shape
        self._asking, self._waiting = Waiting(connect=timeout), Waiting(connect=wait)
        self._client_of: dict[str, Any] = {}  # by Flower's cid
        self._retries = Backoff()
        self._asked: dict[str, Any] = {}  # clients that train in this round, by cid
        self._sent: list[Any] = []  # the model of this round
        self._forms, self._evaluation_forms = UsualForm(), UsualForm()
        self._evaluating: frozenset[str] = frozenset()  # clients that evaluate, by cid
        self._tracked = TrackedRounds(self.tracking, self.roster, write_log)
        self._tracked.prepare()
        self._finish = weakref.finalize(self, self._tracked.finish)  # at the latest at exit
        log_loss_statistic(self.roster.loss_statistic, loss_key, write_log)

    @property
    def rounds(self) -> list[Round]:
        """The record of each round: clients available, selected, reported and failed."""
        return self.roster.rounds

    def forget(self, client: Any) -> None:
        """Erase a client between rounds, see `SelectingStrategy.forget`."""
        self.roster.forget(client)
        self._client_of = {cid: id for cid, id in self._client_of.items() if id != client}

    def close(self) -> None:
        """End the run for its trackers; without them it does nothing."""
        self._tracked.finish()

    def initialize_parameters(self, client_manager: Any) -> Any:
        """Delegate to the strategy."""
        return self.strategy.initialize_parameters(client_manager)

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: Any
    ) -> list[tuple[Any, Any]]:
        """Select clients, and let the strategy write their instructions."""
        self._tracked.start()
        self._tracked.begin()
        try:
            return self._configure_fit(server_round, parameters, client_manager)
        finally:
            self._tracked.enter("train")

    def _configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: Any
    ) -> list[tuple[Any, Any]]:
        self._asked = {}
        self._sent = parameters_to_ndarrays(parameters)
        self.roster.watch(self._sent)
        self._tracked.enter("connect")
        self._await_clients(client_manager)
        proxies = self._register(client_manager.all(), server_round)
        self._tracked.enter("select")
        self.roster.watch(self._sent)  # once more: options of the policy may ask for it

        def losses(clients: list[Any]) -> dict[Any, float]:
            def one(proxy: Any, timeout: float) -> float:
                request = EvaluateIns(parameters, {"server_round": server_round})
                result = proxy.evaluate(request, timeout, server_round)
                if result.status.code != Code.OK:
                    raise ValueError(result.status.message)
                return as_number(result.loss, "its loss")

            return self._ask_all({client: proxies[client] for client in clients}, one)

        try:
            selected = self.roster.select(proxies, losses, self._sent)
        except NoEligibleClientError as error:
            logger.warning("round %d is skipped: %s", server_round, error)
            return []
        if not selected:  # a policy of random size picked nobody
            self.roster.report({}, {}, self._sent)
            return []
        chosen = [proxies[client] for client in selected]
        self._asked = {proxy.cid: client for proxy, client in zip(chosen, selected, strict=True)}
        return list(self.strategy.configure_fit(server_round, parameters, _SelectedClients(chosen)))

    def aggregate_fit(
        self, server_round: int, results: list[tuple[Any, Any]], failures: list[Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Report the results to the policy; aggregate them, or let the strategy do it."""
        self._tracked.enter("aggregate")
        parameters, metrics = self._aggregate_fit(server_round, results, failures)
        self._tracked.measured(metrics)
        self._tracked.enter("evaluate")
        return parameters, metrics

    def _aggregate_fit(
        self, server_round: int, results: list[tuple[Any, Any]], failures: list[Any]
    ) -> tuple[Any, dict[str, Any]]:
        if not self._asked:
            return self.strategy.aggregate_fit(server_round, results, failures)
        valid: dict[Any, tuple[Any, Any]] = {}
        replies: dict[Any, Reply] = {}
        forms: dict[Any, Hashable] = {}
        failed: dict[Any, str] = {}
        for failure in failures:  # an exception alone does not name its client: no answer then
            if isinstance(failure, tuple) and failure[0].cid in self._asked:
                failed[self._asked[failure[0].cid]] = brief(failure[1].status.message)
        for proxy, result in results:
            client = self._asked.get(proxy.cid)
            if proxy.cid not in self._asked or client in valid or client in failed:
                logger.warning("client %r was not asked, or replied twice: ignored", proxy.cid)
                continue
            try:
                reply, checked = self._read(result)
                forms[client] = metric_form(checked.metrics)
                replies[client], valid[client] = reply, (proxy, checked)
            except Exception as error:  # no content of a result may end the run
                failed[client] = brief(error)
        order = sorted(valid, key=self.roster.ids.slot)
        for client in self._forms.odd_ones({client: forms[client] for client in order}):
            del replies[client], valid[client]
            failed[client] = "its metrics have other names or forms than those of most"
        used = self.roster.report(replies, failed, self._sent)
        self._asked = {}
        claimed = {client: valid[client][1].num_examples for client in used}
        weights = self.roster.bounded_weights(claimed)
        good = [
            (proxy, dataclasses.replace(result, num_examples=weights[client]))
            for client in used
            for proxy, result in [valid[client]]
        ]
        if good and self.roster.aggregator is not None:
            model = ndarrays_to_parameters(list(self.roster.merge(self._sent, replies).values()))
            good = [(p, dataclasses.replace(result, parameters=model)) for p, result in good]
        return self.strategy.aggregate_fit(server_round, good, failures)

    def _read(self, result: Any) -> tuple[Reply, Any]:
        """Return what a fit result holds, and the result in the precision that was sent."""
        layers = layers_of(self._sent)
        model = by_name(parameters_to_ndarrays(result.parameters))
        if self._same_shape:
            check_layers(model, layers)
        _check_examples(result.num_examples)
        if not isinstance(result.metrics, Mapping):
            raise ValueError(f"its metrics must be a dict, got {type(result.metrics).__name__}")
        loss = result.metrics.get(self._loss_key)
        precise = model
        if self._same_shape:
            precise = {name: as_sent(array, layers[name]) for name, array in model.items()}
        if any(precise[name] is not array for name, array in model.items()):
            parameters = ndarrays_to_parameters(list(precise.values()))
            result = dataclasses.replace(result, parameters=parameters)
        return Reply(model=precise, loss=loss), result

    def configure_evaluate(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        """Delegate to the strategy."""
        asked = list(
            self.strategy.configure_evaluate(server_round, parameters, client_manager) or ()
        )
        self._evaluating = frozenset(proxy.cid for proxy, _ in asked)
        return asked

    def aggregate_evaluate(self, server_round: int, results: Any, failures: Any) -> Any:
        """Let the strategy aggregate the valid results."""
        valid: dict[str, tuple[Any, Any]] = {}
        forms: dict[str, Hashable] = {}
        for proxy, result in results:
            try:
                if proxy.cid not in self._evaluating or proxy.cid in valid:
                    raise ValueError("it was not asked, or replied twice")
                _check_examples(result.num_examples)
                as_number(result.loss, "its loss")
                forms[proxy.cid] = metric_form(result.metrics or {})
                valid[proxy.cid] = proxy, result
            except Exception as error:  # no content of a result may end the run
                logger.warning("evaluation by %r is ignored: %s", proxy.cid, brief(error))
        for cid in self._evaluation_forms.odd_ones(forms):
            logger.warning("evaluation by %r is ignored: metrics unlike those of most", cid)
            del valid[cid]
        found = self.strategy.aggregate_evaluate(server_round, list(valid.values()), failures)
        self._measured(found)
        return found

    def evaluate(self, server_round: int, parameters: Any) -> Any:
        """Delegate to the strategy."""
        found = self.strategy.evaluate(server_round, parameters)
        self._measured(found)
        return found

    def _measured(self, found: Any) -> None:
        """Give trackers the loss and the metrics of an evaluation, a pair if there was one."""
        if isinstance(found, tuple) and len(found) == 2:
            loss, metrics = found
            self._tracked.measured({"loss": loss, **(metrics or {})})

    def _await_clients(self, manager: Any) -> None:
        """Wait for clients for a bounded time: a round without any would end at once."""
        wanted = 1 if self._client_of else self._n_clients
        if not manager.wait_for(wanted, timeout=self._waiting.connect_seconds(wanted)):
            found, given = manager.num_available(), self._waiting.connect_text(wanted)
            logger.warning("%d clients connected within %s, %d wanted", found, given, wanted)

    def _register(self, proxies: dict[str, Any], server_round: int) -> dict[Any, Any]:
        """Return the proxy of each connected client, after new clients were registered."""

        def properties(proxy: Any, timeout: float) -> dict[str, Any]:
            result = proxy.get_properties(GetPropertiesIns({}), timeout, server_round)
            if result.status.code != Code.OK:
                raise ValueError(result.status.message)
            facts = dict(result.properties)
            facts["id"] = check_id(facts.get("partition-id", facts.get("id")))
            return facts

        present = {self._client_of[c]: p for c, p in proxies.items() if c in self._client_of}
        unknown = {
            cid: proxy
            for cid, proxy in proxies.items()
            if cid not in self._client_of and self._retries.due(cid, server_round)
        }
        new = {}
        found = self._ask_all(unknown, properties)
        for cid in sorted(unknown):
            client = found[cid]["id"] if cid in found else None
            if client is None or client in present:
                self._retries.delay(cid, server_round)
                if client is not None:
                    logger.warning("client %s is left out: id %r is taken", cid, client)
                continue
            self._client_of[cid], present[client] = client, unknown[cid]
            if client not in self.roster.ids:
                facts = found[cid]
                new[client] = ClientInfo(facts.get("num-examples"), facts.get("label-counts"))
        for client in self.roster.register(new):
            proxy = present.pop(client)
            del self._client_of[proxy.cid]  # asked again later: it may state better facts
            self._retries.delay(proxy.cid, server_round)
        return present

    def _ask_all(self, proxies: dict[Any, Any], ask: Callable[[Any, float], Any]) -> dict[Any, Any]:
        """Call `ask` for several clients at once; failures are logged and left out."""
        found: dict[Any, Any] = {}
        if not proxies:
            return found
        timeout = self._asking.connect_seconds(len(proxies))
        # Not in a `with` block: leaving it would wait for a client that never answers.
        pool = ThreadPoolExecutor(max_workers=min(len(proxies), MAX_THREADS))
        futures = {key: pool.submit(ask, proxy, timeout) for key, proxy in proxies.items()}
        rounds = -(-len(proxies) // MAX_THREADS)  # a thread asks so many clients in turn
        done, _ = wait_for(futures.values(), timeout=rounds * timeout + 1.0)
        pool.shutdown(wait=False, cancel_futures=True)
        errors: dict[Any, str] = {}
        for key, future in futures.items():
            if future not in done:
                errors[key] = f"no answer within {self._asking.connect_text(len(proxies))}"
            elif (error := future.exception()) is not None:
                errors[key] = brief(repr(error))
            else:
                found[key] = future.result()
        if errors:
            key, why = next(iter(errors.items()))
            logger.warning(
                "%d of %d clients did not answer, among them %r: %s",
                len(errors),
                len(proxies),
                key,
                why,
            )
        return found


def _check_examples(value: Any) -> None:
    """Refuse a number of samples by which a mean cannot be weighted."""
    if as_number(value, "its num_examples", minimum=0.0, maximum=MAX_COUNT) <= 0:
        raise ValueError(f"its num_examples must be positive, got {value}")


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
