"""Finished runs in, one compressed file per experiment out; and back into run folders.

``python -m fl.experiments.archive pack RUNS docs/results/runs`` adds the finished runs below RUNS
to ``docs/results/runs/<experiment>.jsonl.xz``; ``... unpack docs/results/runs RUNS`` writes them as
run folders again. Another machine so continues with ``cvrcore reproduce --out RUNS``, and
``python -m fl.experiments.export RUNS docs`` makes tables and figures anew. A line holds one run:
its settings, facts, origin (commit, kind of machine, command) and rounds by column, numbers to six
digits. Models, checkpoints and the picked clients are not kept; seconds are, as means over rounds.
"""

from __future__ import annotations

import json
import lzma
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np

from ..history import TIMING
from ..records import Record, StoreError, read_json, read_regular, read_rounds
from ..store import write_json
from .manifest import MANIFEST, deciding

SUFFIX: Final = ".jsonl.xz"
#: Bytes of an unpacked file; a file that claims more is refused.
MAX_UNPACKED: Final = 1 << 28
#: Numbers of a round that no table and no figure of an experiment reads.
_LEFT_OUT: Final = ("ari", "entropy", "simulated_seconds", "tv_max")
_RUN_FILES: Final = ("config.json", "facts.json", "summary.json")
_USAGE: Final = (
    "usage: python -m fl.experiments.archive pack RUNS ARCHIVE [COMMIT] | unpack ARCHIVE RUNS"
)


def pack(runs: Path, archive: Path, commit: str = "unknown") -> list[Path]:
    """Add the finished runs and manifests below `runs` to the files of `archive`.

    A run that the archive has already is replaced; one that is gone from `runs` stays in the
    archive. `commit` is that of runs whose facts do not name one. Return the files written.
    """
    manifests = {path.parent.name: read_json(path) for path in sorted(runs.glob(f"*/{MANIFEST}"))}
    commands = _commands(manifests)
    found: dict[str, dict[str, Record]] = {name: {} for name in manifests}
    for summary in sorted(runs.rglob("summary.json")):
        folder = summary.parent
        name = folder.relative_to(runs).as_posix()
        line = _line(folder, name, commit, commands.get(name, ""))
        found.setdefault(name.partition("/")[0], {})[name] = line
    written = []
    for experiment, lines in found.items():
        path = archive / f"{experiment}{SUFFIX}"
        kept = {str(line["folder"]): line for line in read_lines(path)} if path.exists() else {}
        kept |= lines
        if experiment in manifests:
            before = kept.get(experiment, {}).get("manifest", {})
            joined = join(before, _portable(manifests[experiment]))
            kept[experiment] = {"folder": experiment, "manifest": joined}
        text = "".join(
            json.dumps(kept[name], separators=(",", ":"), sort_keys=True) + "\n"
            for name in sorted(kept)
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(lzma.compress(text.encode("utf-8"), preset=9))
        os.replace(part, path)
        written.append(path)
    return written


def unpack(archive: Path, runs: Path) -> int:
    """Write the runs of `archive` as folders below `runs`; return how many are new.

    Run folders that exist already are left alone; manifests get the runs that are new.
    """
    count = 0
    for path in sorted(archive.glob(f"*{SUFFIX}")):
        for line in read_lines(path):
            folder = runs / _inside(line["folder"], path)
            if "manifest" in line:
                held = folder / MANIFEST
                before = read_json(held) if held.exists() else {}
                folder.mkdir(parents=True, exist_ok=True)
                write_json(held, join(line["manifest"], before))
                continue
            if folder.exists():
                continue
            records = _records(line["rounds"], path)
            part = folder.with_name(f".{folder.name}.part")  # an interrupted unpack leaves it
            part.mkdir(parents=True, exist_ok=True)
            for name in _RUN_FILES:
                write_json(part / name, line[name.removesuffix(".json")])
            rounds = "".join(json.dumps(record) + "\n" for record in records)
            (part / "rounds.jsonl").write_text(rounds, encoding="utf-8")
            os.replace(part, folder)
            count += 1
    return count


def read_lines(path: Path) -> Iterator[Record]:
    """Yield the lines of one file of an archive; StoreError if it is damaged or too large."""
    unpacker = lzma.LZMADecompressor()
    try:
        text = unpacker.decompress(read_regular(path), max_length=MAX_UNPACKED)
        if not unpacker.eof:
            raise StoreError(f"{path} must be complete and unpack to {MAX_UNPACKED} bytes at most")
        lines = [json.loads(line) for line in text.decode("utf-8").splitlines()]
    except (ValueError, lzma.LZMAError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {error}") from None
    for line in lines:
        whole = isinstance(line, dict) and isinstance(line.get("folder"), str)
        run = {"config", "facts", "summary", "rounds"}
        if not whole or not (isinstance(line.get("manifest"), dict) or run <= line.keys()):
            raise StoreError(f"{path} is damaged: a line must name a folder and hold a run")
        yield line


def join(older: Mapping[str, Any], newer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the newer of two manifests, with the runs that only the older one names.

    Runs are of the same cell where the settings are: a cell whose settings have changed keeps
    the newer runs, or the older ones if it has none.
    """
    if not newer or not older:
        return dict(newer or older)
    cells: dict[tuple[str, str], Any] = {(c["row"], c["column"]): c for c in older["cells"]}
    for cell in newer["cells"]:
        known = cells.get((cell["row"], cell["column"]), {"runs": []})
        if deciding(known.get("config") or {}) == deciding(cell.get("config") or {}):
            runs = sorted({*known["runs"], *cell["runs"]}, key=_by_seed)
            cell = {**cell, "runs": runs, "command": (cell if cell["runs"] else known)["command"]}
        elif not cell["runs"]:
            cell = known if known["runs"] else cell
        cells[cell["row"], cell["column"]] = cell
    first = [(c["row"], c["column"]) for c in newer["cells"]]
    order = [*first, *(key for key in cells if key not in first)]
    figures = list(dict.fromkeys([*older.get("figures", ()), *newer.get("figures", ())]))
    return {**newer, "cells": [cells[key] for key in order], "figures": figures}


def _by_seed(name: str) -> tuple[str, int]:
    folder, _, seed = name.rpartition("seed-")
    return folder, int(seed) if seed.isdigit() else -1


def _commands(manifests: Mapping[str, Any]) -> dict[str, str]:
    """Return the command of each run folder, as far as manifests name it."""
    return {
        os.path.normpath(f"{name}/{run}"): str(cell.get("command", ""))
        for name, manifest in manifests.items()
        for cell in manifest["cells"]
        for run in cell["runs"]
    }


def _line(folder: Path, name: str, commit: str, command: str) -> Record:
    config, facts, summary = (read_json(folder / file) for file in _RUN_FILES)
    records = read_rounds(folder / "rounds.jsonl", facts)
    facts = {key: value for key, value in facts.items() if key != "parameters"}
    facts["origin"] = {"commit": commit, "command": command} | (facts.get("origin") or {})
    return {
        "folder": name,
        "config": _placeless(config),
        "facts": facts,
        "summary": summary,
        "rounds": _columns(records),
    }


def _placeless(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without the folder of this machine's data."""
    return {**config, "data": {**config.get("data", {}), "data_dir": None}}


def _portable(manifest: Mapping[str, Any]) -> dict[str, Any]:
    cells = [{**c, "config": _placeless(c.get("config") or {})} for c in manifest["cells"]]
    return {**manifest, "cells": cells}


def _columns(records: Sequence[Record]) -> dict[str, list[Any]]:
    """Return rounds by column: numbers, mean seconds, and the samples processed."""
    parts = dict.fromkeys(part for record in records for part in record.get(TIMING, {}))
    means = {
        f"{TIMING}.{part}": float(np.mean([r.get(TIMING, {}).get(part, 0.0) for r in records]))
        for part in parts
    }
    flat = []
    for record in records:
        row = {k: v for k, v in record.items() if k not in _LEFT_OUT}
        if "sizes" in record:
            row["samples"] = sum(record["sizes"])
        row["n_failed"] = record.get("n_failed", len(record.get("failed", ())))
        flat.append({k: v for k, v in row.items() if isinstance(v, int | float)} | means)
    names = dict.fromkeys(name for row in flat for name in row)
    return {name: [_short(row.get(name)) for row in flat] for name in names}


def _records(columns: Any, path: Path) -> list[Record]:
    if not isinstance(columns, Mapping) or not all(isinstance(c, list) for c in columns.values()):
        raise StoreError(f"{path} is damaged: rounds must be lists by name")
    if len({len(column) for column in columns.values()}) > 1:
        raise StoreError(f"{path} is damaged: columns of rounds must be of one length")
    records = []
    for values in zip(*columns.values(), strict=True):
        record: Record = {TIMING: {}}
        for name, value in zip(columns, values, strict=True):
            group, dot, part = name.partition(".")
            if dot and group == TIMING:
                record[TIMING][part] = value
            elif value is not None:
                record[name] = value
        if "warmup" in record:  # a round in which clients were picked
            record |= {"picked": [], "reported": [], "failed": []}
        records.append(record)
    return records


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _inside(name: Any, path: Path) -> PurePosixPath:
    place = PurePosixPath(str(name))
    if place.is_absolute() or ".." in place.parts or not place.parts:
        raise StoreError(f"{path}: folders must be relative and inside, got {name!r:.80}")
    return place


def main() -> None:
    """Pack or unpack the folders named on the command line."""
    match sys.argv[1:]:
        case ["pack", runs, archive, *commit] if len(commit) < 2:
            for path in pack(Path(runs), Path(archive), *commit):
                print(path)
        case ["unpack", archive, runs]:
            print(f"{unpack(Path(archive), Path(runs))} runs")
        case _:
            sys.exit(_USAGE)


if __name__ == "__main__":
    main()
