import builtins
import dataclasses
import gc
import json

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from own_models import Net, federation
from safetensors.torch import load_file
from tiny import tiny_config, tiny_federation

import fl
from fl.config import ConfigError
from fl.evaluation import segment_means
from fl.models import build_model
from fl.samples import ClientSamples
from fl.store import StoreError, read_history


class Stop(Exception):
    pass


def stop_after(n):
    def progress(record):
        if record["round"] == n:
            raise Stop

    return progress


def noisy():
    """Labels by chance: accuracy goes up and down."""
    fed = tiny_federation()
    return dataclasses.replace(fed, y=np.random.default_rng(1).permutation(fed.y))


def accuracy(module, fed):
    """The mean over clients, by torch alone."""
    ids = np.concatenate(fed.test)
    with torch.no_grad():
        hits = module(torch.from_numpy(fed.x[ids])).argmax(1).numpy() == fed.y[ids]
    starts = np.cumsum([0, *map(len, fed.test)])
    return segment_means(hits.astype(float), starts)[np.diff(starts) > 0].mean()


# -- models -------------------------------------------------------------------------------


def test_final_and_best_model_score_what_the_history_says(tmp_path):
    fed = noisy()
    history = fl.run(tiny_config(training__lr=0.5), tmp_path / "run", federation=fed)
    assert history.best() > history.final()  # else the two could not be told apart
    for which, wanted in (("final", history.final()), ("best", history.best())):
        assert_allclose(accuracy(history.model(which), fed), wanted)
        # From the disk, by torch and safetensors alone.
        module = build_model("mlp", (8,), 3)
        name = {"final": "model", "best": "best"}[which]
        module.load_state_dict(load_file(tmp_path / "run" / f"{name}.safetensors"))
        assert_allclose(accuracy(module, fed), wanted)
        assert_allclose(accuracy(read_history(tmp_path / "run").model(which), fed), wanted)


def test_the_best_model_survives_an_interruption(tmp_path):
    fed, settings = noisy(), tiny_config(training__lr=0.5, rounds=12)
    whole = fl.run(settings, federation=fed)
    rounds, values = whole.column("accuracy")
    best = int(rounds[values.argmax()])
    after = next(t for t in (2, 4, 6, 8, 10) if t >= best)
    with pytest.raises(Stop):
        fl.run(settings, tmp_path / "run", federation=fed, progress=stop_after(after))
    resumed = fl.run(settings, tmp_path / "run", federation=fed, resume=True)
    for mine, other in zip(
        whole.model("best").parameters(), resumed.model("best").parameters(), strict=True
    ):
        assert_array_equal(mine.detach(), other.detach())


def test_own_models_come_back_with_buffers_and_tied_weights(tmp_path):
    class Tied(Net):
        def __init__(self):
            super().__init__(8, 3)
            self.again = self.head

    fed = federation()
    settings = tiny_config(model=None, data__n_clients=6)
    history = fl.run(settings, tmp_path / "run", federation=fed, model=Tied)
    module = history.model()
    assert module.bn.num_batches_tracked > 0
    state = load_file(tmp_path / "run" / "model.safetensors")
    assert state["bn.num_batches_tracked"].dtype == torch.int64
    assert set(state) == set(module.state_dict())
    again = read_history(tmp_path / "run")
    with pytest.raises(ValueError, match="a folder holds no code"):
        again.model()
    assert_allclose(accuracy(again.model(into=Tied()), fed), history.final())
    with pytest.raises(ValueError, match="into must be like the module that was trained"):
        again.model(into=torch.nn.Linear(2, 2))


def test_a_history_does_not_hold_on_to_the_samples():
    def alive():
        gc.collect()
        return sum(type(thing) is ClientSamples for thing in gc.get_objects())

    before = alive()
    history = fl.run(tiny_config(rounds=1), federation=tiny_federation())
    assert alive() == before
    assert history.model() is not None


def test_several_models_are_told_apart(tmp_path):
    settings = tiny_config(algorithm__name="ifca", rounds=2)
    history = fl.run(settings, tmp_path / "run", federation=tiny_federation())
    with pytest.raises(ValueError, match=r"which of 2 models is meant, 0\.\.1"):
        history.model()
    with pytest.raises(ValueError, match="number must be in"):
        history.model(number=2)
    read = read_history(tmp_path / "run")
    for number in (0, 1):
        mine, other = history.model(number=number), read.model(number=number)
        assert_array_equal(mine.head.weight.detach(), other.head.weight.detach())
    assert (tmp_path / "run" / "model-1.safetensors").exists()


def test_models_are_not_kept_if_not_wanted(tmp_path):
    fl.run(tiny_config(save_models=False, rounds=2), tmp_path, federation=tiny_federation())
    with pytest.raises(FileNotFoundError, match="save_models = false"):
        read_history(tmp_path).model()
    with pytest.raises(ValueError, match="'final' or 'best'"):
        read_history(tmp_path).model("first")


def test_a_damaged_model_file_is_one_line(tmp_path):
    fl.run(tiny_config(rounds=2), tmp_path, federation=tiny_federation())
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(ConfigError, match="model.safetensors is damaged"):
        read_history(tmp_path).model()


# -- tables -----------------------------------------------------------------------------------


def test_tables_hold_what_the_records_say():
    fed = tiny_federation()
    history = fl.run(tiny_config(record_losses=True, eval_every=2), federation=fed)
    rounds = history.to_pandas()
    assert list(rounds.index) == [1, 2, 3, 4, 5, 6]
    assert_array_equal(rounds["accuracy"].dropna(), history.column("accuracy")[1])
    assert rounds["picked"].tolist() == [4] * 6
    assert (rounds["seconds_round"] > 0).all()
    clients = history.to_pandas("clients")
    for record in history:
        rows = clients.loc[record["round"]]
        assert rows.index.tolist() == record["picked"]
        assert rows["size"].tolist() == fed.sizes[record["picked"]].tolist()
        assert_allclose(rows["loss"], record["losses"])
    # The loss of the first round is that of the initial model.
    module = build_model("mlp", (8,), 3, fl.streams.Streams(0).sequence("init", 0))
    client = history.rounds[0]["picked"][0]
    ids = fed.train[client]
    outputs = module(torch.from_numpy(fed.x[ids]))
    expected = torch.nn.functional.cross_entropy(outputs, torch.from_numpy(fed.y[ids]))
    assert_allclose(clients.loc[(1, client), "loss"], expected.item(), rtol=1e-5)


def test_a_loss_that_nobody_asked_for_is_missing_and_changes_nothing():
    fed = tiny_federation()
    without = fl.run(tiny_config(), federation=fed)
    assert without.to_pandas("clients")["loss"].isna().all()
    having = fl.run(tiny_config(record_losses=True), federation=fed)
    assert [r["accuracy"] for r in having] == [r["accuracy"] for r in without]
    with pytest.raises(ValueError, match="'rounds' or 'clients'"):
        without.to_pandas("models")


def test_pandas_is_optional(monkeypatch):
    history = fl.run(tiny_config(rounds=1), federation=tiny_federation())
    real = builtins.__import__

    def fake(name, *rest):
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", fake)
    with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
        history.to_pandas()


# -- continuing --------------------------------------------------------------------------------


def digits(**changes):
    return fl.make_config(
        "digits", "fedavg", rounds=6, checkpoint_every=2, engine__name="serial",
        data__options={"n_samples": 400}, n_clients=12, n_select=3, epochs=1, **changes,
    )  # fmt: skip


def test_resume_needs_the_folder_alone(tmp_path):
    whole = fl.run(digits())
    with pytest.raises(Stop):
        fl.run(digits(), tmp_path / "run", progress=stop_after(3))
    assert fl.resume(tmp_path / "run") == whole
    assert fl.resume(tmp_path / "run") == whole  # nothing is left to do


def test_more_rounds_give_the_longer_run(tmp_path):
    fl.run(digits(), tmp_path / "run")
    longer = fl.resume(tmp_path / "run", 9)
    assert longer == fl.run(digits().replace(rounds=9))
    assert json.loads((tmp_path / "run" / "config.json").read_text())["rounds"] == 9
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 9
    with pytest.raises(ConfigError, match="rounds must be at least 9"):
        fl.resume(tmp_path / "run", 7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training__schedule": "cosine"}, "training.schedule = 'cosine' ends at the last round"),
        (
            {"selection__policy": "fedcvr-bolt", "selection__options": {"warmup": "auto"}},
            "its warm-up of 2 rounds is the automatic one for 6 rounds",
        ),
    ],
)
def test_more_rounds_are_refused_where_something_depends_on_their_number(
    tmp_path, changes, message
):
    fl.run(digits(**changes), tmp_path / "run")
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    with pytest.raises(ConfigError, match=message):
        fl.resume(tmp_path / "run", 20)
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before


def test_what_a_run_had_of_its_own_must_be_given_again(tmp_path):
    fed, settings = federation(), tiny_config(model=None, data__n_clients=6)
    with pytest.raises(Stop):
        fl.run(settings, tmp_path / "run", federation=fed, model=Net, progress=stop_after(3))
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    for given, message in [
        ({"federation": fed}, r"a run with a model \(own_models:Net\) that no file can name"),
        ({"model": Net}, "a run on samples of its own \\('mine'\\)"),
        ({"federation": fed, "model": lambda: Net(8, 3, 0.1), "loss": torch.nn.CrossEntropyLoss()},
         "has not a loss of the caller's own"),
        ({"federation": fed, "model": lambda: torch.nn.Linear(8, 3)},
         r"checkpoint of another model: it has first.weight \(6, 8\) where this model has weight"),
        ({"federation": federation(n_clients=4), "model": Net}, "n_clients"),
    ]:  # fmt: skip
        with pytest.raises((ConfigError, StoreError), match=message) as caught:
            fl.resume(tmp_path / "run", **given)
        assert "\n" not in str(caught.value)
        assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before
    whole = fl.run(settings, federation=fed, model=Net)
    assert fl.resume(tmp_path / "run", federation=fed, model=Net) == whole


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(StoreError, match="holds no run: config.json is missing"):
        fl.resume(tmp_path)
