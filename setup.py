"""Builds the optional Cython kernels; everything else is in pyproject.toml.

CVRCORE_EXT=auto     build the kernels if a C compiler works (default)
CVRCORE_EXT=require  fail if there is no C compiler that works
CVRCORE_EXT=skip     do not build; the Numba kernels are used

A build without kernels requires Numba, one with kernels does not. The list of requirements is
made before anything is compiled, so that a compiler is tried out first, on a small module;
if it works, a kernel that then fails to compile ends the build.

Modules are compiled in parallel. Built modules are kept in a cache, so that a second environment
or clone on the same machine copies them: CVRCORE_BUILD_CACHE=FOLDER (default:
~/.cache/cvrcore/kernels), or off.
"""

import hashlib
import json
import os
import platform
import shutil
import sysconfig
import tempfile
import tomllib
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext

SUBJECTS = (
    "affinity",
    "coarse",
    "convolution",
    "covariance",
    "draws",
    "facility",
    "kmeans",
    "lloyd",
    "packed",
    "pivotal",
    "sparse_mlp",
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
PARTS = {"base": (*SUBJECTS, "cpu"), "v4": ("convolution", "sparse_mlp")}

KEPT = 4  # builds in the cache


class Cache:
    """Finished builds on disk, one folder each, named by a hash of everything that goes in."""

    def __init__(self, cython):
        wanted = os.environ.get("CVRCORE_BUILD_CACHE", "")
        usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        root = Path(wanted) if wanted else usual / "cvrcore" / "kernels"
        self.folder = None if wanted == "off" else root / self._key(cython)

    @staticmethod
    def _key(cython):
        settings = ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS")
        facts = [cython, platform.machine(), *platform.libc_ver(), platform.python_version()]
        facts += [str(sysconfig.get_config_var(name)) for name in ("EXT_SUFFIX", "CC", "CFLAGS")]
        facts += [os.environ.get(name, "") for name in settings]
        digest = hashlib.sha256(json.dumps(facts).encode())
        sources = [Path("cvrcore_ext").glob(pattern) for pattern in ("*.pyx", "*.pxd", "*.h")]
        for path in [Path(__file__), *sorted(path for some in sources for path in some)]:
            content = path.read_bytes()
            digest.update(f"{path.name} {len(content)} ".encode() + content)
        return digest.hexdigest()[:24]

    def find(self):
        """Return the file of each module; none unless every file is there and whole."""
        try:
            listed = json.loads((self.folder / "modules.json").read_text())
            found = {name: self.folder / name for name in listed}
            whole = all(_hash(path) == listed[name] for name, path in found.items())
        except (OSError, TypeError, ValueError, AttributeError):
            return {}
        return found if whole else {}

    def keep(self, built):
        """Copy built modules into the cache, all or none; a cache that fails changes nothing."""
        if self.folder is None:
            return
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(dir=self.folder.parent))
            for name, path in built.items():
                shutil.copyfile(path, scratch / name)
            hashes = {name: _hash(scratch / name) for name in built}
            (scratch / "modules.json").write_text(json.dumps(hashes))
            shutil.rmtree(self.folder, ignore_errors=True)
            os.replace(scratch, self.folder)
            builds = sorted(self.folder.parent.iterdir(), key=lambda path: path.stat().st_mtime)
            for old in builds[:-KEPT]:
                shutil.rmtree(old, ignore_errors=True)
        except OSError as error:
            print(f"cvrcore: built modules are not cached: {error}")


def _hash(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


class BuildKernels(build_ext):
    """Compile the modules, or copy all of them from the cache."""

    cache = None
    cached = {}  # file of each module, if the cache has them all

    def build_extension(self, extension):
        if extension.name not in self.cached:
            super().build_extension(extension)
            return
        target = Path(self.get_ext_fullpath(extension.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.cached[extension.name], target)

    def build_extensions(self):
        if self.cached:
            print(f"cvrcore: kernels are copied from {self.cache.folder}")
        super().build_extensions()
        built = {e.name: Path(self.get_ext_fullpath(e.name)) for e in self.extensions}
        if self.cache and not self.cached and all(path.exists() for path in built.values()):
            self.cache.keep(built)


#: The kernels use vectors as GCC and Clang know them.
PROBE = """
#include <Python.h>
typedef double lanes __attribute__((vector_size(16)));
PyObject *PyInit_probe(void) { lanes a = {0.0, 0.0}; return a[0] > 0.0 ? Py_None : NULL; }
"""


def compiler_works():
    """Return whether a small module can be compiled and linked."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "probe.c"
        source.write_text(PROBE)
        probe = Extension("probe", [str(source)], extra_compile_args=FLAGS)
        command = build_ext(Distribution({"name": "probe", "ext_modules": [probe]}))
        command.build_lib = command.build_temp = scratch
        command.ensure_finalized()
        try:
            command.run()
        except Exception as error:  # each compiler class raises errors of its own
            print(f"cvrcore: no C compiler works: {error}")
            return False
    return True


def kernels(mode):
    """Return one extension per kernel module and instruction set; none without a compiler."""
    import Cython
    from Cython.Build import cythonize

    BuildKernels.cache = Cache(Cython.__version__)
    found_in_cache = BuildKernels.cache.find()

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
    if {module.name for module in found} == set(found_in_cache):
        BuildKernels.cached = found_in_cache
        return found  # nothing to compile: sources are not read
    if not compiler_works():
        if mode == "require":
            raise SystemExit("CVRCORE_EXT=require, but no C compiler works: see the lines above")
        return []
    modules = cythonize(found, compiler_directives=directives)
    for module in modules:  # a compiler may not know the newer instruction sets
        module.optional = ".base." not in module.name  # cythonize drops the flag
    return modules


def requirements(has_kernels):
    """Return the packages that the build needs at run time."""
    with open("pyproject.toml", "rb") as file:
        settings = tomllib.load(file)
    needed = settings["tool"]["cvrcore"]["dependencies"]
    return needed if has_kernels else needed + settings["project"]["optional-dependencies"]["numba"]


mode = os.environ.get("CVRCORE_EXT", "auto")
if mode not in ("auto", "require", "skip"):
    raise SystemExit(f"CVRCORE_EXT must be auto, require or skip, got {mode!r}")
try:
    modules = [] if mode == "skip" else kernels(mode)
except ImportError:
    if mode == "require":
        raise
    modules = []
setup(
    ext_modules=modules,
    install_requires=requirements(bool(modules)),
    cmdclass={"build_ext": BuildKernels},
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
)
