"""Selections and reports of rounds in; bytes, coverage and coalitions of each round out."""

from __future__ import annotations

from typing import Any

import numpy as np

from cvrcore import Selection

#: Bytes of a loss on its way to the server.
SCALAR = 8


class Meter:
    """Counts traffic and selections of a run; `model_bytes` is the size of one model sent."""

    def __init__(self, n_clients: int, model_bytes: int) -> None:
        self._model_bytes = model_bytes
        self._times_picked = np.zeros(n_clients, dtype=np.int64)
        self._labels: np.ndarray | None = None

    def round(
        self,
        selection: Selection,
        eligible: np.ndarray,
        probed: np.ndarray,
        reported: np.ndarray,
        failed: np.ndarray,
        models_sent: int,
        with_losses: bool,
        n_diverged: int = 0,
        models_returned: int = 1,
        trains_first: bool = False,
    ) -> dict[str, Any]:
        """Count one round and return its part of the record.

        ``downlink`` and ``uplink`` are bytes of this round, the probe's included;
        ``probe_bytes`` is the part that would not have been sent without the probe. A
        client that drops out has downloaded but not uploaded; one of the `n_diverged` whose
        model diverged has uploaded it too. `models_sent` and `models_returned` count vectors of
        the model's size for each client. With `trains_first` the probed clients have trained, so
        that they have downloaded all that training needs; ``probe_trained`` counts those that
        trained and were not picked, whose work is lost. ``entropy`` is that of the
        shares of all picks so far, in nats: log(n_clients) when all were picked alike.
        """
        picked = selection.clients
        self._times_picked[picked] += 1
        only_probed = np.setdiff1d(probed, picked).size
        for_probe = only_probed * (models_sent if trains_first else 1)
        probe_bytes = for_probe * self._model_bytes + probed.size * SCALAR
        upload = models_returned * self._model_bytes + (SCALAR if with_losses else 0)
        downloads = picked.size * models_sent + for_probe
        return {
            "available": int(eligible.sum()),
            "picked": picked.tolist(),
            "reported": reported.tolist(),
            "failed": failed.tolist(),
            "warmup": bool(selection.warmup),
            "downlink": downloads * self._model_bytes,
            "uplink": (reported.size + n_diverged) * upload + probed.size * SCALAR,
            "probed": int(probed.size),
            "probe_bytes": probe_bytes,
            **({"probe_trained": int(only_probed)} if trains_first else {}),
            "covered": int((self._times_picked > 0).sum()),
            "entropy": entropy(self._times_picked),
            **self._coalitions(selection, eligible),
        }

    def _coalitions(self, selection: Selection, eligible: np.ndarray) -> dict[str, Any]:
        labels, previous = selection.coalitions, self._labels
        self._labels = labels
        if labels is None:
            return {}
        record: dict[str, Any] = {"coalition_sizes": np.bincount(labels).tolist()}
        if previous is not None and previous.shape == labels.shape:
            record["ari"] = adjusted_rand(previous, labels)
        if selection.probabilities is not None:
            distances = boltzmann_distances(selection.probabilities, labels, eligible)
            if distances.size:
                record["tv_mean"] = float(distances.mean())
                record["tv_max"] = float(distances.max())
        return record

    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values."""
        return {"times_picked": self._times_picked.copy(), "labels": self._labels}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._times_picked = state["times_picked"].copy()
        self._labels = state["labels"]


def entropy(counts: np.ndarray) -> float:
    """Return the entropy of the shares of `counts`, in nats; 0 if all are 0."""
    shares = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(shares * np.log(shares)).sum()) + 0.0


def boltzmann_distances(
    probabilities: np.ndarray, labels: np.ndarray, eligible: np.ndarray
) -> np.ndarray:
    """Return, per coalition, how far its law is from uniform, in total variation.

    Uniform is over the eligible clients of the coalition; one without any is left out.
    """
    law, coalition = probabilities[eligible], labels[eligible]
    sizes = np.bincount(coalition, minlength=labels.max() + 1)
    gaps = np.abs(law - 1.0 / sizes[coalition])
    totals = np.bincount(coalition, weights=gaps, minlength=sizes.size) / 2
    distances: np.ndarray = totals[sizes > 0]
    return distances


def adjusted_rand(first: np.ndarray, second: np.ndarray) -> float:
    """Return the adjusted Rand index of two labelings (Hubert and Arabie, 1985).

    1 for the same partition, 0 on average for unrelated ones.
    """
    table = np.zeros((first.max() + 1, second.max() + 1))
    np.add.at(table, (first, second), 1.0)

    def pairs(counts: np.ndarray) -> float:
        return float((counts * (counts - 1)).sum()) / 2

    both, rows, columns = pairs(table), pairs(table.sum(axis=1)), pairs(table.sum(axis=0))
    everything = first.size * (first.size - 1) / 2
    expected = rows * columns / everything if everything else 0.0
    most = (rows + columns) / 2
    # Equal: both partitions are all singletons or one block, hence the same.
    return 1.0 if most == expected else (both - expected) / (most - expected)
