"""The parts of a `CoalitionSelector` that its plan calls for."""

from __future__ import annotations

from typing import Any

from ..counting import CountedPartition
from ..partition import ExactPartition, NystromPartition, Partition, PlanePartition
from ..plan import Plan
from ..store import CovarianceStore


def make_store(plan: Plan, n_clients: int, n_features: int, dtype: Any) -> CovarianceStore | None:
    """Return an empty store of the covariance; None where no entry of it is ever read."""
    if plan.store == "none":
        return None
    return CovarianceStore(n_clients, n_features, plan.store, dtype, plan.window, plan.may_be_dense)


def make_partition(
    plan: Plan,
    n_clients: int,
    kernel: str,
    gamma: float | str,
    eigensolver: str,
    n_coalitions: int | str | None,
) -> Partition:
    """Return what makes coalitions, before it has made any."""
    if isinstance(n_coalitions, str):
        if plan.clustering != "exact":
            raise ValueError(
                "n_coalitions must be a number unless clustering is exact, of three "
                f"coordinates or more, got {n_coalitions!r} with {plan.clustering!r}"
            )
        return CountedPartition(n_clients, kernel, gamma, eigensolver, n_coalitions)
    if plan.clustering == "plane":
        return PlanePartition()
    if plan.clustering == "exact":
        return ExactPartition(n_clients, kernel, gamma, eigensolver)
    means = (plan.n_landmarks, plan.landmarks, plan.keeps_affinities)
    return NystromPartition(n_clients, kernel, gamma, *means)
