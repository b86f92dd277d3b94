"""The average of models against pandas' exponential mean, plain means and torch's AveragedModel."""

import itertools
import sys

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
        ([np.ones(2) + 1j], "model must have arrays of real numbers, got complex128 in array 0"),
        ([np.array(["a", "b"])], "model must have arrays of real numbers, got <U1 in array 0"),
    ],
)
def test_a_model_that_does_not_fit_changes_nothing(bad, said):
    average = ModelAverage()
    average.update([np.ones(2)])
    with pytest.raises(ValueError, match=said):
        average.update(bad)
    assert average.count == 1
    assert_array_equal(average.arrays[0], np.ones(2))


def test_an_array_without_dimensions_stays_one(tmp_path):
    average = ModelAverage(0.8)
    for value in (1.0, 2.0, 3.0):
        (averaged,) = average.update([np.array(value, dtype=np.float32)])
    assert isinstance(averaged, np.ndarray)
    assert (averaged.shape, averaged.dtype) == ((), np.float32)
    assert_allclose(averaged, 2.0)
    save_state(tmp_path / "average.npz", average.state_dict())
    for state in (average.state_dict(), load_state(tmp_path / "average.npz")):
        other = ModelAverage(0.8)
        other.load_state_dict(state)
        assert_array_equal(other.arrays[0], averaged)


def test_far_apart_models_have_a_finite_average():
    average = ModelAverage(0.5)
    average.update([np.array([3e38, 1.0], dtype=np.float32)])
    (averaged,) = average.update([np.array([-3e38, 3.0], dtype=np.float32)])
    assert_allclose(averaged, [0.0, 2.0], atol=1e32)


def test_an_average_that_would_not_be_finite_is_refused():
    average, most = ModelAverage(0.8), np.finfo(np.float32).max
    average.load_state_dict({"count": 9, "means": [np.array([1e300])]})
    with pytest.raises(ValueError, match="model must have a finite average in its own type, "):
        average.update([np.array([most], dtype=np.float32)])
    assert average.count == 9
    assert_array_equal(average.arrays[0], [1e300])


@pytest.mark.parametrize("verb", ["update", "load_state_dict"])
def test_an_exception_at_any_line_never_leaves_a_count_of_other_means(verb):
    first, other = ModelAverage(0.5), ModelAverage(0.5)
    for value in (1.0, 3.0, 9.0):
        other.update([np.full(3, value)])
    for number in itertools.count(1):
        first.load_state_dict({"count": 1, "means": [np.ones(3)]})
        argument = [np.full(3, 3.0)] if verb == "update" else other.state_dict()
        if not interrupted(getattr(first, verb), argument, number):
            break
        after = {"update": (2, 2.0), "load_state_dict": (3, 5.5)}[verb]
        assert (first.count, first.arrays[0][0]) in [(1, 1.0), after]
    assert number > 5


def interrupted(call, argument, number):
    """Call, raise at the `number`-th line or instruction of averaging.py; tell whether it did."""
    seen = 0

    def trace(frame, event, _):
        nonlocal seen
        if not frame.f_code.co_filename.endswith("averaging.py"):
            return None
        frame.f_trace_opcodes = True
        if event in ("line", "opcode"):
            seen += 1
            if seen == number:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    try:
        sys.settrace(trace)
        call(argument)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


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
