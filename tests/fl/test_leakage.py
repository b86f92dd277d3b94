"""What features tell of labels, and a run whose policy sees blurred features."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import fl
from fl.config import ConfigError
from fl.experiments import Request, reproduce
from fl.experiments.definitions.leakage import leak, predicted
from fl.experiments.definitions.recorded import Recording
from fl.experiments.results import read_results
from fl.experiments.text_tables import print_experiment


def made(n_clients=400, told=1.0, seed=0):
    """Return a recording whose head updates are labels less their mean, or noise."""
    rng = np.random.default_rng(seed)
    counts = np.stack(
        [rng.multinomial(50, rng.dirichlet(np.full(5, 0.2))) for _ in range(n_clients)]
    )
    heads = told * (counts / 50 - 0.2) + (1 - told) * rng.normal(size=counts.shape)
    lengths = np.full(n_clients, 50.0)
    return Recording(np.zeros((1, n_clients, 1)), heads[None], lengths, counts)


def test_labels_are_found_where_they_are_told_and_not_elsewhere():
    explained, top = leak(made(told=1.0), 0.0, "none", 0)
    assert explained > 0.9
    assert top > 0.9
    explained, top = leak(made(told=0.0), 0.0, "none", 0)
    assert explained < 0.02
    assert top < 0.35  # a guess finds one in five


def test_noise_and_coarseness_hide_labels():
    recording = made()
    by_noise = [leak(recording, noise, "none", 0)[0] for noise in (0.0, 0.3, 1.0, 5.0)]
    assert by_noise == sorted(by_noise, reverse=True)
    assert by_noise[-1] < 0.05
    assert leak(recording, 0.0, "top", 0)[0] < by_noise[0]


def test_halves_are_predicted_from_each_other():
    """A regression that saw the client itself would know its label: here it must not."""
    rng = np.random.default_rng(1)
    features, labels = np.eye(40), rng.random((40, 3))
    found = predicted(features, labels, np.ones(40), 0)
    # A column of its own for each client: nothing is known of the other half.
    assert abs(np.corrcoef(found.ravel(), labels.ravel())[0, 1]) < 0.5
    assert not np.allclose(found, labels, atol=0.05)


def test_table_is_made_by_one_command(tmp_path, capsys):
    request = Request(quick=True, dataset="digits", seeds=2, rounds=2)
    (outcome,) = reproduce("leakage", request, tmp_path)
    assert [row["features"] for row in outcome.rows][0] == "direction"
    assert outcome.figures[0].read_bytes().startswith(b"\x89PNG")
    print_experiment(read_results(outcome.path.parent), outcome.rows)
    assert "noise 0.3" in capsys.readouterr().out


def blurred(**changes):
    config = fl.make_config("digits", "balanced-factor", rounds=3, **changes)
    return config.replace(engine__workers=1)


@pytest.fixture(scope="module")
def plain():
    return fl.run(blurred())


@pytest.mark.parametrize("change", [{"selection__noise": 2.0}, {"selection__coarse": "sign"}])
def test_policy_and_aggregator_see_blurred_rows(plain, change):
    with fl.server.Server(blurred(**change)) as server:
        records = [server.round(t) for t in range(3)]
        rows = server.policy.state_dict()["chosen"]["learned"]["rows"]
        kept = server.algorithm.state_dict()["aggregators"][0]
    features = kept.get("inner", kept)["features"]
    picked = [client for record in records for client in record["picked"]]
    once = [client for client in set(picked) if picked.count(client) == 1]
    assert once
    assert_allclose(rows[once], features[once])
    if "selection__coarse" in change:  # +1, 0 or -1, scaled to length 1
        sizes = np.abs(rows[once])
        assert_allclose(sizes, (sizes > 0) / np.sqrt((sizes > 0).sum(axis=1, keepdims=True)))
    assert [r["picked"] for r in records] != [r["picked"] for r in plain.rounds]


def test_policies_that_need_updates_see_blurred_rows():
    """DivFL is told updates, not rows: they are blurred all the same."""
    told = []
    for coarse in ("none", "top"):
        config = fl.make_config("digits", "divfl", rounds=2, selection__features="head")
        config = config.replace(engine__workers=1, selection__coarse=coarse)
        with fl.server.Server(config) as server:
            server.round(0)
            rows = server.policy.state_dict()["chosen"]["learned"]["rows"]
        told.append(rows[rows.any(axis=1)])
    assert (np.count_nonzero(told[0], axis=1) > 1).all()
    assert_allclose(np.count_nonzero(told[1], axis=1), 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"selection__noise": -1.0}, "selection.noise must be at least 0, got -1"),
        ({"selection__coarse": "k"}, "selection.coarse must be one of"),
        ({"selection__features": "update", "selection__noise": 0.1}, "must go with"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        blurred(**change)


def test_policy_that_needs_lengths_refuses_noise():
    config = fl.make_config(
        "digits", "fedavg+hics", rounds=1, selection__features="head", selection__noise=0.1
    )
    with pytest.raises(ConfigError, match="needs the lengths"):
        fl.run(config)
