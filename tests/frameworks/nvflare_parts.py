"""Parts of jobs for NVFlare's simulator: an executor whose clients fail, and the whole job.

Called as a script with a folder, it runs the job there: the simulator leaves threads and
sockets behind, so it gets a process of its own.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

#: Workflows after the example's own, by the name of their record: policy and settings.
WORKFLOWS = {
    "again": ("fedcvr-bolt", {"num_rounds": 6, "seed": 0}),
    "memory": ("fedcvr-bolt", {"num_rounds": 4, "seed": 0, "aggregator": "memory"}),
    "power-of-choice": ("power-of-choice", {"num_rounds": 4, "seed": 3}),
    "oort": ("oort", {"num_rounds": 4, "seed": 3}),
}
FAULTY_ROUNDS = 2


class Faulty(Executor):
    """Clients of which all but two fail, each in its own way."""

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        name = fl_ctx.get_identity_name()
        model = FLModelUtils.from_shareable(shareable)
        params = {key: np.asarray(array) + 1.0 for key, array in model.params.items()}
        if name == "site-1":
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        if name == "site-2":
            params = {key: array * np.nan for key, array in params.items()}
        if name == "site-3":
            params = {key: array[:2] for key, array in params.items()}
        if name == "site-4":
            wait_until_over(abort_signal)
        return FLModelUtils.to_shareable(FLModel(params=params))


def wait_until_over(abort_signal):
    """Stay silent until the server has closed all rounds, a minute at most."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not abort_signal.triggered:
        records = list(Path(os.environ["FAULTY_FOLDER"]).rglob("faulty.jsonl"))
        if records and len(records[0].read_text().splitlines()) == FAULTY_ROUNDS:
            return
        time.sleep(0.1)


def add_workflows(job):
    """Add to the example's job one workflow for each test: they run one after another."""
    import softmax_digits
    from nvflare.app_common.np.np_model_persistor import NPModelPersistor
    from nvflare_digits import N_CLIENTS

    from cvrcore.integrations.nvflare import Reports, SelectingController, Waiting, Workflow

    for name, (policy, settings) in WORKFLOWS.items():
        options = {"warmup": 2, "n_features": 300} if policy == "fedcvr-bolt" else None
        model = softmax_digits.initial_model().tolist()
        job.to_server(NPModelPersistor(model_name=f"{name}.npy", model=model), id=name)
        controller = SelectingController(
            policy, n_select=2, n_clients=N_CLIENTS, introduce="validate", options=options,
            waiting=Waiting(timeout=60, connect=20), workflow=Workflow("train", name, 0, 0.1),
            reports=Reports(probe="validate"), record=f"{name}.jsonl",
            checkpoint=f"{name}-{{round}}.npz", **settings,
        )  # fmt: skip
        job.to_server(controller)
    job.to_server(NPModelPersistor(model_name="faulty.npy", model=[[0.0, 0.0]] * 3), id="faulty")
    controller = SelectingController(
        "uniform", n_select=6, seed=0, num_rounds=FAULTY_ROUNDS, record="faulty.jsonl",
        waiting=Waiting(timeout=60, enough=0.8, grace=1),
        workflow=Workflow("fail", "faulty", 0, 0.1),
    )  # fmt: skip
    job.to_server(controller)
    job.to_clients(Faulty(), tasks=["fail"])
    job.to_server({"server": {"task_request_interval": 0.1}})  # clients ask for tasks so often


def main(folder):
    """Run the example's simulation, with more workflows in its job."""
    import nvflare_digits as example

    make_job = example.make_job

    def extended(*arguments, **settings):
        job = make_job(*arguments, **settings)
        add_workflows(job)
        return job

    example.make_job = extended
    example.simulate(folder, rounds=6, connect=20.0)


if __name__ == "__main__":
    import nvflare_parts  # by name: the clients import it

    nvflare_parts.main(sys.argv[1])
