"""The former home of `fl.experiments.build`; kept for code that imports it from here."""

from ..experiments import ReportError, build

__all__ = ["ReportError", "build"]
