"""HTML elements from values: text is escaped, markup passes."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

#: Elements without an end tag.
_VOID = ("img", "br", "meta", "hr")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, *children: Any, **attributes: Any) -> Markup:
    """Return an element.

    Parameters
    ----------
    name : str
    *children
        Markup, text, iterables of both, or None for nothing.
    **attributes
        ``cls`` stands for ``class``; None leaves an attribute out, True gives it no value.

    Examples
    --------
    >>> print(tag("p", "a < b", cls="note"))
    <p class="note">a &lt; b</p>
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = {"cls": "class"}.get(key, key.replace("_", "-"))
        words.append(key if value is True else f'{key}="{html.escape(str(value))}"')
    opening = f"<{' '.join(words)}>"
    return Markup(opening if name in _VOID else f"{opening}{join(*children)}</{name}>")


def join(*children: Any) -> Markup:
    """Return children one after the other."""
    return Markup("".join(_text(child) for child in children))


def _text(child: Any) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return str(child)
    if isinstance(child, Iterable) and not isinstance(child, str):
        return join(*child)
    return html.escape(str(child), quote=False)
