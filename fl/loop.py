"""Settings in, `History` out: `run`, the loop over the rounds of a server."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator

from .config import RunConfig
from .data import Federation
from .engines.serial import one_thread
from .history import History, Record
from .server import Server
from .store import RunStore

logger = logging.getLogger("fl")


def run(
    config: RunConfig,
    folder: str | os.PathLike[str] | None = None,
    *,
    resume: bool = False,
    progress: bool | Callable[[Record], None] = False,
    federation: Federation | None = None,
) -> History:
    """Train a federation.

    Parameters
    ----------
    config : RunConfig
        See `fl.presets.make_config` for the settings of the paper's tables.
    folder : path, optional
        Where to keep the run: settings, one line per round as it happens, checkpoints.
    resume : bool
        Continue the run in `folder` from its last checkpoint, to the same History.
    progress : bool or callable
        Show a live progress bar, or call with each round's record.
    federation : Federation, optional
        Samples already loaded. Default: the data set that ``config.data`` names.

    Returns
    -------
    History

    Examples
    --------
    >>> from fl.presets import make_config
    >>> history = run(make_config("digits", "fedavg", rounds=2))
    >>> len(history)
    2
    """
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(RunStore(folder, config, resume)) if folder else None
        stack.enter_context(one_thread())
        server = stack.enter_context(Server(config, federation, folder))
        history = History(config, server.facts)
        if store:
            history.rounds, state = store.restore()
            store.facts(server.facts)
            if state:
                server.load_state_dict(state)
        notify = stack.enter_context(_listener(progress, config, len(history)))
        for t in range(len(history), config.rounds):
            record = server.round(t)
            history.rounds.append(record)
            if store:
                store.append(record)
                if (t + 1) % config.checkpoint_every == 0 or t + 1 == config.rounds:
                    store.checkpoint(t + 1, server.state_dict())
            logger.info("%s", history.line(record))
            notify(record)
        if store:
            store.finish(history.summary())
    return history


@contextlib.contextmanager
def _listener(
    progress: bool | Callable[[Record], None], config: RunConfig, done: int
) -> Iterator[Callable[[Record], None]]:
    if callable(progress):
        yield progress
    elif progress:
        from .progress import live_progress

        with live_progress(config, done) as update:
            yield update
    else:
        yield lambda record: None
