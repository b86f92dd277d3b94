"""Pages of results: every printed number is in a committed CSV file, read here by other means."""

import csv
import re
from pathlib import Path

import pytest

from cvrcore.selectors import BUILT_IN
from fl.experiments.definitions import ORDER
from fl.experiments.definitions.policies import TITLES
from fl.experiments.documents import completed, defined, fill_pages, merged, read_rows, write_rows
from fl.experiments.measures import CSV
from fl.experiments.paper import CLASSIFICATION
from fl.experiments.policy_tables import policy_tables
from fl.experiments.results import Results
from fl.experiments.text_tables import document_tables

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "results.md", *sorted((DOCS / "results").glob("*.md"))]
POLICIES = sorted((DOCS / "policies").glob("*.md"))


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def tables(page):
    """Yield name, headings and rows of each table between marks."""
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"<!-- table (\S+) -->\n(.*?)<!-- end \1 -->", text, re.DOTALL):
        lines = [line for line in found[2].splitlines() if line.startswith("|")]
        if lines:
            yield found[1], cells(lines[0]), [cells(line) for line in lines[2:]]


def raw(name):
    """Return the fields of a CSV file as text, by row and column."""
    path = DOCS / "results" / f"{name}.csv"
    rows = (
        list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.exists() else []
    )
    for row in rows:
        if re.match(r"'[-+=@]", row.get("column", "")):
            row["column"] = row["column"][1:]
    return rows


def number(text, digits):
    return f"{float(text):.{digits}f}" if text else "-"


def mean(row, key, digits):
    if not row.get(key):
        return None
    noise = row.get(f"{key}_2std")
    return number(row[key], digits) + (f" ± {number(noise, digits)}" if noise else "")


def signed(mid, low, high, digits):
    if not mid:
        return "-"
    text = f"{float(mid):+.{digits}f}"
    return text + (f" [{float(low):+.{digits}f}, {float(high):+.{digits}f}]" if low else "")


def minus(row, digits):
    """Return a difference as tables show it: with its pairs where those are not the seeds."""
    text = signed(row["difference"], row["low"], row["high"], digits)
    few = text != "-" and row.get("pairs") not in (None, "", row["seeds"])
    return f"{text} ({row['pairs']} pair{'s' * (row['pairs'] != '1')})" if few else text


def printed(row, heading):
    """Return what a cell of a table must say, or None for a heading that is not checked here."""
    digits = 4 if "MSE" in heading or (heading.startswith("minus") and row["paper"] == "MSE") else 2
    if heading.startswith(("last five", "final", "paper")):
        key = {"las": "last_five", "fin": "final", "pap": "paper"}[heading[:3]]
        return mean(row, key, digits) or ("-" if key == "paper" else "not run")
    if heading.startswith("minus"):
        return minus(row, row.get("digits", 2))
    if heading.startswith("gap closed"):
        text = signed(row.get("gap_share"), row.get("gap_low"), row.get("gap_high"), 0)
        fewer = text != "-" and row["gap_pairs"] != row["seeds"]
        return f"{text} ({row['gap_pairs']} pairs)" if fewer else text
    simple = {
        "swing": ("swing", 2), "spread": ("spread", 2), "worst tenth, %": ("worst_decile", 2),
        "TV": ("tv_mean", 4), "MB to aim": ("megabytes_to_target", 0), "samples, M": ("samples", 2),
        "select, MB": ("selector_megabytes", 1), "merge, MB": ("memory_megabytes", 1),
        "by samples, %": ("weighted", 2), "at equal samples, %": ("at_equal_samples", 2),
        "simulated s": ("simulated_seconds", 0),
        "simulated s to aim": ("simulated_seconds_to_target", 0),
    }  # fmt: skip
    if heading in simple:
        key, places = simple[heading]
        return number(row.get(key), places)
    if heading == "extra MB":
        return f"{float(row['extra_megabytes']):+.0f}" if row.get("extra_megabytes") else "-"
    if heading == "server, ms":
        both = row["select_ms"] and row["merge_ms"]
        return number(float(row["select_ms"]) + float(row["merge_ms"]), 1) if both else "-"
    if heading == "seeds":
        return row["seeds"]
    if heading.startswith("rounds"):
        if not row["target"]:
            return "-"
        if row["reached"] in ("", "0"):
            return "never" if row["seeds"] != "0" else "not run"
        missed = int(row["seeds"]) - int(row["reached"])
        return number(row["rounds_to_target"], 0) + (f" ({missed} never)" if missed else "")
    return None


CHECKED = [
    (page, name) for page in PAGES for name, headings, _ in tables(page) if headings[:2] == ["", ""]
]


@pytest.mark.parametrize(("page", "name"), CHECKED, ids=[name for _, name in CHECKED])
def test_every_cell_of_a_table_is_in_its_csv_file(page, name):
    rows = {(row["row"], row["column"]): row for row in raw(name)}
    seen, checked, condensed = 0, 0, set()
    for _, headings, lines in (table for table in tables(page) if table[0] == name):
        digits = 4 if any("MSE" in heading for heading in headings) else 2
        for line in lines:
            place = re.sub(r" \(\d+ %\)$", "", line[0]), line[1]
            row = rows.get(place)
            if row is None:  # a cell of the definition that was never run
                assert line[2] == "0", place
                assert "not run" in line, place
                if line[1].startswith("all "):  # no cell of this data set was run
                    condensed.add(place[0])
                continue
            seen += 1
            for heading, cell in zip(headings[2:], line[2:], strict=True):
                expected = printed({**row, "digits": digits}, heading)
                if expected is not None:
                    assert cell == expected, (place, heading)
                    checked += 1
    left_out = [row for row in rows.values() if row["row"] in condensed]
    assert all(row["seeds"] == "0" for row in left_out)
    assert seen == len(rows) - len(left_out)
    assert checked > 5 * seen


def beside_fedavg(name, place, method, row):
    """Return `row` with its difference to FedAvg, which is not the baseline of every table."""
    if name != "holdout":
        return row
    keys = {"row": place, "method": method, "against": "fedavg"}
    (pair,) = [r for r in raw("holdout-paired") if keys.items() <= r.items()]
    ends = {"difference": "", "low": "_low", "high": "_high", "pairs": "_pairs"}
    return row | {key: pair[f"last_five{end}"] for key, end in ends.items()}


def test_the_summary_says_what_the_tables_say():
    ((_, headings, lines),) = [t for t in tables(DOCS / "results.md") if t[0] == "summary"]
    assert headings[:4] == ["table", "method", "seeds", "last five, %"]
    for line in lines:
        name, place = re.fullmatch(r"\[(.+)\]\(.*\): (.+)", line[0]).groups()
        (row,) = [r for r in raw(name) if (r["row"], r["column"]) == (place, line[1])]
        assert line[2:4] == [row["seeds"], mean(row, "last_five", 2)]
        shown = line[headings.index("minus FedAvg [95 %]")]
        assert shown == minus(beside_fedavg(name, place, line[1], row), 2)


@pytest.mark.parametrize(
    ("page", "name"), [("README.md", "gains"), ("docs/which-policy.md", "advice")]
)
def test_the_advice_says_what_the_tables_say(page, name):
    """Every number of the advice stands in the CSV file that its line links to."""
    (found,) = [t for t in tables(DOCS.parent / page) if t[0] == name]
    _, headings, lines = found
    assert len(lines) >= 3
    for line in lines:
        method = line[1].strip("`")
        place, table = re.fullmatch(r"\[(.+)\]\(.*/(.+)\.md\)", line[2]).groups()
        (row,) = [r for r in raw(table) if (r["row"], r["column"]) == (place, method)]
        assert line[3:5] == [row["seeds"], mean(row, "last_five", 2)]
        shown = line[headings.index("minus FedAvg [95 %]")]
        assert shown == minus(beside_fedavg(table, place, method, row), 2)


def test_words_of_the_summary_agree_with_the_tables():
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    low, high = re.search(
        r"Active FL, FedCBS and Oort gain ([\d.]+) to ([\d.]+) points", text
    ).groups()
    rows = {r["column"]: r for r in raw("classification") if r["row"] == "mnist"}
    gains = [float(rows[name]["difference"]) for name in ("active", "fedcbs", "oort")]
    assert [low, high] == [f"{min(gains):.1f}", f"{max(gains):.1f}"]
    assert all(float(rows[name]["low"]) > 0 for name in ("active", "fedcbs", "oort"))
    assert float(rows["fedcvr-bolt"]["low"]) < 0 < float(rows["fedcvr-bolt"]["high"])  # level
    paper = CLASSIFICATION["mnist"]
    gap = paper["fedcvr-bolt"][0] - paper["fedavg"][0]
    assert f"the paper has it {gap:.1f} points above" in text


@pytest.mark.parametrize("page", POLICIES, ids=[page.stem for page in POLICIES])
def test_a_policy_s_page_says_what_the_table_of_policies_says(page):
    column = "fedavg" if page.stem == "uniform" else page.stem
    names = {title: row for row, title in TITLES.items()}
    known = {r["row"]: r for r in raw("policies") if r["column"] == column and r["seeds"] != "0"}
    found = [table for table in tables(page) if table[0] == f"policy-{page.stem}"]
    if not known:
        assert not found
        return
    ((_, headings, lines),) = found
    assert {names[line[0]] for line in lines} == set(known)
    for line in lines:
        row, cell = known[names[line[0]]], dict(zip(headings, line, strict=True))
        assert cell["seeds"] == row["seeds"]
        assert cell["last five, %"] == mean(row, "last_five", 1)
        assert cell.get("minus FedAvg [95 %]", "-") == minus(row, 1)
        assert cell["rounds to aim"] == printed(row, "rounds to aim")


def test_claims_stand_beside_what_came_out():
    (found,) = [t for t in tables(DOCS / "results" / "policies.md") if t[0] == "policies-claims"]
    _, headings, lines = found
    assert {re.match(r"\[(.+?)\]", line[0])[1] for line in lines} == set(BUILT_IN) - {"uniform"}
    names = {f"{title}: minus FedAvg": row for row, title in TITLES.items()}
    rows = {(row["row"], row["column"]): row for row in raw("policies")}
    for line in lines:
        policy = re.match(r"\[(.+?)\]", line[0])[1]
        assert line[1]
        for heading, cell in zip(headings[2:], line[2:], strict=True):
            row = rows.get((names[heading], policy))
            if row is None or row["seeds"] == "0":
                assert cell == "not run"
            else:
                told = minus(row, 1)
                if row["difference"] and not row["low"]:
                    n = int(row.get("pairs") or row["seeds"])
                    told = re.sub(r" \(.*", "", told) + f", {n} seed{'s' * (n > 1)}"
                assert cell == told, (policy, heading)


@pytest.mark.parametrize(
    ("pairs", "claim", "shown"),
    [(1, "+2.0, 1 seed", "+2.0 (1 pair)"), (2, "+2.0, 2 seeds", "+2.0"),
     (None, "+2.0, 2 seeds", "+2.0")],
)  # fmt: skip
def test_a_difference_says_on_how_many_pairs_it_rests(pairs, claim, shown, tmp_path):
    """The baseline may have fewer seeds; files that are older than `pairs` do not know."""
    known = {"row": "mnist", "method": "oort", "last_five": 88.0, "difference": 2.0, "reached": 2}
    write_rows(tmp_path / "a.csv", [row("oort", 2, **known, pairs=pairs)])
    found = policy_tables(read_rows(tmp_path / "a.csv"), {"mnist": "MNIST"})
    assert f"| {claim} |" in next(x for x in found["policies-claims"].split("\n") if "oort" in x)
    assert f"| {shown} |" in found["policy-oort"]


def test_pairs_of_an_interval_are_told_once():
    ends = {"difference": 2.0, "low": 1.0, "high": 3.0, "reached": 5, "last_five": 88.0}
    found = policy_tables([row("oort", 5, pairs=3, **ends)], {"a": "MNIST"})
    for table in ("policies-claims", "policy-oort"):
        assert "| +2.0 [+1.0, +3.0] (3 pairs) |" in found[table]


def test_progress_counts_the_cells_that_ran():
    ((_, _, lines),) = [t for t in tables(DOCS / "results.md") if t[0] == "progress"]
    named = {re.match(r"\[(.+?)\]", line[0])[1]: line for line in lines}
    assert set(named) <= set(ORDER)
    for name, line in named.items():
        seeds = [int(row["seeds"]) for row in raw(name) if row["seeds"] not in ("", "0")]
        assert line[2] == (str(len(seeds)) if seeds else "not run"), name
        assert int(line[1]) >= len(raw(name)), name


def test_every_table_has_a_page_and_no_paragraph_is_long():
    for name in ORDER:
        assert (DOCS / "results" / f"{name}.md").exists(), name
    for page in PAGES:
        for block in page.read_text(encoding="utf-8").split("\n\n"):
            if not block.startswith(("|", "<!--", "```")):
                for item in re.split(r"\n- ", block):
                    assert len(item.split()) <= 120, (page.name, item[:80])
    lines = (DOCS / "results.md").read_text(encoding="utf-8").splitlines()
    told = [line for line in lines if not line.startswith("|")]
    assert sum(len(line.split()) for line in told) < 1200
    assert len(lines) - len(told) < 80  # rows of the summary and of what is done


def test_pages_are_up_to_date(tmp_path):
    """Filling the tables again changes nothing: pages and CSV files are of one state."""
    for folder in ("results", "figures", "policies"):
        (tmp_path / folder).mkdir()
    for path in (DOCS / "figures").glob("*.png"):
        (tmp_path / "figures" / path.name).touch()
    for path in [*PAGES, *POLICIES, *(DOCS / "results").glob("*.csv")]:
        (tmp_path / path.relative_to(DOCS)).write_bytes(path.read_bytes())
    assert tmp_path / "results.md" in fill_pages(tmp_path)
    for page in (*PAGES, *POLICIES):
        assert (tmp_path / page.relative_to(DOCS)).read_text() == page.read_text(), page.name


def row(column, seeds, **values):
    return dict.fromkeys(CSV) | {"row": "a", "column": column, "seeds": seeds} | values


def test_a_table_never_loses_seeds():
    older = [row("x", 3, final=1.0), row("y", 1, final=2.0), row("gone", 2, final=3.0)]
    newer = [row("x", 1, final=9.0), row("y", 1, final=8.0), row("z", 0)]
    found = {r["column"]: r["final"] for r in merged(older, newer, ("row", "column"))}
    assert found == {"x": 1.0, "y": 8.0, "gone": 3.0, "z": None}


def test_rows_survive_their_csv_file(tmp_path):
    rows = [row("+ memory", 3, final=86.4321, reached=2, commit="123456e789"), row("y", 0)]
    write_rows(tmp_path / "a.csv", rows)
    assert read_rows(tmp_path / "a.csv") == rows
    assert read_rows(tmp_path / "none.csv") == []


def test_rows_without_a_command_have_a_table(monkeypatch):
    """Python 3.11 splits None by reading the standard input."""
    monkeypatch.setattr("sys.stdin", None)
    results = Results("beyond", "Beyond", "accuracy", (), "", baseline="fedavg")
    rows = [row("x", 3, last_five=80.0), row("y", 3, command="cvrcore reproduce a --seeds 1")]
    text = document_tables(results, rows, [])[""]
    assert "| a | x | 3 | 80.00 |" in text
    assert text.endswith("\n`cvrcore reproduce a`\n")
    assert text.count("`") == 2


def test_cells_that_never_ran_are_shown():
    plan = defined("ceiling")
    rows = [{**row("fedavg", 3), "row": "mnist, K=100"}]
    found = completed(rows, plan)
    assert len(found) == len(plan.cells)
    assert [r["seeds"] for r in found].count(0) == len(plan.cells) - 1
    assert completed([], plan) == []
