"""A build with Cython kernels works where Numba is not installed: every policy."""

import os
import subprocess
import sys

import pytest

from cvrcore.selectors import BUILT_IN

#: Put before every script: `import numba` fails, as it does where it is not installed.
BLOCK = """
import sys

class NoNumba:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "llvmlite"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoNumba())
"""


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", BLOCK + code],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "CVRCORE_BACKEND": "", **environment},
    )


@pytest.fixture(scope="module", autouse=True)
def extension():
    pytest.importorskip("cvrcore_ext.base.kmeans", reason="the extension is not built")
    pytest.importorskip("cvrcore_ext.base.pivotal", reason="the extension is not built")


def test_the_block_holds():
    done = run("import numba")
    assert done.returncode != 0
    assert "No module named 'numba'" in done.stderr


def test_every_policy_selects_and_learns_without_numba():
    code = f"""
import numpy as np, cvrcore
from cvrcore.testing.policy_under_test import PolicyUnderTest

picked = cvrcore.select([[1, 0, 0], [1, 0.1, 0], [0, 1, 0], [0, 1, 0.1]], n_select=2, seed=0)
assert picked.coalitions.tolist() == [0, 0, 1, 1], picked
for name in {list(BUILT_IN)}:
    PolicyUnderTest(name, {{}}).simulation(seed=0, n_rounds=30).rounds(30)
    print(name)
for options in ({{"n_clients": 170}}, {{"clustering": "nystrom", "n_landmarks": 12}},
                {{"store": "factored", "n_coalitions": 3}}, {{"kernel": "laplacian"}}):
    settings = {{"n_clients": 60, "n_select": 5, "n_features": 6}} | options
    selector = cvrcore.CoalitionSelector(seed=0, warmup=0, **settings)
    rng = np.random.default_rng(0)
    for _ in range(20):
        picked = selector.select()
        selector.observe(picked.clients, rng.normal(size=(len(picked), 6)))
assert cvrcore.compile() >= 0.0
assert "backend cython" in cvrcore.show_config()
assert not any(name.partition(".")[0] == "numba" for name in sys.modules)
"""
    done = run(code)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == list(BUILT_IN)


def test_a_process_with_neither_backend_is_told_what_to_install():
    done = run(
        "import cvrcore; cvrcore.select([[1.0], [2.0]], n_select=1)", CVRCORE_BACKEND="numba"
    )
    assert done.returncode != 0
    assert "ImportError" in done.stderr
    assert "install the extra 'numba', or reinstall with CVRCORE_EXT=require" in done.stderr
