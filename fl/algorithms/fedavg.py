"""FedAvg (McMahan et al., 2017): one model, averaged."""

from __future__ import annotations

from .base import Algorithm, Resources


class FedAvg(Algorithm):
    """One model; the aggregator merges the models of a round into it."""

    name = "fedavg"

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
