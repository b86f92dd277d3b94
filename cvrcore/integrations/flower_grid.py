"""Earlier import path of `cvrcore.integrations.flower.grid`, with the names of that time."""

from .flower.grid import GridView, exchange, sampling
from .flower.grid import TimedGrid as PatientGrid
from .options import Waiting as Patience

__all__ = ["GridView", "Patience", "PatientGrid", "exchange", "sampling"]
