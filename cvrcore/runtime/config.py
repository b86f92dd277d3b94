"""Configuration of this process: nothing in, text for a bug report out."""

from __future__ import annotations

import importlib

from ..kernels import dispatch
from .threads import n_threads


def show_config() -> str:
    """Return version, backend, threads and BLAS as text.

    Examples
    --------
    >>> import cvrcore
    >>> print(cvrcore.show_config())  # doctest: +ELLIPSIS
    cvrcore ...
    """
    # Imported here: these modules take longer to import than the rest of this package.
    import platform

    from threadpoolctl import ThreadpoolController

    from .. import __version__

    lines = [f"cvrcore {__version__}", f"python {platform.python_version()}"]
    lines.append(f"platform {platform.platform()}")
    serving = dispatch.backend()
    if serving == "cython":
        serving += f" ({importlib.import_module('cvrcore_ext').instruction_set()} build)"
    lines += [f"backend {serving}", f"threads {n_threads()}"]
    for pool in ThreadpoolController().info():
        if pool["user_api"] == "blas":
            name, version = pool["internal_api"], pool.get("version") or "unknown version"
            lines.append(f"blas {name} {version}, {pool['num_threads']} threads")
    packages = ("numpy", "scipy", "scikit-learn", "numba", "torch")
    lines += [f"{package} {_version(package)}" for package in packages]
    return "\n".join(lines)


def _version(package: str) -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
