"""A `Plan` in, the covariance store and the partition of a `CoalitionSelector` out."""

from __future__ import annotations

from typing import Any

from ..clustering.coalition_count import CountedPartition
from ..clustering.nystrom import NystromPartition
from ..clustering.partitions import ExactPartition, Partition, PlanePartition
from ..covariance.store import CovarianceStore
from ..runtime.plan import Plan


def make_store(plan: Plan, n_clients: int, n_features: int, dtype: Any) -> CovarianceStore | None:
    """Return an empty covariance store; None if the plan never reads entries of C."""
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
    """Return a new partition of the kind that the plan names."""
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
