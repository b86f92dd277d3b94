"""Settings of several methods in, runs over paired seeds, one table and one figure out."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import RunConfig
from ..history import History, Record
from ..loop import run
from ..store import write_json
from .bands import band_text, draw_bands
from .credit import merging, picking, server_step, warmup_note
from .drawing import colours
from .statistics import band, paired_difference, seeds_text, spreads
from .table import Row, write_csv

#: Numbers of a row that are shown without their deviation.
_COSTS = (
    "rounds_to_target", "megabytes", "tv_mean", "seconds", "simulated_seconds",
    "simulated_seconds_to_target",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The `histories` of several methods: for each method one per seed, in the same order."""

    histories: Mapping[str, Sequence[History]]

    def table(self) -> list[Row]:
        """Return one row per method, as plain values.

        ``final``, ``last_five`` and ``best`` are means over seeds, beside two standard
        deviations (``_2std``, None for a single seed). ``gain`` is the mean paired
        difference of ``last_five`` to the first method, ``gain_2se`` two standard errors of
        it, ``gain_low`` and ``gain_high`` its interval by the rule of `statistics`.
        ``rounds_to_target`` is the mean over the ``reached`` seeds that got there, and so is
        ``simulated_seconds_to_target``, where devices are simulated (``fleet.enabled``).
        ``server`` says what the server makes of the aggregated update: "step 4, averaged", or
        None where it takes the update as it is. ``seconds`` are those of a run.
        """
        late = {
            method: {i: history.last_five() for i, history in enumerate(histories)}
            for method, histories in self.histories.items()
        }
        baseline = next(iter(late.values()))
        rows = []
        for method, histories in self.histories.items():
            found = spreads(histories, 1.0, histories[0].config.target)
            found["worst_decile"] = found["final_worst_decile"]
            config = histories[0].config
            row: Row = {"method": method, "metric": histories[0].metric, "seeds": len(histories)}
            row |= {"picks": config.selection.policy, "merges": config.aggregator}
            row["server"] = server_step(config.server)
            for name in ("final", "last_five", "best", "worst_decile"):
                row |= {name: found[name].mean, f"{name}_2std": found[name].two_std}
            gain = paired_difference(late[method], baseline)
            row |= {"gain": gain.mean, "gain_2se": gain.two_se}
            row |= {"gain_low": gain.low, "gain_high": gain.high}
            row["reached"] = found["rounds_to_target"].n
            for name in _COSTS:
                row[name] = found[name].mean
            rows.append(row)
        return rows

    def notes(self) -> list[str]:
        """Return lines on what is compared: warm-up, equal curves, where a gain comes from."""
        notes = []
        first, reference = next(iter(self.histories.items()))
        for method, histories in self.histories.items():
            if note := warmup_note(histories):
                notes.append(f"{method}: {note}")
            if method != first and all(
                mine.column(mine.metric)[1].tolist() == theirs.column(theirs.metric)[1].tolist()
                for mine, theirs in zip(histories, reference, strict=True)
            ):
                notes.append(f"{method} and {first} are equal in every evaluation: same draws")
        return notes + self.credits()

    def credits(self) -> list[str]:
        """Return a line for each method whose merging differs from the first method's too.

        Where a third method shares the first one's selection and this one's aggregation, the
        difference is split: what aggregation alone gives, and what selection adds to it.
        """
        configs = {name: some[0].config for name, some in self.histories.items()}
        (first, reference), *others = configs.items()
        late = {
            name: {i: history.last_five() for i, history in enumerate(some)}
            for name, some in self.histories.items()
        }
        accuracy = next(iter(self.histories.values()))[0].metric == "accuracy"
        scale, form, unit = (100.0, "+.1f", "points") if accuracy else (1.0, "+.4f", "MSE")
        lines = []
        for name, config in others:
            if merging(config) == merging(reference) or picking(config) == picking(reference):
                continue
            alone = [
                other
                for other, one in others
                if merging(one) == merging(config) and picking(one) == picking(reference)
            ]
            if alone:
                whole, part = (paired_difference(late[n], late[first]) for n in (name, alone[0]))
                added = paired_difference(late[name], late[alone[0]])
                if None not in (whole.mean, part.mean, added.mean):
                    total, merged, picked = (
                        f"{scale * value:{form}}"
                        for value in (whole.mean, part.mean, added.mean)
                        if value is not None
                    )
                    lines.append(
                        f"{name} minus {first} is {total} {unit}: aggregation alone ({alone[0]}) "
                        f"gives {merged}, selection added to it {picked}"
                    )
            else:
                lines.append(
                    f"{name} differs from {first} in selection and in aggregation or server step: "
                    "its gain does not come from selection alone"
                )
        return lines

    def figure(self, path: str | os.PathLike[str]) -> None:
        """Draw the metric by round, means with bands; the title says what the bands are.

        A dashed line marks the target of the first method, if it has one.
        """
        first = next(iter(self.histories.values()))[0]
        accuracy = first.metric == "accuracy"
        scale = 100.0 if accuracy else 1.0
        bands = {name: band(some, first.metric, scale) for name, some in self.histories.items()}
        n_seeds = len(next(iter(self.histories.values())))
        seeds = [] if n_seeds == 1 else [seeds_text(n_seeds)]  # the text on bands says "one seed"
        title = ", ".join([first.config.data.dataset, *seeds, band_text(bands)])
        reference = next(iter(bands))
        target = first.config.target
        figure = draw_bands(
            bands,
            colours(list(bands)),
            accuracy,
            reference=reference,
            target=None if target is None else scale * target,
            title=title,
        )
        figure.savefig(path, dpi=150)

    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write ``table.csv``, ``table.json`` and ``curves.png``; return their paths."""
        table, data, curves = (Path(folder) / f for f in ("table.csv", "table.json", "curves.png"))
        rows = self.table()
        write_csv(table, rows)
        write_json(data, rows)
        self.figure(curves)
        return [table, data, curves]


def compare(
    configs: Mapping[str, RunConfig],
    seeds: Sequence[int],
    folder: str | os.PathLike[str] | None = None,
    progress: bool | Callable[[Record], None] = False,
    **brought: Any,
) -> Comparison:
    """Run each config with each seed.

    Parameters
    ----------
    configs : dict
        Settings by the name that tables show; their seed is replaced.
    seeds : sequence of int
        Each gives all methods the same data, first model and batch orders.
    folder : path, optional
        One sub-folder per run. Runs found there are continued, or read if finished.
    progress : bool or callable
        As in `fl.run`.
    **brought
        ``federation``, ``model``, ``loss`` and ``metric`` of `fl.run`.
    """
    if not configs or not seeds:
        raise ValueError("configs and seeds must not be empty")
    histories: dict[str, list[History]] = {name: [] for name in configs}
    for seed in seeds:
        for name, config in configs.items():
            place = None if folder is None else Path(folder) / f"{name}-seed{seed}"
            histories[name].append(
                run(config.replace(seed=seed), place, resume=True, progress=progress, **brought)
            )
    return Comparison(histories)
