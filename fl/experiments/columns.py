"""Keys of rows in, columns of tables out: how each number is printed, with its noise."""

from __future__ import annotations

from collections.abc import Sequence

from .table import Column, Row


def pair(
    heading: str, name: str, digits: int = 2, scale: float = 1.0, missing: str = "not run"
) -> Column:
    """Return a column of means, beside two standard deviations where the row has them."""

    def text(row: Row) -> str:
        if row[name] is None:
            return "-" if row["seeds"] else missing
        two_std = row[f"{name}_2std"]
        noise = "" if two_std is None else f" ± {scale * two_std:.{digits}f}"
        return f"{scale * row[name]:.{digits}f}{noise}"

    return Column(heading, show=text)


def gap(heading: str, names: Sequence[str], digits: int = 2, scale: float = 1.0) -> Column:
    """Return a column of differences beside their intervals; `names` are all three keys.

    A fourth key is that of the number of pairs, shown where it is known and not that of the seeds.
    """

    def text(row: Row) -> str:
        mean, low, high, *pairs = (row[name] for name in names)
        if mean is None:
            return "-"
        found = f"{scale * mean:+.{digits}f}"
        if low is not None:
            found += f" [{scale * low:+.{digits}f}, {scale * high:+.{digits}f}]"
        if not pairs or pairs[0] in (None, row["seeds"]):
            return found
        return f"{found} ({pairs[0]} pair{'s' * (pairs[0] != 1)})"

    return Column(heading, show=text)


def versus_column(heading: str, name: str, digits: int = 2) -> Column:
    """Return a column of the differences that `measures.versus` calls `name`."""
    return gap(heading, (name, f"{name}_low", f"{name}_high", f"{name}_pairs"), digits)


def rounds_text(row: Row) -> str:
    """Return the rounds that a row took to its target, as text."""
    if row["target"] is None:
        return "-"
    if not row["reached"]:
        return "never" if row["seeds"] else "not run"
    missed = row["seeds"] - row["reached"]
    return f"{row['rounds_to_target']:.0f}" + (f" ({missed} never)" if missed else "")


def reached_text(row: Row) -> str:
    """Return the rounds to the target, and in brackets how many seeds reached it."""
    return f"{row['rounds_to_target']:.0f} ({row['reached']})" if row["reached"] else "-"


def server_text(row: Row) -> str:
    """Return what policy and aggregator hold together, in megabytes."""
    held = (row["selector_megabytes"], row["memory_megabytes"])
    return "-" if None in held else f"{sum(held):.1f}"


def milliseconds_text(row: Row) -> str:
    """Return what selection and merge take together, in milliseconds a round."""
    parts = (row["select_ms"], row["merge_ms"])
    return "-" if None in parts else f"{sum(parts):.1f}"


def present(columns: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    """Return the columns that say something about at least one row."""
    return [c for c in columns if any(c.text(row) not in ("-", "") for row in rows)]


def percent_text(row: Row, form: str) -> str:
    """Return the target in percent, in the words of `form`; nothing without a target."""
    return "" if row["target"] is None else form.format(100 * row["target"])


SEEDS = Column("seeds", "seeds")
DIFFERENCE = ("difference", "low", "high", "pairs")
#: Columns of the experiment ``theory``.
THEORY = (
    Column("clients", "groups"),
    Column("eta", "step", "g"),
    Column("L", "smoothness", ".2f"),
    Column("M", "second_moment", ".2f"),
    Column("c, mean", "alignment", ".2f"),
    Column("c, worst round", "worst_alignment", ".2f"),
    Column("measured", "mean_square", ".3f", strong=True),
    Column("bound", "bound", ".3f"),
    Column("with start", "finite_bound", ".3f"),
)
VARIANCE = (
    Column("policy", "policy"),
    Column("aggregator", "aggregator"),
    Column("unbiased", show=lambda row: "yes" if row["unbiased"] else "no"),
    Column("bias", "bias", ".3f"),
    Column("in standard errors", "errors", ".1f"),
    Column("variance / FedAvg's", "variance", ".3f"),
    Column("squared error / FedAvg's", "mean_square", ".3f"),
)
#: Columns of the experiments ``step-error`` and ``leakage``.
STEP_ERROR = (
    Column("", show=lambda row: f"{row['dataset']}, K={row['clients']}"),
    Column("rounds", "rounds"),
    Column("draw", "draw"),
    Column("estimator", "estimator"),
    SEEDS,
    Column("error", show=lambda row: _with_std(row, "error")),
    Column("lasting", show=lambda row: _with_std(row, "lasting")),
)
LEAKAGE = (
    Column("", show=lambda row: f"{row['dataset']}, K={row['clients']}"),
    Column("features", "features"),
    SEEDS,
    Column("labels explained", show=lambda row: _with_std(row, "explained")),
    Column("largest class found", show=lambda row: _with_std(row, "top")),
)
PAIRED = (
    Column("", show=lambda row: f"{row['row']}: {row['method']}"),
    Column("minus", "against"),
    SEEDS,
    versus_column("last five, points", "last_five"),
    versus_column("spread, points", "spread"),
    versus_column("worst tenth, points", "worst_decile"),
    versus_column("rounds to aim", "rounds_to_target", 0),
    versus_column("MB to aim", "megabytes_to_target", 0),
)
#: Beside the paper's mean over clients: clients by their samples, and how far to the ceiling.
WEIGHTED = Column("by samples, %", "weighted", ".2f")
SENT = Column("not averaged, %", "sent", ".2f")
SHARE = gap("gap closed, %\n[95 %]", ("gap_share", "gap_low", "gap_high", "gap_pairs"), 0)
#: What a part gains, then what it costs; the third column is the difference to the baseline.
LADDER = (
    SEEDS,
    pair("last five, %", "last_five"),
    gap("minus {}\n[95 %]", DIFFERENCE),
    SENT,
    WEIGHTED,
    SHARE,
    Column("spread", "spread", ".2f"),
    Column("swing", "swing", ".2f"),
    Column("worst tenth, %", "worst_decile", ".2f"),
    Column("rounds\nto aim", show=rounds_text),
    Column("MB\nto aim", "megabytes_to_target", ".0f"),
    Column("extra MB", "extra_megabytes", "+.0f"),
    Column("simulated s\nto aim", "simulated_seconds_to_target", ".0f"),
    Column("simulated s", "simulated_seconds", ".0f"),
    Column("samples, M", "samples", ".2f"),
    Column("at equal samples, %", "at_equal_samples", ".2f"),
    Column("select, MB", "selector_megabytes", ".1f"),
    Column("merge, MB", "memory_megabytes", ".1f"),
    Column("server, ms", show=milliseconds_text),
)
#: Columns of the summary of all tables; the advice has the share of the gap too.
SUMMARY_COLUMNS = (
    SEEDS,
    pair("last five, %", "last_five"),
    gap("minus FedAvg [95 %]", DIFFERENCE),
    WEIGHTED,
    Column("rounds to aim", show=rounds_text),
    Column("server, MB", show=server_text),
)
ADVICE_COLUMNS = (*SUMMARY_COLUMNS[:3], SHARE, *SUMMARY_COLUMNS[4:])


def simulated_columns(rows: Sequence[Row], to_target: str, in_all: str) -> list[Column]:
    """Return the columns of simulated time under these headings; none without devices."""
    keys = {"simulated_seconds_to_target": to_target, "simulated_seconds": in_all}
    longest = max((row.get("simulated_seconds") or 0.0 for row in rows), default=0.0)
    form = ".0f" if longest >= 100 else ".1f"
    return [
        Column(heading, key, form)
        for key, heading in keys.items()
        if any(row.get(key) is not None for row in rows)
    ]


def _with_std(row: Row, name: str) -> str:
    std = row[f"{name}_std"]
    return f"{row[name]:.3g}" + ("" if std is None else f" ± {std:.2g}")
