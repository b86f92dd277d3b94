"""Sizes of a federation in, the number of uniform first rounds out: how long a policy warms up."""

from __future__ import annotations

from typing import Any, Final

from ..validation import check_count

#: Rounds of warm-up in the paper and its scripts, and the most that "auto" takes.
PAPER_WARMUP: Final = 30
#: Expected share of clients that have been seen when a warm-up of "auto" ends.
SEEN_SHARE: Final = 0.95


def auto_warmup(n_clients: int, n_select: int, n_rounds: int | None = None) -> int:
    """Return how many rounds ``warmup="auto"`` takes.

    After t uniform rounds a client has been seen with probability ``1 - (1 - P/K)^t``. The
    warm-up ends when this reaches 95 %, or after 30 rounds, whichever comes first. It takes at
    most a third of `n_rounds`, where the caller announces how many rounds there will be.

    Parameters
    ----------
    n_clients, n_select : int
        K clients that can be picked, P picked in a round.
    n_rounds : int, optional
        Rounds that will be run. Default: not known.

    Examples
    --------
    >>> auto_warmup(100, 10), auto_warmup(20, 5), auto_warmup(1000, 10)
    (29, 11, 30)
    >>> auto_warmup(100, 10, n_rounds=20)
    6
    """
    n_select = min(n_select, n_clients)
    missed = 1.0 - n_select / n_clients if n_clients else 0.0
    rounds, unseen = 0, 1.0
    while unseen > 1.0 - SEEN_SHARE + 1e-12 and rounds < PAPER_WARMUP:
        rounds, unseen = rounds + 1, unseen * missed
    return rounds if n_rounds is None else min(rounds, n_rounds // 3)


def check_warmup(value: Any, named_preset: bool) -> int | None:
    """Return a checked number of rounds; None stands for "auto".

    `value` None is the default: "auto", or the paper's 30 rounds if the caller names a preset.
    """
    if value is None:
        return PAPER_WARMUP if named_preset else None
    if isinstance(value, str):
        if value != "auto":
            raise ValueError(f"warmup must be a number of rounds or 'auto', got {value!r}")
        return None
    return check_count(value, "warmup", minimum=0)


def log_warmup(policy: str, warmup: int, auto: bool, n_rounds: int | None) -> None:
    """Log how long the warm-up takes; warn if no announced round is left for the policy."""
    import logging  # here: importing it takes as long as the rest of the selectors

    logger = logging.getLogger("cvrcore.selectors")
    if n_rounds is not None and warmup >= n_rounds and warmup:
        logger.warning(
            "%s will not act: all %d announced rounds are warm-up (warmup=%d), in which clients "
            "are drawn uniformly; pass warmup='auto', or at most warmup=%d",
            policy,
            n_rounds,
            warmup,
            n_rounds // 3,
        )
    elif warmup:
        logger.info(
            "%s: the first %d rounds%s are warm-up%s, clients are drawn uniformly",
            policy,
            warmup,
            "" if n_rounds is None else f" of {n_rounds}",
            " (auto)" if auto else "",
        )
