"""Earlier import path of `cvrcore.integrations.flower.legacy`."""

from .flower.legacy import LegacySelectingStrategy

__all__ = ["LegacySelectingStrategy"]
