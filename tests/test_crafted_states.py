"""Saved states that lie about their sizes are refused, or work; nothing large is allocated."""

import copy

import numpy as np
import pytest
from fuzzing import EFFORT, bounded_memory
from interrupts import SELECTORS, Merge, Trial
from lies import judge, lie, originals, put

import cvrcore
from cvrcore.aggregators import make_aggregator
from cvrcore.selectors import policy_class
from cvrcore.state import load_state, save_state

#: 2,500 in the suite and 100,000 under ``make fuzz``, together.
LIES = 25 * 4


@pytest.fixture(scope="module")
def states():
    found = originals()
    for state in found.values():
        assert judge(state, watched=False) == "works"  # compiles too
    return found


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
@pytest.mark.parametrize("part", range(25))
def test_sizes_that_lie_together_neither_crash_nor_allocate(states, part):
    rng = np.random.default_rng([part, EFFORT])
    names, found = list(states), {"refused": 0, "works": 0}
    for i in range(LIES * EFFORT):
        state = lie(states[names[(part * LIES * EFFORT + i) % len(names)]], rng)
        found[judge(state, watched=rng.random() < 0.25 or EFFORT > 1)] += 1
    assert found["refused"] > found["works"] / 10


@pytest.mark.parametrize("name", SELECTORS)
def test_the_original_states_load(name):
    judge(Trial(name, "observe").thing.state_dict())


def test_a_small_file_cannot_ask_for_many_clients(tmp_path):
    """A file of a kilobyte took 2 GB: `weights` were left to their default."""
    state = cvrcore.make_selector("uniform", 4, 2, seed=0).state_dict()
    state["config"]["n_clients"] = 250_000_000
    for weights in (state["config"]["weights"], None):
        state["config"]["weights"] = weights
        save_state(tmp_path / "s.npz", state)
        with bounded_memory(1000, slack=1_000_000), pytest.raises(ValueError, match="weights must"):
            cvrcore.Selector.load(tmp_path / "s.npz")


@pytest.mark.parametrize("width", [1, 7, 9, 1000])
def test_offsets_of_another_width_are_refused(width):
    """A kernel would read beyond the rows."""
    state = Trial("centred", "probe").thing.state_dict()
    held = state["learned"]["affinity"]
    held["offsets"] = np.resize(held["offsets"], (200, width))
    held["reference"] = np.resize(held["reference"], width)
    with pytest.raises(ValueError, match="offsets must have shape"):
        cvrcore.CoalitionSelector.from_state_dict(state)


def test_a_row_store_file_is_not_lengthened_by_a_state(tmp_path):
    aggregator = make_aggregator("memory", limit=0, folder=tmp_path / "rows")
    model = [np.zeros(4)]
    selector = cvrcore.make_selector("uniform", 5, 2, seed=0)
    picked = selector.select()
    aggregator.aggregate(model, [[np.ones(4)]] * 2, picked.clients, np.ones(5), picked)
    save_state(tmp_path / "a.npz", aggregator.state_dict())
    state = load_state(tmp_path / "a.npz")
    size = (tmp_path / "rows" / "memory.rows").stat().st_size
    state["bank"]["shape"] = [5, 10**9]
    state["sum"] = np.zeros(4)
    with pytest.raises(ValueError, match=r"must"):
        aggregator.load_state_dict(state)
    assert (tmp_path / "rows" / "memory.rows").stat().st_size == size


@pytest.mark.parametrize("name", ["pivotal", "drift", "clustered", "divfl", "hics", "factored"])
@pytest.mark.parametrize("verb", ["probe", "observe"])
def test_a_small_file_cannot_ask_for_many_features(name, verb):
    """`n_features` is compared with the rows, even if the rows of nobody are claimed to be so wide;
    with `initial` as long, only clients times features exceed the file."""
    state = Trial(name, verb).thing.state_dict()
    for rows in (state["learned"].get("rows"), np.zeros((0, 2000))):
        state["learned"]["rows"] = rows
        state["config"]["n_features"] = 2000
        if "initial" in state["config"]:
            state["config"]["initial"] = np.zeros(2000)
        with bounded_memory(0, 200_000), pytest.raises(ValueError, match="must have shape"):
            policy_class(state["policy"]).from_state_dict(state)


@pytest.mark.parametrize("sent", [None, np.zeros(1), np.full(8, np.nan)])
def test_an_open_round_without_the_model_sent_is_refused(sent):
    """A single number would be broadcast to all coordinates."""
    state = Trial("drift", "observe").thing.state_dict()
    state["pending"]["sent"] = sent
    with pytest.raises(ValueError, match="pending sent must"):
        policy_class("drift").from_state_dict(state)


@pytest.mark.parametrize(
    ("name", "path", "value", "message"),
    [
        ("momentum", ("server", "second"), [np.ones(3)], "second must be empty"),
        ("factor-memory", ("gram",), -np.eye(6), "gram must be symmetric"),
        ("factor-memory", ("gram",), np.tri(6), "gram must be symmetric"),
        ("factor-memory", ("bank", "known"), np.zeros(6, bool), "bank must hold all"),
        ("factor-memory", ("bank", "shape"), [7, 25], "bank must have 6 rows"),
        ("factor-memory", ("features",), np.zeros((12, 9)), "gram must have shape"),
    ],
)
def test_parts_of_an_aggregator_must_agree(name, path, value, message):
    merge = Merge(name)
    before = merge.thing.state_dict()
    state = copy.deepcopy(before)
    put(state, path, value)
    with pytest.raises(ValueError, match=message):
        merge.thing.load_state_dict(state)
    np.testing.assert_equal(merge.thing.state_dict(), before)
