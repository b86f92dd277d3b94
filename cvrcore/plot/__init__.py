"""Selections, selectors or arrays in, matplotlib Axes out; needs the extra ``report``.

Every function draws into ``ax`` and returns it; without ``ax`` it makes a figure.
"""

from __future__ import annotations

from .eigenvalues import gap
from .heatmap import selection_heatmap
from .laws import law
from .plane import coalitions

__all__ = ["coalitions", "gap", "law", "selection_heatmap"]
