"""Figures and tables of docs/performance.md: a record in, files out."""

import re

from bench.rows import show

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


def write(found, about, docs):
    """Draw every figure that the record has curves for, and fill the page's table."""
    from bench import figures

    folder = docs / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    if "growth" in found.curves:
        figures.growth(found.curves["growth"], folder / "scale-growth.png")
    if "quality" in found.curves:
        figures.quality(found.curves["quality"], folder / "scale-quality.png")
    page = docs / "performance.md"
    page.write_text(filled(page.read_text(encoding="utf-8"), found, about), encoding="utf-8")


def filled(text, found, about):
    """Return the page with the text between its markers replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the page must hold {BEGIN} and {END} once each")
    table = f"{BEGIN}\n{markdown(found, about)}\n{END}"
    return re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: table, text, flags=re.DOTALL)


def markdown(found, about):
    """Return a table for each part."""
    load = about.get("load")
    lines = [
        f"{about.get('cpu')}, {about.get('cores')} cores, {about.get('date')}, "
        f"load before the run {'unknown' if load is None else f'{load:.1f}'}; "
        f"Python {about.get('python')}, NumPy {about.get('numpy')}, cvrcore {about.get('cvrcore')}."
    ]
    if load is not None and load > 0.5 * about.get("cores", 1):
        lines += [
            "",
            "**The host was busy: times are not to be relied on; run it again when idle.**",
        ]
    for part in dict.fromkeys(row.part for row in found.rows):
        lines += ["", f"**{part}**", "", "| | measured | must | | |", "|---|---|---|---|---|"]
        for row in (r for r in found.rows if r.part == part):
            must = "" if row.must is None else f"{row.sense} {show(row.must)}"
            value = f"{show(row.value)} {row.unit}".strip()
            lines.append(f"| {row.name} | {value} | {must} | {row.verdict} | {row.note} |")
    if found.failed:
        lines += ["", "Failed: " + "; ".join(found.failed) + "."]
    return "\n".join(lines)
