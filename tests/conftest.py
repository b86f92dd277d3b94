import os

import pytest

# Before any cvrcore import: Numba's cache ignores edits in other files.
os.environ["CVRCORE_NUMBA_CACHE"] = "0"

from builds import BUILDS, load_kernels
from first_policies import FIRST_POLICIES

from cvrcore import CoalitionSelector
from cvrcore.kernels import dispatch

# The suite with another storage: `make test-matrix` sets it.
DTYPE = os.environ.get("CVRCORE_TEST_DTYPE", "float64")
CoalitionSelector.__init__.__defaults__ = tuple(
    DTYPE if default == "float64" else default
    for default in CoalitionSelector.__init__.__defaults__
)


@pytest.fixture(params=list(BUILDS))
def kernels(request):
    """Every kernel of each build in turn, by name."""
    return load_kernels(request.param)


@pytest.fixture(params=["numba", "cython"])
def backend(request, monkeypatch):
    """Make the whole API run on one backend."""
    if request.param == "cython":
        package = pytest.importorskip("cvrcore_ext", reason="the extension is not built")
        try:
            build = f"cython-{package.instruction_set()}"
        except ModuleNotFoundError:
            pytest.skip("cython kernels are not built")
    else:
        build = "numba"
    for name, kernel in load_kernels(build).items():
        monkeypatch.setitem(dispatch.__dict__, name, kernel)
    return request.param


@pytest.fixture
def rtol():
    """Relative tolerance for every float64 comparison with a twin."""
    return 1e-12


@pytest.fixture(params=FIRST_POLICIES)
def policy(request):
    """The name of each of the first policies in turn."""
    return request.param
