"""Building the extension: compiled once on a machine, copied for every further environment."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("setuptools")
if shutil.which("cc") is None:
    pytest.skip("no C compiler", allow_module_level=True)

ROOT = Path(__file__).parents[1]
#: Stands in for Cython: an empty module in C for each source, and a count of its calls.
CYTHONIZE = """
from pathlib import Path

def cythonize(modules, **options):
    with Path("calls.txt").open("a") as file:
        file.write("called\\n")
    for module in modules:
        name = module.name.rpartition(".")[2]
        source = Path(module.sources[0]).with_suffix(".c")
        source.write_text(
            "#include <Python.h>\\n"
            f"static struct PyModuleDef d = {{PyModuleDef_HEAD_INIT, \\"{name}\\", 0, -1, 0}};\\n"
            f"PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModule_Create(&d); }}\\n"
        )
        module.sources = [str(source)]
    return modules
"""
PYPROJECT = """
[project]
name = "small"
version = "1.0"
dynamic = ["dependencies"]

[project.optional-dependencies]
numba = ["numba>=0.61"]

[tool.cvrcore]
dependencies = ["numpy>=2.0"]
"""


@pytest.fixture
def checkout(tmp_path):
    """Return a function that makes a small clone, with one kernel module in two builds."""
    stand_in = tmp_path / "site" / "Cython"
    (stand_in / "Build").mkdir(parents=True)
    (stand_in / "__init__.py").write_text("__version__ = '3.9'\n")
    (stand_in / "Build" / "__init__.py").write_text(CYTHONIZE)

    def make(name, source="pass\n"):
        tree = tmp_path / name
        for level in ("base", "v3"):
            (tree / "cvrcore_ext" / level).mkdir(parents=True)
        for subject in ("draws", "cpu"):
            (tree / "cvrcore_ext" / f"{subject}.pyx").write_text(source)
        setup = (ROOT / "setup.py").read_text()
        setup, n = re.subn(
            r"\n\nKEPT = ",
            '\n\nSUBJECTS = ("draws",)\nLEVELS = {"base": [], "v3": []}\n'
            'PARTS = {"base": ("draws", "cpu")}\nKEPT = ',
            setup,
        )
        assert n == 1
        (tree / "setup.py").write_text(setup)
        (tree / "pyproject.toml").write_text(PYPROJECT)
        return tree

    return make


def run_setup(tree, cache, *command, **settings):
    return subprocess.run(
        [sys.executable, "setup.py", *command],
        cwd=tree,
        env={
            **os.environ,
            "PYTHONPATH": str(tree.parent / "site"),
            "CVRCORE_EXT": "require",
            "CVRCORE_BUILD_CACHE": str(cache),
            **settings,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def build(tree, cache, **settings):
    done = run_setup(tree, cache, "build_ext", "--inplace", **settings)
    assert done.returncode == 0, done.stderr
    compiled = (tree / "calls.txt").exists()
    (tree / "calls.txt").unlink(missing_ok=True)
    for module in ("base.draws", "base.cpu", "v3.draws"):
        code = f"import cvrcore_ext.{module}"
        subprocess.run([sys.executable, "-c", code], cwd=tree, check=True, timeout=60)
    return compiled


def test_second_environment_copies(checkout, tmp_path):
    cache = tmp_path / "cache"
    assert build(checkout("first"), cache)
    second = checkout("second")
    assert not build(second, cache)
    assert not (second / "build" / "pyx" / "base" / "draws.c").exists()
    assert build(checkout("edited", "pass  # edited\n"), cache)
    assert build(checkout("flags"), cache, CFLAGS="-O1")
    assert not build(checkout("third"), cache)
    assert build(checkout("without"), "off")


def test_damaged_cache_is_built_again(checkout, tmp_path):
    cache = tmp_path / "cache"
    build(checkout("first"), cache)
    (folder,) = cache.iterdir()
    module = next(path for path in folder.iterdir() if path.name.endswith("base.draws"))
    module.write_bytes(module.read_bytes()[:100])
    assert build(checkout("second"), cache)
    assert not build(checkout("third"), cache)  # mended
    (folder / "modules.json").write_text(json.dumps(["nonsense"]))
    assert build(checkout("fourth"), cache)


def test_cache_that_cannot_be_written_fails_nothing(checkout, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert build(checkout("first"), tmp_path / "file" / "cache")


def requirements(tree, **settings):
    """Return what the metadata of a build require without an extra."""
    done = run_setup(tree, "off", "-q", "egg_info", **settings)
    assert done.returncode == 0, done.stderr
    lines = (tree / "small.egg-info" / "requires.txt").read_text().split()
    return lines[: lines.index("[numba]")]


def test_numba_is_required_where_no_kernels_are_built(checkout):
    assert requirements(checkout("first")) == ["numpy>=2.0"]
    assert requirements(checkout("auto"), CVRCORE_EXT="auto") == ["numpy>=2.0"]
    both = ["numpy>=2.0", "numba>=0.61"]
    assert requirements(checkout("skip"), CVRCORE_EXT="skip") == both
    assert requirements(checkout("none"), CVRCORE_EXT="auto", CC="false") == both


def test_required_kernels_without_a_compiler_end_the_build(checkout):
    done = run_setup(checkout("first"), "off", "egg_info", CC="false")
    assert done.returncode != 0
    assert "CVRCORE_EXT=require, but no C compiler works" in done.stderr


def test_a_kernel_that_fails_to_compile_ends_the_build(checkout):
    """Its metadata, made earlier, do not require Numba: going on would leave nothing to use."""
    tree = checkout("first")
    stand_in = tree.parent / "site" / "Cython" / "Build" / "__init__.py"
    stand_in.write_text(CYTHONIZE.replace("#include <Python.h>", "#error broken"))
    done = run_setup(tree, "off", "build_ext", "--inplace", CVRCORE_EXT="auto")
    assert done.returncode != 0
    assert "broken" in done.stderr
