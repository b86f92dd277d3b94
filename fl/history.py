"""Records of rounds in, metrics and summary of a run out: `History`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .config import RunConfig

if TYPE_CHECKING:
    from torch import nn

    from .outputs import Outputs

Record = dict[str, Any]

#: The part of a record that depends on the clock; left out of comparisons.
TIMING = "timing"


@dataclasses.dataclass(eq=False)
class History:
    """One record per round, as plain values.

    Attributes
    ----------
    config : RunConfig
    facts : dict
        What was decided or found when the run was set up: data, model, features.
    rounds : list of dict
        See `fl.meter.Meter.round` and `fl.evaluation.evaluate` for the keys; metrics are
        there in the rounds that were evaluated, ``simulated_seconds`` (of the round) and
        ``simulated_clock`` (at its end) where devices are simulated. Two histories are equal
        when their rounds are, wall-clock times aside.
    outputs : fl.outputs.Outputs, optional
        Where `model` finds the models of the run.

    Examples
    --------
    >>> import fl
    >>> history = fl.run(fl.make_config("digits", rounds=2, n_clients=10, n_select=2, epochs=1))
    >>> history.metric, len(history), 0.0 <= history.final() <= 1.0
    ('accuracy', 2, True)
    """

    config: RunConfig
    facts: Record = dataclasses.field(default_factory=dict)
    rounds: list[Record] = dataclasses.field(default_factory=list)
    outputs: Outputs | None = dataclasses.field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.rounds)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.rounds)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, History):
            return NotImplemented
        return self.timeless() == other.timeless()

    __hash__ = None  # type: ignore[assignment]

    def timeless(self) -> list[Record]:
        """Return the rounds without their wall-clock times."""
        return [{k: v for k, v in r.items() if k != TIMING} for r in self.rounds]

    @property
    def metric(self) -> str:
        """``"accuracy"``, ``"mse"`` in regression, or the name of the run's own metric."""
        default = "mse" if self.facts.get("n_classes") == 0 else "accuracy"
        return str(self.facts.get("metric", default))

    @property
    def higher_is_better(self) -> bool:
        """Whether larger values of the metric are better."""
        return bool(self.facts.get("higher_is_better", self.metric != "mse"))

    def model(
        self,
        which: Literal["final", "best"] = "final",
        *,
        number: int | None = None,
        into: nn.Module | None = None,
    ) -> nn.Module:
        """Return the global model as an ``nn.Module`` on the CPU, in evaluation mode.

        Parameters
        ----------
        which : {"final", "best"}
            After the last round, or after the round of the best evaluation.
        number : int, optional
            Which of the server's models, for an algorithm that keeps several.
        into : nn.Module, optional
            Filled and returned. Needed for a run that was read from a folder and trained a
            model of the caller's own.
        """
        if self.outputs is None:
            raise ValueError("the history has no model: it was made without running")
        return self.outputs.module(which, number, into)

    def to_pandas(self, table: Literal["rounds", "clients"] = "rounds") -> Any:
        """Return the run as a pandas DataFrame.

        ``"rounds"`` has a row per round: metrics, bytes, counts, seconds. ``"clients"`` has a
        row per round and picked client: ``size`` (training samples), ``reported``, ``loss`` of
        the model it received (where the policy asks for it, or with ``record_losses``),
        ``warmup``.
        """
        from .frames import clients_table, rounds_table

        if table not in ("rounds", "clients"):
            raise ValueError(f"table must be 'rounds' or 'clients', got {table!r}")
        return rounds_table(self) if table == "rounds" else clients_table(self)

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the rounds (from 1) that have `name`, and its values."""
        found = [(r["round"], r[name]) for r in self.rounds if r.get(name) is not None]
        rounds = np.array([round for round, _ in found], dtype=np.int64)
        return rounds, np.array([value for _, value in found], dtype=np.float64)

    def final(self, name: str | None = None) -> float | None:
        """Return the last evaluation, or None if there was none."""
        _, values = self.column(name or self.metric)
        return float(values[-1]) if values.size else None

    def last_five(self, name: str | None = None) -> float | None:
        """Return the mean of the last five evaluations."""
        _, values = self.column(name or self.metric)
        return float(values[-5:].mean()) if values.size else None

    def best(self, name: str | None = None) -> float | None:
        """Return the best evaluation: the highest accuracy, the lowest error."""
        _, values = self.column(name or self.metric)
        if not values.size:
            return None
        return float(values.max() if self.higher_is_better else values.min())

    def rounds_to(self, target: float) -> int | None:
        """Return the first round (from 1) whose evaluation reached `target`, or None."""
        rounds, values = self.column(self.metric)
        reached = values >= target if self.higher_is_better else values <= target
        return int(rounds[reached][0]) if reached.any() else None

    def seconds_to(self, target: float) -> float | None:
        """Return the simulated seconds until an evaluation reached `target`, or None.

        None, too, for a run without simulated devices (`fleet.enabled`).
        """
        reached = self.rounds_to(target)
        if reached is None:
            return None
        clock = next(r.get("simulated_clock") for r in self.rounds if r["round"] == reached)
        return None if clock is None else float(clock)

    def total(self, name: str) -> int:
        """Return the sum of a count, such as ``"uplink"``, over all rounds."""
        return int(sum(r.get(name, 0) for r in self.rounds))

    def mean(self, name: str) -> float | None:
        """Return the mean of `name` over the rounds that have it."""
        _, values = self.column(name)
        return float(values.mean()) if values.size else None

    def most(self, name: str) -> float:
        """Return the largest `name` of any round, or 0."""
        return max((r.get(name, 0) for r in self.rounds), default=0)

    def samples(self) -> np.ndarray | None:
        """Return the training samples processed by the end of each round, all epochs counted.

        None for a run that did not record the sizes of the picked clients.
        """
        if not any("sizes" in r or "samples" in r for r in self.rounds):
            return None
        each = [r.get("samples", sum(r.get("sizes", ()))) for r in self.rounds]
        processed: np.ndarray = np.cumsum(each) * self.config.training.epochs
        return processed

    def until(self, round: int) -> History:
        """Return the history as it was after `round` rounds."""
        return History(self.config, self.facts, self.rounds[:round])

    def seconds(self, name: str) -> float:
        """Return the seconds spent on `name` (select, train, evaluate, round)."""
        return float(sum(r.get(TIMING, {}).get(name, 0.0) for r in self.rounds))

    def warmup_note(self) -> str:
        """Return in one sentence how many rounds the policy left to chance; "" if none."""
        warm, policy = self.total("warmup"), self.config.selection.policy
        acted = sum("picked" in record for record in self.rounds) - warm
        if not warm:
            return ""
        text = f"{warm} of {len(self.rounds)} rounds were warm-up"
        if acted:
            return f"{text}, drawn uniformly; {policy} picked the clients of {acted}"
        advice = "selection.options.warmup='auto' takes at most a third of the rounds"
        return f"{text}: {policy} has not acted yet; {advice}"

    def line(self, record: Record) -> str:
        """Return one round in one line: who was picked, of how many, by what, in which phase."""
        policy = self.config.selection.policy
        text = f"round {record['round']} of {self.config.rounds}: "
        if "picked" not in record:
            return f"{text}no client available"
        picked = record["picked"]
        count = f"{len(picked)} of {record['available']} clients"
        if record["warmup"]:
            text += f"warm-up, {count} drawn uniformly"
        elif sizes := record.get("coalition_sizes"):
            text += f"{policy} picked {count} from {len(sizes)} coalitions"
        else:
            text += f"{policy} picked {count}"
        text += f" ({' '.join(map(str, picked))})"
        if failed := record["failed"]:
            text += f", {len(failed)} failed ({' '.join(map(str, failed))})"
        value = record.get(self.metric)
        return text if value is None else f"{text}, {self.metric} {value:.4f}"

    def summary(self) -> Record:
        """Return the run in one line: plain values, None where there is nothing to say."""
        target = self.config.target
        return {
            "method": self.config.method,
            "dataset": self.config.data.dataset,
            "seed": self.config.seed,
            "rounds": len(self.rounds),
            "warmup_rounds": self.total("warmup"),
            "metric": self.metric,
            "final": self.final(),
            "last_five": self.last_five(),
            "best": self.best(),
            "worst_decile": self.final("worst_decile"),
            "rounds_to_target": None if target is None else self.rounds_to(target),
            "simulated_seconds": self.final("simulated_clock"),
            "simulated_seconds_to_target": None if target is None else self.seconds_to(target),
            "uplink": self.total("uplink"),
            "downlink": self.total("downlink"),
            "probe_bytes": self.total("probe_bytes"),
            "failures": sum(r.get("n_failed", len(r.get("failed", ()))) for r in self.rounds),
            "covered": None if (covered := self.final("covered")) is None else int(covered),
            "tv_mean": self.mean("tv_mean"),
            "seconds": self.seconds("round"),
            "seconds_selecting": self.seconds("select"),
        }
