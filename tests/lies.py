"""Saved states whose sizes lie, each alone or all together; not a test.

A state says each of its sizes many times: in numbers and in the shapes of its arrays. `lie`
picks one size and changes some or all places where it is said, so that the state agrees with
itself as far as the lie goes. `judge` loads the result under a limit of memory and plays on.
"""

import copy
import tracemalloc

import numpy as np
from interrupts import AGGREGATORS, SELECTORS, Merge, Trial, asked, told

from cvrcore import make_selector
from cvrcore.aggregators import ServerOptimiser, make_aggregator
from cvrcore.selectors import policy_class

SLACK = 2_000_000  # bytes that a load may take besides ten times the file
ODD = (-1, 0, 0.5, 1e308, 2.0**70, 10**30, float("nan"))
OPTIMISERS = {options["kind"]: options for _, options in AGGREGATORS.values() if options}
HUGE = (250_000_000, 2**31, 2**40, 2**62)


def originals():
    """Return states of every policy, kind of store and clustering, and of every aggregator."""
    found = {}
    for name in SELECTORS:
        for verb in ("probe", "observe"):  # without and with a pending round
            found[name, verb] = Trial(name, verb).thing.state_dict()
    for name in AGGREGATORS:
        found[name, "aggregate"] = Merge(name).thing.state_dict()
    return {name: state for name, state in found.items() if list(leaves(state))}


def leaves(value, path=()):
    """Yield the path of every number and array of a state."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key != "rng":
                yield from leaves(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i))
    elif isinstance(value, np.ndarray) or type(value) in (int, float):
        yield path


def at(state, path):
    for key in path:
        state = state[key]
    return state


def put(state, path, value):
    at(state, path[:-1])[path[-1]] = value


def stretched(array, axis, size):
    """Return an array with another size along an axis: cut off, or repeated."""
    if array.shape[axis] == 0:
        shape = [*array.shape]
        shape[axis] = size
        return np.zeros(shape, array.dtype)
    return array.take(np.arange(size) % array.shape[axis], axis=axis)


def lie(original, rng):
    """Return a state that lies about one or two of its sizes, and perhaps about a number."""
    state = copy.deepcopy(original)
    paths = list(leaves(state))
    for _ in range(rng.integers(1, 3)):
        sizes = [
            n for p in paths if isinstance(at(state, p), np.ndarray) for n in at(state, p).shape
        ]
        sizes += [at(state, p) for p in paths if type(at(state, p)) is int]
        old = int(rng.choice([n for n in sizes if 0 <= n < 2**31] or [1]))
        near = (0, 1, old - 1, old + 1, 2 * old, 3 * old + 1, old * (old + 1) // 2)
        new = int(rng.choice(near)) if rng.random() < 0.8 else int(rng.choice(HUGE))
        share = rng.choice([0.3, 0.8, 1.0])  # of the places that join in the lie
        for path in paths:
            value = at(state, path)
            if rng.random() > share:
                continue
            if type(value) is int and value == old:
                put(state, path, new)
            elif isinstance(value, np.ndarray) and 0 <= new < 2000:
                for axis in range(value.ndim):
                    if value.shape[axis] == old and value.size // max(old, 1) * new < 200_000:
                        value = stretched(value, axis, new)
                put(state, path, value)
    if rng.random() < 0.3:
        path = paths[rng.integers(len(paths))]
        value = at(state, path)
        if isinstance(value, np.ndarray):
            kind = rng.choice(["f4", "f8", "i8", "i4", "?", "u1", "f2"])
            put(state, path, value.astype(kind) if rng.random() < 0.5 else value[..., None])
            if rng.random() < 0.5 and value.size and value.dtype.kind in "if":
                value = value.copy()
                value.flat[rng.integers(value.size)] = rng.choice([-1, 2**40, 0, 7])
                put(state, path, value)
        else:
            put(state, path, ODD[rng.integers(len(ODD))])
    return state


def size_of(value):
    if isinstance(value, np.ndarray):
        return value.nbytes + 250  # the header of an entry
    if isinstance(value, dict):
        return sum(map(size_of, value.values())) + 10 * len(value)
    if isinstance(value, (list, tuple)):
        return sum(map(size_of, value))
    return 10


def judge(state, watched=True):
    """Load a state and play on; return "refused" or "works", or raise."""
    if watched:
        tracemalloc.start()
    try:
        thing = loaded(state)
        peak = tracemalloc.get_traced_memory()[1] if watched else 0
    finally:
        tracemalloc.stop()
    assert peak < 10 * size_of(state) + SLACK, f"{peak} bytes for a state of {size_of(state)}"
    return "refused" if thing is None or not plays(thing) else "works"


def loaded(state):
    """Return what a state holds, or None if it is refused."""
    try:
        if "aggregator" in state:
            server = state.get("server")
            server = None if server is None else ServerOptimiser(**OPTIMISERS[server["kind"]])
            thing = make_aggregator(str(state["aggregator"]), server=server)
            thing.load_state_dict(state)
            return thing
        return policy_class(state["policy"]).from_state_dict(state)
    except ValueError:
        return None


def merges(thing, rng):
    """Aggregate a round of twelve clients; return True."""
    selection = make_selector("uniform", 12, 5, seed=0).select()
    model = [np.zeros((5, 4)), np.zeros(5)]
    updates = [[rng.normal(size=layer.shape) for layer in model] for _ in range(5)]
    thing.aggregate(model, updates, selection.clients, np.ones(12), selection)
    thing.state_dict()
    return True


def plays(thing):
    """Return whether two rounds go well; False for a setting that does not fit, such as a size."""
    thing.state_dict()
    rng = np.random.default_rng(0)
    try:
        if not hasattr(thing, "select"):
            return merges(thing, rng)
        for _ in range(2):
            picked = thing.select(**asked(thing, rng)).clients
            size = picked.size
            assert np.unique(picked).size == size
            assert size <= thing.n_clients
            thing.observe(picked, **told(thing, picked, rng))
    except (ValueError, RuntimeError):
        return False
    return True
