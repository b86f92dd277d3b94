"""What each plot draws: positions, heights and colours of its artists."""

import sys

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install cvrcore[report]")
import matplotlib as mpl

mpl.use("Agg")
from matplotlib.figure import Figure

import cvrcore
from cvrcore import plot
from cvrcore.plot.look import colour

K, D, P = 40, 6, 5


@pytest.fixture
def ax():
    return Figure().subplots()


@pytest.fixture(scope="module")
def run():
    """A selector after 30 rounds with four kinds of clients, and its selections."""
    rng = np.random.default_rng(0)
    goal = 5 * rng.normal(size=(4, D))
    selector = cvrcore.CoalitionSelector(K, D, P, warmup=8, seed=0)
    selections = []
    for _ in range(30):
        picked = selector.select()
        selections.append(picked)
        selector.observe(picked.clients, goal[picked.clients % 4] + rng.normal(size=(P, D)))
    return selector, selections


def test_coalitions_shows_each_seen_client_in_the_colour_of_its_coalition(run, ax):
    selector, selections = run
    last = selections[-1]
    assert plot.coalitions(selector, last, ax=ax) is ax
    dots, rings = ax.collections
    seen = np.unique(np.concatenate([one.clients for one in selections]))
    assert len(dots.get_offsets()) == seen.size
    wanted = [mpl.colors.to_rgb(colour(last.coalitions[k])) for k in seen]
    np.testing.assert_allclose(dots.get_facecolors()[:, :3], wanted)
    assert len(rings.get_offsets()) == P


def test_the_plane_keeps_the_distances_of_planar_rows(ax):
    """Rows that lie in a plane: their distances must survive, whatever the turn."""
    rng = np.random.default_rng(1)
    flat = rng.normal(size=(15, 2))
    turned = flat @ np.linalg.qr(rng.normal(size=(7, 2)))[0].T + 3.0
    points = np.asarray(plot.coalitions(turned, ax=ax).collections[0].get_offsets())
    between = np.linalg.norm(points[:, None] - points, axis=2)
    np.testing.assert_allclose(between, np.linalg.norm(flat[:, None] - flat, axis=2), atol=1e-9)


def test_heatmap_marks_the_picked_cells_and_no_others(run, ax):
    selections = run[1]
    plot.selection_heatmap(selections, ax=ax)
    (image,) = ax.images
    cells = np.asarray(image.get_array())
    assert cells.shape == (K, len(selections))
    for t, one in enumerate(selections):
        assert np.flatnonzero(cells[:, t]).tolist() == sorted(one.clients.tolist())
        assert set(cells[one.clients, t]) == {1 if one.warmup else 2}


def test_heatmap_reads_records_with_failures(ax):
    records = [{"picked": [0, 2], "failed": [2], "warmup": True}, {"picked": [1], "failed": []}]
    plot.selection_heatmap(records, 4, ax=ax)
    assert np.asarray(ax.images[0].get_array()).tolist() == [[1, 0], [0, 2], [3, 0], [0, 0]]


def test_law_has_a_bar_for_each_client_and_sums_to_one_per_coalition(run, ax):
    last = run[1][-1]
    plot.law(last, ax=ax)
    heights = np.array([bar.get_height() for bar in ax.patches])
    assert heights.size == K
    assert heights.sum() == pytest.approx(len(np.unique(last.coalitions)))
    (dots,) = ax.lines
    np.testing.assert_allclose(sorted(dots.get_ydata()), sorted(last.probabilities[last.clients]))
    evens = [line.get_segments()[0][0][1] for line in ax.collections]
    np.testing.assert_allclose(evens, 1.0 / np.bincount(last.coalitions))


@pytest.mark.parametrize("n_kinds", [2, 3, 5])
def test_gap_finds_planted_coalitions(n_kinds, ax):
    rng = np.random.default_rng(2)
    rows = 8 * np.eye(6)[np.arange(60) % n_kinds] + 0.3 * rng.normal(size=(60, 6))
    plot.gap(rows, most=10, ax=ax)
    (line,) = ax.lines
    assert line.get_xdata()[0] == n_kinds + 0.5
    values = np.asarray(ax.collections[1].get_offsets())[:, 1]
    assert values[0] == pytest.approx(1.0)  # of a random walk
    assert len(values) == 10


def test_each_plot_makes_a_figure_of_its_own(run, tmp_path):
    selector, selections = run
    last = selections[-1]
    drawn = [
        plot.coalitions(selector, last),
        plot.selection_heatmap(selections),
        plot.law(last),
        plot.gap(selector),
    ]
    figures = [axes.figure for axes in drawn]
    assert len({id(figure) for figure in figures}) == 4
    import matplotlib.pyplot as plt

    for i, figure in enumerate(figures):
        figure.savefig(tmp_path / f"{i}.png")
        assert (tmp_path / f"{i}.png").stat().st_size > 3000
        plt.close(figure)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda ax: plot.coalitions([1.0, 2.0], ax=ax), r"rows must have shape .* got \(2,\)"),
        (lambda ax: plot.coalitions(np.eye(4), [0, 1], ax=ax), "labels must have one entry"),
        (lambda ax: plot.selection_heatmap([], ax=ax), "at least one round"),
        (lambda ax: plot.selection_heatmap([[7]], 5, ax=ax), r"ids in 0\.\.4"),
        (lambda ax: plot.law([0.5, 0.5], [0], ax=ax), r"labels must have shape \(2,\)"),
        (lambda ax: plot.gap(np.eye(2), ax=ax), "3 to 2000 clients, got 2"),
    ],
)
def test_mistakes_are_named(draw, message, ax):
    with pytest.raises(ValueError, match=message):
        draw(ax)


def test_missing_matplotlib_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pip install .*matplotlib"):
        plot.law([0.5, 0.5])
