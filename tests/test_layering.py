"""What an import loads, in a fresh process."""

import json
import os
import subprocess
import sys

import pytest

HEAVY = (
    "torch", "fl", "flwr", "ray", "matplotlib", "numba", "sklearn", "scipy", "nvflare",
    "tensorboard", "mlflow", "wandb", "starlette", "uvicorn",
)  # fmt: skip

USE = """
import cvrcore, numpy as np
rng = np.random.default_rng(0)
selector = cvrcore.CoalitionSelector(60, 20, 5, warmup=1, seed=0)
for _ in range(8):
    picked = selector.select()
    selector.observe(picked.clients, rng.normal(size=(5, 20)))
"""


def loaded_after(code, **environment):
    script = (
        f"{code}\nimport sys, json; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    )
    output = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        env={**os.environ, "CVRCORE_BACKEND": "", **environment},
    ).stdout
    return set(json.loads(output.splitlines()[-1]))


@pytest.fixture
def extension():
    pytest.importorskip("cvrcore_ext.base.kmeans", reason="the extension is not built")


@pytest.mark.parametrize("backend", ["", "numba"])
def test_import_loads_nothing_heavy(backend):
    assert loaded_after("import cvrcore", CVRCORE_BACKEND=backend) == set()


def test_tracking_and_plotting_import_no_tool_before_it_is_asked_for():
    code = (
        "import cvrcore.tracking, cvrcore.plot, cvrcore.watch; "
        "[__import__(f'cvrcore.tracking.{module}') for module, _ in "
        "cvrcore.tracking.TRACKERS.values()]; cvrcore.watch.Board()"
    )
    assert loaded_after(code) == set()


def test_every_policy_stays_light():
    code = "import cvrcore.selectors as s; [s.policy_class(name) for name in s.BUILT_IN]"
    assert loaded_after(code) == set()


@pytest.mark.usefixtures("extension")
def test_select_and_observe_load_neither_numba_nor_scikit_learn():
    assert loaded_after(USE) <= {"scipy"}


def test_without_the_extension_numba_is_used():
    """The extension hidden, as on a machine without a compiler."""
    hide = "import sys; sys.modules['cvrcore_ext'] = None\n"
    check = "\nfrom cvrcore.kernels import dispatch; assert dispatch.backend() == 'numba'"
    assert "numba" in loaded_after(hide + USE + check)


def test_a_required_but_missing_extension_is_an_error():
    hide = "import sys; sys.modules['cvrcore_ext'] = None\n"
    with pytest.raises(subprocess.CalledProcessError) as error:
        loaded_after(hide + USE, CVRCORE_BACKEND="cython")
    assert "CVRCORE_EXT=require" in error.value.stderr


def test_unknown_backend_and_threads_are_named():
    with pytest.raises(subprocess.CalledProcessError) as error:
        loaded_after(USE, CVRCORE_BACKEND="fortran")
    assert "CVRCORE_BACKEND must be cython or numba, got 'fortran'" in error.value.stderr
    with pytest.raises(subprocess.CalledProcessError) as error:
        loaded_after(USE, CVRCORE_NUM_THREADS="none")
    assert "CVRCORE_NUM_THREADS must be a positive integer, got 'none'" in error.value.stderr


def test_show_config_names_the_backend():
    import cvrcore

    text = cvrcore.show_config()
    assert f"cvrcore {cvrcore.__version__}" in text
    for word in ("backend", "threads", "blas", "numpy", "numba"):
        assert word in text
