"""Flower: any strategy of the Message API with clients picked by cvrcore."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from .extras import require

require("flwr", "1.22", "flower")  # the oldest that the tests were run with

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from .._validation import check_choice, check_count, check_number
from ..aggregators import Aggregator
from ..features import FeatureMap
from ..selectors.base import Selector
from ..state import load_state, save_state
from .flower_client import LOSS, RECORD, write_features
from .flower_grid import GridView, Patience, PatientGrid, exchange, reason, sampling
from .flower_nodes import Identity, Nodes
from .flower_replies import (
    addressed,
    arrays_of,
    check_mergeable,
    check_weight,
    losses_of,
    metrics_of,
    odd_ones,
    replace_arrays,
)
from .roster import Answer, Newcomer, NobodyEligibleError, Roster, Round

logger = logging.getLogger(__name__)

PROBES = ("query", "evaluate")


class SelectingStrategy(Strategy):
    """Any Flower strategy: selection is cvrcore's, aggregation too if you like.

    The wrapped strategy configures messages and aggregates replies as ever; how it samples
    training nodes no longer matters. Errors, time-outs and unsound replies are told to the
    selector as failed, and the round goes on with the others.

    Parameters
    ----------
    strategy : Strategy
        FedAvg, FedProx, FedAdam ..., of ``flwr.serverapp.strategy`` or your own.
    selector : str or Selector
        A policy of cvrcore by name, or a ready one.
    n_select : int, optional
        Clients a round; required with a name.
    seed : int, optional
        Of the policy; the same seed makes the same picks in every run.
    n_clients : int, optional
        Nodes to wait for before the first round. Default: until their number has settled.
    clients : mapping, optional
        Training samples of each client known beforehand, by id. Clients not named are asked.
    identity : {"query", "name", "key", "node-id"} or callable
        What tells clients apart for ever. ``"query"``: their own word, by default the
        ``partition-id``, see `flower_client.selectable`. In a deployment the ``"name"`` or
        the public ``"key"`` that the SuperLink vouches for; or a function of ``NodeInfo``.
    features : FeatureMap or "update", optional
        What the policy watches of a model. Default: the last layer; with "update" what a
        client changed of it.
    n_features : int, optional
        Watch only that many coordinates of the last layer, drawn with `seed`.
    private : bool
        Watched coordinates come from the clients (`flower_client.Reveal`) and are never cut
        out of updates, which may then be masked by secure aggregation.
    aggregator : str or Aggregator, optional
        Who merges the models of a round: one of `cvrcore.aggregators`, by name or ready. The
        strategy is then handed the merged model in place of each client's, with the client's
        own metrics: its mean is ours, and FedAdam takes its step from there. Default: the
        strategy merges.
    probe : {"query", "evaluate"}
        How a policy that probes learns losses: our query (`flower_client.selectable`), or
        the app's own evaluation, whose metric is `probe_key`.
    probe_key, loss_key : str
        Metric of an evaluation reply; metric of a training reply that is taken as the loss
        where the client does not call `flower_client.report_loss`.
    durations : bool
        Tell the policy how long each reply took. Off, since it makes picks depend on the
        clock; on, Oort prefers quick clients.
    enough, grace : float
        When the share `enough` of those asked has replied, wait `grace` seconds for the
        others. Default: wait for all, until the timeout. Neither changes who is asked.
    wait : float
        Seconds to wait for nodes to connect and to introduce themselves.
    same_shape : bool
        Replies must have the names and shapes of the arrays sent; False for trees.
    checkpoint : path, optional
        Where to save the state of selector and aggregator after each round; ``{round}`` is
        replaced by the number of rounds selected.
    restore : path, optional
        A state to continue from.
    **options
        Further arguments of the policy.

    Examples
    --------
    ::

        strategy = SelectingStrategy(FedAvg(), "fedcvr-bolt", n_select=10, seed=0)
        result = strategy.start(grid, initial_arrays, num_rounds=100)
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
        n_features: int | None = None,
        private: bool = False,
        aggregator: str | Aggregator | None = None,
        probe: str = "query",
        probe_key: str = "eval_loss",
        loss_key: str = "train_loss",
        durations: bool = False,
        enough: float = 1.0,
        grace: float = math.inf,
        wait: float = 60.0,
        same_shape: bool = True,
        checkpoint: str | os.PathLike[str] | None = None,
        restore: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(strategy, Strategy):
            raise TypeError(
                "strategy must be a strategy of flwr.serverapp.strategy (for a legacy one see "
                f"flower_legacy), got {type(strategy).__name__}"
            )
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
            check_mergeable(strategy, private=private, same_shape=same_shape)
        self._patience = Patience(enough=enough, grace=grace)
        self._wait = check_number(wait, "wait", above=0)
        self._n_clients = None if n_clients is None else check_count(n_clients, "n_clients")
        self._known = {id: Newcomer(float(size)) for id, size in (clients or {}).items()}
        self._nodes = Nodes(identity, clients, Patience(timeout=self._wait))
        self._private = private
        self._probe = check_choice(probe, "probe", PROBES)
        self._probe_key, self._loss_key = probe_key, loss_key
        self._durations = durations
        self._same_shape = same_shape
        self._checkpoint = None if checkpoint is None else os.fspath(checkpoint)
        self._asked: dict[int, Any] = {}  # client of each node asked in this round
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._sent: dict[str, Any] | None = None  # the model of this round, where it is needed
        self._clock: PatientGrid | None = None
        if restore is not None:
            self.load(restore)

    @property
    def rounds(self) -> list[Round]:
        """Who was there, who was picked and why, and what came of it, round by round."""
        return self.roster.rounds

    # -- what Flower calls --------------------------------------------------------

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
        """Run the rounds: Flower's own loop, on a grid with our patience."""
        self._patience = self._patience.within(timeout)
        self._clock = PatientGrid(grid, self._patience)
        try:
            return super().start(
                self._clock,
                initial_arrays,
                num_rounds,
                timeout,
                train_config,
                evaluate_config,
                evaluate_fn,
            )
        finally:
            self._clock = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Pick clients, and let the strategy write the messages to them."""
        self._asked = {}
        self._shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        if self.roster.watches and self.roster.features is None:
            self.roster.watch(arrays_of(arrays))
        self._sent = arrays_of(arrays) if self.roster.needs_sent else None
        present = self._meet(grid)

        def ask(clients: list[Any]) -> dict[Any, float]:
            nodes = {present[client]: client for client in clients}
            return self._losses(server_round, arrays, config, grid, nodes)

        try:
            picked = self.roster.choose(present, ask)
        except NobodyEligibleError as error:
            logger.warning("round %d is skipped: %s", server_round, error)
            return []
        nodes = [present[client] for client in picked]
        with sampling(self.strategy, len(nodes), fraction_train=1.0):
            written = self.strategy.configure_train(
                server_round, arrays, config, GridView(grid, nodes)
            )
            messages = addressed(list(written), nodes)
        for message in messages:
            self._instruct(message.content)
        self._asked = dict(zip(nodes, picked, strict=True))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Tell the selector what came back; merge it, or let the strategy aggregate."""
        if not self._asked:
            return self.strategy.aggregate_train(server_round, [])
        sound, answers, failed = self._judge(replies)
        taken = self.roster.report(answers, failed, self._sent)
        self._asked = {}
        # In the order of slots: replies come in any order, and sums of floats tell.
        good = [sound[client] for client in taken]
        if good and self._sent is not None and self.roster.aggregator is not None:
            replace_arrays(good, self.roster.merge(self._sent, answers))
        if self._checkpoint is not None:
            assert self.roster.selector is not None
            self.save(self._checkpoint.format(round=self.roster.selector.round))
        return self.strategy.aggregate_train(server_round, good)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy choose whom to evaluate on; it waits for nobody who is away."""
        nodes = sorted(set(grid.get_node_ids()))
        if not nodes:
            return []
        with sampling(self.strategy, len(nodes)):
            return self.strategy.configure_evaluate(
                server_round, arrays, config, GridView(grid, nodes)
            )

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Let the strategy aggregate."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log the policy, then the strategy's own summary."""
        logger.info("selection by %r", self.roster.selector or self.roster)
        self.strategy.summary()

    # -- state ------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write selector, aggregator, ids and watched coordinates to one ``.npz``, atomically."""
        save_state(path, self.roster.state_dict())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from what `save` wrote."""
        self.roster.load_state_dict(load_state(path))

    # -- parts ------------------------------------------------------------------

    def _meet(self, grid: Grid) -> dict[Any, int]:
        """Return the node of each client that is here, newcomers included."""
        first = not self._nodes.met
        n_wanted = (self._n_clients or 1) if first else 1
        n_nodes = self._nodes.wait(grid, n_wanted, first and not self._n_clients, self._wait)
        if n_nodes < n_wanted:
            logger.warning("%d nodes connected in %g s, %d wanted", n_nodes, self._wait, n_wanted)
        if self._known:
            self.roster.welcome(self._known)
            self._known = {}
        present, newcomers = self._nodes.meet(grid)
        if first and n_nodes and not present:
            why = next(iter(self._nodes.refused.values()), "")
            raise RuntimeError(
                f"none of {n_nodes} nodes could be told apart: does the ClientApp call "
                f"cvrcore.integrations.flower_client.selectable? One of them: {why}"
            )
        self.roster.welcome({k: new for k, new in newcomers.items() if k not in self.roster.ids})
        return present

    def _losses(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        nodes: dict[int, Any],
    ) -> dict[Any, float]:
        """Return the present loss of each client that answers in time."""
        content = RecordDict(
            {
                getattr(self.strategy, "arrayrecord_key", "arrays"): arrays,
                getattr(self.strategy, "configrecord_key", "config"): ConfigRecord(
                    {**config, "server-round": server_round}
                ),
            }
        )
        kind, key = (
            (f"query.{LOSS}", "loss") if self._probe == "query" else ("evaluate", self._probe_key)
        )
        questions = [Message(content, node, kind) for node in nodes]
        return losses_of(exchange(grid, questions, self._patience), nodes, key)

    def _instruct(self, content: RecordDict) -> None:
        """Say in a message what the reply should hold for the selector."""
        wishes: dict[str, Any] = {}
        if self.roster.loss_statistic is not None:
            wishes["loss"] = self.roster.loss_statistic
        if self._private and self.roster.features is not None:
            wishes["features"] = write_features(self.roster.features)
        if wishes:
            content[RECORD] = ConfigRecord(wishes)

    def _judge(
        self, replies: Iterable[Message]
    ) -> tuple[dict[Any, Message], dict[Any, Answer], dict[Any, str]]:
        """Return sound replies and what they tell, by client, and why others failed."""
        sound: dict[Any, Message] = {}
        answers: dict[Any, Answer] = {}
        failed: dict[Any, str] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            client = self._asked.get(node)
            if node not in self._asked:
                logger.warning("node %d replied and was not asked: ignored", node)
            elif client in sound or client in failed:
                logger.warning("client %r replied twice: the first counts", client)
            else:
                try:
                    answers[client] = self._read(reply)
                    sound[client] = reply
                except Exception as error:  # whatever a client can send must not end the run
                    failed[client] = str(error) or repr(error)
        for client in odd_ones({c: sound[c] for c in sorted(sound, key=self.roster.ids.slot)}):
            del answers[client], sound[client]
            failed[client] = "its metrics have other names than those of most"
        return sound, answers, failed

    def _read(self, reply: Message) -> Answer:
        """Return what a reply tells, stripped of our record; an error says what is wrong."""
        if reply.has_error():
            raise ValueError(reason(reply))
        ours = dict(reply.content.metric_records.get(RECORD, {}))
        if RECORD in reply.content:
            del reply.content[RECORD]  # a strategy would average it
        records = list(reply.content.array_records.values())
        if not records:
            raise ValueError("its reply holds no arrays")
        model = arrays_of(records[0])
        shapes = {name: array.shape for name, array in model.items()}
        if self._same_shape and shapes != self._shapes:
            raise ValueError(f"its arrays must have shapes {self._shapes}, got {shapes}")
        metrics = metrics_of(reply)
        check_weight(metrics, getattr(self.strategy, "weighted_by_key", None))
        loss = ours.get("loss", metrics.get(self._loss_key))
        seconds = None
        if self._durations:
            arrival = self._clock.seconds.get(reply.metadata.src_node_id) if self._clock else None
            seconds = ours.get("seconds", arrival)
        if not self._private or not self.roster.watches:
            return Answer(model=model, loss=loss, seconds=seconds)
        if "features" not in ours:
            raise ValueError("it did not reveal its watched coordinates: add the mod Reveal")
        return Answer(model=model, watched=ours["features"], loss=loss, seconds=seconds)
