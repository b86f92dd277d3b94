"""Utilities measured on the server's own samples, in a run."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import fl
from fl.config import ConfigError
from fl.data import load_federation
from fl.worth import keep_back


def config(**changes):
    options = {"rounds": 7, "selection__server_samples": 100, "selection__n_select": 8}
    return fl.make_config("digits", "shapley", **{**options, **changes})


def test_samples_of_the_server_belong_to_no_client():
    whole = load_federation("digits", n_clients=10)
    rest, kept = keep_back(whole, 120, np.random.default_rng(0))
    assert kept.size == 120 == whole.sizes.sum() - rest.sizes.sum()
    assert not np.intersect1d(kept, np.concatenate(rest.train)).size
    assert not np.intersect1d(kept, np.concatenate(rest.test)).size
    with pytest.raises(ConfigError, match="at most half of the"):
        keep_back(whole, 1000, np.random.default_rng(0))


def test_shapley_runs_and_values_share_out_the_gain_of_the_round(monkeypatch):
    from cvrcore.selectors.shapley import ShapleySelector

    seen = []
    plain = ShapleySelector._valued

    def noted(self, utility, clients):
        values = plain(self, utility, clients)
        seen.append((values.sum(), utility(tuple(clients)) - utility(())))
        return values

    monkeypatch.setattr(ShapleySelector, "_valued", noted)
    history = fl.run(config(selection__options={"tolerance": 0.0, "max_permutations": 8}))
    assert len(seen) == 7
    for total, gain in seen:
        assert_allclose(total, gain, atol=1e-9)
    assert history.facts["data"]["server_samples"] == 100
    # After six rounds every client was seen; then the best are picked.
    assert len({k for record in history.rounds[:6] for k in record["picked"]}) == 48


def test_a_run_without_samples_of_the_server_says_what_is_missing():
    with pytest.raises(ConfigError, match="selection.server_samples must be positive with policy"):
        fl.run(config(selection__server_samples=0))


def test_worth_is_minus_the_loss_of_the_average():
    from fl.server import Server

    with Server(config()) as server:
        own = server._own_samples
        sent = server.algorithm.models[0]
        moved = [sent + 0.01, sent - 0.02]
        utility = own.worth(sent, np.array([4, 9]), moved, np.arange(50.0))
        x, y = own._trainer.samples.split("test")
        module = server.job.module()
        mean = (4 * moved[0] + 9 * moved[1]) / 13
        torch.nn.utils.vector_to_parameters(
            torch.tensor(mean, dtype=torch.float32), module.parameters()
        )
        with torch.no_grad():
            expected = -torch.nn.functional.cross_entropy(module(x), y).item()
        assert_allclose(utility((4, 9)), expected, rtol=1e-5)


@pytest.mark.parametrize("policy", ["divfl", "hics", "fedcor", "learned"])
def test_other_policies_of_the_zoo_run(policy):
    options = {"warmup": 2} if policy == "fedcor" else {}
    history = fl.run(fl.make_config("digits", policy, rounds=8, selection__options=options))
    assert len(history) == 8
    assert history.rounds[-1]["accuracy"] > 0.2
