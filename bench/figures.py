"""Figures of the benchmarks: curves in, image files out."""

from matplotlib.figure import Figure

from fl.experiments.drawing import GREY, PALETTE, RED


def _saved(figure, path):
    figure.savefig(path, dpi=130, bbox_inches="tight")


def _bare(axes, title, xlabel, ylabel):
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def _plain(axes, sizes):
    """Label a logarithmic axis by the sizes that were measured."""
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=8)
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)


def growth(curves, path):
    """Draw time against K, with the peer's line, and against D: log-log."""
    from bench.growth import exponent

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    colour = {"dense peer": GREY, "exact": RED}
    rest = iter(PALETTE)
    for name, (sizes, seconds) in curves.items():
        axes = right if name.startswith("D, ") else left
        label = f"{name.removeprefix('D, ')} (exponent {exponent(sizes, seconds):.2f})"
        tint = colour.get(name) or next(rest)
        axes.loglog(sizes, seconds, "o-", color=tint, label=label, markersize=4)
    _bare(left, "Server time of a steady round, P = 50", "clients K", "seconds")
    _bare(right, "The same against D, nystrom", "coordinates D", "seconds")
    widths = [sizes for name, (sizes, _) in curves.items() if name.startswith("D, ")]
    if widths:
        _plain(right, widths[0])
    for axes in (left, right):  # below: lines cross the whole of the axes
        axes.legend(
            fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2
        )
    _saved(figure, path)


def quality(curves, path):
    """Draw the distance of landmarks and windows from the exact path."""
    worlds = list(curves["landmarks"])
    figure = Figure(figsize=(9, 3.4 * (len(worlds) + 1)), layout="constrained")
    axes = figure.subplots(len(worlds) + 1, 2)
    for (left, right), world in zip(axes, worlds, strict=False):
        for how, tint in zip(("uniform", "kmeans++"), PALETTE, strict=False):
            points = curves["landmarks"][world][how]
            m = [p["m"] for p in points]
            left.semilogx(m, [p["ari_exact"] for p in points], "o-", color=tint, label=how)
            left.semilogx(m, [p["ari_truth"] for p in points], "o:", color=tint, alpha=0.7)
            right.loglog(m, [p["inertia"] for p in points], "o-", color=tint, label=how)
            _plain(left, m)
            _plain(right, m)
        other = curves["reference"][world]
        left.axhline(other["ari_exact"], color=GREY, label="exact, another seed")
        right.axhline(other["inertia"], color=GREY, label="exact, another seed")
        _bare(left, f"{world}: Rand index with exact (dotted: truth)", "landmarks m", "adjusted")
        _bare(right, f"{world}: k-means inertia / exact", "landmarks m", "ratio")
        left.legend(fontsize=8, frameon=False)
        right.legend(fontsize=8, frameon=False)
    left, right = axes[-1]
    for world, tint in zip(worlds, PALETTE, strict=False):
        for how, style in (("uniform", "-"), ("kmeans++", ":")):
            points = curves["landmarks"][world][how]
            m, tv = [p["m"] for p in points], [p["tv"] for p in points]
            left.semilogx(m, tv, f"o{style}", color=tint, label=f"{world}, {how}")
            _plain(left, m)
    for (name, points), tint in zip(curves["window"].items(), PALETTE, strict=False):
        kept = [p["window"] for p in points]
        apart = [max(p["tv"], 1e-9) for p in points]
        right.loglog(kept, apart, "o-", color=tint, label=name)
        _plain(right, kept)
    _bare(left, "Total variation of the selection law", "landmarks m", "distance")
    _bare(right, "The same, against the window", "residuals kept", "distance")
    left.legend(fontsize=8, frameon=False)
    right.legend(fontsize=8, frameon=False)
    _saved(figure, path)
