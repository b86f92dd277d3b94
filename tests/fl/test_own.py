import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
import torch.nn.functional as F
from numpy.testing import assert_allclose, assert_array_equal
from own_models import Net, Tokens, federation, make_net, text
from tiny import tiny_config, tiny_federation
from torch import nn
from torch.utils.data import TensorDataset

import fl
from fl.config import ConfigError
from fl.data import Federation
from fl.objectives import Metric, Objective


def config(**changes):
    return tiny_config(model=None, data__n_clients=6, rounds=3, **changes)


# -- models, losses, metrics --------------------------------------------------------


def test_a_factory_and_an_instance_train_and_leave_torch_and_the_instance_alone():
    net = Net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.get_rng_state()
    from_instance = fl.run(config(), federation=federation(), model=net)
    from_factory = fl.run(config(), federation=federation(), model=make_net)
    assert from_factory == fl.run(config(), federation=federation(), model=make_net)
    assert from_factory != from_instance
    assert_array_equal(torch.get_rng_state(), state)
    for name, value in net.state_dict().items():
        assert_array_equal(value, before[name])
    assert from_factory.facts["model"] == "own_models:make_net"
    assert from_factory.facts["n_parameters"] == sum(p.numel() for p in net.parameters())


def test_worker_processes_train_a_class_of_a_script_to_the_same_history():
    class Local(Net):  # no worker can import it
        pass

    net, metric = Local(), Metric(lambda o, y: (o.argmax(1) == y).float(), "hits")
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    given = {"federation": federation(), "model": net, "loss": loss, "metric": metric}
    serial = fl.run(config(), **given)
    processes = fl.run(config(engine__name="processes", engine__workers=2), **given)
    assert serial == processes
    assert serial.metric == "hits"
    assert "hits_weighted" in serial.rounds[-1]


def test_an_own_copy_of_a_built_in_model_gives_the_built_in_run():
    fed = tiny_federation()
    ours = fl.run(tiny_config(), federation=fed)
    module = fl.models.build_model("mlp", (8,), 3, fl.streams.Streams(0).sequence("init", 0))
    assert fl.run(tiny_config(), federation=fed, model=module) == ours
    explicit = fl.run(tiny_config(), federation=fed, model=module, loss=F.cross_entropy)
    for ours_round, theirs in zip(ours, explicit, strict=True):  # autograd, not written out
        assert_allclose(theirs["loss"], ours_round["loss"], rtol=1e-5)


@pytest.mark.parametrize("algorithm", ["ifca", "fesem", "fedprox"])
def test_own_models_go_with_every_algorithm(algorithm):
    history = fl.run(config(algorithm__name=algorithm), federation=federation(), model=make_net)
    assert history.final() is not None


def test_next_token_prediction_learns_cyclic_text():
    fed = text()
    assert (fed.task, fed.n_classes) == ("next-token", 5)
    settings = tiny_config(
        model=None, data__n_clients=5, rounds=8, training__lr=0.5, training__epochs=10,
        training__momentum=0.9,
    )  # fmt: skip
    history = fl.run(settings, federation=fed, model=Tokens)
    assert history.final() > 0.8  # the first token says nothing of the step
    assert history.column("loss")[1][0] > 2 * history.final("loss")


def test_each_sample_of_every_task_agrees_with_torch():
    rng = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(6, 4, generator=rng), torch.arange(6) % 4
    losses, hits = Objective("classification").each(logits, labels)
    assert_allclose(losses.mean(), F.cross_entropy(logits, labels), rtol=1e-6)
    assert_array_equal(hits, logits.argmax(1) == labels)

    values, targets = torch.randn(6, 1, generator=rng), torch.randn(6, generator=rng)
    squared, same = Objective("regression").each(values, targets)
    assert_allclose(squared.mean(), F.mse_loss(values[:, 0], targets), rtol=1e-6)
    assert_array_equal(squared, same)

    tokens = torch.randint(0, 4, (6, 5), generator=rng)
    tokens[2, 3:] = -100
    outputs = torch.randn(6, 5, 4, generator=rng)
    objective = Objective("next-token")
    expected = F.cross_entropy(outputs.reshape(-1, 4), tokens.reshape(-1), ignore_index=-100)
    assert_allclose(objective.loss(outputs, tokens), expected, rtol=1e-6)
    losses, shares = objective.each(outputs, tokens)
    assert_allclose(losses[2], F.cross_entropy(outputs[2, :3], tokens[2, :3]), rtol=1e-6)
    assert_allclose(shares[2], (outputs[2, :3].argmax(1) == tokens[2, :3]).float().mean())


def test_a_loss_of_batches_is_measured_sample_by_sample():
    rng = torch.Generator().manual_seed(0)
    values, targets = torch.randn(6, 1, generator=rng), torch.randn(6, generator=rng)
    objective = Objective("regression", nn.L1Loss(), Metric(nn.HuberLoss(), "huber", False))
    losses, scores = objective.each(values, targets)
    assert_allclose(losses, (values[:, 0] - targets).abs(), rtol=1e-6)
    assert_allclose(scores, F.huber_loss(values[:, 0], targets, reduction="none"), rtol=1e-6)


def test_less_is_better_where_the_metric_says_so():
    metric = Metric(nn.L1Loss(), "mae", higher_is_better=False)
    fed = tiny_federation(regression=True)
    history = fl.run(tiny_config(model="linear"), federation=fed, metric=metric)
    assert history.metric == "mae"
    assert history.best() == min(record["mae"] for record in history)
    assert history.rounds[-1]["worst_decile"] >= history.final()


def test_batch_norm_gets_no_batch_of_one():
    sizes = {"a": [0], "b": range(1, 7), "c": range(7, 13)}  # batches of 5 and 1
    fed = Federation.from_arrays(
        np.random.default_rng(0).normal(size=(13, 8)), np.arange(13) % 3, clients=sizes,
        test_fraction=0.0, name="mine",
    )  # fmt: skip
    settings = tiny_config(model=None, data__n_clients=3, selection__n_select=3)
    history = fl.run(settings, federation=fed, model=Net)
    assert all(record["failed"] == [] for record in history)


def test_buffers_are_averaged_by_samples_whatever_the_aggregator():
    fed = federation()
    settings = config(aggregator="importance", selection__n_select=3)
    from fl.server import Server

    with Server(settings, fed, own=fl.own.Own(make_net)) as server:
        n = server.layout.n_parameters
        seen = []
        train = server.engine.train
        server.engine.train = lambda *given: seen.append(train(*given)) or seen[-1]
        record = server.round(0)
        sizes = fed.sizes[record["reported"]]
        expected = np.average([u.vector[n:] for u in seen[0]], axis=0, weights=sizes)
        assert_allclose(server.algorithm.models[0, n:], expected, rtol=1e-6)


# -- federations ----------------------------------------------------------------------


def test_arrays_tensors_data_sets_and_frames_make_the_same_federation():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)).astype(np.float32), rng.integers(0, 4, 40)
    who = rng.choice(["ann", "bob", "cy"], 40)
    expected = Federation.from_arrays(x, y, clients=who)
    codes = np.unique(who, return_inverse=True)[1]
    tensors = torch.from_numpy(x), torch.from_numpy(y)
    frame = pandas.DataFrame(x, columns=list("abc")).assign(label=y, user=who)
    others = [
        Federation.from_arrays(*tensors, clients=torch.from_numpy(codes)),
        Federation.from_arrays(frame[["a", "b", "c"]], frame["label"], clients=frame["user"]),
        Federation.from_frame(frame, "label", client="user"),
        Federation.from_dataset(TensorDataset(*tensors), clients=who),
        Federation.from_dataset(TensorDataset(*tensors, torch.from_numpy(codes))),
        Federation.from_arrays(
            x, y, clients={k: np.flatnonzero(who == k) for k in sorted(set(who))}
        ),
    ]
    assert expected.record["client_names"] == ["ann", "bob", "cy"]
    for other in others:
        assert_array_equal(other.x, expected.x)
        assert_array_equal(other.y, expected.y)
        for mine, theirs in zip(
            expected.train + expected.test, other.train + other.test, strict=True
        ):
            assert_array_equal(mine, theirs)
    for k, name in enumerate(["ann", "bob", "cy"]):
        ids = np.concatenate([expected.train[k], expected.test[k]])
        assert_array_equal(np.sort(ids), np.flatnonzero(who == name))


def test_strings_are_classes_and_floats_are_values():
    x = np.zeros((6, 2))
    named = Federation.from_arrays(x, ["b", "a", "b", "a", "b", "a"], clients=[0] * 6)
    assert (named.n_classes, named.record["classes"]) == (2, ["a", "b"])
    assert_array_equal(named.y, [1, 0, 1, 0, 1, 0])
    values = Federation.from_arrays(x, np.arange(6.0), clients=[0] * 6)
    assert (values.task, values.n_classes, values.y.dtype) == ("regression", 0, np.float32)


@pytest.mark.parametrize("partition", ["dirichlet", "iid", "shards"])
def test_partitions_deal_every_sample_out_once(partition):
    fed = Federation.from_arrays(
        np.zeros((50, 2)), np.arange(50) % 5, partition=partition, n_clients=5, seed=3
    )
    everything = np.concatenate([*fed.train, *fed.test])
    assert_array_equal(np.sort(everything), np.arange(50))
    again = Federation.from_arrays(
        np.zeros((50, 2)), np.arange(50) % 5, partition=partition, n_clients=5, seed=3
    )
    assert all(map(np.array_equal, fed.train, again.train))


def test_a_given_test_set_is_kept():
    fed = Federation.from_arrays(
        np.zeros((6, 2)), np.arange(6) % 2, clients=[0, 0, 0, 1, 1, 1], test=[2, 5]
    )
    assert [list(ids) for ids in fed.test] == [[2], [5]]
    assert [list(ids) for ids in fed.train] == [[0, 1], [3, 4]]


X, Y, IDS = np.zeros((4, 2)), np.array([0, 1, 0, 1]), [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"y": Y[:3]}, "y must have 4 entries like x"),
        ({"x": np.full((4, 2), np.nan)}, "x must be finite, got NaN or infinity in 4 of 4"),
        ({"y": Y / 1.0, "task": "classification"}, "y must hold whole numbers in classif"),
        ({"clients": None}, "give one of them"),
        ({"partition": "iid"}, "give one of them"),
        ({"clients": [0, 1]}, "clients must name the client of each of 4 samples"),
        ({"clients": {"a": [0, 1, 2, 3], "b": []}}, "client 'b' must hold samples, got none"),
        ({"clients": {"a": [0, 9]}}, "client 'a' must hold samples of 0..3"),
        ({"test": [2, 3]}, "client 1 must keep training samples"),
        ({"task": "guessing"}, "task must be one of classification"),
        ({"x": [["a", "b"]] * 4}, "x must hold numbers"),
        ({"y": np.zeros((4, 2), int)}, "y must have shape"),
        ({"n_clients": 2}, "n_clients goes with partition"),
    ],
)
def test_federations_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Federation.from_arrays(**{"x": X, "y": Y, "clients": IDS, **arguments})


def test_frames_and_data_sets_that_do_not_fit_are_refused():
    frame = pandas.DataFrame({"a": [1.0, 2.0], "job": ["cook", "smith"], "y": [0, 1]})
    with pytest.raises(ValueError, match="column 'job' of frame must hold numbers"):
        Federation.from_frame(frame, "y", clients=[0, 1])
    with pytest.raises(ValueError, match="frame has no column 'user': a, job, y"):
        Federation.from_frame(frame, "y", client="user")
    with pytest.raises(ValueError, match="must all be"):
        Federation.from_dataset([1, 2, 3], clients=[0, 1, 1])


# -- what does not fit -------------------------------------------------------------------


class Returns(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.layer, self.make = nn.Linear(8, 3), make

    def forward(self, x):
        return self.make(self.layer(x))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": lambda: nn.Linear(7, 3)}, "model: its forward failed on a batch of 1 of shape"),
        ({"model": lambda: nn.Linear(8, 2)}, r"must return shape \(1, 3\) for one sample"),
        ({"model": lambda: Returns(lambda out: (out, 1))}, "must return a tensor, got tuple"),
        ({"model": lambda: Returns(torch.detach)}, "loss must depend on parameters"),
        ({"model": lambda: Returns(lambda out: out * torch.nan)}, "loss of the initial model"),
        ({"model": lambda: 3}, "model must return a torch.nn.Module, got int"),
        ({"model": lambda: 1 / 0}, "calling .* failed: ZeroDivisionError"),
        ({"model": 3}, "model must be a name, an nn.Module or a function"),
        ({"model": nn.ReLU()}, "model must have parameters"),
        ({"model": "resnet"}, "model must be one of mlp, cnn, logistic, linear"),
        ({"model": Net, "loss": nn.CrossEntropyLoss(reduction="none")}, "loss must return a scal"),
        ({"model": Net, "loss": nn.GaussianNLLLoss()}, "failed on the first samples: TypeError"),
        ({"model": Net, "metric": lambda o, y: o}, "metric must return one value per sample"),
        ({}, "model must be given for the data set 'mine'"),
        ({"federation": 7}, "federation must be a Federation or a function"),
        ({"federation": lambda: 7}, "must return a fl.data.Federation, got int"),
    ],
)
def test_what_does_not_fit_is_one_line_before_the_first_round(tmp_path, given, message):
    with pytest.raises(ConfigError, match=message) as caught:
        fl.run(config(), tmp_path / "run", **{"federation": federation(), **given})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()  # nothing half-written


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.full((120, 8), np.inf, np.float32)}, "federation.x must be finite"),
        ({"y": np.zeros(120, np.float32)}, "federation.y must hold whole numbers"),
        ({"y": np.full(120, 3)}, r"federation.y must lie in 0..2, .* got 3 in sample 0"),
        ({"train": ((),) * 6}, "federation must have a client with training samples"),
        ({"task": "chess"}, "federation.task must be one of"),
    ],
)
def test_federations_made_by_hand_are_checked(changes, message):
    import dataclasses

    train = tuple(np.array(ids, dtype=np.int64) for ids in changes.pop("train", ())) or None
    fed = federation()
    fed = dataclasses.replace(fed, **changes, train=train or fed.train)
    with pytest.raises(ConfigError, match=message):
        fl.run(config(), federation=fed, model=make_net)


def test_a_federation_of_other_size_is_adapted_to_with_a_word(caplog):
    fed = federation(n_clients=4)
    history = fl.run(config(), federation=fed, model=make_net)
    assert history.config.data.n_clients == 4
    assert history.config.data.dataset == "mine"
    assert "has 4 clients; data.n_clients = 6 of the settings does not count" in caplog.text
    with pytest.raises(ConfigError, match="n_select must be at most the 3 clients"):
        fl.run(config(), federation=federation(n_clients=3), model=make_net)


def test_a_step_that_was_chosen_on_digits_is_not_taken_to_own_data(caplog):
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(200, 6)).astype(np.float32), rng.integers(0, 3, 200)
    config = fl.make_config(
        method="balanced-factor", rounds=2, n_clients=20, n_select=3, training__epochs=1
    )
    assert config.server.lr == 4.0
    own = Federation.from_arrays(*arrays, partition="iid", n_clients=20)
    history = fl.run(config, federation=own, model="logistic")
    assert (history.config.server.optimiser, history.config.server.lr) == ("adaptive", None)
    assert "server step 4 was chosen on digits" in caplog.text
    again = fl.run(config.replace(server__lr=2.0), federation=own, model="logistic")
    assert again.config.server.lr == 2.0


def test_a_policy_watches_the_layer_that_is_named():
    given = {"federation": federation(), "model": make_net}
    settings = config(selection__policy="fedcvr-bolt", selection__options={"warmup": 1})
    assert fl.run(settings, **given).facts["n_features"] == 6 * 3 + 3
    first = fl.run(settings.replace(selection__layer="first"), **given)
    assert first.facts["n_features"] == 8 * 6 + 6
    with pytest.raises(ConfigError, match="layer 'drop' has no parameters to watch; first, bn, he"):
        fl.run(settings.replace(selection__layer="drop"), **given)


def test_the_page_about_own_models_runs_as_printed():
    page = (Path(__file__).parents[2] / "docs" / "own-model.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(snippets) == 1
    for snippet in snippets:
        subprocess.run([sys.executable, "-c", snippet], check=True, timeout=120)
