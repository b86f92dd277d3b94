"""Files of every state format ever written are still read, and go on as they did."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from first_policies import FIRST_POLICIES

import cvrcore
import cvrcore.state
from cvrcore.selectors.persistence import FORMATS

WRITTEN = {1: 1, 2: 3, 3: 3}  # the format in which a state of each format is written again
MOVED = ("format", "eligible")  # keys of format 2 that later formats need not repeat
GOLDEN = Path(__file__).parent / "golden"
spec = importlib.util.spec_from_file_location("golden_make", GOLDEN / "make.py")
golden = importlib.util.module_from_spec(spec)
spec.loader.exec_module(golden)


def assert_holds(written, kept):
    """Everything that was kept is written again; newer keys may stand beside it."""
    if not isinstance(kept, dict):
        np.testing.assert_equal(written, kept)
        return
    for key, value in kept.items():
        if key not in MOVED:
            assert_holds(written[key], value)


@pytest.mark.parametrize("policy", FIRST_POLICIES)
@pytest.mark.parametrize("number", FORMATS)
def test_golden_state_continues(number, policy, tmp_path):
    selector = cvrcore.Selector.load(GOLDEN / f"format{number}-{policy}.npz")
    assert (selector.name, selector.round) == (policy, 9)
    assert selector.state_dict()["format"] == WRITTEN[number]
    selector.save(tmp_path / "again.npz")
    written, kept = (
        cvrcore.state.load_state(path)
        for path in (tmp_path / "again.npz", GOLDEN / f"format{number}-{policy}.npz")
    )
    assert_holds(written, kept)

    rng = np.random.default_rng(6)
    rng.normal(size=(9 * golden.N_SELECT, golden.N_FEATURES))  # what nine rounds drew
    seen = golden.play(selector, 6, rng)
    expected = json.loads((GOLDEN / f"format{number}.json").read_text())[policy]
    assert seen == expected


def test_every_format_has_its_golden_files():
    assert {path.stem for path in GOLDEN.glob("format*.json")} == {f"format{n}" for n in FORMATS}
