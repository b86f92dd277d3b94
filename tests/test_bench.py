"""The bench's own bookkeeping: rows, records, comparisons, fits and the page it fills."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from bench import __main__ as suite
from bench import pages
from bench.bench_scale import bytes_touched, landmarks, ten_thousand
from bench.federations import Federation
from bench.growth import exponent
from bench.published import PublishedRound
from bench.quality import drive, law, variation
from bench.roofline import Roofline, covariance_kernels, score_kernels
from bench.rows import Found, Row, compare, load, save


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (Row("a", "b", 1.4, sense="<=", must=1.5), "ok"),
        (Row("a", "b", 1.6, sense="<=", must=1.5), "short"),
        (Row("a", "b", 60, sense=">=", must=50, aim=80), "ok"),
        (Row("a", "b", 90, sense=">=", must=50, aim=80), "aim met"),
        (Row("a", "b", 49, sense=">=", must=50, aim=80), "short"),
        (Row("a", "b", math.nan, sense="<=", must=50), "short"),
        (Row("a", "b", 49), ""),
    ],
)
def test_a_verdict_follows_the_bound(row, verdict):
    assert row.verdict == verdict


def test_a_record_survives_its_file(tmp_path):
    rows = [Row("scale", "peak", 2.5, "GB", "<=", 3.0, note="why"), Row("core", "x", 9.0)]
    save(tmp_path / "deep" / "a.json", Found(rows, {"growth": {"exact": [[1], [2]]}}), {"cpu": "c"})
    found, about = load(tmp_path / "deep" / "a.json")
    assert found.rows == rows
    assert found.curves == {"growth": {"exact": [[1], [2]]}}
    assert about == {"cpu": "c"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": [{"name": "x"}]}'])
def test_a_malformed_record_is_refused(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match="is not a record of this bench"):
        load(tmp_path / "a.json")


def test_comparison_marks_changes_above_a_tenth():
    old = [Row("p", "time", 10.0), Row("p", "ratio", 50.0, sense=">="), Row("p", "same", 1.0)]
    new = [Row("p", "time", 12.0), Row("p", "ratio", 60.0, sense=">="), Row("p", "same", 1.09)]
    marks = {row.name: mark for row, _, _, mark in compare(old, [*new, Row("p", "more", 1.0)])}
    assert marks == {"time": "WORSE", "ratio": "better", "same": "", "more": "new"}
    assert [mark for *_, mark in compare(old, new[:2])][-1] == "not run"


def test_the_command_compares_two_records_without_running(tmp_path, capsys):
    save(tmp_path / "old.json", Found([Row("p", "round", 10.0, "ms")]), {})
    save(tmp_path / "new.json", Found([Row("p", "round", 5.0, "ms", must=4.0)]), {})
    paths = ["--load", str(tmp_path / "new.json"), "--compare", str(tmp_path / "old.json")]
    with pytest.raises(SystemExit) as ended:
        suite.main(paths)
    assert ended.value.code == 0
    with pytest.raises(SystemExit) as ended:
        suite.main([*paths, "--check"])
    assert ended.value.code == 1  # 5 is short of 4
    text = capsys.readouterr().out
    assert "-50 %" in text
    assert "better" in text


def test_parts_that_were_run_apart_are_joined(tmp_path, capsys):
    save(tmp_path / "a.json", Found([Row("p", "one", 1.0)], {"growth": {}}), {"cpu": "first"})
    save(tmp_path / "b.json", Found([Row("q", "two", 2.0)], {"quality": {}}), {"cpu": "other"})
    paths = ["--load", str(tmp_path / "a.json"), "--load", str(tmp_path / "b.json")]
    with pytest.raises(SystemExit) as ended:
        suite.main([*paths, "--json", str(tmp_path / "both.json")])
    assert ended.value.code == 0
    found, about = load(tmp_path / "both.json")
    assert [row.name for row in found.rows] == ["one", "two"]
    assert set(found.curves) == {"growth", "quality"}
    assert about == {"cpu": "first"}


def test_only_text_between_the_markers_is_replaced():
    text = f"before\n{pages.BEGIN}\nold\n{pages.END}\nafter\n"
    found = Found([Row("scale", "peak", 2.5, "GB", "<=", 3.0)])
    filled = pages.filled(text, found, {"cpu": "a \\1 cpu"})
    assert filled.startswith("before\n")
    assert filled.endswith("after\n")
    assert "old" not in filled
    assert "| peak | 2.5 GB | <= 3 | ok |" in filled
    assert pages.filled(filled, found, {"cpu": "a \\1 cpu"}) == filled
    assert "busy" not in pages.filled(text, found, {"load": 0.1, "cores": 2})
    assert "busy" in pages.filled(text, found, {"load": 9.0, "cores": 2})
    with pytest.raises(ValueError, match="once each"):
        pages.filled("no markers", found, {})


def test_figures_are_drawn_from_a_record(tmp_path):
    pytest.importorskip("matplotlib", reason="figures need the extra report")
    (tmp_path / "performance.md").write_text(f"{pages.BEGIN}{pages.END}")
    point = {"ari_exact": 1.0, "ari_truth": 1.0, "inertia": 1.0, "tv": 0.1}
    window = [{"window": w, "tv": 0.0, "score_error": 0.0, "dropped": 0.5} for w in (2, 4)]
    curves = {
        "growth": {"exact": [[10, 20], [1.0, 4.0]], "D, other rounds": [[10, 20], [1.0, 2.0]]},
        "quality": {
            "landmarks": {"planted": {h: [{"m": 5, **point}] for h in ("uniform", "kmeans++")}},
            "reference": {"planted": point},
            "window": {"planted": window, "planted, uniform draws": window},
        },
    }
    pages.write(Found([], curves), {}, tmp_path)
    for name in ("scale-growth", "scale-quality"):
        assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 5000


def test_an_exponent_is_the_power():
    sizes = np.array([10.0, 20.0, 80.0])
    assert exponent(sizes, 3 * sizes**1.7) == pytest.approx(1.7)


def test_bytes_touched_grow_with_the_residuals_kept():
    reads, updates = bytes_touched(1000, 50, 10)
    assert reads == 13 * 1000 * 50 * 4 + 5 * 8 * 1000
    assert bytes_touched(1000, 50, 20)[0] - reads == 10 * 1000 * 50 * 4
    assert bytes_touched(1000, 50, 20)[1] == updates


def test_a_federation_is_planted_and_no_row_is_zero():
    federation = Federation("planted", 40, 30, 4)
    rows = federation.initial / np.linalg.norm(federation.initial, axis=1, keepdims=True)
    same = federation.truth[:, None] == federation.truth
    cosines = rows @ rows.T
    assert cosines[same].min() > cosines[~same].max()
    assert (federation.initial.dtype, rows.shape) == (np.float32, (40, 30))
    flat = Federation("flat", 40, 300, 4).initial
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    assert (flat @ flat.T).min() > 0.98


def test_cases_run_at_any_size():
    exact = ten_thousand("flat", 2.0, (200, 20, 5), long=60, n_timed=2, limit=1e9)
    beyond = landmarks((400, 20, 5), 1e9, 3, 1.5, n_landmarks=50, n_timed=2)
    for row in (*exact.rows, *beyond.rows):
        assert math.isfinite(row.value), row
    assert len([row for row in beyond.rows if row.must is not None]) == 3


def test_the_published_round_follows_the_recursion():
    """C after one update, from residuals taken by hand."""
    server = PublishedRound(6, 5, 2)
    labels, picked = np.array([0, 1] * 3), [0, 1]
    predicted = server.predict(labels, picked)
    server.update(range(5), predicted)
    rows = server.rows().astype(float)
    theirs = rows[np.array(picked)[labels]]
    cosine = (rows * theirs).sum(1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(theirs, axis=1)
    residual = rows - cosine[:, None] * theirs
    for d in range(5):
        expected = 0.5 + 0.5 * np.outer(residual[:, d], residual[:, d])
        np.testing.assert_allclose(server.cov[d].numpy(), expected, rtol=1e-4, atol=1e-6)


class Still:
    """A world whose clients stay as they were."""

    def __init__(self):
        rng = np.random.default_rng(3)
        self.initial, self.weights = rng.normal(size=(20, 4)), np.ones(20)
        self.draw, self.rng = lambda clients: self.rng.normal(size=(len(clients), 4)), rng

    def learn(self, clients, models):
        pass


def test_a_window_that_drops_nothing_is_the_exact_path():
    _, _, (short, whole) = drive(Still(), 4, 12, (2, 12))
    assert whole["tv"] == pytest.approx(0.0, abs=1e-12)
    assert whole["dropped"] == 0.0
    assert short["tv"] > 1e-6
    assert short["dropped"] == pytest.approx(1 - 2 / 12)


def test_kernels_of_the_covariance_have_a_fraction_of_the_roofline():
    roof, rng = Roofline(short=True), np.random.default_rng(0)
    rows = [*covariance_kernels(roof, rng, 60, 1), *score_kernels(roof, rng, 60, 1)]
    assert [row.name.split()[-1] for row in rows] == [
        "fold_block",
        "add_products",
        "advance_moments",
    ]
    assert all(row.value > 0 for row in rows)


def test_laws_are_a_distance_apart():
    labels = np.array([0, 0, 1, 1])
    even = law(np.zeros(4), labels)
    assert even.tolist() == [0.25] * 4
    assert variation(even, law(np.array([1e3, 0, 0, 0]), labels)) == pytest.approx(0.25)


def test_results_are_json(tmp_path):
    save(tmp_path / "a.json", Found([Row("a", "b", float(np.float32(1.5)))]), {})
    assert json.loads((tmp_path / "a.json").read_text())["rows"][0]["value"] == 1.5


def test_a_steady_round_stays_readable():
    """At most 21 files and 4,800 lines, kernels and the undo journal included."""
    command = [sys.executable, "-m", "bench.reading", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout


def test_policies_are_timed_beside_their_published_forms(capsys):
    from bench.bench_policies import main

    main(["optimal", "clustered", "--most", "100", "--rounds", "1", "--limit", "0.1"])
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[1].strip() for row in rows] == [
        "optimal",
        "optimal, approximate",
        "clustered",
        "clustered, similarity",
    ]
    assert all(float(row[4]) > 0 for row in rows)
