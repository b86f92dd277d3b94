import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from cvrcore import make_selector
from cvrcore.aggregators import AGGREGATORS, ServerOptimiser, make_aggregator
from cvrcore.state import load_state, save_state

N_CLIENTS = 8
WEIGHTS = np.arange(5.0, 5.0 + N_CLIENTS)
SHAPES = ((4, 3), (5,))


def targets(n_rounds, dtype=np.float64, seed=0):
    """Random aggregated models, one per round; the model sent is the one before it."""
    rng = np.random.default_rng(seed)
    return [[rng.normal(size=shape).astype(dtype) for shape in SHAPES] for _ in range(n_rounds)]


def torch_path(make_optimiser, n_rounds):
    """Return the model after each round: the gradient is the model less the aggregated one."""
    torch = pytest.importorskip("torch")
    parameters = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    optimiser = make_optimiser(torch.optim)(parameters)
    path = []
    for aggregated in targets(n_rounds):
        for parameter, target in zip(parameters, aggregated, strict=True):
            parameter.grad = parameter - torch.from_numpy(target)
        optimiser.step()
        path.append([parameter.numpy().copy() for parameter in parameters])
    return path


@pytest.mark.parametrize(
    ("server", "make_optimiser"),
    [
        (ServerOptimiser(lr=0.3), lambda o: lambda p: o.SGD(p, lr=0.3)),
        (
            ServerOptimiser(lr=0.3, momentum=0.9),
            lambda o: lambda p: o.SGD(p, lr=0.3, momentum=0.9),
        ),
        (
            ServerOptimiser("adam", lr=0.1, tau=1e-3, bias_correction=True),
            lambda o: lambda p: o.Adam(p, lr=0.1, betas=(0.9, 0.99), eps=1e-3),
        ),
    ],
)
def test_steps_are_those_of_torch(server, make_optimiser, rtol):
    current = [np.zeros(shape) for shape in SHAPES]
    expected = torch_path(make_optimiser, 7)
    for aggregated, wanted in zip(targets(7), expected, strict=True):
        current = server.step(current, aggregated)
        for a, b in zip(current, wanted, strict=True):
            assert_allclose(a, b, rtol=rtol, atol=1e-14)


@pytest.mark.parametrize("kind", ["adam", "yogi"])
def test_adaptive_steps_are_those_of_the_paper(kind, rtol):
    # Reddi et al., Algorithm 2, coordinate by coordinate.
    lr, beta1, beta2, tau = 0.05, 0.8, 0.95, 0.01
    server = ServerOptimiser(kind, lr, beta1=beta1, beta2=beta2, tau=tau)
    x = 0.0
    m, v = 0.0, tau**2
    current = [np.array([x])]
    for d in (0.5, -0.2, 0.0, 0.003, 1.0):
        m = beta1 * m + (1 - beta1) * d
        if kind == "adam":
            v = beta2 * v + (1 - beta2) * d**2
        elif d**2 < v:
            v = v - (1 - beta2) * d**2
        else:
            v = v + (1 - beta2) * d**2
        x = x + lr * m / (v**0.5 + tau)
        current = server.step(current, [current[0] + d])
        assert_allclose(current[0], [x], rtol=1e-10)


def play(aggregator, n_rounds, seed=0, current=None, selector=None):
    """Run rounds of five clients whose models are random; return the models."""
    rng = np.random.default_rng(seed)
    options = {"n_clients": N_CLIENTS, "n_select": 5, "weights": WEIGHTS, "seed": 1}
    selector = selector or make_selector("uniform", **options)
    current = current or [np.zeros(shape, dtype=np.float32) for shape in SHAPES]
    path = []
    for _ in range(n_rounds):
        picked = selector.select()
        selector.observe(picked.clients)
        noise = [[rng.normal(size=a.shape) for a in current] for _ in picked.clients]
        updates = [
            [(0.5 * a + e).astype(a.dtype) for a, e in zip(current, n, strict=True)] for n in noise
        ]
        current = aggregator.aggregate(current, updates, picked.clients, WEIGHTS, picked)
        path.append(current)
    return path


def assert_same_path(first, second):
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one, other, strict=True):
            assert_array_equal(a, b)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_lr_one_without_momentum_changes_no_bit(name):
    served = make_aggregator(name, server=ServerOptimiser())
    assert_same_path(play(served, 4), play(make_aggregator(name), 4))


@pytest.mark.parametrize("name", AGGREGATORS)
def test_lr_two_doubles_the_first_step_of_any_aggregator(name):
    plain = play(make_aggregator(name), 1)[0]
    longer = play(make_aggregator(name, server=ServerOptimiser(lr=2.0)), 1)[0]
    for a, b in zip(longer, plain, strict=True):
        assert a.dtype == np.float32
        assert_allclose(a, 2 * b, rtol=1e-6)


@pytest.mark.parametrize("server", [{"momentum": 0.9}, {"kind": "adam"}, {"kind": "yogi"}])
@pytest.mark.parametrize("name", ["sizes", "memory"])
def test_state_continues_to_the_bit(tmp_path, name, server):
    whole = play(make_aggregator(name, server=ServerOptimiser(**server)), 6)
    options = {"n_clients": N_CLIENTS, "n_select": 5, "weights": WEIGHTS, "seed": 1}
    selector = make_selector("uniform", **options)
    first = make_aggregator(name, server=ServerOptimiser(**server))
    rng_path = play(first, 3, selector=selector)
    save_state(tmp_path / "state.npz", first.state_dict())
    again = make_aggregator(name, server=ServerOptimiser(**server))
    again.load_state_dict(load_state(tmp_path / "state.npz"))
    assert again.nbytes == first.nbytes > 0
    # The noise of rounds 4 to 6 comes after that of rounds 1 to 3: draw past it.
    rng = np.random.default_rng(0)
    for _ in range(3 * 5):
        for shape in SHAPES:
            rng.normal(size=shape)
    rest = play(again, 3, seed=rng, current=rng_path[-1], selector=selector)
    assert_same_path(rng_path + rest, whole)


def test_a_round_without_reports_moves_nothing():
    aggregator = make_aggregator("sizes", server=ServerOptimiser(momentum=0.9))
    path = play(aggregator, 2)
    before = aggregator.state_dict()
    got = aggregator.aggregate(path[-1], [], [], WEIGHTS)
    assert_same_path([got], [path[-1]])
    after = aggregator.state_dict()["server"]
    assert after["steps"] == before["server"]["steps"] == 2
    assert_same_path([after["first"]], [before["server"]["first"]])


def test_integer_arrays_are_taken_from_the_aggregated_model():
    server = ServerOptimiser(lr=3.0, momentum=0.5)
    got = server.step([np.array([4]), np.ones(2)], [np.array([7]), np.zeros(2)])
    assert_array_equal(got[0], [7])
    assert_array_equal(got[1], [-2.0, -2.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "adamw"}, "kind must be one of 'sgd', 'adam', 'yogi'.*got 'adamw'"),
        ({"lr": 0.0}, "lr must be positive and finite, got 0"),
        ({"lr": float("nan")}, "lr must be positive and finite, got nan"),
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\), got 1"),
        ({"kind": "adam", "momentum": 0.5}, "momentum must be 0 with kind 'adam'"),
        ({"kind": "adam", "beta2": -0.1}, r"beta2 must lie in \[0, 1\), got -0.1"),
        ({"kind": "yogi", "tau": 0.0}, "tau must be positive and finite, got 0"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        ServerOptimiser(**options)


def test_states_go_only_where_they_belong():
    served = make_aggregator("sizes", server=ServerOptimiser(momentum=0.9))
    play(served, 2)
    state = served.state_dict()
    with pytest.raises(ValueError, match="without a server optimiser"):
        make_aggregator("sizes").load_state_dict(state)
    with pytest.raises(ValueError, match="must hold the server's optimiser"):
        served.load_state_dict(make_aggregator("sizes").state_dict())
    with pytest.raises(ValueError, match="state must be of a server optimiser 'adam', got 'sgd'"):
        make_aggregator("sizes", server=ServerOptimiser("adam")).load_state_dict(state)
    with pytest.raises(ValueError, match="state must be of aggregator 'sizes', got 'mean'"):
        served.load_state_dict({**state, "aggregator": "mean"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"steps": -1}, "steps must be a non-negative integer, got -1"),
        ({"first": [np.array([np.nan])]}, "first must be a list of finite real arrays"),
        ({"second": [-np.ones(s) for s in SHAPES]}, "second must be non-negative"),
        ({"second": []}, "first and second must have arrays of the same shapes"),
    ],
)
def test_damaged_states_are_refused_and_change_nothing(damage, message):
    aggregator = make_aggregator("memory", server=ServerOptimiser("adam"))
    path = play(aggregator, 2)
    state, other = (
        aggregator.state_dict(),
        make_aggregator("memory", server=ServerOptimiser("adam")),
    )
    play(other, 1)
    before = other.state_dict()
    with pytest.raises(ValueError, match=message):
        other.load_state_dict({**state, "server": {**state["server"], **damage}})
    after = other.state_dict()
    assert_array_equal(after["sum"], before["sum"])
    assert_same_path([after["server"]["first"]], [before["server"]["first"]])
    assert len(path) == 2


def test_a_step_that_overflows_is_refused_and_changes_nothing():
    server = ServerOptimiser(lr=1e30)
    with pytest.raises(ValueError, match=r"step must be finite; lr 1e\+30 may be too large"):
        server.step([np.zeros(2, np.float32)], [np.full(2, 1e30, np.float32)])
    assert server.state_dict()["steps"] == 0


def test_models_of_another_shape_are_refused():
    server = ServerOptimiser(momentum=0.5)
    server.step([np.zeros(2)], [np.ones(2)])
    with pytest.raises(ValueError, match=r"current must be \[\(2,\)\], as in the rounds before"):
        server.step([np.zeros(3)], [np.ones(3)])
    with pytest.raises(ValueError, match=r"aggregated must be \[\(2,\)\], got \[\(3,\)\]"):
        server.step([np.zeros(2)], [np.ones(3)])


def test_server_must_be_an_optimiser():
    with pytest.raises(TypeError, match="server must be a ServerOptimiser or None, got 2.0"):
        make_aggregator("sizes", server=2.0)
