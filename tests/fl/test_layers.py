"""Which module may import which: experiments in one direction, cvrcore by its public names."""

import ast
from pathlib import Path

import pytest

FL = Path(__file__).parents[2] / "fl"
#: Modules of `fl.experiments` in the order in which data flow.
FLOW = (
    "paper", "definition", "manifest", "archive", "definitions", "results", "grouping", "table",
    "statistics", "regimes", "shares", "measures", "credit", "columns", "text_tables",
    "policy_tables", "documents",
    "page_tables", "summary", "drawing", "bands", "figures", "clock", "heatmaps", "maps", "html",
    "page", "compare", "export", "runner",
)  # fmt: skip
#: A definition names the figures that the runner draws once its runs are there.
NAMED = {"definitions": {"clock", "drawing", "figures", "heatmaps", "results", "table"}}


def imports(path):
    """Yield the module and the names of every import of a file; relative ones begin with dots."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)


@pytest.mark.parametrize("path", sorted(FL.rglob("*.py")), ids=lambda path: path.stem)
def test_no_private_name_of_cvrcore_is_imported(path):
    for module, names in imports(path):
        if module.partition(".")[0] == "cvrcore":
            private = [word for word in (*module.split("."), *names) if word.startswith("_")]
            assert not private, f"{module}: {private}"


def test_data_of_experiments_flow_one_way():
    known = {path.stem for path in (FL / "experiments").glob("*.py")} - {"__init__"}
    assert known | {"definitions"} == set(FLOW)
    for name in FLOW:
        place = FL / "experiments" / name
        files = sorted(place.glob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
        for path in files:
            dots = ".." if place.is_dir() else "."
            for module, names in imports(path):
                if module == dots:
                    found = set(names) & known
                elif module.startswith(dots) and not module.startswith(dots + "."):
                    found = {module.removeprefix(dots).partition(".")[0]}
                else:
                    continue
                later = found - set(FLOW[: FLOW.index(name)]) - NAMED.get(name, set()) - {name}
                assert not later, f"{path.name} imports {later}"
