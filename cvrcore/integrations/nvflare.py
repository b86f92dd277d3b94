"""NVFlare: a controller of FedAvg whose clients are picked by cvrcore."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .extras import require

require("nvflare", "2.5", "nvflare")  # the first with ModelController and BaseFedAvg

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_event_type import AppEventType

from .._validation import check_count, check_number
from ..aggregators import Aggregator
from ..features import FeatureMap
from ..selectors.base import Selector
from ..state import load_state, save_state
from .backoff import Backoff
from .nvflare_tasks import AskingController, check_initial
from .roster import Answer, Newcomer, NobodyEligibleError, Roster, Round

#: What a client says of itself, in the ``meta`` of its answer to an introduction.
N_SAMPLES, LABEL_COUNTS = "n_samples", "label_counts"
#: Which loss the policy wants of each client, in the ``meta`` of the model that is sent.
LOSS_STATISTIC = "loss_statistic"


class SelectingController(AskingController):
    """FedAvg on NVFlare: selection is cvrcore's, aggregation too if you like.

    Clients answer ``train`` tasks as ever. Errors, time-outs and unsound answers are told to
    the selector as failed, and the round goes on with the others. Arguments are plain values,
    so that a job can be exported; in a `FedJob`, call ``job.set_app_packages(["cvrcore"])``,
    or NVFlare ships a copy of these files with the job.

    Parameters
    ----------
    selector : str or Selector
        A policy of cvrcore by name, or a ready one: that cannot travel in the JSON of a job,
        so build it in a subclass of yours.
    n_select : int, optional
        Clients a round; required with a name.
    seed : int, optional
        Of the policy; the same seed makes the same picks in every run.
    num_rounds : int
        Rounds to run.
    n_clients : int, optional
        Clients to wait for before the first round. Default: those that are connected.
    clients : mapping, optional
        Training samples of each client known beforehand, by name. Others count as 1, or are
        asked, see `introduce`.
    introduce : str, optional
        A task, such as ``"validate"``, sent to clients when they are first met; the ``meta``
        of the answer says ``n_samples`` and, for policies that want them, ``label_counts``.
        One that does not is asked again 1, 2, 4, ... rounds later.
    features : FeatureMap or "update", optional
        What the policy watches of a model. Default: the last layer; with "update" what a
        client changed of it. A FeatureMap is, like a ready selector, for subclasses.
    n_features : int, optional
        Watch only that many coordinates of the last layer, drawn with `seed`.
    task, probe : str
        Names of the tasks that train, and that measure the loss of the present model for a
        policy that probes.
    probe_key, loss_key : str
        Metric of an answer to `probe`; metric of an answer to `task` that is the loss which
        the policy wants, as said by ``loss_statistic`` in the ``meta`` of the model.
    durations : bool
        Tell the policy how long each answer took. Off, since it makes picks depend on the
        clock; on, Oort prefers quick clients.
    timeout : int
        Seconds to wait for the answers to a task; later ones are dropped.
    enough, grace : float
        When the share `enough` of those asked has answered, wait `grace` seconds for the
        others. Default: wait for all, until `timeout`. Neither changes who is asked.
    wait : float
        Seconds to wait for clients to connect, and to introduce themselves.
    aggregator : str, Aggregator or ModelAggregator, optional
        Who merges the models of a round: one of `cvrcore.aggregators`, by name or, in a
        subclass, ready; or NVFlare's kind. Default: `BaseFedAvg.aggregate_fn`, the mean
        weighted by steps. With ours, metrics are still averaged by that.
    checkpoint : path, optional
        Where to save the state of selector and aggregator after each round, in the folder of
        the job unless absolute; ``{round}`` is replaced by the number of rounds selected.
    restore : path, optional
        A state to continue from.
    record : path, optional
        JSON lines of who was there, picked, back and failed, in the folder of the job.
    options : mapping, optional
        Further arguments of the policy.
    start_round : int
        Number of the first round.
    persistor_id : str
        The component that loads the initial model and saves the others.
    task_check_period : float
        Seconds between two looks at what came in.

    Examples
    --------
    ::

        job = FedJob("digits", min_clients=8)
        job.set_app_packages(["cvrcore"])
        job.to_server(SelectingController("fedcvr-bolt", n_select=3, seed=0, num_rounds=20))
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
        n_features: int | None = None,
        task: str = "train",
        probe: str = "validate",
        probe_key: str = "loss",
        loss_key: str = "train_loss",
        durations: bool = False,
        timeout: int = 3600,
        enough: float = 1.0,
        grace: float = math.inf,
        wait: float = 60.0,
        aggregator: Any = None,
        checkpoint: str | None = None,
        restore: str | None = None,
        record: str | None = "selection.jsonl",
        options: Mapping[str, Any] | None = None,
        start_round: int = 0,
        persistor_id: str = "persistor",
        task_check_period: float = 0.5,
    ) -> None:
        super().__init__(
            num_rounds=check_count(num_rounds, "num_rounds"),
            start_round=check_count(start_round, "start_round", minimum=0),
            persistor_id=persistor_id,
            task_check_period=task_check_period,
            timeout=timeout,
            enough=enough,
            grace=grace,
        )
        # Under their own names: a FedJob reads the arguments from the attributes.
        self.selector, self.n_select, self.seed = selector, n_select, seed
        self.n_clients = None if n_clients is None else check_count(n_clients, "n_clients")
        self.clients, self.introduce = clients, introduce
        self.features, self.n_features = features, n_features
        self.task, self.probe, self.probe_key, self.loss_key = task, probe, probe_key, loss_key
        self.durations = durations
        self.wait = check_number(wait, "wait", above=0)
        self.aggregator = aggregator
        self.checkpoint, self.restore, self.record = checkpoint, restore, record
        self.options = options
        self.roster = Roster(
            selector,
            n_select=n_select,
            seed=seed,
            features=features,
            n_features=n_features,
            options=options,
            aggregator=aggregator if isinstance(aggregator, (str, Aggregator)) else None,
        )
        self._shy = Backoff()

    @property
    def rounds(self) -> list[Round]:
        """Who was there, who was picked and why, and what came of it, round by round."""
        return self.roster.rounds

    def run(self) -> None:
        """Go through the rounds; NVFlare calls it."""
        if self.restore is not None:
            self.roster.load_state_dict(load_state(self._path(self.restore)))
        model = self.load_model()
        if model is None:  # NVFlare has panicked, and said why
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
            sizes = {name: Newcomer(float(size)) for name, size in self.clients.items()}
            self.roster.welcome(sizes)
        self._await_clients()
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
        present = self._meet(model)
        try:
            picked = self.roster.choose(present, lambda names: self._losses(model, names))
        except NobodyEligibleError as error:
            self.warning(f"Round {self.current_round} is skipped: {error}")
            self._pause()
            return model
        self.info(f"Round {self.current_round}: {picked} of {len(present)} clients")
        meta = {LOSS_STATISTIC: self.roster.loss_statistic} if self.roster.loss_statistic else {}
        began = time.monotonic()
        results = self._ask(self.task, model, picked, meta)
        answers: dict[str, Answer] = {}
        failed = dict(self._errors)
        for name, result in results.items():
            try:
                answers[name] = self._read(model, result, self._arrivals[name] - began)
            except Exception as error:  # whatever a client can send must not end the run
                failed[name] = str(error) or repr(error)
        taken = self.roster.report(answers, failed, model.params or None)
        # In the order of slots: answers come in any order, and sums of floats tell.
        if taken:
            sound = [results[name] for name in taken]
            merged = self.aggregate(sound, aggregate_fn=self._merging(model, answers))
            model = self.update_model(model, merged)
            if self.persistor:
                self.save_model(model)
        self._write()
        return model

    def _read(self, model: FLModel, result: FLModel, seconds: float) -> Answer:
        """Return what an answer tells; an error says what is wrong with it."""
        if not result.params:
            raise ValueError("its answer holds no parameters")
        params = {name: np.asarray(array) for name, array in result.params.items()}
        if model.params:
            wanted = {name: np.shape(array) for name, array in model.params.items()}
            shapes = {name: array.shape for name, array in params.items()}
            if shapes != wanted:
                raise ValueError(f"its parameters must have shapes {wanted}, got {shapes}")
        if result.params_type == ParamsType.DIFF:
            params = {
                name: np.asarray(model.params[name]) + array for name, array in params.items()
            }
        loss = (result.metrics or {}).get(self.loss_key)
        return Answer(
            model=params,
            loss=None if loss is None else float(loss),
            seconds=max(seconds, 1e-9) if self.durations else None,
        )

    def _merging(
        self, model: FLModel, answers: Mapping[str, Answer]
    ) -> Callable[[list[FLModel]], FLModel] | None:
        """Return what turns the round's results into one; None: NVFlare's own mean."""
        if self.roster.aggregator is None:
            return self._merge if self.aggregator else None

        def merge(results: list[FLModel]) -> FLModel:
            params = self.roster.merge(model.params, answers)
            merged: FLModel = self.aggregate_fn(results)  # for its metrics and what it notes
            merged.params, merged.params_type = params, ParamsType.FULL
            return merged

        return merge

    def _merge(self, results: list[FLModel]) -> FLModel:
        self.aggregator.reset_stats()
        for result in results:
            self.aggregator.accept_model(result)
        merged: FLModel = self.aggregator.aggregate_model()
        return merged

    # -- who is there -----------------------------------------------------------

    def _await_clients(self) -> None:
        """Wait for clients to connect, for a bounded time."""
        wanted, deadline = self.n_clients or 1, time.monotonic() + self.wait
        while len(self._present()) < wanted and time.monotonic() < deadline:
            if not self._pause():
                return
        found = len(self._present())
        if found < wanted:
            self.warning(f"{found} clients connected in {self.wait:g} s, {wanted} wanted.")

    def _meet(self, model: FLModel) -> list[str]:
        """Return who is here, newcomers included."""
        present = self._present()
        strangers = sorted(name for name in present if name not in self.roster.ids)
        if self.introduce is not None:
            due = [name for name in strangers if self._shy.due(name, self.current_round)]
            if due:
                self.roster.welcome(self._introduced(model, due))
        elif strangers:
            self.roster.welcome({name: Newcomer() for name in strangers})
        return present

    def _introduced(self, model: FLModel, names: list[str]) -> dict[str, Newcomer]:
        assert self.introduce is not None
        found = {}
        limit = min(self.timeout, math.ceil(self.wait))
        answers = self._ask(self.introduce, model, names, {"introduce": True}, limit)
        for name, result in answers.items():
            try:
                size, counts = float(result.meta[N_SAMPLES]), result.meta.get(LABEL_COUNTS)
                found[name] = Newcomer(size, None if counts is None else np.asarray(counts))
            except (KeyError, TypeError, ValueError) as error:
                self.warning(f"Client {name} did not introduce itself: {error!r}")
        for name in sorted(set(names) - set(found)):
            gap = self._shy.put_off(name, self.current_round)
            why = self._errors.get(name, "no answer in time, or none of use")
            self.warning(
                f"Client {name} is left out until it introduces itself, asked again in {gap} "
                f"rounds: {why}"
            )
        return found

    def _losses(self, model: FLModel, names: list[str]) -> dict[str, float]:
        """Return the present loss of each client that answers in time."""
        losses = {}
        for name, result in self._ask(self.probe, model, names, {LOSS_STATISTIC: "mean"}).items():
            try:
                losses[name] = float((result.metrics or {})[self.probe_key])
            except (KeyError, TypeError, ValueError) as error:
                self.warning(f"Client {name} told no loss: {error!r}")
        return losses

    # -- state ------------------------------------------------------------------

    def _path(self, path: str) -> Path:
        """Return `path`, in the folder of the job unless absolute."""
        return Path(path) if os.path.isabs(path) else Path(self.get_run_dir()) / path

    def _write(self) -> None:
        """Save the selector's state and the record of the round, if wanted."""
        assert self.roster.selector is not None
        if self.checkpoint is not None:
            path = self._path(self.checkpoint.format(round=self.roster.selector.round))
            path.parent.mkdir(parents=True, exist_ok=True)
            save_state(path, self.roster.state_dict())
        if self.record is not None:
            last = self.roster.rounds[-1]
            line = {
                "round": self.current_round,
                "available": last.available,
                "selected": last.selected,
                "reported": last.reported,
                "failed": last.failed,
            }
            path = self._path(self.record)
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
