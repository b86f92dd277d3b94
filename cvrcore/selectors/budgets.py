"""Budgets of clients: costs in, who can still afford a round out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..runtime.journal import Atomic, atomic
from ..runtime.threads import serialised
from ..validation import Float, Ids, Mask, check_count, check_vector


class Budgeted(Atomic):
    """The part of `Selector` that counts what clients have spent."""

    n_clients: int
    round: int
    _budgets: dict[str, dict[str, Float]] | None = None  # by name: limit, price, spent
    _horizon: int | None = None

    @atomic
    def set_budgets(
        self,
        limits: Mapping[str, ArrayLike] | None,
        *,
        prices: Mapping[str, ArrayLike] | None = None,
        horizon: int | None = None,
    ) -> None:
        """Limit what each client may spend; one that cannot afford a round counts as absent.

        Parameters
        ----------
        limits : mapping of str to float or array-like of shape (n_clients,)
            What a client may spend of each resource, such as ``{"joules": 500, "bytes": 1e9}``.
            None: no budgets.
        prices : mapping of str to float or array-like, optional
            What one round costs; charged to every picked client when its round is observed.
            Default: 0, and `observe` is told by ``costs={"joules": [...]}``.
        horizon : int, optional
            Rounds that a budget is for: after each so many rounds all have spent nothing.
            Default: for ever.

        Examples
        --------
        >>> import cvrcore
        >>> selector = cvrcore.make_selector("uniform", n_clients=4, n_select=2, seed=0)
        >>> selector.set_budgets({"bytes": 10.0}, prices={"bytes": 10.0})
        >>> first = selector.select()
        >>> selector.observe(first.clients)
        >>> set(selector.select().clients) & set(first.clients)
        set()
        """
        if limits is None:
            self._budgets, self._horizon = None, None
            return
        if not isinstance(limits, Mapping):
            raise TypeError(f"limits must map resources to amounts, got {limits!r}")
        made = {}
        for name, limit in limits.items():
            price = (prices or {}).get(name, 0.0)
            made[str(name)] = {
                "limit": self._amounts(limit, f"limits[{name!r}]"),
                "price": self._amounts(price, f"prices[{name!r}]"),
                "spent": np.zeros(self.n_clients),
            }
        for name in prices or {}:
            if name not in made:
                raise ValueError(f"prices must be of resources with a limit, got {name!r}")
        horizon = None if horizon is None else check_count(horizon, "horizon")
        self._budgets, self._horizon = made, horizon

    @serialised
    def budget_left(self) -> dict[str, Float]:
        """Return what each client has left of each resource."""
        budgets = self._budgets or {}
        return {name: np.maximum(b["limit"] - b["spent"], 0.0) for name, b in budgets.items()}

    def _amounts(self, value: ArrayLike, name: str) -> Float:
        full = np.full(self.n_clients, value) if np.ndim(value) == 0 else value
        amounts = check_vector(full, name, self.n_clients).copy()
        if (amounts < 0).any():
            raise ValueError(f"{name} must be non-negative, got {amounts.min():g}")
        return amounts

    def _affordable(self) -> Mask:
        able = np.ones(self.n_clients, dtype=bool)
        for budget in (self._budgets or {}).values():
            after = budget["spent"] + budget["price"]
            able &= (after <= budget["limit"]) & (budget["spent"] < budget["limit"])
        return able

    def _check_costs(
        self, costs: Mapping[str, ArrayLike] | None, n_reported: int
    ) -> dict[str, Float]:
        checked = {}
        for name, values in (costs or {}).items():
            if name not in (self._budgets or {}):
                known = ", ".join(map(repr, self._budgets or {})) or "none"
                raise ValueError(
                    f"costs must be of resources with a budget ({known}), got {name!r}"
                )
            checked[name] = check_vector(values, f"costs[{name!r}]", n_reported)
            if (checked[name] < 0).any():
                raise ValueError(f"costs[{name!r}] must be non-negative")
        return checked

    def _spend(self, picked: Ids, clients: Ids, costs: dict[str, Float]) -> None:
        """Charge one closed round; called before `round` is counted."""
        for name, budget in (self._budgets or {}).items():
            budget["spent"][picked] += budget["price"][picked]
            if name in costs:
                budget["spent"][clients] += costs[name]
            if self._horizon is not None and (self.round + 1) % self._horizon == 0:
                budget["spent"][:] = 0.0

    def _grow_budgets(self, n_added: int) -> None:
        """Newcomers have the median limit and price of the others."""

        def grown(name: str, values: Float) -> Float:
            start = 0.0 if name == "spent" else float(np.median(values))
            return np.concatenate([values, np.full(n_added, start)])

        if self._budgets is not None:
            self._budgets = {
                resource: {name: grown(name, values) for name, values in budget.items()}
                for resource, budget in self._budgets.items()
            }

    def _budget_state(self) -> dict[str, Any]:
        made = self._budgets or {}
        return {
            "horizon": self._horizon,
            "resources": {n: {k: v.copy() for k, v in b.items()} for n, b in made.items()},
        }

    def _restore_budgets(self, state: dict[str, Any]) -> None:
        stored = state["resources"]
        limits = {name: each["limit"] for name, each in stored.items()}
        prices = {name: each["price"] for name, each in stored.items()}
        self.set_budgets(limits, prices=prices, horizon=state["horizon"])
        for name, each in stored.items():
            assert self._budgets is not None
            self._budgets[name]["spent"] = self._amounts(each["spent"], f"spent[{name!r}]")
