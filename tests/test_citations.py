"""Every policy can be cited and looked up."""

import re
from pathlib import Path

import pytest

from cvrcore.selectors import BUILT_IN
from cvrcore.selectors.citations import bibtex


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_policy_has_bibtex(name):
    entries = bibtex(name).split("\n\n")
    for entry in entries:
        assert re.match(r"@(article|inproceedings|misc|software)\{[\w]+,\n", entry)
        assert entry.count("{") == entry.count("}")
        for field in ("title", "author"):
            assert re.search(rf"^  {field} +=", entry, re.MULTILINE)
        assert "%s" not in entry


def test_an_unknown_policy_cannot_be_cited():
    with pytest.raises(ValueError, match="name must be a policy of cvrcore .*got 'ours'"):
        bibtex("ours")


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_policy_has_a_page(name):
    docs = Path(__file__).parents[1] / "docs"
    page = (docs / "policies" / f"{name}.md").read_text(encoding="utf-8")
    for part in ("**Rule.**", "**Needs.**", "**Cost.**", "**Use it when**", "**Source.**"):
        assert part in page
    assert f"(policies/{name}.md)" in (docs / "policies.md").read_text(encoding="utf-8")
