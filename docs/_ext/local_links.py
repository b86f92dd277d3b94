"""Links of the pages: to files beside docs/, and from short names to the API reference."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.ext import autosummary
from sphinx.util.nodes import make_refnode

#: Pages of the site in place of files of the repository, as pages in docs/ link to them.
INSTEAD = {
    "](../README.md": "](index.md",
    "](../CHANGELOG.md": "](changelog.md",
    "](../CITATION.cff": "](citing.md",
}


#: A session of the interpreter, and the empty line that doctest needs after it.
SESSION = re.compile(r"(```python\n>>> (?:(?!```).)*?\n)\n+(```)", re.DOTALL)


def redirect(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace links to files of the repository by links to pages of the site."""
    source[0] = SESSION.sub(r"\1\2", source[0])
    if "/" not in docname:
        for link, page in INSTEAD.items():
            source[0] = source[0].replace(link, page)


def resolve_short_name(app: Sphinx, env: Any, node: nodes.Element, text: nodes.Element) -> Any:
    """Link `Selector`, or `cvrcore.selectors.base.Selector`, to ``cvrcore.Selector``.

    A docstring names an object as its reader imports it, or by its last parts; the reference
    has it once. A name that fits several objects gets no link.
    """
    if node.get("refdomain") != "py":
        return None
    parts = node["reftarget"].strip("()").split(".")
    objects = env.get_domain("py").objects
    for length in (2, 1):
        tail = "." + ".".join(parts[-length:])
        if len(parts) < length or (length == 1 and len(parts) > 1 and not parts[-1][:1].isupper()):
            continue
        found = {name: entry for name, entry in objects.items() if name.endswith(tail)}
        if len(found) == 1:
            name, entry = next(iter(found.items()))
            return make_refnode(
                app.builder, node["refdoc"], entry.docname, entry.node_id, text, name
            )
    return None


def without_frameworks() -> None:
    """Let the adapters be imported: their frameworks are mocks here, without a version."""
    from cvrcore.integrations import extras

    extras.require = lambda *arguments, **options: None


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the handlers."""
    without_frameworks()
    autosummary.WELL_KNOWN_ABBREVIATIONS += ("Eq.", "Eqs.")  # they do not end a sentence
    app.connect("source-read", redirect)
    app.connect("missing-reference", resolve_short_name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
