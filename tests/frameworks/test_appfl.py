"""The APPFL adapter: real server and client agents in one process, against a loop by hand."""

import gc
import sys
import types
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("appfl", reason="appfl is not installed here: run `make test-appfl`")
try:
    import piq  # noqa: F401
except (ImportError, RuntimeError):
    # APPFL imports it for a report on images that is not used here; it needs torchvision, whose
    # wheels load beside a CUDA build of torch only.
    sys.modules["piq"] = types.ModuleType("piq")

from appfl.agent import ClientAgent, ServerAgent
from appfl_task import N_CLIENTS, Softmax, make_data, split
from omegaconf import OmegaConf

import cvrcore
from cvrcore.features import FeatureMap
from cvrcore.integrations import appfl as adapter
from cvrcore.integrations.appfl import SelectingServer

TASK = str(Path(__file__).with_name("appfl_task.py"))
RATE, EPOCHS = 0.5, 3
pytestmark = pytest.mark.filterwarnings("default")  # APPFL warns of its own older names


@pytest.fixture(scope="module", autouse=True)
def frozen():
    """Keep the modules out of the collections that APPFL asks for at every step."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def make_server(folder, rounds=6, **train):
    train = {
        "trainer": "VanillaTrainer",
        "mode": "epoch",
        "num_local_epochs": EPOCHS,
        "optim": "SGD",
        "optim_args": {"lr": RATE},
        "loss_fn": "CrossEntropyLoss",
        "metric_path": TASK,
        "metric_name": "accuracy",
        "do_validation": True,
        "do_pre_validation": True,
        "train_batch_size": 1000,  # all samples: no random batches
        "val_batch_size": 1000,
        "train_data_shuffle": False,
        "val_data_shuffle": False,
    } | train
    config = {
        "client_configs": {
            "train_configs": train,
            "model_configs": {"model_path": TASK, "model_name": "Softmax"},
        },
        "server_configs": {
            "num_clients": N_CLIENTS,
            "scheduler": "SyncScheduler",
            "scheduler_kwargs": {"same_init_model": True},
            "aggregator": "FedAvgAggregator",
            "aggregator_kwargs": {"client_weights_mode": "sample_size"},
            "device": "cpu",
            "num_global_epochs": rounds,
            "logging_output_dirname": str(folder),
            "logging_output_filename": "server",
        },
    }
    return ServerAgent(OmegaConf.create(config))


def make_clients(server, folder):
    clients = []
    for k in range(N_CLIENTS):
        config = {
            "client_id": f"site-{k}",
            "train_configs": {
                "device": "cpu",
                "logging_output_dirname": str(folder),
                "logging_output_filename": "client",
            },
            "data_configs": {
                "dataset_path": TASK,
                "dataset_name": "make_data",
                "dataset_kwargs": {"client_id": k},
            },
        }
        client = ClientAgent(OmegaConf.create(config))
        client.load_config(server.get_client_configs())
        clients.append(client)
    return clients


def arrays(model):
    return {name: tensor.detach().numpy().copy() for name, tensor in model.items()}


def plain_loop(policy, rounds, n_select, seed, **options):
    """The same federation by hand: our own loop, PyTorch alone."""
    data = [split(k) for k in range(N_CLIENTS)]
    sizes = [len(y) for _, y in data]
    model = arrays(Softmax().state_dict())
    watched = FeatureMap.last_layer(model, 300, seed)
    if policy == "fedcvr-bolt":
        first = watched.extract(model)
        options |= {"n_features": 300, "initial": first, "n_rounds": rounds}
    selector = cvrcore.make_selector(
        policy, N_CLIENTS, n_select, weights=sizes, seed=seed, **options
    )
    picked = []
    for _ in range(rounds):
        asked = selector.probe()
        losses = None if asked is None else [loss_of(model, *data[k]) for k in asked]
        clients = selector.select(losses=losses).clients
        picked.append([f"site-{k}" for k in clients])
        clients = np.sort(clients)
        losses = [loss_of(model, *data[k]) for k in clients]
        updates = [train(model, *data[k]) for k in clients]
        selector.observe(clients, watched.extract_all(updates), losses)
        shares = np.array([sizes[k] for k in clients]) / sum(sizes[k] for k in clients)
        model = {
            name: sum(w * update[name] for w, update in zip(shares, updates, strict=True))
            for name in model
        }
    return picked, model


def loaded(model):
    net = Softmax()
    net.load_state_dict({name: torch.tensor(a, dtype=torch.float32) for name, a in model.items()})
    return net


def loss_of(model, x, y):
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(loaded(model)(x), y))


def train(model, x, y):
    net = loaded(model)
    optimiser = torch.optim.SGD(net.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    return arrays(net.state_dict())


def loss_at(client):
    x, y = make_data(int(client.get_id().partition("-")[2]))[0].tensors
    return loss_of(arrays(client.model.state_dict()), x, y)


@pytest.mark.parametrize("policy", ["fedcvr-bolt", "uniform", "oort", "power-of-choice"])
def test_run_selects_and_learns_as_our_own_loop_does(tmp_path, policy):
    agent = make_server(tmp_path)
    options = {"n_features": 300} if policy == "fedcvr-bolt" else {}
    server = SelectingServer(agent, policy, n_select=3, seed=1, **options)
    losses = loss_at if policy == "power-of-choice" else None
    server.run(make_clients(agent, tmp_path), losses)

    picked, model = plain_loop(policy, rounds=6, n_select=3, seed=1)
    assert [one.selected for one in server.rounds] == picked
    assert not any(one.failed for one in server.rounds)
    found = arrays(agent.get_parameters(serial_run=True))
    for name, array in model.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
    assert np.abs(model["layer.weight"]).max() > 0.1
    assert agent.scheduler.num_clients == N_CLIENTS  # as it was found


BROKEN = {
    "NaN": lambda model: {**model, "layer.bias": torch.full((10,), torch.nan)},
    "shape": lambda model: {**model, "layer.bias": torch.zeros(11)},
    "names": lambda model: {"layer.weight": model["layer.weight"]},
    "bytes": lambda model: b"\x80\x04",
    "text": lambda model: {**model, "layer.bias": "zero"},
    "nothing": lambda model: None,
    "long tuple": lambda model: (model, {}, {}),
    "metadata": lambda model: (model, ["client_id"]),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_result_fails_its_client_alone(tmp_path, kind):
    agent = make_server(tmp_path)
    server = SelectingServer(agent, "uniform", n_select=3, seed=0)
    server.register({f"site-{k}": 10.0 for k in range(N_CLIENTS)})
    first, *others = server.select()
    model = agent.get_parameters(serial_run=True)
    server.receive(first, BROKEN[kind](model))
    for id in others:
        moved = {name: tensor + 1.0 for name, tensor in model.items()}
        # Hostile metadata: names of the arguments, and of the transfer in chunks.
        server.receive(id, (moved, {"blocking": True, "client_id": first, "_chunk_idx": 3}))
    assert server.finish() == sorted(others)
    assert list(server.rounds[0].failed) == [first]
    found = arrays(agent.get_parameters(serial_run=True))
    np.testing.assert_allclose(found["layer.weight"], 1.0)
    assert agent.scheduler.get_num_global_epochs() == 1


def test_a_client_that_raises_and_one_that_was_not_selected(tmp_path):
    agent = make_server(tmp_path, rounds=3)
    clients = make_clients(agent, tmp_path)

    def broken():
        raise OSError("the disk is full")

    clients[2].train = broken
    server = SelectingServer(agent, "uniform", n_select=N_CLIENTS, seed=0)
    server.run(clients)
    assert [one.failed for one in server.rounds] == [{"site-2": "the disk is full"}] * 3

    open_round = SelectingServer(make_server(tmp_path), "uniform", n_select=1, seed=0)
    open_round.register({"a": 1.0, "b": 1.0})
    (picked,) = open_round.select()
    other = "a" if picked == "b" else "b"
    open_round.receive(other, agent.get_parameters(serial_run=True))
    assert open_round.finish() == []
    assert open_round.rounds[0].failed == {picked: "no answer in time"}


def test_run_gives_up_where_every_client_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(adapter, "MAX_EMPTY", 3)
    agent = make_server(tmp_path)
    clients = make_clients(agent, tmp_path)
    for client in clients:
        client.get_parameters = lambda: {}
    server = SelectingServer(agent, "uniform", n_select=2, seed=0)
    with pytest.raises(RuntimeError, match="no reply was used in 3 rounds"):
        server.run(clients)


def test_saved_state_continues_with_the_same_clients(tmp_path):
    picks = []
    for restart in (False, True):
        server = SelectingServer(make_server(tmp_path), "fedcvr-bolt", n_select=3, seed=0)
        server.register({f"site-{k}": 10.0 + k for k in range(N_CLIENTS)})
        rng, found = np.random.default_rng(0), []
        for t in range(8):
            if restart and t == 4:
                server.save(tmp_path / "state.npz")
                server = SelectingServer(make_server(tmp_path), "fedcvr-bolt", n_select=3, seed=9)
                server.load(tmp_path / "state.npz")
            found.append(server.select())
            for id in found[-1]:
                noise = {"layer.weight": rng.normal(size=(10, 64)), "layer.bias": np.zeros(10)}
                server.receive(id, noise)
            server.finish()
        picks.append(found)
    assert picks[0] == picks[1]


def test_misuse_is_refused(tmp_path):
    agent = make_server(tmp_path)
    server = SelectingServer(agent, "uniform", n_select=2, seed=0)
    with pytest.raises(ValueError, match="finish must follow select"):
        server.finish()
    assert list(server.register({"a": 5.0, "b": -1.0})) == ["b"]
    server.select()
    with pytest.raises(ValueError, match="select must follow finish"):
        server.select()
    agent.scheduler = object()
    with pytest.raises(TypeError, match="agent must have a synchronous scheduler"):
        SelectingServer(agent, "uniform", n_select=2)
