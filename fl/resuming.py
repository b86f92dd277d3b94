"""The folder of a run in, its history out: continue it, for more rounds if asked.

Settings come from the folder, code never does: a model or a federation of the caller's own must
be given again.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from cvrcore.selectors import policy_class
from cvrcore.selectors.warmup import auto_warmup
from cvrcore.tracking import Tracker

from .config import ConfigError, RunConfig
from .data import Federation
from .history import History, Record
from .loop import bring, run_server
from .objectives import Function, Metric
from .own import ModelLike
from .plugins import DATASETS_GROUP, is_built_in, registered
from .store import read_history


def resume(
    folder: str | os.PathLike[str],
    rounds: int | None = None,
    *,
    progress: bool | Callable[[Record], None] = False,
    federation: Federation | Callable[..., Federation] | None = None,
    model: ModelLike | None = None,
    loss: Function | None = None,
    metric: Metric | Function | None = None,
    track: Sequence[str | Tracker] = (),
) -> History:
    """Continue the run in `folder` from its last checkpoint.

    Parameters
    ----------
    folder : path
        Of a run that `fl.run` wrote.
    rounds : int, optional
        Rounds in all, at least as many as the run has. Default: as many as it was to have.
    progress, federation, model, loss, metric, track
        As in `fl.run`; what the run had of its own must be given again.

    Raises
    ------
    ConfigError
        If more rounds are asked for where something depends on their number, or what the run
        had of its own is not given.

    Examples
    --------
    >>> import tempfile
    >>> import fl
    >>> config = fl.make_config("digits", rounds=2, n_clients=10, n_select=2, epochs=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first = fl.run(config, folder)
    ...     len(fl.resume(folder, rounds=3))
    3
    """
    held = read_history(folder)
    config = held.config
    _require(held, Path(folder), federation, model, loss, metric)
    if rounds is not None and rounds != config.rounds:
        if rounds < len(held):
            raise ConfigError(
                f"rounds must be at least {len(held)}, which {folder} holds already, got {rounds}"
            )
        _refuse_horizon(config, rounds)
        config = config.replace(rounds=rounds)
    longer = config.rounds != held.config.rounds
    config, federation, own = bring(config, federation, model, loss, metric)
    return run_server(config, folder, federation, own, True, progress, longer, track)


def horizon(config: RunConfig, rounds: int) -> str | None:
    """Return what would differ in a run of `rounds` rounds from the start, if anything would."""
    if config.training.schedule in ("linear", "cosine"):
        return f"training.schedule = {config.training.schedule!r} ends at the last round"
    policy, options = config.selection.policy, config.selection.options
    if "n_rounds" not in inspect.signature(policy_class(policy)).parameters:
        return None
    if policy != "fedcvr-bolt":
        return f"the policy {policy!r} was told the number of rounds"
    clients = config.data.n_clients, config.selection.n_select
    before, after = auto_warmup(*clients, config.rounds), auto_warmup(*clients, rounds)
    if options.get("warmup") == "auto" and before != after:
        return f"its warm-up of {before} rounds is the automatic one for {config.rounds} rounds"
    return None


def _refuse_horizon(config: RunConfig, rounds: int) -> None:
    if reason := horizon(config, rounds):
        raise ConfigError(
            f"rounds cannot change from {config.rounds} to {rounds}: {reason}; a run of {rounds} "
            "rounds from the start would differ. Start a new run"
        )


def _require(
    held: History,
    folder: Path,
    federation: object,
    model: object,
    loss: object,
    metric: object,
) -> None:
    """Name what the run had of its own and the caller has not given."""
    given = {"model": model, "loss": loss, "metric": metric}
    for name in held.facts.get("own", []):
        if given.get(name) is None and not (name == "model" and held.config.model):
            how = "--model package.module:name, or " if name == "model" else ""
            what = held.facts.get("model") if name == "model" else "of the caller's own"
            raise ConfigError(
                f"{folder} holds a run with a {name} ({what}) that no file can name: give it "
                f"again, by {how}{name}= of fl.resume"
            )
    dataset = held.config.data.dataset
    known = is_built_in(dataset) or dataset in registered(DATASETS_GROUP)
    if federation is None and not known:
        raise ConfigError(
            f"{folder} holds a run on samples of its own ({dataset!r}) that no file can name: give "
            "them again, by --dataset package.module:name, or federation= of fl.resume"
        )
