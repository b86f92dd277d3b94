"""Flower's Message API: any strategy in, the same strategy with selected clients out."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from ...aggregators import Aggregator
from ...features import FeatureMap
from ...selectors.base import Selector
from ...selectors.guards import Guards
from ...state import load_state, save_state
from ...validation import check_choice
from ..options import (
    REPORTS,
    TRACKING,
    WAITING,
    Reports,
    Tracking,
    Waiting,
    adapter_keywords,
    log_loss_statistic,
    take_group,
)
from ..roster import NoEligibleClientError, Reply, Roster, Round, Utility
from ..tracked import TrackedRounds
from ..untrusted import Layer, UsualForm, layers_of
from .client import RECORD, write_features
from .grid import GridView, TimedGrid, sampling, write_log
from .nodes import Identity, Nodes
from .probe import PROBES, ask_losses, probe_content
from .replies import (
    addressed,
    arrays_of,
    check_mergeable,
    read_training_reply,
    replace_arrays,
    sort_evaluations,
    sort_replies,
)

logger = logging.getLogger(__name__)

#: What the ClientApp must do for each need of a policy.
HINTS = {
    "probe": (
        "give cvrcore.integrations.flower.selectable(app, ..., loss=f) a function f(message, "
        "context) that returns the mean loss of the message's model over the training samples, or "
        "let the server ask for the app's own evaluation, Reports(probe='evaluate')"
    ),
    "losses": (
        "call cvrcore.integrations.flower.report_loss(reply, value) in the training function, or "
        "name a metric of its replies that holds this loss, Reports(loss_key=...)"
    ),
    "label_counts": (
        "give cvrcore.integrations.flower.selectable(app, ..., label_counts=f) a function "
        "f(context) that returns the number of samples of each class"
    ),
}


class SelectingStrategy(Strategy):
    """Any Flower strategy, with clients selected by cvrcore.

    The wrapped strategy configures messages and aggregates replies as before; its own
    sampling of training nodes is not used. Errors, timeouts and invalid replies are reported
    to the policy as failed, and the round continues with the other replies.

    Parameters
    ----------
    strategy : Strategy
        FedAvg, FedProx, FedAdam ..., of ``flwr.serverapp.strategy`` or your own.
    selector : str or Selector
        A policy of cvrcore by name, or a ready selector.
    n_select : int, optional
        Clients per round; required with a name.
    seed : int, optional
        Seed of the policy; the same seed gives the same selections in every run.
    n_clients : int, optional
        Nodes to wait for before the first round. Default: until their number has settled.
    clients : mapping, optional
        Number of training samples of clients known beforehand, by id. Others are asked.
    identity : {"query", "name", "key", "node-id"} or callable
        What identifies a client permanently. ``"query"``: the id that the client states, by
        default its ``partition-id``, see `client.selectable`. In a deployment the ``"name"``
        or the public ``"key"`` that the SuperLink has verified; or a function of ``NodeInfo``.
    features : FeatureMap, "update" or "head", optional
        What the policy watches of a model. Default: the last layer; with "update" its change
        by the client; with "head" the direction of the output layer's change, one number for
        each output.
    private : bool
        Whether clients send the watched coordinates (`client.Reveal`). The server then never
        reads them from updates, which secure aggregation may mask.
    aggregator : str or Aggregator, optional
        An aggregator of cvrcore, by name or ready. The strategy then gets the aggregated model
        in place of each client's model, with the client's own metrics: its mean is our model,
        and FedAdam takes its step from it. Default: the strategy aggregates.
    average : float, default=0
        Decay of the moving average of the models (`cvrcore.aggregators.ModelAverage`); 0: none.
        The average is what is evaluated, and what `start` returns; clients train from the model
        itself.
    guards : Guards or "recommended", optional
        Limits on hostile and broken clients. `max_weight` also bounds the metric by which the
        strategy weights clients.
    utility : callable, optional
        Given a model as a dict of arrays, returns its worth on validation samples of the server,
        the larger the better; for policies that need utilities.
    reports : Reports
        What clients report beside their models, and by which names.
    waiting : Waiting
        How long the server waits for clients.
    tracking : Tracking
        Where rounds are logged and shown: ``trackers=["tensorboard"]``, ``watch=True``.
    checkpoint : path, optional
        Where to save the state of selector and aggregator after each round; ``{round}`` is
        replaced by the number of rounds.
    restore : path, optional
        A state to continue from.
    **options
        Further arguments of the policy, among them ``n_features``: watch only that many
        coordinates of the last layer, drawn with `seed`. Fields of `Reports`, `Waiting`,
        `Tracking` and `Guards` are accepted as single keywords too.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAvg
    >>> from cvrcore.integrations.flower import SelectingStrategy
    >>> strategy = SelectingStrategy(FedAvg(), "fedcvr-bolt", n_select=10, seed=0)
    >>> callable(strategy.start)  # strategy.start(grid, initial_arrays, num_rounds=100)
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
        clients: Mapping[Any, float] | None = None,
        identity: Identity = "query",
        features: FeatureMap | str | None = None,
        private: bool = False,
        aggregator: str | Aggregator | None = None,
        average: float = 0.0,
        guards: Guards | str | None = None,
        utility: Utility | None = None,
        reports: Reports = REPORTS,
        waiting: Waiting = WAITING,
        tracking: Tracking = TRACKING,
        checkpoint: str | os.PathLike[str] | None = None,
        restore: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(strategy, Strategy):
            raise TypeError(
                "strategy must be a strategy of flwr.serverapp.strategy (for a legacy one see "
                f"LegacySelectingStrategy), got {type(strategy).__name__}"
            )
        self.strategy = strategy
        self.reports = take_group("reports", reports, REPORTS, options)
        self.waiting = take_group("waiting", waiting, WAITING, options)
        self.tracking = take_group("tracking", tracking, TRACKING, options)
        self.roster = Roster(
            selector,
            n_select=n_select,
            seed=seed,
            features=features,
            n_features=options.pop("n_features", None),
            options=options,
            aggregator=aggregator,
            average=average,
            guards=guards,
            utility=utility,
            hints=HINTS,
            log=write_log,
            keywords=adapter_keywords(SelectingStrategy, REPORTS, WAITING, TRACKING),
        )
        if self.roster.aggregator is not None:
            check_mergeable(strategy, private=private, same_shape=self.reports.same_shape)
        if private and "utilities" in self.roster.needs:
            raise ValueError("private must be False with a policy that needs utilities, got True")
        check_choice(self.reports.probe or "query", "probe", PROBES)
        self._tracked = TrackedRounds(self.tracking, self.roster, write_log)
        self._tracked.prepare()
        #: The model from which clients train next; save it beside a checkpoint where `average`
        #: lets `evaluate_fn` and `start` see the average.
        self.training_arrays: ArrayRecord | None = None
        self._nodes = Nodes(identity, n_clients, clients, self.waiting)
        self._private = private
        self._checkpoint = None if checkpoint is None else os.fspath(checkpoint)
        self._current = self.waiting  # with the timeout of `start`
        self._asked: dict[int, Any] = {}  # client of each node that trains in this round
        self._layers: dict[str, Layer] = {}  # arrays of the model of this round
        self._forms, self._evaluation_forms = UsualForm(), UsualForm()
        self._evaluating: frozenset[int] = frozenset()  # nodes that evaluate in this round
        self._sent: dict[str, Any] | None = None  # the model of this round, where it is needed
        self._timed: TimedGrid | None = None
        if restore is not None:
            self.load(restore)

    @property
    def rounds(self) -> list[Round]:
        """The record of each round: clients available, selected, reported and failed."""
        return self.roster.rounds

    # -- Flower's methods ---------------------------------------------------------

    def start(  # type: ignore[override, unused-ignore]
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds: Flower's own loop, on a grid that obeys `waiting`."""
        self._current = self.waiting.at_most(timeout)
        self.roster.announce(num_rounds)
        log_loss_statistic(self.roster.loss_statistic, self.reports.loss_key, write_log)
        self._timed = TimedGrid(grid, self._current)
        self._tracked.start(num_rounds)
        try:
            result = super().start(
                self._timed,
                initial_arrays,
                num_rounds,
                timeout,
                train_config,
                evaluate_config,
                None if evaluate_fn is None else self._measuring(evaluate_fn),
            )
            result.arrays = self._to_deploy(result.arrays)
            return result
        finally:
            self._timed = None
            self._tracked.finish()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Select clients, and let the strategy write the messages to them."""
        self._tracked.begin()
        try:
            return self._configure_train(server_round, arrays, config, grid)
        finally:
            self._tracked.enter("train")

    def _configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._asked = {}
        self._layers = layers_of(arrays_of(arrays))
        if self.roster.watches and self.roster.features is None:
            self.roster.watch(arrays_of(arrays))
        self._tracked.enter("connect")
        present = self._nodes.register(grid, self.roster)
        self._tracked.enter("select")
        if self.roster.watches and self.roster.features is None:  # as options of the policy say
            self.roster.watch(arrays_of(arrays))
        self._sent = arrays_of(arrays) if self.roster.needs_sent else None

        def ask(clients: list[Any]) -> dict[Any, float]:
            nodes = {present[client]: client for client in clients}
            content = probe_content(self.strategy, server_round, arrays, config)
            return ask_losses(grid, nodes, content, self.reports, self._current)

        try:
            selected = self.roster.select(present, ask, self._sent)
        except NoEligibleClientError as error:
            logger.warning("round %d is skipped: %s", server_round, error)
            return []
        if not selected:  # a policy of random size picked nobody
            self._close({}, {})
            self._save_checkpoint()
            return []
        nodes = [present[client] for client in selected]
        with sampling(self.strategy, len(nodes), fraction_train=1.0):
            written = self.strategy.configure_train(
                server_round, arrays, config, GridView(grid, nodes)
            )
            messages = addressed(list(written), nodes)
        for message in messages:
            self._instruct(message.content)
        self._asked = dict(zip(nodes, selected, strict=True))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Report the replies to the policy; aggregate them, or let the strategy do it."""
        self._tracked.enter("aggregate")
        is_open = bool(self._asked)
        arrays, metrics = self._aggregate_train(server_round, replies)
        if arrays is not None:
            self.roster.deployed.update(arrays_of(arrays))
            self.training_arrays = arrays
        if is_open:
            self._save_checkpoint()
        self._tracked.measured(metrics)
        self._tracked.enter("evaluate")
        return arrays, metrics

    def _aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        if not self._asked:
            return self.strategy.aggregate_train(server_round, [])
        slot = self.roster.ids.slot
        told = sort_replies(replies, self._asked, self._read, slot, self._forms)
        messages, read, failed = told
        used = self._close(read, failed)
        # In the order of slots: replies come in any order, and float sums depend on it.
        good = [messages[client] for client in used]
        self._bound_weights({client: messages[client] for client in used})
        if good and self._sent is not None and self.roster.aggregator is not None:
            replace_arrays(good, self.roster.merge(self._sent, read))
        return self.strategy.aggregate_train(server_round, good)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy sample the connected nodes; it does not wait for others."""
        nodes = sorted(set(grid.get_node_ids()))
        self._evaluating = frozenset()
        if not nodes:
            return []
        with sampling(self.strategy, len(nodes)):
            written = self.strategy.configure_evaluate(
                server_round, self._to_deploy(arrays), config, GridView(grid, nodes)
            )
            messages = list(written)
        self._evaluating = frozenset(message.metadata.dst_node_id for message in messages)
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Let the strategy aggregate the valid replies."""
        key = getattr(self.strategy, "weighted_by_key", None)
        valid = sort_evaluations(replies, self._evaluating, key, self._evaluation_forms)
        metrics = self.strategy.aggregate_evaluate(server_round, valid)
        self._tracked.measured(metrics)
        return metrics

    def summary(self) -> None:
        """Log the policy, then the strategy's own summary."""
        logger.info("selection by %r", self.roster.selector or self.roster)
        self.strategy.summary()

    # -- state ------------------------------------------------------------------

    def forget(self, client: Any) -> None:
        """Erase a client between rounds: from selector, aggregator, ids and `rounds`.

        A node that is still connected introduces itself again and joins as a new client. Saved
        states are rewritten by `cvrcore.erasure.forget_in_file`.
        """
        self.roster.forget(client)
        self._nodes.forget(client)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write selector, aggregator, average, ids and watched coordinates to one ``.npz``.

        The file is replaced atomically.
        """
        save_state(path, self.roster.state_dict())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from what `save` wrote."""
        self.roster.load_state_dict(load_state(path))

    # -- parts ------------------------------------------------------------------

    def _to_deploy(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the average of the models; these arrays where there is none."""
        model = self.roster.deployed.model
        if model is None:
            return arrays
        return ArrayRecord({name: Array(array) for name, array in model.items()})

    def _measuring(
        self, evaluate: Callable[[int, ArrayRecord], MetricRecord | None]
    ) -> Callable[[int, ArrayRecord], MetricRecord | None]:
        """Return the same evaluation, of the model to deploy; trackers get its metrics."""

        def evaluate_and_track(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics = evaluate(server_round, self._to_deploy(arrays))
            self._tracked.measured(metrics)
            return metrics

        return evaluate_and_track

    def _close(self, read: Mapping[Any, Reply], failed: Mapping[Any, str]) -> list[Any]:
        """Report to the policy, and close the round; return the clients whose replies count."""
        used = self.roster.report(read, failed, self._sent)
        self._asked = {}
        return used

    def _bound_weights(self, messages: Mapping[Any, Message]) -> None:
        """Let no client weigh more in the strategy's mean than the guard `max_weight` allows."""
        key = getattr(self.strategy, "weighted_by_key", None)
        records = {c: next(iter(m.content.metric_records.values())) for c, m in messages.items()}
        claimed = {c: record[key] for c, record in records.items()} if key is not None else {}
        for client, weight in self.roster.bounded_weights(claimed).items():
            if weight != claimed[client]:
                records[client][key] = weight

    def _save_checkpoint(self) -> None:
        if self._checkpoint is not None:
            assert self.roster.selector is not None
            self.save(self._checkpoint.format(round=self.roster.selector.round))

    def _instruct(self, content: RecordDict) -> None:
        """Write into a message what the reply must hold for the policy."""
        wanted: dict[str, Any] = {}
        if self.roster.loss_statistic is not None:
            wanted["loss"] = self.roster.loss_statistic
        if self._private and self.roster.features is not None:
            wanted["features"] = write_features(self.roster.features)
            if "norms" in self.roster.needs:
                wanted["norm"] = True
        if wanted:
            content[RECORD] = ConfigRecord(wanted)

    def _read(self, message: Message) -> Reply:
        """Return what a training reply holds; an error says why it is invalid."""
        timed = self.reports.durations or "durations" in self.roster.needs
        seconds = self._timed.seconds if timed and self._timed else {}
        return read_training_reply(
            message,
            self._layers,
            self.reports,
            weight_key=getattr(self.strategy, "weighted_by_key", None),
            seconds=seconds.get(message.metadata.src_node_id),
            private=self._private and self.roster.watches,
        )
