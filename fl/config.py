"""Plain values in, settings of a run out: frozen dataclasses, the only home of defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Self

from .changes import advice, merged, nested
from .settings import (
    ConfigError,
    above,
    at_least,
    build,
    nearest,
    one_of,
    ray_address,
    share,
)

__all__ = [
    "AlgorithmConfig",
    "AvailabilityConfig",
    "ConfigError",
    "DataConfig",
    "EngineConfig",
    "FleetConfig",
    "RunConfig",
    "SelectionConfig",
    "ServerConfig",
    "TrainingConfig",
    "nearest",
]

Options = Mapping[str, Any]

PRESET_NAMES = ("paper", "scripts")
#: Settings that change no result; a run may be continued with others.
FREE_SETTINGS = (
    "engine",
    "checkpoint_every",
    "save_models",
    "data.data_dir",
    "data.download",
    "training.device",  # it changes the rounding of sums, nothing else
)
#: Options of each schedule of ``training.lr`` over rounds.
SCHEDULES: dict[str, tuple[str, ...]] = {
    "constant": (),
    "step": ("every", "factor"),
    "exponential": ("factor",),
    "linear": ("final",),
    "cosine": ("final",),
}


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which samples, and how they are dealt out; see `fl.data.load_federation`."""

    dataset: str = "digits"
    n_clients: int = 100
    partition: str = "dirichlet"
    alpha: float = 0.1
    shards_per_client: int = 2
    test_fraction: float = 0.2
    min_size: int = 0
    data_dir: str | None = None
    download: bool = True
    options: Options = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        at_least(self.n_clients, "data.n_clients", 1)


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """Local training by SGD; plain by default, as in the paper.

    `momentum` and `weight_decay` are those of `torch.optim.SGD`, with a velocity of 0 at the
    start of each client's round; `clip_norm` bounds the norm of each gradient. `schedule`
    changes `lr` from round to round: ``"step"`` multiplies it by ``factor`` (0.1) every
    ``every`` (30) rounds, ``"exponential"`` by ``factor`` (0.99) every round, ``"linear"`` and
    ``"cosine"`` lead to ``final`` (0) times `lr` at the end of the run; these are set in
    `schedule_options`. `device` is ``"cpu"``, ``"cuda"`` (every GPU, one worker each),
    ``"cuda:1"``, ``"mps"`` or ``"auto"``. `local` names the parameters and buffers that each
    client keeps to itself, as ``["bn"]``: see docs/own-model.md.
    """

    lr: float = 0.01
    epochs: int = 10
    batch_size: int = 100
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None
    schedule: Literal["constant", "step", "exponential", "linear", "cosine"] = "constant"
    schedule_options: Options = dataclasses.field(default_factory=dict)
    device: str = "cpu"
    local: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        above(self.lr, "training.lr", 0.0)
        at_least(self.epochs, "training.epochs", 1)
        at_least(self.batch_size, "training.batch_size", 1)
        one_of(self.schedule, "training.schedule", tuple(SCHEDULES))
        if not 0.0 <= self.momentum < 1.0:
            raise ConfigError(f"training.momentum must lie in [0, 1), got {self.momentum:g}")
        if self.weight_decay < 0.0:
            raise ConfigError(f"training.weight_decay must be at least 0, got {self.weight_decay}")
        if self.clip_norm is not None:
            above(self.clip_norm, "training.clip_norm", 0.0)
        for name, value in self.schedule_options.items():
            where = f"training.schedule_options.{name}"
            if name not in SCHEDULES[self.schedule]:
                known = ", ".join(SCHEDULES[self.schedule]) or "none"
                raise ConfigError(f"{where} is not an option of {self.schedule!r}: {known}")
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise ConfigError(f"{where} must be a number of at least 0, got {value!r}")
            if name == "every" and (value < 1 or value != int(value)):
                raise ConfigError(f"{where} must be an integer of at least 1, got {value!r}")


@dataclasses.dataclass(frozen=True)
class SelectionConfig:
    """Which policy picks the clients, with its own options.

    `n_features` coordinates of the last layer are shown to policies that watch models;
    None shows the whole layer. `features` says which: "model", those of the trained model, as
    in the paper; "update", of its difference from the model that was sent; "head", the
    direction of the output layer's bias update (`cvrcore.head`). `noise` and `coarse` make that
    direction less revealing (`cvrcore.head.Blur`, docs/privacy.md). `layer` names a part of the
    model, as ``"encoder"``, whose last layer is watched instead. The first `shared_warmup`
    rounds are drawn uniformly, with the same draws whatever the policy: its own begin
    after them. `server_samples` training samples are taken away from the clients and kept by
    the server, for policies that measure what a client's model is worth (`shapley`).
    """

    policy: str = "uniform"
    n_select: int = 10
    n_features: int | None = None
    features: Literal["model", "update", "head"] = "model"
    noise: float = 0.0
    coarse: Literal["none", "sign", "top"] = "none"
    layer: str | None = None
    shared_warmup: int = 0
    server_samples: int = 0
    options: Options = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        at_least(self.n_select, "selection.n_select", 1)
        one_of(self.features, "selection.features", ("model", "update", "head"))
        one_of(self.coarse, "selection.coarse", ("none", "sign", "top"))
        if not self.noise >= 0.0:
            raise ConfigError(f"selection.noise must be at least 0, got {self.noise:g}")
        if (self.noise or self.coarse != "none") and self.features != "head":
            raise ConfigError(
                "selection.noise and selection.coarse must go with selection.features 'head', got "
                f"{self.features!r}"
            )
        at_least(self.shared_warmup, "selection.shared_warmup", 0)
        at_least(self.server_samples, "selection.server_samples", 0)
        if self.n_features is not None:
            at_least(self.n_features, "selection.n_features", 1)


@dataclasses.dataclass(frozen=True)
class AlgorithmConfig:
    """How models are kept and merged: a name of `fl.algorithms` and its options."""

    name: str = "fedavg"
    options: Options = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ServerConfig:
    """The server's step; see `cvrcore.aggregators.ServerOptimiser`.

    The defaults take the aggregated model as it is. `lr` None is 1 for ``"sgd"``, 3 for
    ``"adaptive"``, or 8 if models are averaged, and 0.01 for the others; `min_lr` is the shortest
    step of ``"adaptive"``. `average` is the decay of the moving average of models that is
    evaluated and saved; clients train from the model itself. 0: none. See
    `cvrcore.aggregators.ModelAverage`.
    """

    optimiser: Literal["sgd", "adam", "yogi", "adaptive"] = "sgd"
    lr: float | None = None
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    bias_correction: bool = False
    min_lr: float = 1.0
    average: float = 0.0

    def __post_init__(self) -> None:
        one_of(self.optimiser, "server.optimiser", ("sgd", "adam", "yogi", "adaptive"))
        above(self.min_lr, "server.min_lr", 0.0)
        if self.lr is not None:
            above(self.lr, "server.lr", 0.0)
        above(self.tau, "server.tau", 0.0)
        for name in ("momentum", "beta1", "beta2", "average"):
            value = getattr(self, name)
            if not 0.0 <= value < 1.0:
                raise ConfigError(f"server.{name} must lie in [0, 1), got {value:g}")
        if self.momentum and self.optimiser != "sgd":
            raise ConfigError(
                f"server.momentum must be 0 with server.optimiser {self.optimiser!r}, which has "
                f"beta1, got {self.momentum:g}"
            )


@dataclasses.dataclass(frozen=True)
class AvailabilityConfig:
    """Chances that a client is reachable and that it drops out; see `fl.availability`."""

    probability: float = 1.0
    trace: str | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        share(self.probability, "availability.probability")
        share(self.dropout, "availability.dropout")


@dataclasses.dataclass(frozen=True)
class FleetConfig:
    """Simulated devices of clients, off by default; see `fl.fleet` and docs/devices.md.

    Speeds and bandwidths are lognormal, with the medians and spreads (standard deviations of
    the logarithm) given here. `jitter` is the spread of a device's own speed from round to
    round. A device drops out with the chance `loss` if its speed is the median; slower ones do
    so more often, the more the larger `loss_slope`. After `deadline` seconds the server waits no
    longer. Devices are online for `online_share` of each `day`, their stretches spread over
    `online_spread` of it, or as `online_trace` says; the server waits `idle` seconds if none is.
    """

    enabled: bool = False
    seconds_per_sample: float = 0.001
    speed_spread: float = 0.5
    jitter: float = 0.0
    bandwidth: float = 1e6
    bandwidth_spread: float = 0.5
    upload_share: float = 0.25
    latency: float = 0.05
    loss: float = 0.0
    loss_slope: float = 1.0
    deadline: float | None = None
    online_share: float = 1.0
    online_spread: float = 1.0
    day: float = 86400.0
    online_trace: str | None = None
    idle: float = 600.0

    def __post_init__(self) -> None:
        for name in ("seconds_per_sample", "bandwidth", "upload_share", "day", "idle"):
            above(getattr(self, name), f"fleet.{name}", 0.0)
        for name in ("speed_spread", "jitter", "bandwidth_spread", "latency", "loss_slope"):
            value = getattr(self, name)
            if not value >= 0.0:
                raise ConfigError(f"fleet.{name} must be at least 0, got {value:g}")
        share(self.loss, "fleet.loss")
        share(self.online_share, "fleet.online_share")
        share(self.online_spread, "fleet.online_spread")
        above(self.online_share, "fleet.online_share", 0.0)
        if self.deadline is not None:
            above(self.deadline, "fleet.deadline", 0.0)


@dataclasses.dataclass(frozen=True)
class EngineConfig:
    """Where clients train; it changes how long a run takes, never what it finds.

    `workers` None means one per core; ``"auto"`` takes worker processes when the run is
    long enough to pay for their start. `timeout` bounds one client's training, in seconds.
    `address` is that of a Ray cluster, ``"auto"`` or HOST:PORT; without one, engine ``"ray"``
    takes the cluster that ``RAY_ADDRESS`` names, or starts one of its own on this machine.
    `gpu_share` is the part of a GPU that a task of engine ``"ray"`` asks for, where
    ``training.device`` is one.
    """

    name: Literal["auto", "serial", "processes", "ray", "flower"] = "auto"
    workers: int | None = None
    timeout: float = 600.0
    address: str | None = None
    gpu_share: float = 1.0

    def __post_init__(self) -> None:
        one_of(self.name, "engine.name", ("auto", "serial", "processes", "ray", "flower"))
        if self.address is not None:
            if self.name != "ray":
                raise ConfigError(f"engine.address must go with engine 'ray', got {self.name!r}")
            ray_address(self.address, "engine.address")
        if self.workers is not None:
            at_least(self.workers, "engine.workers", 1)
        above(self.timeout, "engine.timeout", 0.0)
        above(self.gpu_share, "engine.gpu_share", 0.0)
        share(self.gpu_share, "engine.gpu_share")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that a run depends on.

    `method` is a label for tables (a name of `METHODS`, or your own); what runs is decided
    by `selection`, `algorithm`, `aggregator` and `server`, each with its options. `model`
    None takes the data set's usual one. `target` is the accuracy whose first round is reported;
    with `simulate_time` the policy gets each client's duration as its samples times its epochs.
    `save_models` keeps the final and the best model in the folder of the run; `record_losses`
    measures the loss of the received model on every picked client, for the record.
    `empty_test` says whether clients without test samples are left out of the mean or count
    as 0.

    Examples
    --------
    >>> import fl
    >>> config = fl.make_config("digits", "fedcvr-bolt", rounds=20, n_clients=20)
    >>> config.selection.policy, config.data.n_clients, config.replace(rounds=5).rounds
    ('fedcvr-bolt', 20, 5)
    """

    method: str = "fedavg"
    preset: str = "paper"
    model: str | None = None
    rounds: int = 100
    seed: int = 0
    eval_every: int = 1
    checkpoint_every: int = 10
    save_models: bool = True
    record_losses: bool = False
    target: float | None = None
    aggregator: str = "sizes"
    aggregator_options: Options = dataclasses.field(default_factory=dict)
    simulate_time: bool = False
    empty_test: Literal["skip", "zero"] = "skip"
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    selection: SelectionConfig = SelectionConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    server: ServerConfig = ServerConfig()
    availability: AvailabilityConfig = AvailabilityConfig()
    fleet: FleetConfig = FleetConfig()
    engine: EngineConfig = EngineConfig()

    def __post_init__(self) -> None:
        one_of(self.preset, "preset", PRESET_NAMES)
        one_of(self.empty_test, "empty_test", ("skip", "zero"))
        for name, minimum in {"rounds": 1, "seed": 0, "eval_every": 1}.items():
            at_least(getattr(self, name), name, minimum)
        at_least(self.checkpoint_every, "checkpoint_every", 1)
        for name, value in {"model": self.model, "data.dataset": self.data.dataset}.items():
            if value is not None and ":" in value:
                raise ConfigError(
                    f"{name} must be a name, got {value!r}: an import path counts on the command "
                    f"line (--{name.rpartition('.')[2]}) and in Python alone, never in settings"
                )
        if self.selection.n_select > self.data.n_clients:
            raise ConfigError(
                f"selection.n_select must be at most data.n_clients ({self.data.n_clients}), "
                f"got {self.selection.n_select}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain values, ready for JSON or TOML (which omits None)."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build a config from nested plain values; a key left out keeps its default.

        Raises
        ------
        ConfigError
            For a key that does not exist (the nearest one is suggested) and for a value
            of the wrong type or out of range.
        """
        built: Self = build(cls, values, advise=lambda path: advice(cls, path))
        return built

    def replace(self, **changes: Any) -> Self:
        """Return a copy with settings changed; dots become ``__``, as in ``training__lr``.

        A table of settings is merged into the present one: ``training={"lr": 0.1}``. A setting
        whose name no other table has needs no table: ``n_clients=20``. Options of a policy,
        algorithm or aggregator are dropped when another one is named.

        Examples
        --------
        >>> RunConfig().replace(rounds=5, training__lr=0.1).training.lr
        0.1
        >>> RunConfig().replace(n_clients=20, data={"alpha": 0.5}).data.n_clients
        20
        """
        return type(self).from_dict(merged(self.to_dict(), nested(type(self), changes)))
