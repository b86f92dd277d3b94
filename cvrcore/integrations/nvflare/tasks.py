"""NVFlare tasks: a model and the names of clients in, the result of each client out."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.workflows.base_fedavg import BaseFedAvg

from ...validation import check_count
from ..options import Waiting

#: Seconds that a task may take, where `Waiting` does not say.
TIMEOUT = 3600


@dataclasses.dataclass(frozen=True)
class Workflow:
    """How a controller is connected to its NVFlare job.

    Attributes
    ----------
    task : str
        Name of the task that trains.
    persistor_id : str
        The component that loads the initial model and saves the later ones.
    start_round : int
        Number of the first round.
    task_check_period : float
        Seconds between two polls for results.

    Examples
    --------
    >>> from cvrcore.integrations.nvflare import Workflow
    >>> Workflow(task="train", task_check_period=0.1).task
    'train'
    """

    task: str = "train"
    persistor_id: str = "persistor"
    start_round: int = 0
    task_check_period: float = 0.5

    def __post_init__(self) -> None:
        check_count(self.start_round, "start_round", minimum=0)


#: Default of the argument `workflow` of `SelectingController`.
WORKFLOW = Workflow()


class TaskController(BaseFedAvg):
    """A controller that sends tasks to clients by name, and knows which of them failed.

    Parameters
    ----------
    num_rounds : int
    waiting : Waiting
        How long to wait for results.
    workflow : Workflow
    """

    def __init__(self, num_rounds: int, waiting: Waiting, workflow: Workflow) -> None:
        super().__init__(
            num_rounds=check_count(num_rounds, "num_rounds"),
            start_round=workflow.start_round,
            persistor_id=workflow.persistor_id,
            task_check_period=workflow.task_check_period,
            ignore_result_error=True,  # a client's error fails that client, not the job
        )
        self.waiting, self.workflow = waiting, workflow
        self._errors: dict[str, str] = {}  # return codes of the current task, by client
        self._arrivals: dict[str, float] = {}  # when each result of the current task came

    def _send_task(
        self,
        task: str,
        model: FLModel,
        names: list[str],
        meta: Mapping[str, Any],
        timeout: float | None = None,
    ) -> dict[str, FLModel]:
        """Send the model to clients by name; return the result of each that gave one."""
        self._errors, self._arrivals = {}, {}
        data = FLModel(
            params_type=ParamsType.FULL,
            params=model.params,
            start_round=model.start_round,
            current_round=model.current_round,
            total_rounds=model.total_rounds,
            meta={**(model.meta or {}), **meta},
        )
        waiting = self.waiting.at_most(timeout)
        for_all = waiting.enough >= 1 or waiting.grace == math.inf
        found = self.broadcast_model(
            data,
            task_name=task,
            targets=list(names),
            min_responses=0 if for_all else math.ceil(waiting.enough * len(names)),
            timeout=TIMEOUT if waiting.timeout is None else math.ceil(waiting.timeout),
            wait_time_after_min_received=0 if for_all else math.ceil(waiting.grace),
        )
        results: dict[str, FLModel] = {}
        for result in found or []:
            name = (result.meta or {}).get("client_name")
            if not isinstance(name, str):
                self.warning("A result without the name of its client is ignored.")
                continue
            if name in self._errors:
                continue  # old versions return the content of a failed task too
            if name in results:
                self.warning(f"Client {name} answered twice: the first counts.")
                continue
            results[name] = result
        return results

    def _accept_train_result(self, client_name: str, result: Any, *args: Any, **kwargs: Any) -> Any:
        """Record when each result came, and its return code if it is an error."""
        accepted = super()._accept_train_result(client_name, result, *args, **kwargs)
        self._arrivals.setdefault(client_name, time.monotonic())
        code = result.get_return_code()
        if code and code != "OK":
            self._errors[client_name] = f"its return code is {code}"
        return accepted

    def _connected(self) -> list[str]:
        """Return the names of the connected clients."""
        return [client.name for client in self.engine.get_clients()]

    def _await_clients(self, n_wanted: int) -> None:
        """Wait for clients to connect, no longer than `Waiting.connect`."""
        seconds = self.waiting.connect_seconds(n_wanted)
        deadline = time.monotonic() + seconds
        while len(self._connected()) < n_wanted and time.monotonic() < deadline:
            if not self._pause():
                return
        found = len(self._connected())
        if found < n_wanted:
            given = self.waiting.connect_text(n_wanted)
            self.warning(f"{found} clients connected within {given}, {n_wanted} wanted.")

    def _pause(self) -> bool:
        """Sleep for one poll; return whether the job goes on."""
        time.sleep(self.workflow.task_check_period)
        return not self.abort_signal.triggered

    def _path(self, path: str, make_folder: bool = False) -> Path:
        """Return `path`, in the folder of the job unless absolute."""
        found = Path(self.get_run_dir()) / path  # an absolute `path` stays as it is
        if make_folder:
            found.parent.mkdir(parents=True, exist_ok=True)
        return found
