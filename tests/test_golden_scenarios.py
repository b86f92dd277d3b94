"""Selectors recorded on an earlier release go on with the same selections, client by client."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import cvrcore

GOLDEN = Path(__file__).parent / "golden"
sys.path.insert(0, str(GOLDEN))
try:
    import scenarios
finally:
    sys.path.remove(str(GOLDEN))

RECORD = json.loads((GOLDEN / "scenarios.json").read_text())
NAMES = sorted(scenarios.SCENARIOS)


def test_every_scenario_is_recorded():
    assert sorted(RECORD) == NAMES
    kept = {f"scenario-{name}.npz" for name in NAMES if scenarios.SCENARIOS[name].keep}
    assert {path.name for path in GOLDEN.glob("scenario-*.npz")} == kept


# A guarded selector now begins with a random fraction of a pick: only recorded states go on.
@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith("guarded-")])
def test_a_new_selector_repeats_the_record(name, tmp_path):
    """From the first round; half way the state goes through a file."""
    scenario, rng = scenarios.SCENARIOS[name], np.random.default_rng(6)
    selector = scenario.selector()
    assert scenario.play(selector, scenario.before, rng) == RECORD[name]["before"]
    selector.save(tmp_path / "state.npz")
    selector = cvrcore.Selector.load(tmp_path / "state.npz")
    assert scenario.play(selector, scenarios.AFTER, rng) == RECORD[name]["after"]


@pytest.mark.parametrize("name", [n for n in NAMES if scenarios.SCENARIOS[n].keep])
def test_a_recorded_state_continues(name):
    """Loaded from the file that the earlier release wrote."""
    scenario, rng = scenarios.SCENARIOS[name], np.random.default_rng(6)
    scenario.play(_Replay(RECORD[name]["before"]), scenario.before, rng)  # its random numbers
    selector = cvrcore.Selector.load(GOLDEN / f"scenario-{name}.npz")
    assert selector.round == scenario.before
    assert scenario.play(selector, scenarios.AFTER, rng) == RECORD[name]["after"]


class _Replay:
    """Stands in for a selector and picks what is recorded."""

    def __init__(self, picks):
        self.picks = iter(picks)

    def probe(self, available):
        return None

    def select(self, available, losses):
        return cvrcore.Selection(clients=np.array(next(self.picks)))

    def observe(self, *report, **more):
        pass
