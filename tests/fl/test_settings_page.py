"""The settings page, the commented file and --print-config: made from the classes, and true."""

import json
import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fl.changes import paths_of
from fl.cli import app
from fl.config import RunConfig
from fl.config_text import commented_toml, config_toml, toml_value
from fl.meanings import MEANINGS, meaning
from fl.presets import METHODS, make_config, resolve
from fl.settings_page import PAGE, documented, settings_page

PLAIN = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == settings_page(), "run `make settings`"


def test_every_setting_is_explained():
    missing = [path for path in paths_of(RunConfig) if not meaning(RunConfig, path)]
    assert not missing, "write a line in fl/meanings.py"
    known = {".".join(path) for path in paths_of(RunConfig)}
    planned = {name for name in MEANINGS if name.startswith("training.")}
    assert set(MEANINGS) - known <= planned


@given(PLAIN)
def test_values_survive_toml(value):
    assert tomllib.loads(f"x = {toml_value(value)}")["x"] == value


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("preset", [None, "paper", "scripts"])
def test_printed_settings_are_read_again(method, preset):
    config = make_config("cifar10", method, preset, n_clients=20, selection__options__max_share=2.0)
    assert resolve(tomllib.loads(config_toml(config)), {}) == config


@pytest.mark.parametrize("method", ["fedavg", "cvr-steady", "fedprox"])
def test_commented_file_is_the_config_with_and_without_its_marks(method):
    config = make_config("mnist", method)
    text = commented_toml(config)
    assert resolve(tomllib.loads(text), {}) == config
    uncommented = "\n".join(re.sub(r"^# (?=\w+ = [^?])", "", line) for line in text.splitlines())
    values = tomllib.loads(uncommented)
    assert resolve(values, {}) == config
    for path in paths_of(RunConfig):
        assert re.search(rf"^(# )?{path[-1]} = ", text, re.MULTILINE), path


def test_newcomer_starts_from_a_file(tmp_path):
    """Init, change a line, look at what would run, run it."""
    path = tmp_path / "run.toml"
    found = invoke("config", "init", "--method", "fedcvr-bolt", "--out", path)
    assert found.exit_code == 0, found.output
    again = invoke("config", "init", "--out", path)
    assert again.exit_code == 2  # settings that are there stay
    assert "run.toml" in again.stderr
    text = path.read_text()
    assert "# rounds = 100" in text
    text = text.replace("# rounds = 100", "rounds = 3").replace(
        "# n_clients = 50", "n_clients = 12"
    )
    path.write_text(text.replace("# n_select = 10", "n_select = 4"))
    printed = invoke("run", "--config", path, "--print-config", "--set", "training.epochs=1")
    values = tomllib.loads(printed.stdout)
    assert (values["rounds"], values["data"]["n_clients"]) == (3, 12)
    assert values["training"]["epochs"] == 1
    assert values["selection"]["options"] == {"preset": "paper", "warmup": "auto"}
    as_json = invoke("run", "--config", path, "--print-config", "--json")
    assert json.loads(as_json.stdout)["rounds"] == 3
    done = invoke("run", "--config", path, "--quiet", "--engine", "serial")
    assert done.exit_code == 0, done.output
    assert "1 of 3 rounds were warm-up" in done.stdout


def test_config_still_shows_versions():
    assert "cvrcore" in invoke("config").stdout
    assert "numpy" in json.loads(invoke("config", "--json").stdout)


def test_documented_parameters_are_found():
    def example():
        """Do something.

        Parameters
        ----------
        first, second : int
            Two numbers.
        third : {"a", "b"}
            A choice: see
            `there`.

        Returns
        -------
        nothing
        """

    assert list(documented(example)) == [
        ("first", "Two numbers."),
        ("second", "Two numbers."),
        ("third", '{"a", "b"}: A choice: see `there`.'),
    ]
