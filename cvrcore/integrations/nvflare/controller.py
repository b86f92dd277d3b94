"""NVFlare controller: the persistor's model in, rounds of FedAvg with selected clients out."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_event_type import AppEventType

from ...aggregators import Aggregator
from ...features import FeatureMap
from ...selectors.base import Selector
from ...selectors.guards import Guards
from ...state import load_state, save_state
from ...validation import check_count
from ..backoff import Backoff
from ..options import (
    REPORTS,
    TRACKING,
    WAITING,
    Reports,
    Tracking,
    Waiting,
    adapter_keywords,
    join_options,
    log_loss_statistic,
    take_group,
)
from ..roster import ClientInfo, NoEligibleClientError, Reply, Roster, Round, Utility
from ..tracked import TrackedRounds
from ..untrusted import UsualForm, brief
from .results import (
    LOSS,
    bound_steps,
    check_initial,
    form_of,
    read_introduction,
    read_loss,
    read_training_result,
)
from .tasks import WORKFLOW, TaskController, Workflow

#: Names the loss that the policy needs of each client, in the ``meta`` of the model sent.
LOSS_STATISTIC = "loss_statistic"


class SelectingController(TaskController):
    """FedAvg on NVFlare, with clients selected by cvrcore.

    Clients answer ``train`` tasks as before. Errors, timeouts and invalid results are reported
    to the policy as failed, and the round continues with the other results. In a `FedJob`, call
    ``job.set_app_packages(["cvrcore"])``, or NVFlare sends a copy of these files with the job.

    Parameters
    ----------
    selector : str or Selector
        A policy of cvrcore by name, or a ready selector; a ready one cannot be written to the
        JSON of a job, so build it in a subclass.
    n_select : int, optional
        Clients per round; required with a name.
    seed : int, optional
        Seed of the policy; the same seed gives the same selections in every run.
    num_rounds : int
        Rounds to run.
    n_clients : int, optional
        Clients to wait for before the first round. Default: one.
    clients : mapping, optional
        Number of training samples of clients known beforehand, by name. Others count as 1, or
        are asked, see `introduce`.
    introduce : str, optional
        A task, such as ``"validate"``, sent to clients that connect for the first time; the
        ``meta`` of the result says ``n_samples`` and, for policies that need them,
        ``label_counts``. A client that does not is asked again 1, 2, 4, ... rounds later.
    features : FeatureMap, "update" or "head", optional
        What the policy watches of a model. Default: the last layer; with "update" its change
        by the client; with "head" the direction of the output layer's change, one number for
        each output. A FeatureMap is, like a ready selector, for subclasses.
    aggregator : str, Aggregator or ModelAggregator, optional
        An aggregator of cvrcore, by name or, in a subclass, ready; or one of NVFlare. Default:
        `BaseFedAvg.aggregate_fn`, the mean weighted by steps. With cvrcore's aggregators,
        metrics are still averaged by that.
    average : float, default=0
        Decay of the moving average of the models (`cvrcore.aggregators.ModelAverage`); 0: none.
        The average is what the persistor saves; clients train from the model itself.
    guards : Guards or "recommended", optional
        Limits on hostile and broken clients. `max_weight` also bounds the steps by which NVFlare
        weights clients, if it is a median: that of the round.
    utility : callable, optional
        Given a model as a dict of arrays, returns its worth on validation samples of the server,
        the larger the better; for policies that need utilities. Like a ready selector, for
        subclasses.
    reports : Reports
        What clients report beside their models, and by which names.
    waiting : Waiting
        How long the server waits for clients.
    tracking : Tracking
        Where rounds are logged, in the folder of the job unless absolute: trackers by name, since
        jobs are JSON.
    workflow : Workflow
        Names of task and persistor, first round, polling.
    checkpoint : path, optional
        Where to save the state of selector and aggregator after each round, in the folder of
        the job unless absolute; ``{round}`` is replaced by the number of rounds.
    restore : path, optional
        A state to continue from.
    record : path, optional
        JSON lines with the clients available, selected, reported and failed in each round, in
        the folder of the job.
    options : mapping, optional
        Further arguments of the policy, among them ``n_features``: watch only that many
        coordinates of the last layer, drawn with `seed`.
    **settings
        The same arguments of the policy as single keywords. Fields of `Reports`, `Waiting`,
        `Workflow`, `Tracking` and `Guards` are accepted as single keywords too.

    Examples
    --------
    >>> from nvflare.job_config.api import FedJob
    >>> from cvrcore.integrations.nvflare import SelectingController
    >>> job = FedJob("digits", min_clients=8)
    >>> job.set_app_packages(["cvrcore"])
    >>> job.to_server(SelectingController("fedcvr-bolt", n_select=3, seed=0, num_rounds=20))
    """

    def __init__(
        self,
        selector: str | Selector = "fedcvr-bolt",
        n_select: int | None = None,
        seed: int | None = None,
        num_rounds: int = 5,
        n_clients: int | None = None,
        clients: Mapping[str, float] | None = None,
        introduce: str | None = None,
        features: FeatureMap | str | None = None,
        *,
        aggregator: Any = None,
        average: float = 0.0,
        guards: Guards | str | None = None,
        utility: Utility | None = None,
        reports: Reports = REPORTS,
        waiting: Waiting = WAITING,
        tracking: Tracking = TRACKING,
        workflow: Workflow = WORKFLOW,
        checkpoint: str | None = None,
        restore: str | None = None,
        record: str | None = "selection.jsonl",
        options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(
            num_rounds,
            take_group("waiting", waiting, WAITING, settings),
            take_group("workflow", workflow, WORKFLOW, settings),
        )
        # Every argument under its own name: a FedJob reads arguments from the attributes.
        self.reports = take_group("reports", reports, REPORTS, settings)
        self.tracking = take_group("tracking", tracking, TRACKING, settings)
        self.selector, self.n_select, self.seed = selector, n_select, seed
        self.n_clients = None if n_clients is None else check_count(n_clients, "n_clients")
        self.clients, self.introduce, self.features = clients, introduce, features
        self.aggregator, self.guards, self.utility = aggregator, guards, utility
        self.average = average
        self.checkpoint, self.restore, self.record = checkpoint, restore, record
        self.options = join_options(options, settings)
        policy_options = dict(self.options or {})
        self.roster = Roster(
            selector,
            n_select=n_select,
            seed=seed,
            features=features,
            n_features=policy_options.pop("n_features", None),
            options=policy_options,
            aggregator=aggregator if isinstance(aggregator, (str, Aggregator)) else None,
            average=average,
            guards=guards,
            utility=utility,
            hints=self._hints(),
            log=lambda text: self.info(text),
            keywords=adapter_keywords(SelectingController, REPORTS, WAITING, TRACKING, WORKFLOW),
        )
        self._tracked = TrackedRounds(self.tracking, self.roster, lambda text: self.info(text))
        self._retries = Backoff()
        self._forms = UsualForm()
        self._failed: dict[str, str] = {}  # why clients failed in this round

    @property
    def rounds(self) -> list[Round]:
        """The record of each round: clients available, selected, reported and failed."""
        return self.roster.rounds

    def run(self) -> None:
        """Run the rounds; NVFlare calls it."""
        if self.restore is not None:
            self.roster.load_state_dict(load_state(self._path(self.restore)))
        model = self.load_model()
        if model is None:  # NVFlare has ended the job, and logged why
            return
        model.start_round, model.total_rounds = self.start_round, self.num_rounds
        if self.roster.aggregator is not None:
            check_initial(model, self.roster.aggregator)
        if self.roster.watches:
            if not model.params:
                raise ValueError(
                    "the persistor must give an initial model to a policy that watches models, "
                    f"{self.selector!r}; got none"
                )
            self.roster.watch(model.params)
        if self.clients:
            self.roster.register({name: ClientInfo(size) for name, size in self.clients.items()})
        self.roster.announce(self.num_rounds)
        log_loss_statistic(self.roster.loss_statistic, self.reports.loss_key, self.info)
        if self._tracked.wanted:
            self._tracked.prepare(self._path(self.tracking.folder))
        self._await_clients(self.n_clients or 1)
        self._tracked.start(self.num_rounds)
        try:
            self._run_rounds(model)
        finally:
            self._tracked.finish()

    def _run_rounds(self, model: FLModel) -> None:
        for t in range(self.start_round, self.start_round + self.num_rounds):
            if self.abort_signal.triggered:
                return
            self.current_round = t
            model.current_round = self.current_round
            self.event(AppEventType.ROUND_STARTED)
            model = self._round(model)
            self.event(AppEventType.ROUND_DONE)
        self.info(f"Finished {self.num_rounds} rounds.")

    # -- one round --------------------------------------------------------------

    def _round(self, model: FLModel) -> FLModel:
        """Select clients, let them train, report to the policy, aggregate."""
        self._tracked.begin()
        self._tracked.enter("connect")
        present = self._register(model)
        self._tracked.enter("select")
        if self.roster.watches and model.params:  # options of the policy may ask for it
            self.roster.watch(model.params)
        try:
            selected = self.roster.select(
                present, lambda names: self._losses(model, names), model.params or None
            )
        except NoEligibleClientError as error:
            self.warning(f"Round {self.current_round} is skipped: {error}")
            self._pause()
            return model
        self._failed = {}
        self._tracked.enter("train")
        replies, results = self._train(model, selected) if selected else ({}, {})
        self._tracked.enter("aggregate")
        # In the order of slots: results come in any order, and float sums depend on it.
        used = self.roster.report(replies, self._failed, model.params or None)
        if used:
            good = [results[name] for name in used]
            bound_steps(good, self.roster.selector)
            merged = self.aggregate(good, aggregate_fn=self._aggregate_fn(model, replies))
            self._tracked.measured(merged.metrics)
            model = self.update_model(model, merged)
            self.roster.deployed.update(model.params)
            if self.persistor:
                self._save_deployed(model)
        self._write()
        return model

    def _save_deployed(self, model: FLModel) -> None:
        """Let the persistor save the average of the models, or the model where there is none."""
        params = self.roster.deployed.model
        if params is None:
            self.save_model(model)
            return
        deployed = copy.copy(model)
        deployed.params = params
        self.save_model(deployed)

    def _train(
        self, model: FLModel, selected: list[str]
    ) -> tuple[dict[str, Reply], dict[str, FLModel]]:
        """Let clients train; return the valid replies, and the results that they were read from.

        `_failed` then holds the reasons of the others.
        """
        statistic = self.roster.loss_statistic
        meta = {LOSS_STATISTIC: statistic} if statistic else {}
        timed = self.reports.durations or "durations" in self.roster.needs
        began = time.monotonic()
        results = self._send_task(self.workflow.task, model, selected, meta)
        replies: dict[str, Reply] = {}
        forms: dict[str, Hashable] = {}
        self._failed = dict(self._errors)
        for name in sorted(results):
            try:
                seconds = self._arrivals[name] - began if timed else None
                reply = read_training_result(model, results[name], self.reports, seconds)
                forms[name] = form_of(results[name])
                replies[name] = reply
            except Exception as error:  # no content of a result may end the run
                self._failed[name] = brief(error)
        for name in self._forms.odd_ones({n: forms[n] for n in replies if n in selected}):
            del replies[name]
            self._failed[name] = "its metrics or parameters have another form than those of most"
        return replies, results

    def _aggregate_fn(
        self, model: FLModel, replies: Mapping[str, Reply]
    ) -> Callable[[list[FLModel]], FLModel] | None:
        """Return the function from a round's results to one; None: NVFlare's own mean."""
        if self.roster.aggregator is None:
            return self._aggregate_theirs if self.aggregator else None

        def aggregate(results: list[FLModel]) -> FLModel:
            params = self.roster.merge(model.params, replies)
            merged: FLModel = self.aggregate_fn(results)  # for its metrics and meta
            merged.params, merged.params_type = params, ParamsType.FULL
            return merged

        return aggregate

    def _aggregate_theirs(self, results: list[FLModel]) -> FLModel:
        """Aggregate by an aggregator of NVFlare."""
        self.aggregator.reset_stats()
        for result in results:
            self.aggregator.accept_model(result)
        merged: FLModel = self.aggregator.aggregate_model()
        return merged

    # -- clients ----------------------------------------------------------------

    def _register(self, model: FLModel) -> list[str]:
        """Return the connected clients, after new ones were registered."""
        present = self._connected()
        new = sorted(name for name in present if name not in self.roster.ids)
        if self.introduce is not None:
            due = [name for name in new if self._retries.due(name, self.current_round)]
            if due:
                facts = self._introductions(self.introduce, model, due)
                for name, why in self.roster.register(facts).items():
                    delay = self._retries.delay(name, self.current_round)
                    self.warning(f"Client {name} is asked again in {delay} rounds: {why}")
        elif new:
            self.roster.register({name: ClientInfo() for name in new})
        return present

    def _introductions(self, task: str, model: FLModel, names: list[str]) -> dict[str, ClientInfo]:
        """Ask new clients for their number of samples; the silent are asked again later."""
        found: dict[str, ClientInfo] = {}
        reasons: dict[str, str] = {}
        seconds = self.waiting.connect_seconds(len(names))
        results = self._send_task(task, model, names, {"introduce": True}, seconds)
        for name in set(results).intersection(names):
            try:
                found[name] = read_introduction(results[name])
            except Exception as error:  # nothing that a client states may end the run
                reasons[name] = brief(error)
        silent = f"no answer within {self.waiting.connect_text(len(names))}"
        reasons |= self._errors
        for name in sorted(set(names) - set(found)):
            delay = self._retries.delay(name, self.current_round)
            self.warning(
                f"Client {name} is left out until it introduces itself, asked again in {delay} "
                f"rounds: {reasons.get(name, silent)} ({len(results)} of {len(names)} answered)"
            )
        return found

    def _losses(self, model: FLModel, names: list[str]) -> dict[str, float]:
        """Return the current loss of each client that answers in time."""
        task, key = self.reports.probe or "validate", self.reports.probe_key or "loss"
        losses = {}
        for name, result in self._send_task(task, model, names, {LOSS_STATISTIC: "mean"}).items():
            try:
                losses[name] = read_loss(result, key)
            except Exception as error:  # no content of a result may end the run
                self.warning(f"Client {name} gave no loss: {brief(error)}")
        return losses

    def _hints(self) -> dict[str, str]:
        """Return what a client must send for each need of a policy."""
        task, key = self.reports.probe or "validate", self.reports.probe_key or "loss"
        return {
            "probe": (
                f"clients must answer the task {task!r} with the metric {key!r}, the mean loss of "
                "the model received over their training samples; or name another task and "
                "metric, Reports(probe=..., probe_key=...)"
            ),
            "losses": (
                f"clients must put it into the meta of their result, meta={{{LOSS!r}: value}}; or "
                "name a metric that holds this loss, Reports(loss_key=...)"
            ),
            "label_counts": (
                "give introduce='validate', and let clients answer that task with "
                "meta={'n_samples': n, 'label_counts': [...]}"
            ),
        }

    # -- state ------------------------------------------------------------------

    def forget(self, client: str) -> None:
        """Erase a client between rounds: from selector, aggregator, ids and `rounds`.

        A client that is still connected joins as a new one. Saved states and the record of the
        rounds are rewritten by `cvrcore.erasure`.
        """
        self.roster.forget(client)

    def _write(self) -> None:
        """Save the state and the record of the round, where a path was given."""
        assert self.roster.selector is not None
        if self.checkpoint is not None:
            name = self.checkpoint.format(round=self.roster.selector.round)
            save_state(self._path(name, make_folder=True), self.roster.state_dict())
        if self.record is not None:
            line = {"round": self.current_round, **self.rounds[-1].plain()}
            with open(self._path(self.record, make_folder=True), "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
