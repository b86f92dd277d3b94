"""Rows of the table of policies in; claims beside what came out, and a table a policy, out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from .columns import DIFFERENCE, SEEDS, gap, pair, present, rounds_text
from .statistics import seeds_text
from .table import Column, Row, Table

#: The column of the policy ``uniform``, which is FedAvg.
BASELINE: Final = "fedavg"
#: What each paper reports of its policy, in our words, most of it from its abstract.
CLAIMS: Final[Mapping[str, str]] = {
    "power-of-choice": "up to 3 times faster and 10 % more accurate than uniform draws",
    "active": "20 to 70 % fewer iterations to the same accuracy",
    "fedcbs": "as good as full participation, or better",
    "oort": "1.2 to 14.1 times less time to an accuracy, final accuracy 1.3 to 9.8 % higher",
    "fedcvr-bolt": "MNIST 90.2 % where FedAvg has 86.3, CIFAR-10 57.1 where it has 52.7",
    "optimal": "better than uniform draws, can come close to full participation",
    "k-vib": "twice the speed of baselines",
    "pivotal": "ours: less variance by spread-out draws",
    "multinomial": "converges at 1/T; the draw that theory of FedAvg assumes",
    "clustered": "less variance of weights, better convergence than multinomial draws",
    "divfl": "faster, and more even over clients, than uniform draws",
    "drift": "ours: the law that suits a server with memory",
    "hics": "faster, with less variance in training, than other selection",
    "fedcor": "34 to 99 % faster on Fashion-MNIST, 26 to 51 % on CIFAR-10, than the best before",
    "shapley": "fast and stable where rounds are few and clients differ",
    "learned": "ours: nothing, its default score was not trained",
    "reshuffle": "less variance than draws with replacement, a better rate",
}
#: Columns of the table on the page of one policy.
MEASURED: Final = (
    Column("data", "row"),
    SEEDS,
    pair("last five, %", "last_five", 1),
    gap("minus FedAvg [95 %]", DIFFERENCE, 1),
    Column("worst tenth, %", "worst_decile", ".1f"),
    Column("rounds to aim", show=rounds_text),
    Column("samples, M", "samples", ".2f"),
    Column("at equal samples, %", "at_equal_samples", ".1f"),
    Column("extra MB", "extra_megabytes", "+.0f"),
    Column("simulated s to aim", "simulated_seconds_to_target", ".0f"),
)


def policy_tables(rows: Sequence[Row], titles: Mapping[str, str]) -> dict[str, str]:
    """Return Markdown tables by name: ``policies-claims``, and ``policy-NAME`` for each policy.

    `titles` are the names of the rows as readers know them.
    """
    by_policy: dict[str, list[Row]] = {}
    for row in rows:
        if row["seeds"]:
            by_policy.setdefault(row["column"], []).append(row)
    found = {"policies-claims": _claims(by_policy, titles)}
    for name, measured in by_policy.items():
        lines = [{**row, "row": titles.get(row["row"], row["row"])} for row in measured]
        found["policy-" + ("uniform" if name == BASELINE else name)] = Table(
            present(MEASURED, lines), lines
        ).markdown()
    return found


def _claims(by_policy: Mapping[str, Sequence[Row]], titles: Mapping[str, str]) -> str:
    """Return what each paper claims, and the difference to FedAvg in each row of the table."""
    places = [p for p in titles if any(r["row"] == p for rows in by_policy.values() for r in rows)]
    lines = []
    for name, claim in CLAIMS.items():
        line: Row = {"policy": f"[{name}](../policies/{name}.md)", "claim": claim}
        for row in by_policy.get(name, ()):
            line[row["row"]] = _difference(row)
        lines.append(line)
    columns = [Column("policy", "policy"), Column("its paper reports", "claim")]
    columns += [Column(f"{titles[p]}: minus FedAvg", p) for p in places]
    blank = dict.fromkeys(places, "not run")
    return Table(columns, [blank | line for line in lines]).markdown()


def _difference(row: Row) -> str:
    """Return the difference to FedAvg; without an interval, beside the few seeds it rests on."""
    if row["difference"] is None or row["low"] is not None:
        return gap("", DIFFERENCE, 1).text(row)
    n = row["seeds"] if row["pairs"] is None else row["pairs"]
    return f"{gap('', DIFFERENCE[:3], 1).text(row)}, {seeds_text(n)}"
