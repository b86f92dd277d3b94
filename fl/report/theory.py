"""Theorem 1 as measured: the table behind the figure of ``cvrcore reproduce theory``."""

from __future__ import annotations

from pathlib import Path

from ..store import StoreError, read_json
from .collect import Experiment, ReportError
from .results import file_stem
from .tables import Column, Table

NAME = "theory.json"
_COLUMNS = [
    Column("groups", "clients"),
    Column("step", "η", 3),
    Column("smoothness", "L", 3),
    Column("second_moment", "M", 3),
    Column("alignment", "c", 3),
    Column("worst_alignment", "worst c", 3),
    Column("mean_square", "measured", 5, strong=True),
    Column("bound", "bound", 5),
    Column("finite_bound", "bound at finite T", 5),
]


def theory_table(experiment: Experiment, folder: Path) -> Table | None:
    """Return the measured side of Theorem 1 beside its bound, if the folder holds it.

    Raises
    ------
    ReportError
        If ``theory.json`` is damaged.
    """
    path = folder / NAME
    if not path.is_file():
        return None
    try:
        found = read_json(path)
        asked, rows = found["asked"], [dict(verdict) for verdict in found["verdicts"]]
        rounds, seeds = asked["rounds"], asked["seeds"]
    except StoreError as error:
        raise ReportError(str(error)) from None
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(f"{path} is damaged: {error!r}") from None
    caption = (
        f"Measured: the mean of squared gradient norms over {rounds} rounds, {seeds} seeds, for "
        "step length η. Bound: L M η / 2 c with L, M and c measured; at finite T it has a term "
        "more. Worst c: the least alignment of any single round."
    )
    name, title = file_stem(experiment, "bound"), f"{experiment.title}: Measured and bound"
    return Table(name, title, caption, _COLUMNS, rows, experiment.quick)
