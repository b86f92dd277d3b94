"""Ten attacks on every policy: with the recommended guards, lying brings little.

A slice of ``make capture``: fewer clients, rounds and seeds.
"""

import numpy as np
import pytest

from bench.attacks import ATTACKS
from bench.capture import WANTED, gains
from cvrcore.selectors import BUILT_IN, policy_class


@pytest.fixture(params=list(BUILT_IN))
def policy(request):
    """Return the name of each policy in turn, those that came later too."""
    return request.param


NOISE = 0.15  # two seeds instead of five: more than a standard error of a gain


def felt(policy):
    """Return the attacks that can change what a policy sees: most policies see no models."""
    kind = policy_class(policy)
    sees = "n_features" in (kind.option_names() or []) or kind.needs & {"updates", "norms"}
    return [attack for attack in ATTACKS if sees or attack.models is None]


def test_attackers_gain_little_with_recommended_guards(policy):
    attacks = felt(policy)
    found = gains(policy, 100, 10, "recommended", range(2), (20, 40), attacks)
    for attack, gained in zip(attacks, found, strict=True):
        assert gained.max() <= WANTED + NOISE, (attack.name, gained)


@pytest.mark.parametrize(
    ("policy_name", "attack", "least"),
    [
        ("active", "losses", 2.5),
        ("oort", "durations", 2.0),
        ("fedcbs", "label counts", 2.0),
        ("active", "fresh ids", 2.5),
        ("uniform", "samples", 4.0),
        ("fedcvr-bolt", "own direction", 2.0),
    ],
)
def test_the_attacks_are_real(policy_name, attack, least):
    """Without guards the same attacks capture the picks or the weight."""
    chosen = [a for a in ATTACKS if a.name == attack]
    found = gains(policy_name, 60, 6, None, range(2), (80,), chosen)
    assert np.max(found) >= least
