"""Builds the optional Cython kernels; everything else is in pyproject.toml.

CVRCORE_EXT=auto     build the kernels if a compiler works (default)
CVRCORE_EXT=require  fail if the kernels cannot be built
CVRCORE_EXT=skip     do not build; the Numba kernels are used
"""

import os
import platform
import shutil
from pathlib import Path

from setuptools import Extension, setup

SUBJECTS = (
    "affinity",
    "convolution",
    "covariance",
    "draws",
    "kmeans",
    "lloyd",
    "packed",
    "subspace",
)
# No contraction and no fast-math: a fused or reordered sum would differ from Numba's.
FLAGS = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
if os.name == "nt":
    FLAGS = []
LEVELS = {"base": []}
if platform.machine() in ("x86_64", "AMD64") and os.name != "nt":
    LEVELS["v3"] = ["-march=x86-64-v3"]
    LEVELS["v4"] = ["-march=x86-64-v4", "-mprefer-vector-width=512"]
#: What is built for a level; every subject where nothing is said.
PARTS = {"base": (*SUBJECTS, "cpu"), "v4": ("convolution",)}


def kernels(mode):
    """Return one extension per kernel module and instruction set."""
    from Cython.Build import cythonize

    found = []
    for level, flags in LEVELS.items():
        folder = Path("build") / "pyx" / level
        folder.mkdir(parents=True, exist_ok=True)
        for subject in PARTS.get(level, SUBJECTS):
            # A copy per level: Cython writes its C file beside the source.
            source = folder / f"{subject}.pyx"
            original = Path("cvrcore_ext") / f"{subject}.pyx"
            if not source.exists() or source.read_bytes() != original.read_bytes():
                shutil.copyfile(original, source)
            found.append(
                Extension(
                    f"cvrcore_ext.{level}.{subject}",
                    [str(source)],
                    include_dirs=["cvrcore_ext"],
                    depends=sorted(map(str, Path("cvrcore_ext").glob("*.h"))),
                    extra_compile_args=FLAGS + flags,
                )
            )
    directives = {
        "language_level": 3,
        "boundscheck": False,
        "wraparound": False,
        "initializedcheck": False,
        "cdivision": True,
    }
    modules = cythonize(found, compiler_directives=directives)
    for module in modules:  # cythonize drops the `optional` flag
        module.optional = mode == "auto" or ".base." not in module.name
    return modules


mode = os.environ.get("CVRCORE_EXT", "auto")
if mode not in ("auto", "require", "skip"):
    raise SystemExit(f"CVRCORE_EXT must be auto, require or skip, got {mode!r}")
try:
    modules = [] if mode == "skip" else kernels(mode)
except ImportError:
    if mode == "require":
        raise
    modules = []
setup(ext_modules=modules, options={"build_ext": {"parallel": os.cpu_count() or 1}})
