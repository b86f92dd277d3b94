import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.testing import assert_allclose, assert_array_equal
from tiny import tiny_federation

from fl import conv_step
from fl.config import TrainingConfig
from fl.conv_step import ConvStep
from fl.flat import FlatModule, Layout
from fl.models import build_model
from fl.samples import ClientSamples
from fl.steps import AutogradStep, DenseStep, make_step, pool_first
from fl.training import LocalTrainer, summarise

TRAINING = TrainingConfig(lr=0.05, epochs=3, batch_size=7)
MODELS = {
    "mlp": ((8,), False),
    "logistic": ((8,), False),
    "cnn": ((2, 8, 8), False),
    "linear": ((8,), True),
}


def make_trainer(model):
    shape, regression = MODELS[model]
    samples = ClientSamples.of(tiny_federation(shape=shape, regression=regression))
    module = build_model(model, samples.in_shape, samples.n_classes, seed=1)
    trainer = LocalTrainer(module, samples, TRAINING)
    return trainer, trainer.model.export()


def reference(model, vector, samples, client, seed, mu=0.0):
    """Run torch.optim.SGD on the same batches, the proximal term in the loss."""
    module = build_model(model, samples.in_shape, samples.n_classes, seed=2)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(vector.copy()), module.parameters())
    anchor = [p.detach().clone() for p in module.parameters()]
    optimiser = torch.optim.SGD(module.parameters(), lr=TRAINING.lr)
    a, b = samples.train_range(client)
    x, y = samples.x_train[a:b], samples.y_train[a:b]
    rng = np.random.default_rng(seed)
    for _ in range(TRAINING.epochs):
        order = rng.permutation(len(x))
        for i in range(0, len(x), TRAINING.batch_size):
            batch = order[i : i + TRAINING.batch_size]
            optimiser.zero_grad()
            output = module(x[batch])
            loss = (
                F.mse_loss(output, y[batch])
                if samples.regression
                else F.cross_entropy(output, y[batch])
            )
            for p, p0 in zip(module.parameters(), anchor, strict=True):
                loss = loss + 0.5 * mu * (p - p0).square().sum()
            loss.backward()
            optimiser.step()
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


@pytest.mark.parametrize("mu", [0.0, 0.3])
@pytest.mark.parametrize("model", MODELS)
def test_local_run_equals_torch_sgd(model, mu):
    trainer, vector = make_trainer(model)
    seed = np.random.SeedSequence(4)
    expected = reference(model, vector, trainer.samples, 0, np.random.SeedSequence(4), mu)

    update = trainer.train(vector, 0, seed, mu=mu)

    assert np.abs(update.vector - vector).max() > 1e-3  # it did move
    # float32 sums in another order: a few units in the last place over ~10 steps.
    assert_allclose(update.vector, expected, rtol=1e-4, atol=2e-6)


def test_written_out_step_equals_autograd_in_double_precision():
    torch_rng = torch.Generator().manual_seed(0)
    x = torch.randn(20, 8, generator=torch_rng, dtype=torch.float64)
    y = torch.randint(0, 3, (20,), generator=torch_rng)
    after = []
    for kind in (DenseStep, AutogradStep):
        model = FlatModule(build_model("mlp", (8,), 3, seed=0).double())
        step = kind(model, regression=False)
        targets = step.targets(y, 3)
        for _ in range(5):
            step(x, targets, 0.1)
        after.append(model.vector)
    torch.testing.assert_close(after[0], after[1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("model", "kind"), [("mlp", DenseStep), ("logistic", DenseStep), ("cnn", ConvStep)]
)
def test_step_fits_the_module(model, kind):
    trainer, _ = make_trainer(model)
    if kind is ConvStep and conv_step.kernel() is None:
        kind = AutogradStep
    assert type(make_step(trainer.model, False)) is kind


@pytest.mark.parametrize("mu", [0.0, 0.3])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_inputs_that_are_always_zero_change_nothing(share, mu):
    """Columns left out of the first layer: the same steps, their weights as received."""
    federation = tiny_federation(shape=(64,))
    blank = np.random.default_rng(0).random(64) < share
    federation.x[:, blank] = 0.0
    samples = ClientSamples.of(federation)
    module = build_model("mlp", (64,), 3, seed=1)
    trainer = LocalTrainer(module, samples, TRAINING)
    vector = trainer.model.export()
    expected = reference("mlp", vector, samples, 0, np.random.SeedSequence(4), mu)

    got = trainer.train(vector, 0, np.random.SeedSequence(4), mu=mu).vector

    # float32 sums in another order: a few units in the last place over ~10 steps.
    assert_allclose(got, expected, rtol=1e-4, atol=2e-6)
    before, after = (trainer.model.layout.split(v)[0][:, blank] for v in (vector, got))
    assert_array_equal(before, after)


def test_pooling_before_relu_is_the_same_function_with_the_same_gradient():
    module = build_model("cnn", (2, 8, 8), 3, seed=0)
    # Blocks of equal pixels give ties inside the windows, and exact zeros.
    x = (
        torch.from_numpy(np.random.default_rng(0).integers(-1, 2, (30, 2, 2, 2)))
        .float()
        .repeat_interleave(4, 2)
        .repeat_interleave(4, 3)
    )
    results = []
    for form in (module, pool_first(module)):
        output = form(x)
        gradients = torch.autograd.grad(output.square().sum(), list(module.parameters()))
        results.append([output.detach(), *gradients])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_received_model_is_not_written_to():
    trainer, vector = make_trainer("mlp")
    before = vector.copy()
    trainer.train(vector, 0, np.random.SeedSequence(0), mu=0.1, statistic="mean")
    assert_array_equal(vector, before)


def test_prox_pulls_towards_the_received_model():
    trainer, vector = make_trainer("mlp")
    moves = [
        np.linalg.norm(trainer.train(vector, 0, np.random.SeedSequence(0), mu=mu).vector - vector)
        for mu in (0.0, 1.0, 10.0)
    ]
    assert moves[0] > moves[1] > moves[2]


def test_loss_statistics_are_those_of_the_received_model():
    trainer, vector = make_trainer("mlp")
    begin, end = trainer.samples.train_range(2)
    losses = trainer.measure(vector, "train", begin, end).values.astype(np.float64)
    mean = trainer.train(vector, 2, np.random.SeedSequence(0), statistic="mean").loss
    rms = trainer.train(vector, 2, np.random.SeedSequence(0), statistic="rms").loss
    assert mean == losses.mean()
    assert rms == np.sqrt((losses**2).mean())


def test_number_of_steps_is_epochs_times_batches():
    trainer, vector = make_trainer("logistic")
    begin, end = trainer.samples.train_range(0)
    update = trainer.train(vector, 0, np.random.SeedSequence(0))
    assert update.steps == TRAINING.epochs * -(-(end - begin) // TRAINING.batch_size)


def test_unknown_statistic_is_refused():
    with pytest.raises(ValueError, match="statistic must be 'mean' or 'rms', got 'max'"):
        summarise(np.ones(2), "max")


def test_layout_splits_into_the_modules_arrays():
    module = build_model("cnn", (1, 8, 8), 4, seed=0)
    flat = FlatModule(build_model("cnn", (1, 8, 8), 4, seed=0))
    layout = Layout.of(module)
    arrays = layout.split(flat.export())
    for array, parameter in zip(arrays, module.parameters(), strict=True):
        assert_array_equal(array, parameter.detach().numpy())
    head = np.concatenate([arrays[-2].ravel(), arrays[-1].ravel()])
    assert_array_equal(flat.export()[layout.last_layer], head)


def test_buffers_follow_the_parameters_in_the_vector():
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    layout = Layout.of(module)
    assert layout.n_parameters == 4 * 3 + 3 + 3 + 3
    assert layout.buffer_names == ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    flat = FlatModule(module)
    module.train()(torch.arange(20.0).reshape(5, 4))
    state = layout.state(flat.export())
    for name, values in module.state_dict().items():
        assert_array_equal(state[name], values.numpy())
    assert state["1.num_batches_tracked"] == 1


def test_constants_of_a_module_do_not_travel():
    class Masked(torch.nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.register_buffer("mask", torch.ones(2, dtype=torch.bool))
            self.register_buffer("future", torch.full((2,), -torch.inf))
            self.register_buffer("cache", torch.ones(2), persistent=False)

    assert Layout.of(Masked()).buffer_names == ()


def test_parameters_of_mixed_types_are_refused():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).half())
    with pytest.raises(ValueError, match="got torch.float16, torch.float32"):
        Layout.of(module)
