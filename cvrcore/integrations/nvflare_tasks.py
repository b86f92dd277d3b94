"""NVFlare: tasks sent to clients by name, and what each of them answered."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from .extras import require

require("nvflare", "2.5", "nvflare")  # the first with ModelController and BaseFedAvg

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.workflows.base_fedavg import BaseFedAvg

from .._validation import check_count, check_number
from ..aggregators import Aggregator


class AskingController(BaseFedAvg):
    """A controller that asks clients by name and knows who answered, when, and who failed.

    Parameters
    ----------
    timeout : int
        Seconds to wait for the answers to a task; later ones are dropped.
    enough, grace : float
        When the share `enough` of those asked has answered, wait `grace` seconds for the
        others.
    **settings
        Of `BaseFedAvg`.
    """

    def __init__(self, timeout: int, enough: float, grace: float, **settings: Any) -> None:
        # A client's error is ours to tell, no reason to panic.
        super().__init__(ignore_result_error=True, **settings)
        # Under their own names: a FedJob reads the arguments from the attributes.
        self.timeout = check_count(timeout, "timeout")
        self.enough = check_number(enough, "enough", above=0, maximum=1.0)
        self.grace = grace if grace == math.inf else check_number(grace, "grace", minimum=0)
        self._errors: dict[str, str] = {}  # return codes of the present task
        self._arrivals: dict[str, float] = {}

    def _ask(
        self,
        task: str,
        model: FLModel,
        names: list[str],
        meta: Mapping[str, Any],
        timeout: int | None = None,
    ) -> dict[str, FLModel]:
        """Send the model to clients by name; return the answer of each that gave one."""
        self._errors, self._arrivals = {}, {}
        data = FLModel(
            params_type=ParamsType.FULL,
            params=model.params,
            start_round=model.start_round,
            current_round=model.current_round,
            total_rounds=model.total_rounds,
            meta={**(model.meta or {}), **meta},
        )
        patient = self.enough >= 1 or self.grace == math.inf
        found = self.broadcast_model(
            data,
            task_name=task,
            targets=list(names),
            min_responses=0 if patient else math.ceil(self.enough * len(names)),
            timeout=timeout or self.timeout,
            wait_time_after_min_received=0 if patient else math.ceil(self.grace),
        )
        results: dict[str, FLModel] = {}
        for result in found or []:
            name = result.meta["client_name"]
            if name in self._errors:
                continue  # old versions hand over what an error left behind
            if name in results:
                self.warning(f"Client {name} answered twice: the first counts.")
                continue
            results[name] = result
        return results

    def _accept_train_result(self, client_name: str, result: Any, *args: Any, **kwargs: Any) -> Any:
        """Note when each answer came, and its return code if it is an error."""
        accepted = super()._accept_train_result(client_name, result, *args, **kwargs)
        self._arrivals.setdefault(client_name, time.monotonic())
        code = result.get_return_code()
        if code and code != "OK":
            self._errors[client_name] = f"its return code is {code}"
        return accepted

    def _present(self) -> list[str]:
        """Return the names of the clients that are connected."""
        return [client.name for client in self.engine.get_clients()]

    def _pause(self) -> bool:
        """Wait a moment; return whether to go on."""
        time.sleep(self._task_check_period)
        return not self.abort_signal.triggered


def check_initial(model: FLModel, aggregator: Aggregator) -> None:
    """Refuse an initial model that an aggregator of cvrcore cannot start from."""
    if not model.params:
        raise ValueError(
            f"the persistor must give an initial model to aggregator {aggregator.name!r}; got none"
        )
    for name, array in model.params.items():
        if not isinstance(array, (np.ndarray, np.generic)):
            raise ValueError(
                f"the persistor must give NumPy arrays to aggregator {aggregator.name!r}, got "
                f"{type(array).__name__} as {name!r}"
            )
