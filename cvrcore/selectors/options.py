"""Options of `CoalitionSelector` in two frozen objects: the rule it follows, and the solver."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, TypeVar

from ..clustering.affinity import KERNELS, check_gamma
from ..clustering.coalition_count import COUNTS
from ..covariance.pairs import PREDICTORS
from ..draws.allocation import PLACES, SIZE_LAWS
from ..draws.balanced import BALANCES
from ..draws.coalition_draw import SCORES
from ..draws.laws import LAWS
from ..runtime.sizes import CLUSTERINGS, EIGENSOLVERS, LANDMARKS, STORES
from ..validation import check_choice, check_count, check_number

Options = TypeVar("Options")

#: The paper's text made finite, and what the authors' published scripts compute.
PRESETS: Final = {"paper": "regression", "scripts": "cosine"}


@dataclasses.dataclass(frozen=True)
class Rule:
    """What FedCVR-Bolt computes: the choices that change who is picked.

    Parameters
    ----------
    kernel, gamma
        Of the influence, see `cvrcore.influence`.
    predictor : {"regression", "cosine"}, optional
        Coefficients C_kj / C_jj, or cosines of the last rows. Default: the preset's.
    rate : "decay" or float
        Step of the covariance: 1 / (s + 2) in main round s, or a constant in (0, 1).
    score : {"raw", "zscore", "log"}
        Scale of the scores, see `cvrcore.draws.coalition_draw.transform_scores`; "raw" is the
        paper's.
    temperature : float, default=1.0
        Of the Boltzmann law.
    within : {"boltzmann", "argmax", "uniform", "size", "neyman"}
        Law inside a coalition: Eq. (11), Eq. (10), or neither; in proportion to samples, or
        to samples times the distance of the client's last row from its coalition's mean.
        The last two are ours, see `cvrcore.draws.allocation`; "neyman" is meant for rows of
        updates, as `cvrcore.features.FeatureMap.updates` makes them.
    n_coalitions : int, {"eigengap", "silhouette"}, optional
        Coalitions, from 2 to P: a number, or found whenever they are made, see
        `cvrcore.clustering.coalition_count` (up to the sizes of "exact" clustering). Default:
        P, as in the paper.
    places : {"even", "neyman"}
        Which coalitions get the places that are left when there are fewer coalitions than P:
        those with most clients to spare, or those of largest variance.
    balance : {"within", "across"}, optional
        Spread the clients over their rows by the local pivotal method, ours, see
        `cvrcore.draws.balanced`: inside each coalition that has several places, which is so
        with fewer coalitions than P; or over all clients, where each coalition gets its
        expected number rounded down or up. ``Selection.inclusion`` is in proportion to the law
        `within`, capped at 1. "across" leaves `places` at "even". Default: successive draws, as
        in the paper.

    Examples
    --------
    >>> import cvrcore
    >>> rule = cvrcore.Rule(kernel="cosine", within="size")
    >>> selector = cvrcore.CoalitionSelector(
    ...     n_clients=20, n_features=8, n_select=4, rule=rule, seed=0
    ... )
    >>> len(selector.select())
    4
    """

    kernel: str = "rbf"
    gamma: float | str = 1.0
    predictor: str | None = None
    rate: float | str = "decay"
    score: str = "raw"
    temperature: float = 1.0
    within: str = "boltzmann"
    n_coalitions: int | str | None = None
    places: str = "even"
    balance: str | None = None

    def __post_init__(self) -> None:
        check_choice(self.kernel, "kernel", KERNELS)
        _set(self, "gamma", check_gamma(self.gamma, self.kernel))
        if self.predictor is not None:
            check_choice(self.predictor, "predictor", PREDICTORS)
        if isinstance(self.rate, str):
            check_choice(self.rate, "rate", ("decay",))
        else:
            _set(self, "rate", check_number(self.rate, "rate", above=0, below=1))
        check_choice(self.score, "score", SCORES)
        _set(self, "temperature", check_number(self.temperature, "temperature", above=0))
        check_choice(self.within, "within", (*LAWS, *SIZE_LAWS))
        if isinstance(self.n_coalitions, str):
            check_choice(self.n_coalitions, "n_coalitions", COUNTS)
        elif self.n_coalitions is not None:
            _set(self, "n_coalitions", check_count(self.n_coalitions, "n_coalitions"))
        check_choice(self.places, "places", PLACES)
        if self.balance is not None:
            check_choice(self.balance, "balance", BALANCES)
        if self.balance == "across" and self.places != "even":
            raise ValueError(
                "places must be 'even' with balance 'across', which has no whole places, "
                f"got {self.places!r}"
            )


@dataclasses.dataclass(frozen=True)
class Solver:
    """How FedCVR-Bolt is computed: time and memory. ``print(selector.plan())`` shows the result.

    Parameters
    ----------
    clustering : {"auto", "exact", "nystrom"}
        Spectral clustering of the whole affinity, or through `n_landmarks` landmarks;
        "auto" takes the first up to 12,000 clients, where memory allows.
    eigensolver : {"auto", "direct"}
        "auto" is warm-started subspace iteration in float32; "direct" calls LAPACK (beyond
        1,500 clients ARPACK) in float64 each time coalitions are made.
    n_landmarks : int, optional
        Default: 500, or twice n_select if that is more.
    landmarks : {"uniform", "kmeans++"}
        How landmarks are drawn among the clients.
    recluster_every : int, default=1
        Main rounds that coalitions are kept.
    store : {"auto", "dense", "factored", "window", "none"}
        Form of the covariance, see `cvrcore.covariance.store.CovarianceStore`. "none" keeps
        only what scores need, for the cosine predictor; "auto" chooses it there.
    window : int, optional
        Rounds that the covariance's predictor remembers; scores remember all. Default: all
        where memory allows.
    memory_limit : float, optional
        Bytes that the selector may take. Default: half of what is free.

    Examples
    --------
    >>> import cvrcore
    >>> solver = cvrcore.Solver(recluster_every=5, memory_limit=1e9)
    >>> selector = cvrcore.CoalitionSelector(
    ...     n_clients=20, n_features=8, n_select=4, solver=solver, seed=0
    ... )
    >>> selector.plan().limit
    1000000000
    """

    clustering: str = "auto"
    eigensolver: str = "auto"
    n_landmarks: int | None = None
    landmarks: str = "uniform"
    recluster_every: int = 1
    store: str = "auto"
    window: int | None = None
    memory_limit: float | None = None

    def __post_init__(self) -> None:
        check_choice(self.clustering, "clustering", CLUSTERINGS)
        check_choice(self.eigensolver, "eigensolver", EIGENSOLVERS)
        check_choice(self.landmarks, "landmarks", LANDMARKS)
        _set(self, "recluster_every", check_count(self.recluster_every, "recluster_every"))
        check_choice(self.store, "store", STORES)


def _set(options: object, name: str, value: object) -> None:
    object.__setattr__(options, name, value)  # frozen for everybody else


def gathered(
    argument: str, given: Options | None, kind: type[Options], flat: dict[str, Any]
) -> Options:
    """Return an options object: the one given, or made of its fields in `flat`, which are removed.

    Raises
    ------
    TypeError
        If both are given, or `given` is something else.
    """
    names = [field.name for field in dataclasses.fields(kind) if field.name in flat]  # type: ignore[arg-type]
    if given is None:
        return kind(**{name: flat.pop(name) for name in names})
    if not isinstance(given, kind):
        raise TypeError(f"{argument} must be a cvrcore.{kind.__name__}, got {given!r}")
    if names:
        raise TypeError(
            f"{names[0]} must be given once: in {argument}= or as {names[0]}=, not both"
        )
    return given
