"""Settings in, `History` out: `run`, the loop over the rounds of a server."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence

from cvrcore.tracking import Tracker

from .checks import check_same_run
from .config import ConfigError, RunConfig
from .data import DATASETS, Federation
from .engines.serial import one_thread
from .history import History, Record
from .objectives import Function, Metric
from .outputs import FILES, Outputs, states_of
from .own import ModelLike, Own
from .plugins import DATASETS_GROUP, OWN, is_built_in, load, make_federation
from .presets import untuned
from .server import Server
from .store import RunStore
from .streams import Streams
from .tracking import RunTracking

logger = logging.getLogger("fl")


def run(
    config: RunConfig,
    folder: str | os.PathLike[str] | None = None,
    *,
    resume: bool = False,
    progress: bool | Callable[[Record], None] = False,
    federation: Federation | Callable[..., Federation] | None = None,
    model: str | ModelLike | None = None,
    loss: Function | None = None,
    metric: Metric | Function | None = None,
    track: Sequence[str | Tracker] = (),
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
    federation : Federation or callable, optional
        Samples of your own, see `fl.data.Federation.from_arrays`, or a function that returns
        them; it is given ``seed`` and ``n_clients`` if it has arguments of these names.
        Default: the data set that ``config.data`` names.
    model : str, nn.Module or callable, optional
        A name of `fl.models.MODELS`; a module, whose values are the initial model; or a
        function that returns a module, given ``in_shape`` and ``n_classes`` if it has
        arguments of these names. Default: ``config.model``.
    loss : callable, optional
        Of outputs and targets of a batch; returns the mean loss. Default: that of the
        federation's task, see `fl.objectives`.
    metric : callable or Metric, optional
        Of outputs and targets; returns one value per sample. Default: that of the task.
    track : sequence of str or Tracker
        Where to log rounds: ``"tensorboard"``, ``"mlflow"``, ``"wandb"``, ``"csv"``,
        ``"details"``, or trackers of your own, see `cvrcore.tracking`. Files go to the folder
        ``tracking`` in `folder`.

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
    config, federation, own = bring(config, federation, model, loss, metric)
    return run_server(config, folder, federation, own, resume, progress, track=track)


def run_server(
    config: RunConfig,
    folder: str | os.PathLike[str] | None = None,
    federation: Federation | None = None,
    own: Own | None = None,
    resume: bool = False,
    progress: bool | Callable[[Record], None] = False,
    longer: bool = False,
    track: Sequence[str | Tracker] = (),
) -> History:
    """Run the rounds that a folder does not hold yet; see `run` and `fl.resuming.resume`.

    With `longer` the folder may hold a run of fewer rounds.
    """
    tracking = RunTracking(track, config, folder)  # first: a missing tool ends nothing begun
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(RunStore(folder, config, resume, longer)) if folder else None
        stack.enter_context(one_thread())
        server = stack.enter_context(Server(config, federation, folder, own))
        history = History(config, server.facts)
        if store:
            if (facts := store.read_facts()) is not None:
                check_same_run(store.folder, facts, server.facts)
            history.rounds, state = store.restore()
            store.facts(server.facts)
            if state:
                server.load_state_dict(state)
        notify = stack.enter_context(_listener(progress, config, len(history)))
        stack.enter_context(tracking.following(history))
        for t in range(len(history), config.rounds):
            record = server.round(t)
            history.rounds.append(record)
            if store:
                store.append(record)
                if (t + 1) % config.checkpoint_every == 0 or t + 1 == config.rounds:
                    store.checkpoint(t + 1, server.state_dict())
            logger.info("%s", history.line(record))
            tracking.round(record, server.decision)
            notify(record)
        history.outputs = _outputs(server)
        if store:
            if config.save_models:
                store.models(history.outputs, server.facts)
            store.finish(history.summary())
    return history


def _outputs(server: Server) -> Outputs:
    """Return the models of a run that ended; its samples are let go."""
    make = server.job.module
    models = {which: server.deployed.models(which).copy() for which in FILES}
    return Outputs(lambda which: states_of(make, models[which]), make)


def bring(
    config: RunConfig,
    federation: Federation | Callable[..., Federation] | None,
    model: str | ModelLike | None,
    loss: Function | None,
    metric: Metric | Function | None,
) -> tuple[RunConfig, Federation | None, Own | None]:
    """Return the settings that hold for what the caller brings, and what that is."""
    if federation is None and not is_built_in(config.data.dataset):
        if config.data.dataset == OWN:
            raise ConfigError(
                "federation must be given (or --dataset package.module:federation): the settings "
                "are for samples of your own; see fl.data.Federation.from_arrays"
            )
        federation = load(DATASETS_GROUP, config.data.dataset, tuple(DATASETS))
    if federation is not None:
        seed = Streams(config.seed).integer("partition")
        facts = {"n_clients": config.data.n_clients, **config.data.options}
        federation = make_federation(federation, seed, **facts)
        config = _adapted(config, federation)
    if isinstance(model, str):
        config, model = config.replace(model=model), None
    elif model is not None and not callable(model):  # an nn.Module can be called too
        raise ConfigError(
            "model must be a name, an nn.Module or a function that returns one, got "
            f"{type(model).__name__}"
        )
    given = model is not None or loss is not None or metric is not None
    return config, federation, Own(model, loss, metric) if given else None


def _adapted(config: RunConfig, federation: Federation) -> RunConfig:
    """Return `config` with the name and the clients of a federation that the caller brings."""
    n, wanted = federation.n_clients, config.selection.n_select
    if wanted > n:
        raise ConfigError(
            f"selection.n_select must be at most the {n} clients of the federation "
            f"{federation.name!r}, got {wanted}"
        )
    if (config.data.dataset, config.data.n_clients) == (federation.name, n):
        return config
    if config.data.n_clients != n:
        logger.warning(
            "the federation %r has %d clients; data.n_clients = %d of the settings does not count",
            federation.name,
            n,
            config.data.n_clients,
        )
    own = untuned(config) if federation.name != config.data.dataset else config
    if own is not config:
        logger.warning(
            "the server step %g was chosen on %s; on the federation %r it is %r: set server.lr to "
            "choose one yourself",
            config.server.lr,
            config.data.dataset,
            federation.name,
            own.server.optimiser,
        )
    return own.replace(data__dataset=federation.name, data__n_clients=n)


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
