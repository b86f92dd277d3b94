"""Data flows one way: which package may import which, read from the source."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STEPS = ("clustering", "covariance", "draws")


def modules(*folders):
    """Return every source file below some folders, with its dotted name."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield path, parts[:-1] if parts[-1] == "__init__" else parts


def imports(path, parts):
    """Yield (absolute module, name or None) of every import of a file, those in functions too."""
    package = parts if path.name == "__init__.py" else parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *filter(None, [node.module])))
            for alias in node.names:
                yield module, alias.name


def imported_parts(path, parts):
    """Return the packages and modules directly below cvrcore that a file imports."""
    found = set()
    for module, name in imports(path, parts):
        names = module.split(".")
        if names[0] == "cvrcore":
            found.add(names[1] if len(names) > 1 else name)
    return found


@pytest.mark.parametrize("step", STEPS)
def test_steps_do_not_import_each_other(step):
    others = {*STEPS, "selectors", "algorithm", "aggregators", "integrations"} - {step}
    for path, parts in modules(f"cvrcore/{step}"):
        assert not imported_parts(path, parts) & others, path


@pytest.mark.parametrize("base", ["kernels", "runtime"])
def test_kernels_and_runtime_import_no_step(base):
    others = {*STEPS, "selectors", "algorithm", "aggregators", "integrations", "selection"}
    for path, parts in modules(f"cvrcore/{base}"):
        assert not imported_parts(path, parts) & others, path


@pytest.mark.parametrize("looking", ["tracking", "watch", "plot"])
def test_looking_at_a_run_needs_no_selector(looking):
    """Trackers, page and plots read plain records and public arrays: no policy, no framework."""
    for path, parts in modules(f"cvrcore/{looking}"):
        found = imported_parts(path, parts)
        assert not found & {"selectors", "aggregators", "covariance", "draws", "kernels"}, path
        for module, _ in imports(path, parts):
            if module.startswith("cvrcore.integrations"):
                assert module == "cvrcore.integrations.extras", path


@pytest.mark.parametrize("user", ["clustering", "covariance", "draws", "selectors", "aggregators"])
def test_the_core_knows_nothing_of_trackers(user):
    for path, parts in modules(f"cvrcore/{user}"):
        assert not imported_parts(path, parts) & {"tracking", "watch", "plot"}, path


def test_selection_imports_no_solver():
    path = ROOT / "cvrcore" / "selection.py"
    assert imported_parts(path, ("cvrcore", "selection")) == {"validation"}


def test_uniform_loads_no_eigensolver():
    code = """
import sys, json, cvrcore
selector = cvrcore.make_selector("uniform", 20, 4, seed=0)
selector.observe(selector.select().clients)
print(json.dumps(sorted(m for m in sys.modules if m.startswith("cvrcore."))))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = {name.split(".")[1] for name in json.loads(done.stdout)}
    assert loaded <= {"guards", "runtime", "selection", "selectors", "validation"}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize("user", ["fl", "cvrcore/integrations"])
def test_no_private_name_of_the_core_is_used(user):
    """Neither imported nor reached through an object that is not the caller's own."""
    for path, parts in modules(user):
        own = ".".join(parts[: len(Path(user).parts)])
        for module, name in imports(path, parts):
            if module.split(".")[0] == "cvrcore" and not module.startswith(own):
                assert not any(map(is_private, module.split("."))), (path, module)
                assert not is_private(name or ""), (path, module, name)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and is_private(node.attr):
                target = ast.unparse(node.value)
                for owner in ("selector", "picked", "aggregator"):
                    assert owner not in target.lower(), (path, node.lineno, target)


def test_flat_modules_stay_few():
    flat = [path.name for path in (ROOT / "cvrcore").glob("*.py")]
    assert len(flat) <= 12, flat


def test_every_public_name_resolves():
    import cvrcore

    assert set(cvrcore.__all__) <= set(dir(cvrcore))
    for name in cvrcore.__all__:
        assert getattr(cvrcore, name) is not None
    assert callable(cvrcore.coalitions)
    with pytest.raises(AttributeError, match="has no attribute 'coalition'"):
        _ = cvrcore.coalition


def test_the_public_function_survives_every_import():
    """No subpackage may take the name of a public function."""
    code = """
import importlib, pkgutil, cvrcore
names = cvrcore.__all__
before = {name: getattr(cvrcore, name) for name in names}
for module in pkgutil.walk_packages(cvrcore.__path__, "cvrcore."):
    needs_extra = ("cvrcore.integrations.", "cvrcore.__main__", "cvrcore.watch.")
    if not module.name.startswith(needs_extra):
        importlib.import_module(module.name)
assert all(getattr(cvrcore, name) is before[name] for name in names)
"""
    subprocess.run([sys.executable, "-c", code], timeout=120, check=True)
