"""Which method for which federation: sizes in, names of policy and aggregator with reasons out."""

from __future__ import annotations

import dataclasses

from .aggregators.averaging import DECAY
from .runtime.memory import free_memory
from .validation import check_count, check_number

#: Visits of a client over the whole run below which its last update is too old, or missing.
FEW_VISITS = 4.0
#: Rounds that the policies need before they know anything.
FEW_ROUNDS = 10
#: What to try on a model of one's own.
LONGER = (
    "The step adapts. A fixed server step of 4 had 1 and 6 points more with 1,000 clients on two "
    "data sets; it broke CIFAR-10's network with 100 clients, and 8 lost 18 points on "
    "Fashion-MNIST: try 1, 2 and 4 on your data."
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

    Examples
    --------
    >>> import cvrcore
    >>> advice = cvrcore.recommend(100, 10, n_rounds=200, model_size=160_000, memory_limit=1e9)
    >>> advice.method, advice.policy, advice.aggregator
    ('balanced-memory', 'pivotal', 'memory')
    """

    method: str
    policy: str
    aggregator: str
    server: dict[str, str | bool]
    average: float
    reason: str

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
) -> Recommendation:
    """Return which policy and aggregator to use in a federation of these sizes.

    Parameters
    ----------
    n_clients, n_select, n_rounds : int
        Clients in all, clients of a round, rounds of the run.
    model_size : int
        Numbers in the model.
    memory_limit : float, optional
        Bytes that the server may spend on remembered updates. Default: half of what is free.

    Notes
    -----
    The rule was measured on images shared out by Dirichlet(0.1), docs/results.md. On Synthetic,
    where a few clients hold most samples, it gains one to two points by samples and nothing in
    the mean over clients. Where clients have the same kinds of data, or nearly all of them take
    part, no policy gains anything that could be measured. The policies learn the label
    distribution of clients, docs/privacy.md.

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
    needed = 4.0 * n_clients * model_size
    adaptive: dict[str, str | bool] = {"kind": "adaptive", "averaged": True}
    if visits >= FEW_VISITS and needed <= limit:
        return Recommendation(
            "balanced-memory", "pivotal", "memory", adaptive, DECAY,
            f"Each client is seen about {visits:.0f} times and its last update can be kept "
            f"({needed / 1e6:,.0f} MB). {LONGER}",
        )  # fmt: skip
    if limit < 3 * 4.0 * model_size:  # two classes
        return Recommendation(
            "pivotal", "pivotal", "importance", {}, 0.0,
            f"Not even three models can be kept ({12e-6 * model_size:,.0f} MB): a balanced draw, "
            "and nothing is remembered.",
        )  # fmt: skip
    why = f"each client is seen about {visits:.2g} times"
    if visits >= FEW_VISITS:
        why = f"the last update of every client takes {needed / 1e6:,.0f} MB, above the limit"
    return Recommendation(
        "balanced-factor", "pivotal", "factor-memory", adaptive, DECAY,
        f"A model of updates in a few numbers per client: {why}. {LONGER}",
    )  # fmt: skip
