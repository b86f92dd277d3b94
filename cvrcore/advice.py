"""Which method for which federation: sizes in, names of policy and aggregator with reasons out."""

from __future__ import annotations

import dataclasses
from typing import Any

from .aggregators.averaging import DECAY
from .runtime.memory import free_memory
from .validation import check_count, check_number

#: Visits of a client over the whole run below which its last update is too old, or missing.
FEW_VISITS = 4.0
#: Rounds that the policies need before they know anything.
FEW_ROUNDS = 10
#: Models kept beside the aggregator's: the average, and the last update of the adaptive step.
EXTRA = 2
#: What to try on a model of one's own.
LONGER = (
    "The server's step adapts: with 1,000 clients it had 4 points more than FedAvg at its best "
    "step on two data sets. A fixed step of 4 had 5 and 10 more there; it broke CIFAR-10's "
    "network with 100 clients, and 8 lost 18 points on Fashion-MNIST: try 1, 2 and 4 on your "
    "data. The policy learns the labels of clients (docs/privacy.md); where a few clients hold "
    "most samples no gain per client could be shown."
)


@dataclasses.dataclass(frozen=True)
class Recommendation:
    """What to use, and why.

    Attributes
    ----------
    method : str
        Name for ``cvrcore run --method``.
    policy, aggregator : str
        Names of `cvrcore.make_selector` and `cvrcore.aggregators.make_aggregator`.
    server : dict
        Arguments of `cvrcore.aggregators.ServerOptimiser`; empty: none.
    average : float
        Decay of the `cvrcore.aggregators.ModelAverage` to evaluate and deploy; 0: the model itself.
    reason : str
    features : str
        What the policy watches of clients: "head", the direction of the output layer's update
        (`cvrcore.head.HeadMap`), or "", nothing.

    Examples
    --------
    >>> import cvrcore
    >>> advice = cvrcore.recommend(100, 10, n_rounds=200, model_size=160_000, memory_limit=1e9)
    >>> advice.method, advice.policy, advice.aggregator, advice.features
    ('balanced-memory', 'pivotal', 'memory', 'head')
    >>> sorted(advice.arguments())
    ['aggregator', 'average', 'features', 'selector']
    """

    method: str
    policy: str
    aggregator: str
    server: dict[str, str | bool]
    average: float
    reason: str
    features: str = ""

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the adapters for Flower and NVFlare, with a new aggregator.

        As in ``SelectingStrategy(FedAvg(), n_select=10, seed=0, **advice.arguments())``.
        """
        from .aggregators import ServerOptimiser, make_aggregator

        found: dict[str, Any] = {"selector": self.policy}
        if self.aggregator != "sizes":  # the mean that every framework has
            server: dict[str, Any] = dict(self.server)
            optimiser = ServerOptimiser(**server) if server else None
            found["aggregator"] = make_aggregator(self.aggregator, server=optimiser)
        if self.features:
            found["features"] = self.features
        if self.average:
            found["average"] = self.average
        return found

    def __str__(self) -> str:
        """Return the names and the reason, in two lines."""
        step = f", server step {self.server['kind']}" if self.server else ""
        step += f", average of models with decay {self.average:g}" if self.average else ""
        return (
            f"{self.method}: policy {self.policy}, aggregator {self.aggregator}{step}\n"
            f"{self.reason}"
        )


def recommend(
    n_clients: int,
    n_select: int,
    n_rounds: int,
    model_size: int,
    memory_limit: float | None = None,
    n_outputs: int = 10,
) -> Recommendation:
    """Return which policy and aggregator to use in a federation of these sizes.

    Parameters
    ----------
    n_clients, n_select, n_rounds : int
        Clients in all, clients of a round, rounds of the run.
    model_size : int
        Numbers in the model.
    memory_limit : float, optional
        Bytes that the server may spend on what it remembers. Default: half of what is free.
    n_outputs : int, default=10
        Outputs of the model, such as classes; "factor-memory" keeps one model more than outputs.

    Notes
    -----
    The rule was measured on images shared out by Dirichlet(0.1), docs/results.md. On Synthetic,
    where a few clients hold most samples, it gains four points by samples and nothing that could
    be shown in the mean over clients; "fedcbs" with label counts gains 22 there. Where clients
    have the same kinds of data, or nearly all of them take part, no policy gains anything that
    could be measured. The policies learn the label distribution of clients, docs/privacy.md.

    Examples
    --------
    >>> recommend(100, 10, 200, 160_000, memory_limit=1e9).method
    'balanced-memory'
    >>> recommend(1000, 10, 100, 160_000, memory_limit=1e9).method
    'balanced-factor'
    >>> recommend(10, 10, 100, 160_000).method
    'fedavg'
    """
    n_clients = check_count(n_clients, "n_clients")
    n_select = check_count(n_select, "n_select", maximum=n_clients)
    n_rounds = check_count(n_rounds, "n_rounds")
    model_size = check_count(model_size, "model_size")
    n_outputs = check_count(n_outputs, "n_outputs")
    limit = 0.5 * free_memory() if memory_limit is None else memory_limit
    limit = check_number(limit, "memory_limit", above=0)
    if n_select == n_clients:
        return Recommendation(
            "fedavg", "uniform", "sizes", {}, 0.0,
            "Every client takes part: there is nothing to select.",
        )  # fmt: skip
    if n_rounds < FEW_ROUNDS:
        return Recommendation(
            "fedavg", "uniform", "sizes", {}, 0.0,
            f"{n_rounds} rounds are too few: a policy learns about clients from their reports.",
        )  # fmt: skip
    visits = n_rounds * n_select / n_clients
    one = 4.0 * model_size
    updates = (n_clients + 2 + EXTRA) * one  # and their sum in float64
    factors = (n_outputs + 1 + EXTRA) * one
    adaptive: dict[str, str | bool] = {"kind": "adaptive", "averaged": True}
    if visits >= FEW_VISITS and updates <= limit:
        return Recommendation(
            "balanced-memory", "pivotal", "memory", adaptive, DECAY,
            f"Each client is seen about {visits:.0f} times and its last update can be kept "
            f"({updates / 1e6:,.0f} MB). {LONGER}", "head",
        )  # fmt: skip
    if limit < factors:
        return Recommendation(
            "pivotal", "pivotal", "importance", {}, 0.0,
            f"{n_outputs + 1 + EXTRA} models do not fit into the limit ({factors / 1e6:,.0f} MB): "
            "a balanced draw, and nothing is remembered.", "head",
        )  # fmt: skip
    why = f"each client is seen about {visits:.2g} times"
    if visits >= FEW_VISITS:
        why = f"a memory of every client takes {updates / 1e6:,.0f} MB, above the limit"
    return Recommendation(
        "balanced-factor", "pivotal", "factor-memory", adaptive, DECAY,
        f"A model of updates in a few numbers per client ({factors / 1e6:,.0f} MB): {why}. "
        f"{LONGER}", "head",
    )  # fmt: skip
