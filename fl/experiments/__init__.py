"""Experiments: the paper's tables and figures, ours, comparisons, and the page about them.

Data flow one way, each arrow a module that reads what the one before has made::

    Request -> definitions -> runner -> results -> statistics -> measures -> tables, figures -> page

==============  ==================================================================================
definition      `Request`, what the user asked for; `Cell` and `Experiment`, one defined table
definitions/    one module for each table or figure of the paper and of ours
paper           the numbers that the paper prints
runner          `reproduce`: runs the cells that are not finished, then draws
manifest        ``experiment.json``: which run folders belong to which cell; which settings decide
results         `Results`, `CellResults`, `Run`: manifests and run folders as read from disk
grouping        run folders without a manifest, as `Results` by data set and method
statistics      numbers over seeds; the one rule for intervals: 95 % paired t, from three pairs on
measures        `Row`: one flat dictionary of plain values for each cell, or each pair of columns
table           `Column` and `Table`, as CSV, LaTeX, Markdown and text in the terminal
text_tables     tables of documents and of the terminal
page_tables     tables of the page: numbers, settings, runs, versions
drawing         the look of all figures, PNG and SVG
bands           the metric by round, with bands, in one panel or in one for each method
figures, maps   figures of the page, and of the folder of an experiment; maps of clients
html, page      `build`: chapters and the page; page.template is its frame, words.toml its words
compare         several methods over paired seeds, without a definition
credit          what a difference may come from: picking, merging, warm-up
export          tables, CSV files and figures of experiments, into documents
==============  ==================================================================================

A run folder belongs to `fl.store`; nothing here writes into one. A `Row` is the only thing that
tables and figures read numbers from, so that a number is computed in one place.
"""

from __future__ import annotations

from .definition import Request
from .definitions import NAMES
from .page import build
from .results import ReportError
from .runner import reproduce

__all__ = ["NAMES", "ReportError", "Request", "build", "reproduce"]
