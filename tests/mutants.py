"""Plant small faults, one at a time, and see that the suite notices: ``make mutants``.

Each fault changes one line of a kernel or a selector (a sign, an index, an off-by-one, a
missing floor) in a copy of the tree without the extension, so that no compiled twin gives it
away. The tests named beside it must fail, and pass without it. A fault that nobody notices is
printed, and makes the exit status 1. Arguments choose faults by number; MUTANTS_AT_ONCE says
how many are tried side by side, as many as there are processors otherwise.
"""

# ruff: noqa: E501 - one fault a line reads best
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: File, the text as it is, the text with a fault, tests that must notice.
FAULTS = [
    ("kernels/covariance", "relative * (floor[d] / n_clients)", "relative * floor[d]", "scores covariance"),
    ("kernels/covariance", "lanes[d - blocks] += terms[d]", "lanes[0] = terms[d]", "scores"),
    ("kernels/covariance", "terms[d] = u / q * u if q > floor[d] else 0.0", "terms[d] = u / q * u", "scores"),
    ("kernels/covariance", "for step in range(max(first, 0), n_stored):", "for step in range(0, n_stored):", "covariance coalition"),
    ("kernels/covariance", "for step in range(max(first, 0), n_stored):", "for step in range(max(first, 0), n_stored - 1):", "covariance coalition"),
    ("kernels/packed", "row = _pair(max(k, j), min(k, j))", "row = _pair(k, j)", "covariance coalition"),
    ("kernels/packed", "range(min(LANES, n_features - block * LANES))", "range(min(LANES, n_features - block * LANES - 1))", "covariance coalition"),
    ("kernels/packed", "for j in range((i // TILE + 1) * TILE):", "for j in range(i // TILE * TILE):", "covariance coalition"),
    ("kernels/affinity", "1.0 / peak if peak > 1e-300 else 0.0", "1.0", "affinity broken_reports"),
    ("kernels/affinity", "nonzero[k] = 1.0 if norm > 0.0 else 0.0", "nonzero[k] = 1.0", "affinity"),
    ("kernels/affinity", "- 2.0 * np.float64(products[i, k])", "- np.float64(products[i, k])", "affinity"),
    ("kernels/affinity", "distance if distance > 0.0 else 0.0", "distance", "affinity"),
    ("kernels/affinity", "terms[d] = abs(np.float64(rows[i, d])", "terms[d] = (np.float64(rows[i, d])", "affinity"),
    ("kernels/affinity", "- weight * lead[j]", "+ weight * lead[j]", "clustering subspace"),
    ("kernels/kmeans", "if potential < lowest:", "if potential > lowest:", "clustering"),
    ("kernels/kmeans", "nearer = lane[i] < best[i]", "nearer = lane[i] > best[i]", "clustering"),
    ("kernels/kmeans", "sizes[label] += 1", "sizes[label] += 2", "clustering"),
    ("kernels/kmeans", "if sizes[source] < 2:", "if sizes[source] < 0:", "clustering"),
    ("draws/laws", "below = values - groups.spread(top)", "below = groups.spread(top) - values", "sampling"),
    ("draws/laws", "places[np.argmax(groups.sizes - places)] += 1", "places[np.argmax(groups.sizes)] += 1", "sampling coalition"),
    ("draws/laws", "return below / temperature", "return below * temperature", "sampling"),
    ("draws/laws", "position < groups.spread(places)", "position <= groups.spread(places)", "sampling selectors"),
    ("selectors/coalition", "if self.round < self.warmup:", "if self.round <= self.warmup:", "coalition stateful"),
    ("selectors/power_of_choice", "np.where(np.isnan(losses), -np.inf, losses)", "np.where(np.isnan(losses), np.inf, losses)", "power_of_choice stateful"),
    ("selectors/active", "values[kept] - values[kept].max()", "values[kept].max() - values[kept]", "active"),
    ("selectors/active", "kept = pool[order[n_dropped:]]", "kept = pool[order[: pool.size - n_dropped]]", "active"),
    ("selectors/oort", "low = 0.999 * ordered[0]", "low = ordered[0] * 1.001", "oort stateful"),
    ("selectors/oort", "self._last_rounds[report.failed] = self.round + 1", "pass", "oort stateful"),
    ("selectors/class_balanced", "-self.beta * (m + 1)", "-self.beta * m", "class_balanced stateful"),
    ("selectors/class_balanced", "logits[positions[:m]] = -np.inf", "logits[positions[: m - 1]] = -np.inf", "class_balanced selectors"),
    ("guards/shares", "credit[picked] -= cost", "credit[picked] -= 0.5 * cost", "shares"),
    ("guards/shares", "np.minimum(credit, BURST, out=credit)", "pass", "shares"),
    ("guards/shares", "self.owed + share >= 1.0", "self.owed + share >= 2.5", "shares"),
    ("guards/bounds", "MEDIAN_FACTOR if setting", "1.0 if setting", "guards"),
    ("selectors/base", "picked[array] = False", "pass", "selectors"),
    ("selectors/base", "self._pending = self._probed = None", "pass", "concurrency stateful"),
    ("state", "stored == _digest(entries)", "True", "state fuzz_states"),
    ("state", "os.replace(temporary, path)", "path.write_bytes(temporary.read_bytes()); temporary.unlink()", "killed"),
    ("kernels/covariance", "totals[0, d] += share * value", "totals[0, d] += value", "covariance coalition"),
    ("kernels/covariance", "totals[1, d] += value * value", "totals[1, d] += value", "covariance coalition"),
    ("kernels/covariance", "held * moment[k, d] + history", "held * moment[k, d] - history", "scores coalition"),
    ("kernels/covariance", "held * diagonal[k, d] + share", "diagonal[k, d] + share", "scores coalition"),
    ("kernels/covariance", "if entry * entry > most:", "if entry > most:", "covariance coalition"),
    ("kernels/covariance", "- coefficients[i] * np.float64(rows[j, d])", "+ coefficients[i] * np.float64(rows[j, d])", "covariance coalition"),
    ("kernels/covariance", "inverse = 1.0 / variance if variance > floor[d] else 0.0", "inverse = 1.0 / max(variance, 1e-300)", "covariance coalition"),
    ("covariance/estimator", "self.floor = keep * self.floor + gain", "self.floor = self.floor + gain", "coalition stateful"),
    ("covariance/estimator", "self.ones *= keep", "self.ones *= 1.0", "coalition stateful"),
    ("covariance/estimator", "self.moment * share + self.ones * (1.0 - share)", "self.moment", "coalition stateful"),
    ("selectors/coalition", "1.0 / (estimator.updates + 2)", "1.0 / (estimator.updates + 1)", "coalition stateful"),
    ("kernels/covariance", "np.copysign(np.sqrt(most), entry)", "np.sqrt(most)", "covariance coalition"),
    ("kernels/lloyd", "best = products[i, 0] - halves[0]", "best = products[i, 0]", "lloyd"),
    ("kernels/lloyd", "sizes[label] += 1", "sizes[label] += 2", "lloyd"),
    ("kernels/covariance", "first = task.begin[i] if task.begin.shape[0] > 0 else 0", "first = 0", "covariance coalition"),
    ("kernels/subspace", "step -= mix * before[i, c]", "step += mix * before[i, c]", "subspace"),
    ("kernels/subspace", "for b in range(c + 1):", "for b in range(c):", "subspace"),
    ("kernels/draws", "starts[labels[client]] += 1", "starts[labels[client]] += 0", "sampling"),
    ("kernels/draws", "starts[label] -= sizes[label]", "pass", "sampling"),
    ("validation", "peak = max(highest, -lowest)", "peak = highest", "bad_input broken_reports"),
    ("draws/inclusion", "grown[:, 1:] += law[:, :-1] * chance", "pass", "inclusion"),
    ("runtime/threads", "with own_lock(self):", "with threading.RLock():", "concurrency"),
    ("state", "os.fsync(file.fileno())", "pass", "state"),
    ("state", "if sum(member.file_size for member in members) > len(content):", "if False:", "fuzz_states"),
    ("draws/coalition_draw", "scores - tops[coalitions]", "scores - tops.max()", "sampling"),
    ("kernels/draws", "places[p] += 1", "places[p] += 0", "sampling"),
    ("kernels/draws", "-math.log1p(-u) / law[k]", "-math.log1p(-u)", "sampling"),
    ("kernels/covariance", "n_found += j >= 0 and j != client", "n_found += j != client", "covariance coalition"),
    ("clustering/subspace", "excess = error * edge / (tolerance * smallest**2)", "excess = 0.01 * error * edge / (tolerance * smallest**2)", "subspace"),
    ("clustering/subspace", "vectors[:, :n_wanted] = damped", "vectors[:, :n_wanted] *= 1.0", "subspace"),
    ("clustering/principal", "gram -= old.T @ old", "gram -= 0.99 * (old.T @ old)", "principal"),
    ("clustering/principal", "self.smooth and fits", "fits", "principal"),
    ("clustering/principal", "mean.astype(np.float32) @ scaled", "0.0 * mean.astype(np.float32) @ scaled", "principal"),
    ("clustering/principal", "axes.values[-1] > _RANGE", "axes.values[-1] > -_RANGE", "principal"),
    ("clustering/subspace", 'axes = cls.restored({**axes, "axes": None}, None)', "axes = None", "principal"),
    ("clustering/eigensolver", "far = np.argpartition(operator.inverse_root, -_FARTHEST)[-_FARTHEST:]", "far = np.arange(_FARTHEST)", "principal"),
    ("clustering/eigensolver", "changed[(share * changed.size).astype(np.int64)]", "changed[:_SPREAD]", "principal"),
    ("clustering/eigensolver", "shares[far.size :] = (n_clients - far.size) / others.size", "pass", "principal"),
    ("clustering/eigensolver", "if error <= TOLERANCE * float(values[n_wanted - 1]):", "if error <= 10 * TOLERANCE * float(values[n_wanted - 1]):", "principal"),
    ("covariance/pairs", "self.values[places[self._missing[start:stop]]] = initial", "pass", "pair_cache coalition"),
    ("kernels/covariance", "held[owner, place] = -1", "pass", "pair_cache"),
    ("kernels/covariance", "if held[others[i], s] == clients[i]:", "if False:", "pair_cache"),
    ("kernels/covariance", "if used[owner, s] < used[owner, place]:", "if reached[owner, s] < reached[owner, place]:", "pair_cache"),
    ("covariance/pairs", "self._partners = clients + others - self._places // CACHED_PAIRS", "self._partners = others.copy()", "pair_cache"),
    ("kernels/packed", "for s in range(steps - pending[block], steps):", "for s in range(steps - pending[block] + 1, steps):", "covariance"),
    ("kernels/packed", "place = (first + step) % n_places", "place = step", "covariance"),
    ("covariance/packed", "self.pending[blocks] = 0", "self.pending[:] = 0", "folding"),
    ("covariance/packed", "first = (self.steps - n_pending) % DEFERRED", "first = 0", "folding"),
    ("covariance/packed", "self._fold((self.pending == DEFERRED).nonzero()[0])", "pass", "folding"),
    ("covariance/packed", "self._fold(np.arange(self.pending.size))", "pass", "folding"),
    ("covariance/packed", "np.arange(n_blocks) * DEFERRED // n_blocks", "np.full(n_blocks, DEFERRED - 1)", "folding"),
    ("covariance/residual_log", "block[max(self.count - number * BLOCK, 0) :] = 0.0", "block[:] = 0.0", "pair_cache"),
    ("draws/coalition_draw", "return picked[picked >= 0]", "return picked[1:]", "sampling coalition"),
    ("kernels/packed", "for i in range(n_padded):", "for i in range(n_padded - 1):", "covariance"),
    ("clustering/operators", "self.totals[ids] = values.sum(axis=1, dtype=np.float64)", "pass", "centred_affinity"),
    ("clustering/operators", "self.totals -= self.values[ids].sum(axis=0, dtype=np.float64)", "pass", "centred_affinity"),
    ("clustering/operators", "self.values[:, ids] = values.T", "pass", "centred_affinity"),
    ("clustering/operators", "sides = np.stack([level - self.lead,", "sides = np.stack([level + self.lead,", "centred_affinity subspace"),
    ("clustering/affinity", "older = newest[rows, None] < newest", "older = newest[rows, None] > newest", "centred_affinity"),
    ("clustering/affinity", "fresh[:, ids] = among", "pass", "centred_affinity"),
    ("clustering/partitions", "near = (self.basis, changed, self.solve)", "near = (self.basis, changed)", "plan"),
    ("selectors/coalition_state", 'config["eigensolver"] = solver.eigensolver', "pass", "plan"),
    ("runtime/plan", "cells = itemsize + (8 if direct else 4)", "cells = itemsize + 4", "plan"),
    ("covariance/packed", "turn | (self.pending == DEFERRED)", "turn", "folding"),
    ("covariance/pairs", "self.reached.ravel()[places] = n_rounds", "self.reached.ravel()[places] = n_rounds + 1", "pair_cache"),
    ("covariance/pairs", "unpredicted = np.concatenate([unpredicted, orphans])", "pass", "pair_cache"),
    ("covariance/estimator", "target.block[target.place, pairs.unpredicted] = 0.0", "pass", "coalition"),
    ("covariance/store", "begin = begin - n", "pass", "pair_cache"),
    ("covariance/store", "self._cache = None\n        if self._next_packed", "pass\n        if self._next_packed", "pair_cache"),
    ("draws/coalition_draw", "np.where(eligible, scores - tops[coalitions], -np.inf)", "scores - tops[coalitions]", "sampling"),
    ("clustering/eigensolver", "start.vectors.shape[1] > n_wanted", "True", "clustering subspace plan"),
    ("selectors/options", "if names:\n        raise TypeError", "if False:\n        raise TypeError", "options"),
    ("runtime/threads", "raise errors[0]", "pass", "threads"),
]  # fmt: skip


def suite(place: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """Run test files, by the middle of their names, in a copy of the tree."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        + [f"tests/test_{name}.py" for name in tests.split()],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place), "CVRCORE_BACKEND": "numba"},
        capture_output=True,
        text=True,
    )


def copy_tree(place: Path) -> None:
    for name in ("cvrcore", "tests", "pyproject.toml"):
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copyfile
        copy(source, place / name)


def survives(number: int) -> str | None:
    """Plant one fault and run its tests; return its name if they pass all the same."""
    module, before, after, tests = FAULTS[number]
    label = f"{number:2} {module}: {before.splitlines()[0]}  ->  {after.splitlines()[0]}"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        copy_tree(place)
        path = place / "cvrcore" / f"{module}.py"
        text = path.read_text()
        if before not in text:
            return f"{label}: no such text any more"
        path.write_text(text.replace(before, after, 1))
        found = suite(place, tests)
    verdict = {0: "survived", 1: "killed  "}.get(found.returncode, "broken  ")
    print(verdict, label, flush=True)
    if verdict == "broken  ":  # the tests did not run: nothing is known
        return f"{label}: {found.stdout[-300:]}"
    return label if verdict == "survived" else None


def sound(chosen: list[int]) -> bool:
    """Return whether the tests pass where nothing is planted: else a failure says nothing."""
    tests = sorted({name for number in chosen for name in FAULTS[number][3].split()})
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(Path(folder))
        found = suite(Path(folder), " ".join(tests))
    lines = found.stdout.splitlines()
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR", "E  "))]
    print(f"without a fault: {lines[-1]}", *failures, sep="\n", flush=True)
    return found.returncode == 0


def main() -> int:
    chosen = [int(text) for text in sys.argv[1:]] or list(range(len(FAULTS)))
    if not sound(chosen):
        return 1
    with ThreadPoolExecutor(int(os.environ.get("MUTANTS_AT_ONCE", os.cpu_count() or 1))) as pool:
        left = [label for label in pool.map(survives, chosen) if label]
    print(f"{len(chosen) - len(left)} of {len(chosen)} faults killed")
    print("\n".join(left))
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
