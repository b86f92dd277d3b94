"""Policies of other packages: found through entry points, and never in the way."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cvrcore
from cvrcore.selectors import BUILT_IN, POLICIES, PolicyError, make_selector, policy_class
from cvrcore.testing import check_selector
from cvrcore.testing.checks import CHECKS

ROOT = Path(__file__).parents[1]
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/policies.md").read_text(), re.DOTALL)
EXAMPLE = SNIPPETS[0]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Lay out an installed distribution: its metadata and, if it has any, its module."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(distribution, entries, source=None):
        module = distribution.replace("-", "_")
        info = tmp_path / f"{module}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {distribution}\nVersion: 1.2\n")
        lines = "".join(f"{name} = {target}\n" for name, target in entries.items())
        (info / "entry_points.txt").write_text(f"[cvrcore.selectors]\n{lines}")
        if source is not None:
            (tmp_path / f"{module}.py").write_text(source)
        return tmp_path

    yield write
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture
def example(install):
    return install("fewest-first", {"fewest-first": "fewest_first:FewestFirst"}, EXAMPLE)


def run_cvrcore(folder, *arguments):
    for name in ("typer", "torch"):
        pytest.importorskip(name, reason="the command needs cvrcore[fl]")
    return subprocess.run(
        [sys.executable, "-m", "fl", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
    )


@pytest.mark.usefixtures("example")
def test_a_registered_policy_is_found_by_name(tmp_path):
    assert "fewest-first" in POLICIES
    assert list(POLICIES) == [*BUILT_IN, "fewest-first"]
    assert POLICIES["fewest-first"] == "fewest_first:FewestFirst"
    selector = make_selector("fewest-first", n_clients=6, n_select=2, seed=0)
    assert type(selector) is policy_class("fewest-first")
    seen = []
    for _ in range(3):
        picked = selector.select().clients
        selector.observe(picked)
        seen += picked.tolist()
    assert sorted(seen) == [0, 1, 2, 3, 4, 5]  # everybody once before anybody twice

    selector.save(tmp_path / "state.npz")
    again = cvrcore.Selector.load(tmp_path / "state.npz")
    np.testing.assert_array_equal(again.select().clients, selector.select().clients)


@pytest.mark.usefixtures("example")
def test_the_documented_example_conforms():
    check_selector("fewest-first")
    assert len(EXAMPLE.partition("class ")[2].replace("\n\n", "\n").splitlines()) <= 25


def test_the_documented_tests_run(tmp_path):
    """The page's snippets, one after the other, are a test file that passes."""
    (tmp_path / "test_page.py").write_text("\n\n".join(SNIPPETS))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CHECKS)} passed" in done.stdout


def test_the_command_line_runs_it(example):
    quick = ("--rounds", "2", "--quiet", "--json")
    alone = run_cvrcore(example, "run", "--method", "fewest-first", *quick)
    assert alone.returncode == 0, alone.stderr
    beside = run_cvrcore(example, "run", "--method", "fedprox", "--policy", "fewest-first", *quick)
    assert json.loads(beside.stdout)["method"] == "fedprox+fewest-first"
    assert json.loads(alone.stdout)["covered"] == 20  # ten, then ten others
    listed = run_cvrcore(example, "policies", "--json")
    rows = {row["name"]: row for row in json.loads(listed.stdout)}
    assert rows["fewest-first"] == {
        "name": "fewest-first",
        "from": "fewest-first 1.2",
        "summary": "Pick the clients that have reported least often; ties at random.",
        "error": None,
        "needs": "nothing",
        "size": "fixed",
    }


BROKEN = {
    "no module": (
        {"bad": "not_there:Selector"},
        None,
        r"policy 'bad' \(not_there:Selector\) of distribution broken-package 1.2 cannot be "
        "loaded: ModuleNotFoundError",
    ),
    "no class": ({"bad": "broken_package:Missing"}, "", "1.2 cannot be loaded: AttributeError"),
    "not a path": ({"bad": "a b c!"}, None, "distribution broken-package 1.2 cannot be loaded"),
    "raises": ({"bad": "broken_package:X"}, "1 / 0", "cannot be loaded: ZeroDivisionError"),
    "no selector": (
        {"bad": "broken_package:X"},
        "X = dict",
        "broken-package 1.2 must be a subclass of cvrcore.Selector, got <class 'dict'>",
    ),
    "abstract": (
        {"bad": "broken_package:X"},
        "import cvrcore\nclass X(cvrcore.Selector): name = 'bad'",
        "broken-package 1.2 must define _choose",
    ),
    "another name": (
        {"bad": "cvrcore.selectors.uniform:UniformSelector"},
        None,
        "1.2 must have the class attribute name = 'bad', got 'uniform'",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_is_named_and_breaks_nothing_else(install, case):
    entries, source, message = BROKEN[case]
    install("broken-package", entries, source)
    with pytest.raises(PolicyError, match=message):
        make_selector("bad", n_clients=4, n_select=2)
    for name in BUILT_IN:
        assert policy_class(name).name == name
    with pytest.raises(ValueError, match="name must be one of 'active', 'bad'.*, got 'worse'"):
        make_selector("worse", n_clients=4, n_select=2)


def test_the_command_names_a_broken_plugin(install):
    entries, source, _ = BROKEN["no module"]
    folder = install("broken-package", entries, source)
    run = run_cvrcore(folder, "run", "--method", "bad", "--rounds", "1", "--quiet")
    assert (run.returncode, run.stdout) == (2, "")
    assert re.fullmatch(r"error: [^\n]*distribution broken-package 1.2[^\n]*\n", run.stderr)
    listed = run_cvrcore(folder, "policies", "--json")
    assert json.loads(listed.stdout)[-1]["error"].startswith("policy 'bad'")


def test_a_package_cannot_replace_a_built_in_policy(install):
    install("greedy-package", {"uniform": "greedy_package:X"}, "raise SystemExit('never imported')")
    assert make_selector("uniform", n_clients=4, n_select=2).name == "uniform"
    assert list(POLICIES) == list(BUILT_IN)
    assert POLICIES["uniform"] == BUILT_IN["uniform"]


def test_the_command_names_the_package_that_takes_a_built_in_name(install):
    folder = install("greedy-package", {"uniform": "greedy_package:X"})
    listed = run_cvrcore(folder, "policies", "--json")
    assert json.loads(listed.stdout)[-1]["error"] == (
        "policy 'uniform' (greedy_package:X) of distribution greedy-package 1.2 takes the name "
        "of a policy of cvrcore, which keeps it"
    )


def test_two_packages_of_one_name_are_both_named(install):
    install("first-package", {"mine": "first_package:X"})
    install("second-package", {"mine": "second_package:X"})
    with pytest.raises(
        PolicyError,
        match="'mine' is registered more than once, by first-package 1.2 .*second-package 1.2",
    ):
        make_selector("mine", n_clients=4, n_select=2)


def test_damaged_metadata_leaves_built_in_policies_usable(install, monkeypatch):
    def fail(**kwargs):
        raise KeyError("Name")

    monkeypatch.setattr("importlib.metadata.entry_points", fail)
    assert list(POLICIES) == list(BUILT_IN)
    with pytest.raises(ValueError, match="name must be one of 'active'"):
        make_selector("bad", n_clients=4, n_select=2)


def test_built_in_policies_do_not_read_entry_points(monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **kwargs: pytest.fail("looked"))
    assert make_selector("oort", n_clients=4, n_select=2).name == "oort"


def test_a_distribution_without_a_name_is_called_unknown(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    info = tmp_path / "nameless-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\n")
    (info / "entry_points.txt").write_text("[cvrcore.selectors]\nnobody = nowhere:Nothing\n")
    assert "nobody" in POLICIES
    assert "nobody" in repr(POLICIES)
    with pytest.raises(PolicyError, match="nobody"):
        policy_class("nobody")
    with pytest.raises(KeyError):
        POLICIES["somebody"]
