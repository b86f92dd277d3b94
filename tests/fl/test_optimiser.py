import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.testing import assert_allclose
from own_models import Net
from tiny import tiny_config, tiny_federation

import fl
from fl.config import ConfigError, TrainingConfig
from fl.models import build_model
from fl.optimiser import OptimiserStep, rate
from fl.samples import ClientSamples
from fl.training import LocalTrainer

SETTINGS = [
    {"momentum": 0.9},
    {"weight_decay": 0.1},
    {"clip_norm": 0.2},
    {"momentum": 0.8, "weight_decay": 0.05, "clip_norm": 0.5},
]


def torch_run(module, samples, training, client, seed, mu, shift):
    """Run torch.optim.SGD on the same batches, proximal term and shift in the loss."""
    parameters = list(module.parameters())
    anchor = [p.detach().clone() for p in parameters]
    shifts = torch.split(torch.from_numpy(shift), [p.numel() for p in parameters])
    optimiser = torch.optim.SGD(
        parameters, training.lr, training.momentum, weight_decay=training.weight_decay
    )
    a, b = samples.train_range(client)
    x, y = samples.x_train[a:b], samples.y_train[a:b]
    rng = np.random.default_rng(seed)
    for _ in range(training.epochs):
        order = rng.permutation(len(x))
        for i in range(0, len(x), training.batch_size):
            batch = order[i : i + training.batch_size]
            loss = F.cross_entropy(module(x[batch]), y[batch])
            for p, start, extra in zip(parameters, anchor, shifts, strict=True):
                loss = loss + 0.5 * mu * (p - start).square().sum() + p.flatten() @ extra
            optimiser.zero_grad()
            loss.backward()
            if training.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(parameters, training.clip_norm)
            optimiser.step()
    return torch.nn.utils.parameters_to_vector(parameters).detach().numpy()


@pytest.mark.parametrize("mu", [0.0, 0.3])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_steps_equal_torch_sgd(model, settings, mu):
    training = TrainingConfig(lr=0.05, epochs=3, batch_size=7, **settings)
    samples = ClientSamples.of(tiny_federation(shape=(8,) if model == "mlp" else (2, 8, 8)))
    module = build_model(model, samples.in_shape, samples.n_classes, seed=1)
    trainer = LocalTrainer(module, samples, training)
    assert isinstance(trainer.step, OptimiserStep)
    vector = trainer.model.export()
    shift = np.random.default_rng(0).normal(0, 0.01, vector.size).astype(np.float32)
    trainer.train(vector, 1, np.random.SeedSequence(3))  # leaves no velocity behind
    update = trainer.train(vector, 0, np.random.SeedSequence(4), mu=mu, shift=shift)

    twin = build_model(model, samples.in_shape, samples.n_classes, seed=1)
    expected = torch_run(twin, samples, training, 0, np.random.SeedSequence(4), mu, shift)
    assert np.abs(update.vector - vector).max() > 1e-3
    assert_allclose(update.vector, expected, rtol=1e-4, atol=3e-6)


def test_frozen_parameters_stay_and_the_others_move():
    module = build_model("mlp", (8,), 3, seed=1)
    module.hidden.weight.requires_grad_(False)
    samples = ClientSamples.of(tiny_federation())
    for settings in ({}, {"momentum": 0.5}):
        training = TrainingConfig(lr=0.05, epochs=1, batch_size=7, **settings)
        trainer = LocalTrainer(module, samples, training)
        vector = trainer.model.export()
        after = trainer.train(vector, 0, np.random.SeedSequence(4), mu=0.1).vector
        n = module.hidden.weight.numel()
        np.testing.assert_array_equal(after[:n], vector[:n])
        assert np.abs(after[n:] - vector[n:]).max() > 1e-4


@pytest.mark.parametrize(
    ("schedule", "options", "make"),
    [
        ("step", {"every": 4, "factor": 0.5}, lambda o: scheduler("StepLR")(o, 4, 0.5)),
        ("exponential", {"factor": 0.9}, lambda o: scheduler("ExponentialLR")(o, 0.9)),
        ("cosine", {"final": 0.1}, lambda o: scheduler("CosineAnnealingLR")(o, 12, 0.02)),
        ("linear", {"final": 0.1}, lambda o: scheduler("LinearLR")(o, 1.0, 0.1, 12)),
        ("constant", {}, lambda o: scheduler("ConstantLR")(o, 1.0, 12)),
    ],
)
def test_schedules_equal_those_of_torch(schedule, options, make):
    training = TrainingConfig(lr=0.2, schedule=schedule, schedule_options=options)
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.2)
    theirs = make(optimiser)
    for t in range(12):
        assert_allclose(rate(training, t, 12), optimiser.param_groups[0]["lr"], rtol=1e-9)
        optimiser.step()
        theirs.step()


def scheduler(name):
    return getattr(torch.optim.lr_scheduler, name)


def test_the_schedule_reaches_the_clients():
    fed = tiny_federation()
    constant = fl.run(tiny_config(), federation=fed)
    changed = {"training__schedule": "step", "training__schedule_options": {"every": 3}}
    stepped = fl.run(tiny_config(**changed), federation=fed)
    assert stepped.timeless()[:3] == constant.timeless()[:3]
    assert stepped.rounds[3]["loss"] != constant.rounds[3]["loss"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"momentum": 1.0}, r"training.momentum must lie in \[0, 1\), got 1"),
        ({"weight_decay": -1.0}, "training.weight_decay must be at least 0"),
        ({"clip_norm": 0.0}, "training.clip_norm must be above 0"),
        ({"schedule": "sawtooth"}, "training.schedule must be one of 'constant', 'step'"),
        ({"schedule_options": {"every": 2}}, "is not an option of 'constant': none"),
        ({"schedule": "step", "schedule_options": {"every": 0}}, "an integer of at least 1"),
        ({"schedule": "step", "schedule_options": {"factor": "x"}}, "must be a number"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        TrainingConfig(**changes)


# -- what stays with a client ------------------------------------------------------------


def test_local_entries_stay_with_their_client_and_others_get_the_average():
    from fl.own import Own
    from fl.server import Server

    fed = tiny_federation()
    settings = tiny_config(training__local=["bn"], rounds=4)
    with Server(settings, fed, own=Own(lambda: Net(dropout=0.0))) as server:
        positions = server.layout.positions(["bn"])
        names = [n for n in (*server.layout.names, *server.layout.buffer_names) if "bn" in n]
        assert len(names) == 5  # weight, bias, mean, variance, count
        sent, returned = [], []
        train = server.engine.train

        def spy(models, tasks):
            answers = train(models, tasks)
            for task, answer in zip(tasks, answers, strict=True):
                sent.append((task.client, models[task.start].copy()))
                returned.append((task.client, answer.vector))
            return answers

        server.engine.train = spy
        last = {}
        for t in range(4):
            sent.clear()
            returned.clear()
            before = server.algorithm.models[0].copy()
            server.round(t)
            for client, vector in sent:
                assert_allclose(vector[positions], last.get(client, before[positions]))
                others = np.delete(vector, positions)
                assert_allclose(others, np.delete(before, positions))
            values = [vector[positions] for _, vector in returned]
            weights = [fed.sizes[client] for client, _ in returned]
            expected = np.average(values, axis=0, weights=weights)
            assert_allclose(server.algorithm.models[0, positions], expected, rtol=1e-5)
            last |= {client: vector[positions] for client, vector in returned}

        # Evaluated by hand: each client with its own entries.
        module = Net(dropout=0.0).eval()
        scores = []
        for k, ids in enumerate(fed.test):
            vector = server.algorithm.models[0].copy()
            vector[positions] = last.get(k, vector[positions])
            state = {n: torch.from_numpy(v.copy()) for n, v in server.layout.state(vector).items()}
            module.load_state_dict(state)
            if len(ids):
                hits = module(torch.from_numpy(fed.x[ids])).argmax(1).numpy() == fed.y[ids]
                scores.append(hits.mean())
        assert_allclose(server.deployed.evaluate()["accuracy"], np.mean(scores), rtol=1e-6)


def test_a_run_with_local_entries_resumes_to_the_same_history(tmp_path):
    fed, given = tiny_federation(), {"model": Net}
    whole = fl.run(tiny_config(training__local=["bn"]), federation=fed, **given)

    class Stop(Exception):
        pass

    def stop(record):
        if record["round"] == 4:
            raise Stop

    settings = tiny_config(training__local=["bn"])
    with pytest.raises(Stop):
        fl.run(settings, tmp_path / "run", federation=fed, progress=stop, **given)
    assert fl.run(settings, tmp_path / "run", federation=fed, resume=True, **given) == whole


def test_local_words_that_name_nothing_are_refused():
    with pytest.raises(ConfigError, match="training.local: no parameter or buffer is called 'gn'"):
        fl.run(tiny_config(training__local=["gn"]), federation=tiny_federation(), model=Net)
    with pytest.raises(ConfigError, match="training.local must go with an algorithm of one model"):
        fl.run(
            tiny_config(training__local=["bn"], algorithm__name="ifca"),
            federation=tiny_federation(),
            model=Net,
        )
