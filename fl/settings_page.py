"""Config classes in, the page docs/settings.md out: ``python -m fl.settings_page [FILE]``."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cvrcore import CoalitionSelector, Rule, Solver

from .changes import paths_of
from .config import RunConfig
from .config_text import toml_value
from .meanings import TABLES, meaning
from .presets import PRESETS

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
_HEAD = """# Settings

Made from the config classes by `make settings`; do not edit.

```
cvrcore config init > run.toml        # every setting, commented: a file to start from
cvrcore run --config run.toml --print-config   # what would run, and nothing runs
cvrcore run --config run.toml --set n_clients=20 --set selection.options.warmup=5
```

The same in Python: `fl.make_config("mnist", "fedcvr-bolt", n_clients=20, training={"lr": 0.1})`.
Tables merge; a setting whose name no other table has needs no table. Arguments win over the file,
the file over the preset.
"""


def settings_page() -> str:
    """Return the page as Markdown."""
    return "\n".join([_HEAD, *_setting_tables(), *_preset_table(), *_policy_options()]) + "\n"


def _setting_tables() -> Iterator[str]:
    plain = RunConfig().to_dict()
    for table, paths in itertools.groupby(paths_of(RunConfig), lambda path: ".".join(path[:-1])):
        yield f"## {TABLES.get(table, table)}\n"
        yield "| setting | default | meaning |\n|---|---|---|"
        for path in paths:
            value: Any = plain
            for name in path:
                value = value[name]
            yield _row(f"`{'.'.join(path)}`", _code(value), meaning(RunConfig, path))
        yield ""


def _preset_table() -> Iterator[str]:
    """Yield what presets change of the defaults, by data set."""
    yield "## What a preset and a data set change\n"
    yield (
        "Settings that are not listed keep their default. A preset that is named "
        "(`--preset paper`) also has FedCVR-Bolt's warm-up of 30 rounds; without one it is `auto`, "
        "see [algorithm.md](algorithm.md). The preset `scripts` also sets `empty_test`, and "
        "options of some policies.\n"
    )
    plain = RunConfig()
    names = sorted({name for sets in PRESETS.values() for one in sets.values() for name in one})
    heads = [f"`{name.replace('__', '.')}`" for name in names]
    yield _row("preset", "data set", *heads) + "\n" + _row(*["---"] * (2 + len(names)))
    for preset, sets in PRESETS.items():
        for dataset, settings in sets.items():
            changed = plain.replace(**settings).to_dict()
            cells = []
            for name in names:
                value: Any = changed
                for part in name.split("__"):
                    value = value[part]
                cells.append(_code(value))
            yield _row(preset, dataset, *cells)
    yield ""


def _policy_options() -> Iterator[str]:
    """Yield the options of FedCVR-Bolt, from the docstrings of its classes."""
    yield "## Options of FedCVR-Bolt\n"
    yield (
        "As `selection.options.NAME` here, as keywords of `cvrcore.CoalitionSelector`, or in its "
        "objects `Rule` and `Solver`. Limits on hostile clients, for every policy: "
        "[reliability.md](reliability.md). Options of other policies: [policies.md](policies.md).\n"
    )
    yield "| option | default | meaning |\n|---|---|---|"
    own = inspect.signature(CoalitionSelector).parameters
    shown = ("warmup", "dtype", "preset")
    for name, text in documented(CoalitionSelector):
        if name in shown:
            yield _row(f"`{name}`", _code(own[name].default), text)
    for kind in (Rule, Solver):
        defaults = {field.name: field.default for field in dataclasses.fields(kind)}
        for name, text in documented(kind):
            yield _row(f"`{name}`", _code(defaults[name]), text)


def documented(kind: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield name and text of each parameter that a NumPy-style docstring documents."""
    document = inspect.getdoc(kind) or ""
    section = re.search(r"Parameters\n-+\n(.*?)(?=\n\n\S+\n-+\n|\Z)", document, re.DOTALL)
    for entry in re.split(r"\n(?=\S)", section[1] if section else ""):
        first, _, rest = entry.partition("\n")
        names, _, kinds = first.partition(" : ")
        text = re.sub(r"`+([^`]+)`+", r"`\1`", " ".join(rest.split()))
        allowed = re.search(r"\{.*\}", kinds)
        for name in names.split(", "):
            yield name, f"{allowed[0]}: {text}" if allowed else text


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _code(value: Any) -> str:
    return "not set" if value is None else f"`{toml_value(value)}`"


if __name__ == "__main__":
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    page.write_text(settings_page(), encoding="utf-8")
    print(f"wrote {page}")
