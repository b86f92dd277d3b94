"""One round's decision: `Selection`, and the stateless `select` that makes one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from ._validation import (
    Float,
    Ids,
    Mask,
    check_available,
    check_choice,
    check_count,
    check_matrix,
    check_number,
    check_seed,
    check_weights,
)
from .allocation import SIZE_LAWS, neyman_places, size_law
from .clustering import coalitions as make_coalitions
from .sampling import (
    LAWS,
    SCORES,
    Groups,
    Law,
    draw,
    inclusion_of,
    log_law,
    places_of,
    probabilities_of,
    transform_scores,
)
from .scores import check_covariance, variance_reduction

_Array = TypeVar("_Array", Float, Ids)


class _Late(Generic[_Array]):
    """A field that may be given as a function, called when it is first read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, kind: type | None = None) -> _Array | None:
        if owner is None:
            return None  # the field's default
        value: _Array | Callable[[], _Array] | None = owner.__dict__[self.name]
        if callable(value):
            value = owner.__dict__[self.name] = value()
        return value

    def __set__(self, owner: Any, value: _Array | Callable[[], _Array] | None) -> None:
        owner.__dict__[self.name] = value


class _Lent:
    """An array of somebody else's, copied when it is asked for."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __call__(self) -> Any:
        return self.array.copy()


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """Whom a policy picked in one round, and why.

    Attributes
    ----------
    clients : ndarray of int64, shape (m,)
        Distinct ids, m = min(n_select, eligible), coalition by coalition where there are
        any, in the order drawn inside each.
    coalitions : ndarray of int64, shape (n_clients,), or None
        Coalition of every client, ``0 .. P - 1``; None in warm-up and for policies
        without coalitions.
    scores : ndarray of float64, shape (n_clients,), or None
        What the policy ranks by; for FedCVR-Bolt the variance reduction v_k, Eq. (9).
    probabilities : ndarray of float64, shape (n_clients,), or None
        Law of the first draw. With coalitions it is pi_p(k), Eq. (11), and sums to 1 in
        each coalition that has an eligible client; otherwise it sums to 1.
    inclusion : ndarray of float64, shape (n_clients,), or None
        Probability of being among the m at all: every policy states it, by a formula or,
        where its docstring says so, by the estimate of `cvrcore.inclusion`. What takes time
        is worked out when it is first read. It may be given as a function without arguments.
    round : int
        Index of the round, from 0.
    warmup : bool
        Whether the round belongs to the policy's uniform warm-up.
    """

    clients: Ids
    coalitions: _Late[Ids] = _Late()  # noqa: RUF009 - a descriptor, not a default
    scores: _Late[Float] = _Late()  # noqa: RUF009
    probabilities: _Late[Float] = _Late()  # noqa: RUF009
    inclusion: _Late[Float] = _Late()  # noqa: RUF009
    round: int = 0
    warmup: bool = False

    def __len__(self) -> int:
        """Return the number of clients picked."""
        return int(self.clients.shape[0])

    def __getstate__(self) -> dict[str, Any]:
        """Work everything out first: a function does not travel."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def plain(self) -> dict[str, Any]:
        """Return copies of all fields; `inclusion` is None unless it is known by now."""
        fields = dict(vars(self.kept()))
        for name, value in fields.items():
            if isinstance(value, np.ndarray):
                fields[name] = value.copy()
            elif isinstance(value, _Lent):
                fields[name] = value()
        return fields

    def kept(self) -> Selection:
        """Return what to remember of it: the same arrays, without what is not known yet."""
        fields: dict[str, Any] = dict(vars(self))
        if callable(fields["inclusion"]) and not isinstance(fields["inclusion"], _Lent):
            fields["inclusion"] = None
        return Selection(**fields)

    def lent(self) -> Selection:
        """Return a Selection to write to: arrays of all clients are copied when first read."""
        fields: dict[str, Any] = dict(vars(self))
        for name in ("coalitions", "scores", "probabilities", "inclusion"):
            if isinstance(fields[name], np.ndarray):
                fields[name] = _Lent(fields[name])
        return Selection(**{**fields, "clients": self.clients.copy()})

    def __repr__(self) -> str:
        """Show the round, the clients and, if there are any, their coalitions."""
        kind = ", warm-up" if self.warmup else ""
        text = f"Selection(round={self.round}{kind}, clients={self.clients.tolist()}"
        if self.coalitions is not None:
            sizes = np.bincount(self.coalitions)
            text += f", {sizes.size} coalitions of {sizes.min()}-{sizes.max()} clients"
        if self.scores is not None:
            text += f", scores {self.scores.min():.4g}..{self.scores.max():.4g}"
        return text + ")"


def draw_selection(
    labels: Ids,
    scores: Float,
    eligible: Mask,
    n_select: int,
    rng: np.random.Generator,
    *,
    score: str = "raw",
    within: str = "boltzmann",
    temperature: float = 1.0,
    round: int = 0,
    weights: Float | None = None,
    distances: Float | None = None,
    places: str = "even",
) -> Selection:
    """Draw one client from each coalition: Algorithm 1, lines 7 to 9; inputs are checked.

    A coalition with nobody eligible gives its place to the one with most to spare; with
    fewer coalitions than places, `places` says who gets more. `weights` are the sample
    counts, needed by the laws of `cvrcore.allocation`; so are `distances` by Neyman's.
    """
    scores = scores.copy()  # as they are now: `inclusion` may be worked out after `observe`
    scaled = transform_scores(scores, labels, score)
    law = Law.of(scaled, labels, eligible, temperature) if within == "boltzmann" else None
    if law is not None and places == "even" and law.gives_one_each(n_select):  # the usual case
        return Selection(
            clients=law.draw(labels, eligible, rng),
            coalitions=labels,
            scores=scores,
            probabilities=law.probabilities,
            inclusion=_Lent(law.probabilities),
            round=round,
        )
    groups = Groups.of(labels, eligible)
    if within in SIZE_LAWS:
        assert weights is not None
        log_weights = size_law(within, groups, weights, distances)
    else:
        log_weights = log_law(scaled, groups, within, temperature)
    if places == "neyman":
        assert weights is not None
        assert distances is not None
        n_places = neyman_places(groups, weights, distances, n_select)
    else:
        n_places = places_of(groups, n_select)
    probabilities = (
        probabilities_of(log_weights, groups, labels.size) if law is None else law.probabilities
    )
    return Selection(
        clients=draw(log_weights, scaled, groups, n_places, rng),
        coalitions=labels,
        scores=scores,
        probabilities=probabilities,
        inclusion=inclusion_of(probabilities, log_weights, scaled, groups, n_places),
        round=round,
    )


def select(
    models: ArrayLike,
    n_select: int,
    weights: ArrayLike | None = None,
    covariance: ArrayLike | None = None,
    kernel: str = "rbf",
    gamma: float | str = 1.0,
    temperature: float = 1.0,
    available: ArrayLike | None = None,
    seed: int | np.random.Generator | None = None,
    *,
    score: str = "raw",
    within: str = "boltzmann",
) -> Selection:
    """Pick one client from each of `n_select` coalitions: Algorithm 1, lines 3 to 9.

    Stateless: the caller keeps models and covariance between rounds, or lets
    `CoalitionSelector` do it, which is faster.

    Parameters
    ----------
    models : array-like of shape (n_clients, n_features)
        Watched coordinates of each client's last model, see `cvrcore.features`.
    n_select : int
        P: clients to pick, and coalitions to form.
    weights : array-like of shape (n_clients,), optional
        Sample counts n_k; a client of weight 0 is never picked. Default: equal.
    covariance : array-like of shape (n_features, n_clients, n_clients), optional
        C, from `update_covariance`. Default: ones, the first round's.
    kernel, gamma
        See `cvrcore.influence`.
    temperature : float, default=1.0
        Positive; see `cvrcore.boltzmann`.
    available : mask of shape (n_clients,) or array of ids, optional
        Who can be reached. Default: everybody.
    seed : int, Generator or None
    score : {"raw", "zscore", "log"}
        Scale of the scores; "raw" is the paper's.
    within : {"boltzmann", "argmax", "uniform"}
        Law inside a coalition.

    Returns
    -------
    Selection

    Examples
    --------
    >>> import cvrcore
    >>> models = [[1, 0, 0], [1, 0.1, 0], [0, 1, 0], [0, 1, 0.1]]
    >>> picked = cvrcore.select(models, n_select=2, seed=0)
    >>> picked.coalitions
    array([0, 0, 1, 1])
    """
    rows = check_matrix(models, "models")
    n_clients, n_features = rows.shape
    n_select = check_count(n_select, "n_select", maximum=n_clients)
    sizes = check_weights(weights, n_clients)
    temperature = check_number(temperature, "temperature", above=0)
    score = check_choice(score, "score", SCORES)
    within = check_choice(within, "within", LAWS)
    eligible = check_available(available, n_clients) & (sizes > 0)
    if not eligible.any():
        raise ValueError("available must contain at least one client of positive weight, got none")
    if covariance is None:
        scores = np.full(n_clients, float(n_features))
    else:
        cov = check_covariance(covariance, n_clients)
        if cov.shape[0] != n_features:
            raise ValueError(
                f"covariance must have one matrix for each of {n_features} features, "
                f"got {cov.shape[0]}"
            )
        scores = variance_reduction(cov, sizes)
    rng = check_seed(seed)
    labels = make_coalitions(rows, n_select, kernel, gamma, seed=rng)
    return draw_selection(
        labels,
        scores,
        eligible,
        n_select,
        rng,
        score=score,
        within=within,
        temperature=temperature,
    )
