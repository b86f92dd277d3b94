"""FedAvg (McMahan et al., 2017): one model, averaged."""

from __future__ import annotations

from .base import Algorithm, Setting


class FedAvg(Algorithm):
    """One model; what comes back is merged by the aggregator."""

    name = "fedavg"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
