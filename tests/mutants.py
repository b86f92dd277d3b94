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
    ("_scores", "relative * (floor[d] / n_clients)", "relative * floor[d]", "scores covariance"),
    ("_lanes", "lanes[d - blocks] += terms[d]", "lanes[0] = terms[d]", "scores"),
    ("_scores", "terms[d] = u / q * u if q > floor[d] else 0.0", "terms[d] = u / q * u", "scores"),
    ("_covariance", "return max(begin[asked], 0) if begin.shape[0] > 0 else 0", "return 0", "covariance coalition"),
    ("_covariance", "while step < n_stored:", "while step < n_stored - 1:", "covariance coalition"),
    ("_covariance", "row = _pair(max(k, j), min(k, j))", "row = _pair(k, j)", "covariance coalition"),
    ("_covariance", "range(min(LANES, n_features - block * LANES))", "range(min(LANES, n_features - block * LANES - 1))", "covariance coalition"),
    ("_covariance", "for j in range((i // EDGE + 1) * EDGE):", "for j in range(i // EDGE * EDGE):", "covariance coalition"),
    ("_affinity", "1.0 / peak if peak > 1e-300 else 0.0", "1.0", "affinity broken_reports"),
    ("_affinity", "nonzero[k] = 1.0 if norm > 0.0 else 0.0", "nonzero[k] = 1.0", "affinity"),
    ("_affinity", "- 2.0 * np.float64(products[i, k])", "- np.float64(products[i, k])", "affinity"),
    ("_affinity", "distance if distance > 0.0 else 0.0", "distance", "affinity"),
    ("_affinity", "terms[d] = abs(np.float64(rows[i, d])", "terms[d] = (np.float64(rows[i, d])", "affinity"),
    ("_affinity", "- weight * lead[j]", "+ weight * lead[j]", "clustering subspace"),
    ("_kmeans", "if potential < lowest:", "if potential > lowest:", "clustering"),
    ("_kmeans", "nearer = lane[i] < best[i]", "nearer = lane[i] > best[i]", "clustering"),
    ("_kmeans", "sizes[labels[i]] += 1\n    for j", "sizes[labels[i]] += 2\n    for j", "clustering"),
    ("_kmeans", "if sizes[source] < 2:", "if sizes[source] < 0:", "clustering"),
    ("sampling", "below = values - groups.spread(top)", "below = groups.spread(top) - values", "sampling"),
    ("sampling", "places[np.argmax(groups.sizes - places)] += 1", "places[np.argmax(groups.sizes)] += 1", "sampling coalition"),
    ("sampling", "return below / temperature", "return below * temperature", "sampling"),
    ("sampling", "position < groups.spread(places)", "position <= groups.spread(places)", "sampling selectors"),
    ("selectors/coalition", "if self.round < self.warmup:", "if self.round <= self.warmup:", "coalition stateful"),
    ("selectors/power_of_choice", "np.where(np.isnan(losses), -np.inf, losses)", "np.where(np.isnan(losses), np.inf, losses)", "power_of_choice stateful"),
    ("selectors/active", "values[kept] - values[kept].max()", "values[kept].max() - values[kept]", "active"),
    ("selectors/active", "kept = pool[order[n_dropped:]]", "kept = pool[order[: pool.size - n_dropped]]", "active"),
    ("selectors/oort", "low = 0.999 * ordered[0]", "low = ordered[0] * 1.001", "oort stateful"),
    ("selectors/oort", "self._last_rounds[report.failed] = self.round + 1", "pass", "oort stateful"),
    ("selectors/class_balanced", "-self.beta * (m + 1)", "-self.beta * m", "class_balanced stateful"),
    ("selectors/class_balanced", "logits[positions[:m]] = -np.inf", "logits[positions[: m - 1]] = -np.inf", "class_balanced selectors"),
    ("selectors/guards", "self.credit[picked] -= 1.0", "self.credit[picked] -= 0.5", "shares"),
    ("selectors/guards", "np.minimum(self.credit, BURST, out=self.credit)", "pass", "shares"),
    ("selectors/guards", "self.owed + share >= 1.0", "self.owed + share >= 2.5", "shares"),
    ("selectors/guards", "MEDIAN_FACTOR * middle if middle > 0", "middle if middle > 0", "guards"),
    ("selectors/base", "picked[array] = False", "pass", "selectors"),
    ("selectors/base", "self._pending = self._probed = None", "pass", "concurrency stateful"),
    ("state", "stored == _digest(entries)", "True", "state fuzz_states"),
    ("state", "os.replace(temporary, path)", "path.write_bytes(temporary.read_bytes()); temporary.unlink()", "killed"),
    ("_covariance", "totals[0, d] += share * value", "totals[0, d] += value", "covariance coalition"),
    ("_covariance", "totals[1, d] += value * value", "totals[1, d] += value", "covariance coalition"),
    ("_scores", "held * moment[k, d] + history", "held * moment[k, d] - history", "scores coalition"),
    ("_scores", "held * diagonal[k, d] + share", "diagonal[k, d] + share", "scores coalition"),
    ("_covariance", "if entry * entry > most:", "if entry > most:", "covariance coalition"),
    ("_covariance", "- coefficients[asked] * np.float64(rows[j, d])", "+ coefficients[asked] * np.float64(rows[j, d])", "covariance coalition"),
    ("_covariance", "inverse = 1.0 / variance if variance > floor[d] else 0.0", "inverse = 1.0 / max(variance, 1e-300)", "covariance coalition"),
    ("estimator", "self.floor = keep * self.floor + gain", "self.floor = self.floor + gain", "coalition stateful"),
    ("estimator", "self.ones *= keep", "self.ones *= 1.0", "coalition stateful"),
    ("estimator", "self.moment * share + self.ones * (1.0 - share)", "self.moment", "coalition stateful"),
    ("selectors/coalition", "1.0 / (estimator.updates + 2)", "1.0 / (estimator.updates + 1)", "coalition stateful"),
    ("_covariance", "np.copysign(np.sqrt(most), entry)", "np.sqrt(most)", "covariance coalition"),
    ("_lloyd", "best = products[i, 0] - halves[0]", "best = products[i, 0]", "lloyd"),
    ("_lloyd", "sizes[label] += 1", "sizes[label] += 2", "lloyd"),
    ("_covariance", "_add_pair(past, leads, _first(begin, asked)", "_add_pair(past, leads, 0", "covariance coalition"),
    ("_subspace", "step -= mix * before[i, c]", "step += mix * before[i, c]", "subspace"),
    ("_subspace", "for b in range(c + 1):", "for b in range(c):", "subspace"),
    ("_groups", "starts[labels[client]] += 1", "starts[labels[client]] += 0", "sampling"),
    ("_groups", "starts[label] -= sizes[label]", "pass", "sampling"),
    ("_validation", "peak = max(highest, -lowest)", "peak = highest", "bad_input broken_reports"),
    ("inclusion", "grown[:, 1:] += law[:, :-1] * chance", "pass", "inclusion"),
    ("selectors/locking", "with self._lock:", "with threading.RLock():", "concurrency"),
    ("state", "os.fsync(file.fileno())", "pass", "state"),
    ("state", "if sum(member.file_size for member in members) > len(content):", "if False:", "fuzz_states"),
    ("_covariance", "n_past, k, lead[line], sums)", "n_past, k, lead[0], sums)", "covariance coalition"),
    ("_draws", "below > least else 0.0", "below > 0.0 else 0.0", "sampling"),
    ("sampling", "tops.max(axis=0)", "tops[0]", "sampling"),
    ("sampling", "totals.sum(axis=0)", "totals[0]", "sampling"),
    ("_draws", "places[p] += 1", "places[p] += 0", "sampling"),
    ("_draws", "-math.log1p(-u) / law[k]", "-math.log1p(-u)", "sampling"),
    ("_groups", "n_found += j >= 0 and j != client", "n_found += j != client", "covariance coalition"),
    ("store", "np.take(block[:used], first, axis=1), np.arange(first.size)", "np.take(block[:used], first, axis=1), first", "covariance"),
    ("subspace", "excess = error * edge / (tolerance * smallest**2)", "excess = 0.01 * error * edge / (tolerance * smallest**2)", "subspace"),
    ("spectral", "entries / np.where(known, values, 1.0)", "entries * np.where(known, values, 1.0)", "subspace"),
    ("subspace", "vectors[:, :n_wanted] = damped", "vectors[:, :n_wanted] *= 1.0", "subspace"),
    ("principal", "gram -= old.T @ old", "gram -= 0.99 * (old.T @ old)", "principal"),
    ("principal", "self.smooth and fits", "fits", "principal"),
    ("principal", "mean.astype(np.float32) @ scaled", "0.0 * mean.astype(np.float32) @ scaled", "principal"),
    ("principal", "axes.values[-1] > _RANGE", "axes.values[-1] > -_RANGE", "principal"),
    ("subspace", 'axes = cls.restored({**axes, "axes": None}, None)', "axes = None", "principal"),
    ("spectral", "far = np.argpartition(operator.inverse_root, -_FARTHEST)[-_FARTHEST:]", "far = np.arange(_FARTHEST)", "principal"),
    ("spectral", "changed[(share * changed.size).astype(np.int64)]", "changed[:_SPREAD]", "principal"),
    ("spectral", "shares[far.size :] = (n_clients - far.size) / others.size", "pass", "principal"),
    ("spectral", "if error <= TOLERANCE * float(values[n_wanted - 1]):", "if error <= 10 * TOLERANCE * float(values[n_wanted - 1]):", "principal"),
    ("pairs", "self.values[places[self._fresh[start:stop]]] = fresh", "pass", "pairs coalition"),
    ("_groups", "held[owner, slot] = -1", "pass", "pairs"),
    ("_groups", "if held[others[i], s] == clients[i]:", "if False:", "pairs"),
    ("_groups", "if asked[owner, s] < asked[owner, slot]:", "if reached[owner, s] < reached[owner, slot]:", "pairs"),
    ("pairs", "self.reached.ravel()[places] = n_rounds\n\n    def advance", "pass\n\n    def advance", "pairs"),
    ("pairs", "self._fellows = clients + others - self._places // self.SLOTS", "self._fellows = others.copy()", "pairs"),
    ("pairs", "if n_rounds % self._EVERY or self._share < self._MOST:", "if n_rounds % self._EVERY:", "pairs"),
    ("pairs", "self.values[client * self.SLOTS + chosen] = fresh", "pass", "pairs"),
    ("pairs", "self._asked[client, chosen] = 0, n_rounds", "self._asked[client, chosen] = 1, n_rounds", "pairs"),
    ("pairs", "self.others.ravel()[places] = -1\n\n        def add", "\n        def add", "pairs"),
    ("pairs", "first = first - used", "pass", "pairs"),
    ("pairs", "self.others.ravel()[places] = others\n        self.reached.ravel()[places] = n_rounds\n", "self.others.ravel()[places] = others\n", "pairs"),
    ("_covariance", "for s in range(steps - waiting[block], steps):", "for s in range(steps - waiting[block] + 1, steps):", "covariance"),
    ("_covariance", "place = (first + step) % n_places", "place = step", "covariance"),
    ("triangles", "self.waiting[blocks] = 0", "self.waiting[:] = 0", "folding"),
    ("triangles", "first = (self.steps - n_waiting) % DEFERRED", "first = 0", "folding"),
    ("triangles", "self._fold_now((waiting > self._longest()).nonzero()[0])", "pass", "folding"),
    ("triangles", "self._fold_now(np.arange(self.waiting.size))", "pass", "folding"),
    ("triangles", "np.arange(n_blocks) * DEFERRED // n_blocks", "np.full(n_blocks, DEFERRED - 1)", "folding"),
    ("history", "block[max(self.count - number * BLOCK, 0) :] = 0.0", "block[:] = 0.0", "pairs"),
    ("sampling", "return first[first >= 0]", "return first[1:]", "sampling coalition"),
    ("triangles", "limits = np.rint(edges).astype(int).tolist()", "limits = [0, *np.rint(edges).astype(int).tolist()[:-1]]", "folding"),
    ("_covariance", "for i in range(low * EDGE, high * EDGE):", "for i in range(low * EDGE, high * EDGE - 1):", "covariance"),
    ("_covariance", "totals[asked // chunk])\n\n\n@njit\ndef scaled", "totals[0])\n\n\n@njit\ndef scaled", "covariance"),
    ("deviations", "self.totals[ids] = values.sum(axis=1, dtype=np.float64)", "pass", "deviations"),
    ("deviations", "self.totals -= self.values[ids].sum(axis=0, dtype=np.float64)", "pass", "deviations"),
    ("deviations", "self.values[:, ids] = values.T", "pass", "deviations"),
    ("normalised", "sides = np.stack([level - self.lead,", "sides = np.stack([level + self.lead,", "deviations subspace"),
    ("affinity", "older = newest[rows, None] < newest", "older = newest[rows, None] > newest", "deviations"),
    ("affinity", "fresh[:, ids] = among", "pass", "deviations"),
    ("_exponential", "rest = (x - doublings * LN2_HIGH) - doublings * LN2_LOW", "rest = x - doublings * (LN2_HIGH + LN2_LOW)", "exponential"),
    ("threads", "while occupied.others() < most:", "while True:", "threads"),
    ("selectors/coalition", "labels = self._partition.make(Problem(", "_ = self._estimator\n            labels = self._partition.make(Problem(", "learning_ahead"),
    ("partition", "near = (self.basis, changed, self.solve)", "near = (self.basis, changed)", "plan"),
    ("selectors/coalition", 'config["eigensolver"] = self.eigensolver', "pass", "plan"),
    ("plan", "cells = itemsize + (8 if direct else 4)", "cells = itemsize + 4", "plan"),
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
    told = found.stdout.splitlines()
    failures = [line for line in told if line.startswith(("FAILED", "ERROR", "E  "))]
    print(f"without a fault: {told[-1]}", *failures, sep="\n", flush=True)
    return found.returncode == 0


def main() -> int:
    chosen = [int(text) for text in sys.argv[1:]] or list(range(len(FAULTS)))
    if not sound(chosen):
        return 1
    with ThreadPoolExecutor(int(os.environ.get("MUTANTS_AT_ONCE", os.cpu_count() or 1))) as crew:
        left = [label for label in crew.map(survives, chosen) if label]
    print(f"{len(chosen) - len(left)} of {len(chosen)} faults killed")
    print("\n".join(left))
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
