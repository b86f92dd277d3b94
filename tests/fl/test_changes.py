"""Settings as newcomers write them: tables merge, short names work, errors say what works."""

import pytest
from typer.testing import CliRunner

import cvrcore
import fl
from fl.cli import app
from fl.config import ConfigError, DataConfig, RunConfig
from fl.presets import make_config, resolve


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"n_clients": 20}},
        {"data__n_clients": 20},
        {"n_clients": 20},
        {"data": {"n_clients": 30}, "n_clients": 20},
    ],
)
def test_nested_settings_merge(changes):
    config = fl.make_config("mnist", "fedcvr-bolt", **changes)
    assert config.data.n_clients == 20
    assert config.data.dataset == "mnist"
    assert config == make_config("mnist", "fedcvr-bolt").replace(data__n_clients=20)


@pytest.mark.parametrize(
    "changes",
    [
        {"selection": {"options": {"temperature": 2.0}}},
        {"selection__options": {"temperature": 2.0}},
        {"selection__options__temperature": 2.0},
        {"selection": {"options": {}}, "selection__options__temperature": 2.0},
    ],
)
def test_nested_options_merge(changes):
    config = fl.make_config("mnist", "fedcvr-bolt-argmax", n_select=5, **changes)
    assert (config.selection.policy, config.selection.n_select) == ("fedcvr-bolt", 5)
    options = {"preset": "paper", "warmup": "auto", "within": "argmax", "temperature": 2.0}
    assert config.selection.options == options


def test_order_of_changes_does_not_matter():
    changes = {"selection__options__max_share": 1.5, "selection__policy": "oort", "policy": "oort"}
    for some in (changes, dict(reversed(changes.items()))):
        config = make_config("mnist", "fedcvr-bolt", **some)
        assert config.selection.policy == "oort"
        assert config.selection.options == {"max_share": 1.5}


def test_options_of_another_policy_are_dropped():
    bolt = make_config("mnist", "fedcvr-bolt")
    assert bolt.replace(selection={"policy": "oort"}).selection.options == {}
    prox = make_config("mnist", "fedprox").replace(algorithm__name="fedavg")
    assert prox.algorithm.options == {}
    assert make_config("mnist", "fedavg-mifa").replace(aggregator="sizes").aggregator_options == {}
    assert bolt.replace(policy="fedcvr-bolt").selection.options == bolt.selection.options


def test_a_section_may_be_given_whole():
    config = make_config("mnist", data=DataConfig("mnist", n_clients=7), n_select=2)
    assert config.data == DataConfig("mnist", n_clients=7)


def test_dataset_is_what_was_named():
    assert make_config(data={"dataset": "mnist"}).rounds == 200  # with the settings of MNIST
    assert make_config(data__dataset="mnist") == make_config("mnist")
    assert resolve({}, {"dataset": "mnist"}) == make_config("mnist")
    with pytest.raises(ConfigError, match="dataset must be given once, got 'digits' and data.data"):
        make_config("digits", data={"dataset": "mnist"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selection__warmup": 3}, "selection.warmup is not .* 'selection.options.warmup'"),
        ({"selection": {"warmup": 3}}, "selection.warmup is not .* 'selection.options.warmup'"),
        ({"warmup": 3}, "warmup is not a setting; did you mean 'selection.options.warmup'"),
        ({"training__learning_rate": 3}, "training.learning_rate is not .* 'training.lr'"),
        ({"training": {"learning_rate": 3}}, "training.learning_rate is not .* 'training.lr'"),
        ({"learning_rate": 3}, "learning_rate is not a setting; did you mean 'training.lr'"),
        ({"lr": 3}, "lr is in more than one table: write training.lr or server.lr"),
        ({"data": {"n_client": 3}}, "data.n_client is not a setting; .* 'data.n_clients'"),
        ({"data": {"rounds": 3}}, "data.rounds is not a setting; did you mean 'rounds'"),
        ({"num_rounds": 3}, "num_rounds is not a setting; did you mean 'rounds'"),
        ({"data": 3}, "data must be a table of settings, got 3"),
        ({"data": 3, "n_clients": 3}, "data must be a table of settings, got 3"),
        ({"zzzzzz": 3}, "zzzzzz is not a setting; `cvrcore config init` lists them all"),
    ],
)
def test_refusals_give_the_right_spelling(changes, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig().replace(**changes)


def test_file_that_names_a_setting_outside_its_table():
    with pytest.raises(ConfigError, match="dataset is not a setting; did you mean 'data.dataset'"):
        resolve({"dataset": "mnist"}, {})


def test_every_suggestion_exists():
    """What a message advises must work when it is typed."""
    from fl.changes import SYNONYMS, paths_of

    known = {".".join(path) for path in paths_of(RunConfig)}
    assert set(SYNONYMS.values()) <= known
    assert not {name for name in SYNONYMS if name in known}


def test_command_line_takes_short_names():
    few = ["--quiet", "--rounds", "1", "--engine", "serial", "--set", "training.epochs=1"]
    found = CliRunner().invoke(app, ["run", *few, "--set", "n_clients=12", "--set", "n_select=4"])
    assert found.exit_code == 0, found.output
    found = CliRunner().invoke(app, ["run", *few, "--set", "selection.warmup=3"])
    assert found.exit_code == 2
    assert "did you mean 'selection.options.warmup'?" in found.stderr


@pytest.mark.parametrize(
    ("name", "meant"),
    [("fedcvr_bolt", "fedcvr-bolt"), ("FedCVR-Bolt", "fedcvr-bolt"), ("ort", "oort"),
     ("power_of_choice", "power-of-choice"), ("random", None)],
)  # fmt: skip
def test_a_policy_with_a_slip_in_its_name_is_suggested(name, meant):
    with pytest.raises(ValueError, match="name must be one of") as caught:
        cvrcore.make_selector(name, n_clients=10, n_select=2)
    hint = f"got {name!r}; did you mean {meant!r}?" if meant else f"got {name!r}"
    assert str(caught.value).endswith(hint)
