import numpy as np
import pytest

import cvrcore
from fl.experiments.definitions.quadratic import Quadratic, conditional_moments, follow
from fl.experiments.definitions.theory import GROUPS, STEPS, examine


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("step", STEPS)
def test_bound_of_theorem_1_holds(groups, step):
    verdict, running = examine(groups, step, rounds=400, seeds=3)
    # Eq. (A9) at a finite T; the measured mean stands for the expectation.
    assert 0 < verdict["mean_square"] <= verdict["finite_bound"]
    assert verdict["alignment"] > 0
    assert running.shape == (400,)


@pytest.mark.parametrize("step", [0.1, 0.3])
def test_limit_holds_once_the_start_is_forgotten(step):
    verdict, _ = examine("equal groups", step, rounds=600, seeds=3)
    assert verdict["mean_square"] <= verdict["bound"]


def test_moments_are_those_of_many_draws():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(12, 4))
    gradients = rng.normal(size=(12, 3))
    picks = [cvrcore.select(rows, 3, seed=7)]
    labels, law = picks[0].coalitions, picks[0].probabilities
    mean, second = conditional_moments(picks[0], gradients)
    n_draws = 20_000
    drawn = np.zeros((n_draws, 3))
    for p in range(3):
        members = np.flatnonzero(labels == p)
        drawn += gradients[rng.choice(members, size=n_draws, p=law[members])] / 3
    # Four standard errors.
    reach = 4 * drawn.std(axis=0) / np.sqrt(n_draws)
    assert (np.abs(drawn.mean(axis=0) - mean) <= reach + 1e-12).all()
    squares = (drawn**2).sum(axis=1)
    assert abs(squares.mean() - second) <= 4 * squares.std() / np.sqrt(n_draws) + 1e-12


def test_gradient_and_minimum_belong_to_the_loss():
    problem = Quadratic.planted((3, 2), 4, np.random.default_rng(1))
    assert np.abs(problem.gradients(problem.minimum).mean(axis=0)).max() < 1e-12
    x, h = np.ones(4), 1e-6
    ups, downs = ([problem.losses(x + sign * h * e).mean() for e in np.eye(4)] for sign in (1, -1))
    numeric = (np.array(ups) - downs) / (2 * h)
    np.testing.assert_allclose(problem.gradients(x).mean(axis=0), numeric, rtol=1e-6)


def test_one_step_descends_without_noise():
    problem = Quadratic.planted((4,), 3, np.random.default_rng(2))
    path = follow(problem, 4, 0.1, rounds=50, warmup=0, seed=0)
    # All clients are picked: g is the gradient itself.
    np.testing.assert_allclose(path.alignment, path.squares)
    assert (np.diff(path.squares) < 0).all()
