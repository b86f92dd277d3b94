"""Pages stay readable: no paragraph above 120 words; results have a rule of their own."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
LIMIT = 120
PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for path in DOCS.rglob("*.md")
    if not path.relative_to(DOCS).parts[0].startswith(("results", "gallery"))
)


def paragraphs(text):
    """Return the paragraphs and items of lists; code, tables and headings are left out."""
    text = re.sub(r"^(`{3,}|:{3,}).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)
    blocks = [block.strip() for block in re.split(r"\n[ \t]*\n", text)]
    prose = [block for block in blocks if block and not re.match(r"\||#|<!--|!\[", block)]
    return [item for block in prose for item in re.split(r"\n(?=\s*(?:[-*]|\d+\.) )", block)]


def test_paragraphs_are_told_apart():
    text = "# Title\n\none two\n\n```\ncode here\n```\n\n| a | b |\n\n- three\n- four\n  five\n"
    assert paragraphs(text) == ["one two", "- three", "- four\n  five"]


@pytest.mark.parametrize("page", PAGES)
def test_no_paragraph_is_long(page):
    for paragraph in paragraphs((DOCS / page).read_text(encoding="utf-8")):
        n_words = len(paragraph.split())
        assert n_words <= LIMIT, f"{n_words} words: {paragraph[:60]}..."
