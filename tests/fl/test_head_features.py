"""A run whose policy watches the direction of head-bias updates."""

import numpy as np

import fl


def test_policy_watches_one_number_per_class_and_a_resumed_run_is_the_same(tmp_path):
    config = fl.make_config(
        "digits",
        "fedcvr-bolt",
        rounds=4,
        selection__features="head",
        selection__options={"warmup": 1},
        aggregator="factor-memory",
        server__optimiser="adaptive",
        checkpoint_every=2,
    )
    whole = fl.run(config, tmp_path / "whole")
    assert whole.facts["n_features"] == 10
    assert all(record["memory_bytes"] > 0 for record in whole.rounds)

    class Stop(Exception):
        pass

    def stop(record):
        if record["round"] == 3:
            raise Stop

    try:
        fl.run(config, tmp_path / "cut", progress=stop)
    except Stop:
        pass
    again = fl.run(config, tmp_path / "cut", resume=True)
    for one, other in zip(whole.rounds, again.rounds, strict=True):
        assert one["picked"] == other["picked"]
        assert 1.0 <= one["server_lr"] == other["server_lr"] <= 3.0
        assert np.isclose(one["accuracy"], other["accuracy"], rtol=0, atol=0)
