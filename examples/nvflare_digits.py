"""FedAvg in NVFlare's simulator, with clients selected by cvrcore: digits, offline, a minute.

    pip install '.[nvflare]' scikit-learn
    python examples/nvflare_digits.py [POLICY]

The same file is the job and, called by NVFlare with "client", the training script.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import softmax_digits

N_CLIENTS = 6
ARRAY = "numpy_key"  # the name that NVFlare's NumPy persistor gives its array


def client():
    """Answer tasks until the job is over."""
    import nvflare.client as flare

    flare.init()
    me = int(flare.get_site_name().removeprefix("site-")) - 1
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        model = np.asarray(received.params[ARRAY])
        statistic = received.meta.get("loss_statistic", "mean")
        said = softmax_digits.loss(model, me, N_CLIENTS, statistic)
        if flare.is_evaluate():  # an introduction, or a probe
            counts = softmax_digits.label_counts(me, N_CLIENTS)
            meta = {"n_samples": sum(counts), "label_counts": counts}
            flare.send(flare.FLModel(metrics={"loss": said}, meta=meta))
        else:
            trained = softmax_digits.train(model, me, N_CLIENTS)
            meta = {"NUM_STEPS_CURRENT_ROUND": softmax_digits.size(me, N_CLIENTS)}
            meta["selection_loss"] = said  # of the model received, for policies that learn from it
            params = {ARRAY: trained}
            flare.send(flare.FLModel(params=params, metrics={"train_loss": said}, meta=meta))


def make_job(policy="fedcvr-bolt", rounds=6, seed=0, connect=60, **settings):
    """Return the job: controller, persistor, clients."""
    from nvflare.app_common.np.np_model_persistor import NPModelPersistor
    from nvflare.job_config.api import FedJob
    from nvflare.job_config.script_runner import FrameworkType, ScriptRunner

    from cvrcore.integrations.nvflare import SelectingController, Waiting, Workflow

    if policy == "fedcvr-bolt":
        settings = {"n_features": 300, "warmup": 2, **settings}
    job = FedJob("digits", min_clients=N_CLIENTS)
    job.set_app_packages(["cvrcore"])  # installed everywhere: the job holds no copy
    persistor = NPModelPersistor(model=softmax_digits.initial_model().tolist())
    controller = SelectingController(
        policy,
        n_select=2,
        seed=seed,
        num_rounds=rounds,
        n_clients=N_CLIENTS,
        introduce="validate",
        waiting=Waiting(timeout=60, connect=connect),
        workflow=Workflow(
            persistor_id=job.to_server(persistor, id="persistor"), task_check_period=0.1
        ),
        **settings,
    )
    job.to_server(controller)
    runner = ScriptRunner(script=__file__, script_args="client", framework=FrameworkType.RAW)
    job.to_clients(runner, tasks=["*"])
    return job


def simulate(workspace, policy="fedcvr-bolt", **settings):
    """Run the job; return the record of each round, and the last model."""
    make_job(policy, **settings).simulator_run(workspace, n_clients=N_CLIENTS, threads=N_CLIENTS)
    (record,) = Path(workspace).rglob("selection.jsonl")
    (model,) = Path(workspace).rglob("server.npy")
    return [json.loads(line) for line in record.read_text().splitlines()], np.load(model)


def main(*arguments):
    """Run one policy and show the clients that it selected."""
    with tempfile.TemporaryDirectory() as workspace:
        rounds, model = simulate(workspace, *arguments)
    for one in rounds:
        print(f"round {one['round'] + 1:2d}: clients {', '.join(one['selected'])}")
    print(f"test accuracy {softmax_digits.accuracy(model, N_CLIENTS):.3f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        client()
    else:
        main(*sys.argv[1:2])
