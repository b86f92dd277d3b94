"""Settings of the guards: keywords, or the name "recommended", in; a checked object out."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, NamedTuple, Self

from ..validation import check_choice, check_number
from .bounds import check_bound

RECOMMENDED: Final = "recommended"


class Incident(NamedTuple):
    """One action of a guard.

    `kind` is "invalid" (the client counts as failed), "norm" or "loss" (the value counts as the
    bound).

    Examples
    --------
    >>> import cvrcore
    >>> selector = cvrcore.make_selector("oort", n_clients=4, n_select=2, seed=0, on_invalid="skip")
    >>> picked = selector.select()
    >>> selector.observe(picked.clients, losses=[1.0, float("nan")])
    >>> [incident.kind for incident in selector.incidents]
    ['invalid']
    """

    round: int
    client: int
    kind: str
    detail: str


@dataclasses.dataclass(frozen=True)
class Guards:
    """Limits on a client's influence; every default is "off".

    Shares are multiples of the even share: the probability ``m / eligible`` of a uniform
    draw in each round in which the client is eligible. They do not depend on the number of
    clients. A bound is a number, ``"median"`` for three times a median, or another multiple
    such as ``"1.5*median"``.

    All guards count identities: one slot is one client. They assume that a client cannot hold
    many slots at once. A client that comes back under a new identity gains nothing
    (`max_newcomers`); a client that holds a hundred identities at the same time has the share of
    a hundred clients.

    Parameters
    ----------
    on_invalid : {"raise", "skip"}
        What `observe` does with a client whose model, loss or duration is not finite, out
        of range or of the wrong shape. "raise": refuse the whole call. "skip": count that
        client as failed, write an `Incident`, and continue with the other clients; then
        `models` may be a list of rows, each checked separately, and an infinite probed loss
        counts as no answer.
    max_norm : bound, optional
        Bound on the distance of a client's watched coordinates from the coordinate-wise
        median of this round's reports (of the last round with three reports, if this round
        has fewer; before that from the initial model). Rows farther away are scaled back to the
        bound. A median is the running median of that distance. In an aggregator: bound on the
        length of a client's update, over all parameters.
    max_loss : bound, optional
        Bound on reported and probed losses; larger losses are clipped. With a median m, losses
        are also clipped from below: they stay within ``m - 2 |m|`` and ``m + 2 |m|``.
    max_share : float above 1, optional
        A client gets, in expectation, at most ``max_share * even`` picks, `even` being the sum
        of its even shares, and never more than ``max_share * even + 1``; in any interval of
        rounds at most two more. A round counts when its clients are selected, whether or not
        its results arrive. A client that used up its share is not eligible, unless the round
        cannot be filled otherwise: then the clients of largest credit come first. With
        ``max_share`` c the round can always be filled if at least ``m * c / (c - 1)`` clients
        are eligible. Together with `max_weight`, a pick of a client whose weight is above the
        mean counts as ``weight / mean`` picks: the limit then holds for its picks and for its
        weight in the model.
    min_share : float in (0, 1], optional
        A client is picked at least ``floor(min_share * even)`` times: a client that falls
        behind takes the place of the client drawn last in its coalition, or in the round.
        More than m clients may be due at once, if many return together; then the clients
        furthest behind come first.
    max_weight : bound, optional
        Bound on sample counts, in the selection and in aggregators. A median is that of the
        present clients; clients that join do not move it for themselves.
    max_newcomers : float, optional
        Clients that joined by `resize` count as newcomers until an even draw would have picked
        each of them twice. All newcomers together get at most this multiple of their joint even
        share, so that a new identity never begins with a free pick. Default: 1 if `max_share`
        is set, else off; a large number switches it off.

    Examples
    --------
    >>> import cvrcore
    >>> selector = cvrcore.make_selector("oort", 100, 10, seed=0, max_share=1.25, max_loss="median")
    >>> selector.guards.max_share
    1.25
    >>> cvrcore.make_selector("oort", 100, 10, guards="recommended").guards.max_share
    1.25
    """

    on_invalid: str = "raise"
    max_norm: float | str | None = None
    max_loss: float | str | None = None
    max_share: float | None = None
    min_share: float | None = None
    max_weight: float | str | None = None
    max_newcomers: float | None = None

    def __post_init__(self) -> None:
        check_choice(self.on_invalid, "on_invalid", ("raise", "skip"))
        for name in ("max_norm", "max_loss", "max_weight"):
            if getattr(self, name) is not None:
                self._set(name, check_bound(getattr(self, name), name))
        if self.max_share is not None:
            self._set("max_share", check_number(self.max_share, "max_share", above=1))
        if self.min_share is not None:
            share = check_number(self.min_share, "min_share", above=0, maximum=1)
            self._set("min_share", share)
        if self.max_newcomers is not None:
            self._set("max_newcomers", check_number(self.max_newcomers, "max_newcomers", above=0))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # frozen for everybody else

    @property
    def newcomers(self) -> float | None:
        """Return the joint limit of newcomers in use: `max_newcomers`, or its default."""
        if self.max_newcomers is None and self.max_share is not None:
            return 1.0
        return self.max_newcomers

    @classmethod
    def recommended(cls) -> Self:
        """Return the settings that ``guards="recommended"`` stands for."""
        return cls(
            on_invalid="skip",
            max_norm="median",
            max_loss="median",
            max_share=1.25,
            max_weight="1*median",
            max_newcomers=1.0,
        )


#: Names of the settings, for callers that take them as separate arguments.
SETTINGS: Final = tuple(field.name for field in dataclasses.fields(Guards))


def as_guards(value: Any, name: str = "guards") -> Guards:
    """Return `value` as Guards: an object, "recommended", or None for no limits."""
    if value is None:
        return Guards()
    if isinstance(value, Guards):
        return value
    if isinstance(value, str):
        if value == RECOMMENDED:
            return Guards.recommended()
        raise ValueError(f"{name} must be a cvrcore.Guards or {RECOMMENDED!r}, got {value!r}")
    raise TypeError(f"{name} must be a cvrcore.Guards or {RECOMMENDED!r}, got {value!r}")
