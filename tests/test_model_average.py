"""The average of models against pandas' exponential mean, plain means and torch's AveragedModel."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from cvrcore.aggregators import ModelAverage
from cvrcore.state import load_state, save_state


def models(n, seed=0):
    rng = np.random.default_rng(seed)
    return [[rng.normal(size=(3, 2)), rng.normal(size=5)] for _ in range(n)]


def test_the_first_models_are_averaged_plainly():
    average = ModelAverage(decay=0.9)
    several = models(10)
    for count, model in enumerate(several, start=1):
        averaged = average.update(model)
        for got, expected in zip(averaged, zip(*several[:count], strict=True), strict=True):
            assert_allclose(got, np.mean(expected, axis=0), atol=1e-12)


def test_later_ones_are_an_exponential_mean():
    """From the model at which the weight is constant on, pandas' recursion."""
    pd = pytest.importorskip("pandas", reason="pandas is the judge")
    average = ModelAverage(decay=0.8)
    several = models(40)
    found = [average.update(model)[1] for model in several]
    start = found[4]  # five models: 1 / 5 = 1 - 0.8
    later = np.stack([start, *(model[1] for model in several[5:])])
    expected = pd.DataFrame(later).ewm(alpha=0.2, adjust=False).mean().to_numpy()
    assert_allclose(np.stack(found[4:]), expected, atol=1e-12)


def test_torchs_averaged_model_gives_the_same():
    torch = pytest.importorskip("torch", reason="torch is the judge")
    module = torch.nn.Linear(3, 2)
    theirs = torch.optim.swa_utils.AveragedModel(module)  # plain means
    ours = ModelAverage(decay=0.99)
    for step in range(20):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter += 0.1 * (step % 3 - 1)
        theirs.update_parameters(module)
        averaged = ours.update([p.detach().numpy() for p in module.parameters()])
    for got, expected in zip(averaged, theirs.module.parameters(), strict=True):
        assert_allclose(got, expected.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_decay_0_is_the_newest_model():
    average = ModelAverage(decay=0.0)
    for model in models(4):
        averaged = average.update(model)
        for got, expected in zip(averaged, model, strict=True):
            assert_array_equal(got, expected)


def test_integers_are_the_newest_and_half_precision_is_widened():
    average = ModelAverage()
    average.update([np.array([1, 2]), np.array([1.0, 3.0], dtype=np.float16)])
    whole, half = average.update([np.array([7, 8]), np.array([2.0, 5.0], dtype=np.float16)])
    assert_array_equal(whole, [7, 8])
    assert half.dtype == np.float32
    assert_array_equal(half, [1.5, 4.0])
    assert ModelAverage().update([np.ones(2, dtype=np.float32)])[0].dtype == np.float32


def test_what_it_returns_and_takes_is_copied():
    average = ModelAverage()
    model = [np.ones(3)]
    averaged = average.update(model)
    averaged[0][:] = 9.0
    model[0][:] = 9.0
    average.arrays[0][:] = 9.0
    assert_array_equal(average.arrays[0], np.ones(3))
    assert average.nbytes == 24


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ([np.array([1.0, np.nan])], "model must be finite"),
        ([np.array([1.0, np.inf])], "model must be finite"),
        ([], "model must have at least one array"),
        ([np.ones(3)], r"model must have arrays of shapes \[\(2,\)\], got \[\(3,\)\]"),
        ([np.ones(2), np.ones(2)], "model must have arrays of shapes"),
    ],
)
def test_a_model_that_does_not_fit_changes_nothing(bad, said):
    average = ModelAverage()
    average.update([np.ones(2)])
    with pytest.raises(ValueError, match=said):
        average.update(bad)
    assert average.count == 1
    assert_array_equal(average.arrays[0], np.ones(2))


@pytest.mark.parametrize("decay", [-0.1, 1.0, 2.0, np.nan])
def test_decay_is_checked(decay):
    with pytest.raises(ValueError, match="decay must be"):
        ModelAverage(decay)


def test_a_saved_average_goes_on_to_the_bit(tmp_path):
    first, several = ModelAverage(0.7), models(12)
    for model in several[:6]:
        first.update(model)
    save_state(tmp_path / "average.npz", first.state_dict())
    second = ModelAverage(0.7)
    second.load_state_dict(load_state(tmp_path / "average.npz"))
    for model in several[6:]:
        for got, expected in zip(second.update(model), first.update(model), strict=True):
            assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"count": -1, "means": []},
        {"count": 1.0, "means": []},
        {"count": 0, "means": [np.ones(2)]},
        {"count": 2, "means": "x"},
        {"count": 2, "means": []},
        {"count": 2, "means": [np.array([np.nan])]},
        {"count": 2, "means": [np.array(["a"])]},
    ],
)
def test_a_damaged_state_is_refused(state):
    average = ModelAverage()
    average.update([np.ones(2)])
    with pytest.raises(ValueError, match="count|means"):
        average.load_state_dict(state)
    assert average.count == 1
