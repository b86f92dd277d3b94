"""The path of a setting in, its meaning in one line out; where a class is new, its docstring."""

from __future__ import annotations

import inspect
import re
import typing
from typing import Any

#: Meaning of each table of settings.
TABLES = {
    "": "The run",
    "data": "Which samples, and how they are dealt out to clients",
    "training": "Local training on a client",
    "selection": "Which policy picks the clients",
    "algorithm": "How models are kept and sent",
    "server": "What the server does with the aggregated update",
    "availability": "Which clients can be reached, and which drop out",
    "fleet": "Simulated devices of clients, see devices.md",
    "engine": "Where clients train; it changes how long a run takes, never what it finds",
}

#: Meaning of each setting.
MEANINGS = {
    "method": "name that tables show; a name of a method also sets policy, algorithm, aggregator",
    "preset": '"paper" (its text) or "scripts" (the authors\' code); a named one has 30 rounds of '
    "warm-up",
    "model": "network; not set: the usual one of the data set",
    "rounds": "rounds of the run",
    "seed": "seed of everything: data, first model, batches, selection",
    "eval_every": "evaluate every n rounds, and after the last",
    "checkpoint_every": "write a checkpoint every n rounds, where the run has a folder",
    "save_models": "keep the final and the best model in the folder, as safetensors",
    "record_losses": "measure the loss of the received model on each picked client",
    "target": "accuracy whose first round is reported",
    "aggregator": "how models of picked clients become the next model, see merging.md",
    "aggregator_options": "arguments of the aggregator",
    "simulate_time": "tell the policy how long clients took: samples times epochs",
    "empty_test": 'clients without test samples: "skip" leaves them out, "zero" counts them as 0',
    "data.dataset": "data set: `cvrcore data list`",
    "data.n_clients": "clients in all, K",
    "data.partition": 'how samples are dealt out: "dirichlet", "iid" or "shards"',
    "data.alpha": "concentration of the Dirichlet partition: small is heterogeneous",
    "data.shards_per_client": 'shards of each client, for partition "shards"',
    "data.test_fraction": "share of each client's samples that it tests on",
    "data.min_size": "draw the partition again until every client holds this many samples",
    "data.data_dir": "folder of data files; not set: $CVRCORE_DATA, then the cache",
    "data.download": "fetch missing files into the cache",
    "data.options": "arguments of the data set, such as n_samples",
    "training.lr": "learning rate of local SGD",
    "training.epochs": "passes over a client's samples in a round",
    "training.batch_size": "samples in a batch",
    "training.momentum": "momentum of SGD, with a velocity of 0 at the start of a client's round",
    "training.weight_decay": "weight decay of SGD",
    "training.clip_norm": "largest norm of a gradient; not set: any",
    "training.schedule": "how lr changes from round to round",
    "training.schedule_options": "arguments of the schedule",
    "training.device": "where torch computes",
    "training.local": "parameters and buffers that each client keeps to itself, such as bn",
    "selection.policy": "policy that picks clients: `cvrcore policies`",
    "selection.n_select": "clients picked in a round, P",
    "selection.n_features": "coordinates that a policy watches; not set: the whole last layer",
    "selection.layer": "part of the model whose last layer is watched; not set: the whole model",
    "selection.features": 'what is watched: "model", "update" (its difference from the model '
    'sent) or "head" (direction of the output bias)',
    "selection.noise": 'noise on each number of the direction of "head", whose length is 1',
    "selection.coarse": 'what is kept of the direction of "head": all, signs or the largest',
    "selection.shared_warmup": "uniform first rounds, with the same draws for every policy",
    "selection.server_samples": "training samples that the server keeps, for the policy shapley",
    "selection.options": "arguments of the policy, such as warmup, temperature, max_share",
    "algorithm.name": "fedavg, fedprox, scaffold, fednova, feddyn, q-fedavg, ifca or fesem, see "
    "training.md",
    "algorithm.options": "arguments of the algorithm, such as mu of fedprox",
    "server.optimiser": 'rule of the server step; "sgd" with lr 1 keeps the aggregated model',
    "server.lr": 'server step; not set: "sgd" 1, "adaptive" 3, or 8 if averaged; else 0.01',
    "server.momentum": 'momentum of "sgd"',
    "server.beta1": "decay of the first moment",
    "server.beta2": "decay of the second moment",
    "server.tau": "added to the root of the second moment",
    "server.bias_correction": "correct the moments for their start at 0",
    "server.min_lr": 'least server step of "adaptive"',
    "server.average": "decay of the average of models that is evaluated and saved; 0: none",
    "availability.probability": "chance that a client is reachable in a round",
    "availability.trace": "file of who is reachable when; not set: by chance",
    "availability.dropout": "chance that a picked client drops out in mid-round",
    "fleet.enabled": "simulate time: devices, transfers, drop-outs",
    "fleet.seconds_per_sample": "seconds of the median device for one sample of one epoch",
    "fleet.speed_spread": "standard deviation of the logarithm of speeds",
    "fleet.jitter": "the same for one device from round to round",
    "fleet.bandwidth": "median download, bytes a second",
    "fleet.bandwidth_spread": "standard deviation of the logarithm of bandwidths",
    "fleet.upload_share": "upload over download bandwidth",
    "fleet.latency": "seconds before a transfer begins",
    "fleet.loss": "drop-out rate: chance that a picked device of median speed drops out",
    "fleet.loss_slope": "how much likelier slow devices drop out; 0: all alike",
    "fleet.deadline": "seconds that the server waits for a round; not set: for all",
    "fleet.online_share": "share of the day that a device is online",
    "fleet.online_spread": "share of the day over which devices begin to be online",
    "fleet.day": "seconds of a day",
    "fleet.online_trace": "CSV file of client,begin,end: who is online when",
    "fleet.idle": "seconds until the next round where no device is online",
    "engine.name": '"auto", "serial", "processes", "ray" or "flower"',
    "engine.workers": "worker processes; not set: one per core",
    "engine.timeout": "seconds for one client's training",
    "engine.address": 'Ray cluster: "auto" or HOST:PORT',
    "engine.gpu_share": 'part of a GPU that a task of "ray" asks for, where training.device is one',
}


def meaning(root: type[Any], path: tuple[str, ...]) -> str:
    """Return the meaning of a setting of `root`: written here, or from its class's docstring."""
    text = MEANINGS.get(".".join(path))
    if text is not None:
        return text
    owner = root
    for name in path[:-1]:
        owner = typing.get_type_hints(owner)[name]
    document = " ".join((inspect.getdoc(owner) or "").split())
    sentences = re.split(r"(?<=[.;])\s+", document)
    found = next((one for one in sentences if f"`{path[-1]}`" in one), "")
    return found.rstrip(".;").replace("``", "`")
