import importlib.metadata
import json

import pytest
from own_models import federation, make_net
from tiny import tiny_config

import fl
from fl.cli import main
from fl.config import ConfigError, RunConfig

MODULE = """
import numpy as np
from torch import nn
from fl.data import Federation

def factory(in_shape, n_classes):
    return nn.Sequential(nn.Linear(in_shape[0], 7), nn.Tanh(), nn.Linear(7, n_classes))

def federation(seed, n_clients):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, 120)
    return Federation.from_arrays(
        rng.normal(size=(120, 4)) + y[:, None], y, partition="iid", n_clients=n_clients,
        name="brought", seed=seed,
    )

def broken():
    raise OSError("no such disk")
"""
QUICK = [
    "--clients",
    "6",
    "--select",
    "3",
    "--rounds",
    "4",
    "--set",
    "training.epochs=1",
    "--quiet",
]


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "brought_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    return tmp_path


def cvrcore(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return caught.value.code


OWN = ["--dataset", "brought_module:federation", "--model", "brought_module:factory"]


def test_a_model_and_a_federation_by_import_path(here, capsys):
    assert cvrcore("run", *OWN, *QUICK, "--out", "run", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["dataset"], summary["rounds"]) == ("brought", 4)
    facts = json.loads((here / "run" / "facts.json").read_text())
    assert (facts["model"], facts["n_parameters"]) == ("brought_module:factory", 4 * 7 + 7 + 16)
    # The folder names no code: it must be given again.
    assert cvrcore("resume", "run", "--rounds", "6", "--quiet") == 2
    assert "give it again, by --model package.module:name" in capsys.readouterr().err
    assert cvrcore("resume", "run", "--rounds", "6", *OWN, "--quiet", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == 6


def test_methods_are_compared_on_what_is_brought(here, capsys):
    code = cvrcore("compare", "fedavg", "oort", *OWN, *QUICK, "--seeds", "2", "--json")
    assert code == 0
    assert [row["method"] for row in json.loads(capsys.readouterr().out)] == ["fedavg", "oort"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "brought_module:nothing"], "--model 'brought_module:nothing' cannot be impo"),
        (["--model", "nowhere:factory"], "ModuleNotFoundError"),
        (["--model", ":factory"], "--model must look like package.module:name"),
        (["--dataset", "brought_module:broken"], "federation: OSError: no such disk"),
        (["--dataset", "brought_module:MODULE"], "cannot be imported"),
        (["--set", "model=brought_module:factory"], "never in settings"),
        (["--model", "resnet"], "model must be one of mlp, cnn, logistic, linear"),
        (["--device", "cuda:7"], "training.device 'cuda:7' is not there"),
        (["--device", "toaster"], "training.device must be"),
    ],
)
def test_mistakes_are_one_line(here, capsys, arguments, message):
    assert cvrcore("run", *QUICK, *arguments, "--out", "run") == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert message in error[0]
    assert not (here / "run").exists()


@pytest.mark.parametrize("key", ["model", "data"])
def test_import_paths_in_files_are_refused_and_not_imported(here, capsys, key):
    (here / "evil.py").write_text("open('imported', 'w').close()\nfactory = None\n")
    text = 'model = "evil:factory"\n' if key == "model" else '[data]\ndataset = "evil:factory"\n'
    (here / "settings.toml").write_text(text)
    assert cvrcore("run", "--config", "settings.toml", "--quiet") == 2
    assert cvrcore("run", *QUICK, "--out", "run", "--json") == 0
    path = here / "run" / "config.json"
    values = json.loads(path.read_text())
    if key == "model":
        values["model"] = "evil:factory"
    else:
        values["data"]["dataset"] = "evil:factory"
    path.write_text(json.dumps(values))
    facts = json.loads((here / "run" / "facts.json").read_text())
    facts |= {"model": "evil:factory", "own": ["model"]}
    (here / "run" / "facts.json").write_text(json.dumps(facts))
    assert cvrcore("resume", "run", "--quiet") == 2
    assert not (here / "imported").exists()
    with pytest.raises(ConfigError, match="never in settings"):
        RunConfig.from_dict(values)


def register(monkeypatch, **groups):
    def entry_points(*, group):
        return [
            importlib.metadata.EntryPoint(name, value, group)
            for name, value in groups.get(group.partition(".")[2], {}).items()
        ]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)


def test_registered_models_and_data_sets_go_by_name(monkeypatch):
    register(
        monkeypatch,
        models={"net": "own_models:make_net"},
        datasets={"mine": "own_models:federation"},
    )
    settings = fl.make_config(
        "mine", "fedavg", model="net", rounds=3, n_clients=6, n_select=4, epochs=2,
        batch_size=5, training__lr=0.05,
    )  # fmt: skip
    assert RunConfig.from_dict(settings.to_dict()) == settings
    given = tiny_config(model=None, data__n_clients=6, rounds=3)
    fed = federation(seed=fl.streams.Streams(0).integer("partition"))
    expected = fl.run(given, federation=fed, model=make_net)
    assert fl.run(settings).rounds[-1]["accuracy"] == expected.rounds[-1]["accuracy"]


def test_a_broken_registration_is_named(monkeypatch):
    register(monkeypatch, models={"net": "own_models:no_such"}, datasets={})
    with pytest.raises(ConfigError, match=r"model 'net' \(own_models:no_such\) cannot be loaded"):
        fl.run(tiny_config(model="net", rounds=1, data__n_clients=6), federation=federation())
    with pytest.raises(ConfigError, match="dataset must be one of digits"):
        fl.make_config("mine", "fedavg")
    with pytest.raises(ConfigError, match="federation must be given"):
        fl.run(fl.make_config("own", "fedavg"))
