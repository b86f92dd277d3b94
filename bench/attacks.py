"""Ten attacks on a selection: what an honest client would report in, what attackers report out.

Each attack changes one kind of report; `Attack` says which, and leaves the others honest.
"""

import dataclasses

import numpy as np

FAR = 2.9  # of the median distance: just inside the bound of three medians


@dataclasses.dataclass(frozen=True)
class Attack:
    """Reports of attackers; every method takes the honest value and returns the hostile one.

    Parameters
    ----------
    name : str
    models : function of (honest models, centre, directions, picks so far), optional
    losses, durations, sizes : function of the honest values, optional
    counts : function of the honest class counts, optional
    fresh : bool
        Whether an attacker comes back under a new identity after each pick.
    """

    name: str
    models: object = None
    losses: object = None
    durations: object = None
    sizes: object = None
    counts: object = None
    fresh: bool = False


def _typical(models, centre):
    return np.median(np.linalg.norm(models - centre, axis=1))


def own_direction(models, centre, directions, times):
    return centre + FAR * _typical(models, centre) * directions


def alternating(models, centre, directions, times):
    sign = np.where(times % 2, -1.0, 1.0)[:, None]
    return centre + sign * FAR * _typical(models, centre) * directions


def copycats(models, centre, directions, times):
    return np.tile(centre + FAR * _typical(models, centre) * directions[0], (len(directions), 1))


def drift(models, centre, directions, times):
    return centre + 1.05 ** times[:, None] * _typical(models, centre) * directions


def zeros(models, centre, directions, times):
    return np.zeros((len(directions), models.shape[1]))


ATTACKS = (
    Attack("own direction", models=own_direction),
    Attack("alternating", models=alternating),
    Attack("copycats", models=copycats),
    Attack("drift", models=drift),
    Attack("zeros", models=zeros, losses=np.zeros_like),
    Attack("samples", sizes=lambda sizes: np.full_like(sizes, 9e18)),
    Attack("losses", losses=lambda losses: np.full_like(losses, 1e6)),
    Attack("durations", durations=lambda durations: np.full_like(durations, 1e-9)),
    Attack("label counts", counts=lambda counts: np.full_like(counts, counts.sum() / counts.size)),
    Attack("fresh ids", fresh=True, sizes=lambda sizes: 10.0 * sizes),
)
HONEST = Attack("none")
