"""The paper's numbers in the code are those of its source, where that is at hand."""

import re
from pathlib import Path

import pytest

from fl.experiments.paper import CLASSIFICATION, KERNELS, REGRESSION
from fl.presets import TABLE

SOURCE = Path(__file__).parents[3] / "shared" / "paper.tex"
PAIR = re.compile(r"(\d+\.\d+)\D*?\\pm\s*\$?\s*(\d+\.\d+)")


def rows_of(label):
    """Return the pairs of numbers in each row of the table with that label, in order."""
    if not SOURCE.exists():
        pytest.skip(f"the paper's source is not at {SOURCE}")
    text = SOURCE.read_text(encoding="utf-8")
    tables = re.findall(r"\\begin\{table\*?\}.*?\\end\{table\*?\}", text, re.DOTALL)
    (table,) = [table for table in tables if f"label{{{label}}}" in table]
    lines = table.split(r"\midrule", 1)[1].split(r"\\")
    found = [[(float(a), float(b)) for a, b in PAIR.findall(line)] for line in lines]
    return [row for row in found if row]


def as_rows(table):
    return [list(row.values()) for row in table.values()]


def test_classification_is_the_papers():
    assert as_rows(CLASSIFICATION) == rows_of("tab:class")


def test_kernels_are_the_papers():
    assert as_rows(KERNELS) == rows_of("tab:proxy_metrics")


def test_regression_is_the_papers():
    assert as_rows(REGRESSION) == rows_of("tab:linreg")


def test_columns_are_in_the_order_of_the_methods():
    for row in CLASSIFICATION.values():
        assert list(row) == list(TABLE)
