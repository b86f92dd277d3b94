"""Names of methods, data sets and presets in, settings of a run out.

`ZOO` names every policy of the registry with the merge that its own paper uses: the name of a
policy alone, as in ``--method optimal``, is that pair. ``fedavg+optimal`` is the policy with
FedAvg's merge by sample counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from cvrcore.aggregators.averaging import DECAY
from cvrcore.selectors import POLICIES
from cvrcore.selectors.warmup import PAPER_WARMUP

from .changes import merged, nested
from .config import (
    AlgorithmConfig,
    ConfigError,
    DataConfig,
    Options,
    RunConfig,
    SelectionConfig,
    ServerConfig,
)
from .plugins import DATASETS_GROUP, OWN, registered
from .settings import look_up


@dataclasses.dataclass(frozen=True)
class Method:
    """A named pair of training algorithm and selection policy, with their options.

    `steps` are lengths of the server's step by number of clients, on the data sets `TUNED`. There
    they take the place of the step that `server` says.
    """

    algorithm: str = "fedavg"
    policy: str = "uniform"
    policy_options: Options = dataclasses.field(default_factory=dict)
    algorithm_options: Options = dataclasses.field(default_factory=dict)
    aggregator: str = "sizes"
    aggregator_options: Options = dataclasses.field(default_factory=dict)
    features: Literal["model", "update", "head"] = "model"
    server: Options = dataclasses.field(default_factory=dict)
    server_samples: int = 0
    steps: Mapping[int, float] = dataclasses.field(default_factory=dict)

    def step(self, dataset: str, n_clients: int) -> float | None:
        """Return the step that was chosen for a federation; None where none was.

        It is that of the largest known number of clients not above `n_clients`.
        """
        if dataset not in TUNED or not self.steps:
            return None
        return self.steps[max((n for n in self.steps if n <= n_clients), default=min(self.steps))]


def _bolt(
    aggregator: str = "sizes",
    features: Literal["model", "update", "head"] = "model",
    form: str | None = None,
    **options: Any,
) -> Method:
    return Method(
        policy="fedcvr-bolt",
        policy_options=options,
        aggregator=aggregator,
        aggregator_options={} if form is None else {"form": form},
        features=features,
    )


#: The nine methods of the paper's classification table, in its order.
TABLE = {
    "fedavg": Method(),
    "power-of-choice": Method(policy="power-of-choice"),
    "active": Method(policy="active"),
    "fedprox": Method("fedprox", algorithm_options={"mu": 0.1}),
    "ifca": Method("ifca", algorithm_options={"k": 2}),
    "fesem": Method("fesem", algorithm_options={"k": 3}),
    "fedcbs": Method(policy="fedcbs"),
    "oort": Method(policy="oort"),
    "fedcvr-bolt": _bolt(),
}

#: Variants of FedCVR-Bolt; the last four are ours, not the paper's.
ABLATIONS = {
    "fedcvr-bolt-argmax": _bolt(within="argmax"),
    "fedcvr-bolt-uniform": _bolt(within="uniform"),
    "fedcvr-bolt-cosine": _bolt(kernel="cosine"),
    "fedcvr-bolt-laplacian": _bolt(kernel="laplacian"),
    "fedcvr-bolt-sigmoid": _bolt(kernel="sigmoid"),
    "fedcvr-bolt-zscore": _bolt(score="zscore"),
    "fedcvr-bolt-log": _bolt(score="log"),
    "fedcvr-bolt-median": _bolt(gamma="median"),
    "fedcvr-bolt-mass": _bolt(aggregator="coalition-mass"),
}

#: Our own preset, not the paper's method: chosen on digits and on seeds 0 to 4 of MNIST, before
#: the experiment ``holdout`` was run; see docs/results.md.
STEADY = "cvr-steady"

#: Beyond the paper: one part at a time, then together. All ours but FedVARP and MIFA.
#: A draw with unequal chances needs an aggregator that divides by them: coalition-mass for the
#: draw by size, where ``alpha_k / pi_k`` is the mass of the coalition, importance for Neyman's
#: draw. With the paper's sizes Neyman's draw is alone, and biased: a client that is likelier to
#: be picked counts no less. Neyman's places need fewer coalitions than P, so that "counted" has
#: two parts, and "eigengap" the first of them.
BEYOND = {
    "fedavg-importance": Method(aggregator="importance"),
    "fedavg-memory": Method(aggregator="memory"),
    "fedavg-mifa": Method(aggregator="memory", aggregator_options={"form": "none"}),
    "fedcvr-bolt-importance": _bolt("importance"),
    "fedcvr-bolt-importance-normalised": _bolt("importance", form="self-normalised"),
    "fedcvr-bolt-coalition-memory": _bolt("coalition-memory"),
    "fedcvr-bolt-memory": _bolt("memory"),
    "fedcvr-bolt-update": _bolt(features="update"),
    "fedcvr-bolt-size": _bolt("coalition-mass", within="size"),
    "fedcvr-bolt-neyman-alone": _bolt(within="neyman"),
    "fedcvr-bolt-neyman-importance": _bolt("importance", within="neyman"),
    "fedcvr-bolt-neyman": _bolt("importance", "update", within="neyman"),
    "fedcvr-bolt-neyman-memory": _bolt("memory", "update", within="neyman"),
    "fedcvr-bolt-eigengap": _bolt(n_coalitions="eigengap"),
    "fedcvr-bolt-silhouette": _bolt(n_coalitions="silhouette"),
    "fedcvr-bolt-counted": _bolt(n_coalitions="eigengap", places="neyman"),
    STEADY: _bolt("memory", "update", within="size"),
}

#: Balanced draws with exact inclusion, a long server step, and the average of the models; ours.
#: One remembered update per client where clients are few, a linear model of updates where they
#: are many. The step is a fixed one where it was chosen (`TUNED`; seed 0 of MNIST, before the
#: experiment ``balanced`` was run) and "adaptive" elsewhere: a step of 4 is too long for
#: CIFAR-10's convolutions with 100 clients.
BALANCED = {
    "balanced-memory": Method(
        policy="pivotal",
        features="head",
        aggregator="memory",
        server={"optimiser": "adaptive", "average": DECAY},
        steps={100: 4.0, 1000: 8.0},
    ),
    "balanced-factor": Method(
        policy="pivotal",
        features="head",
        aggregator="factor-memory",
        server={"optimiser": "adaptive", "average": DECAY},
        steps={100: 4.0, 1000: 8.0},
    ),
}
#: Data sets on which the `Method.steps` hold: on Fashion-MNIST, with the same model, a step of 8
#: costs `balanced-memory` 18 points.
TUNED = ("digits", "mnist")

#: Every policy of the registry with the merge of its own paper; `TABLE` has the others. Draws
#: with exact inclusion probabilities are divided by them; draws with replacement and in
#: proportion to sample counts are a plain mean by how often each client was drawn; DivFL's
#: gamma is the mass of the clients that a pick represents; `drift` is made for memory. `shapley`
#: measures utilities on 500 samples that the server keeps. `drift`, `pivotal` and the default
#: score of `learned` (size, few picks, long absence) are ours, the others published.
ZOO = {
    "uniform": Method(),
    "optimal": Method(policy="optimal", aggregator="importance"),
    "k-vib": Method(policy="k-vib", aggregator="importance"),
    "pivotal": Method(policy="pivotal", features="head", aggregator="importance"),
    "multinomial": Method(policy="multinomial", aggregator="mean"),
    "clustered": Method(policy="clustered", aggregator="mean"),
    "divfl": Method(policy="divfl", aggregator="coalition-mass"),
    "drift": Method(policy="drift", aggregator="memory"),
    "hics": Method(policy="hics"),
    "fedcor": Method(policy="fedcor"),
    "shapley": Method(policy="shapley", server_samples=500),
    "learned": Method(policy="learned"),
    "reshuffle": Method(policy="reshuffle"),
}

#: Policies with a memory of updates instead of their own merge; ours.
REMEMBERED = {
    "pivotal-memory": Method(policy="pivotal", features="head", aggregator="memory"),
    "pivotal-factor": Method(policy="pivotal", features="head", aggregator="factor-memory"),
    "fedcbs-memory": Method(policy="fedcbs", aggregator="memory"),
}

#: FedAvg with an optimiser on the server (Hsu et al.; Reddi et al.), or a long step and averages.
SERVER = {
    "fedavgm": Method(server={"momentum": 0.9}),
    "fedadam": Method(server={"optimiser": "adam"}),
    "fedyogi": Method(server={"optimiser": "yogi"}),
    "fedavg-averaged": Method(server={"optimiser": "adaptive", "average": DECAY}, steps={100: 4.0}),
    "fedavg-adaptive": Method(server={"optimiser": "adaptive"}),
    "fedavg-memory-adaptive": Method(aggregator="memory", server={"optimiser": "adaptive"}),
}

#: Other training algorithms; see docs/training.md.
TRAINING = {name: Method(name) for name in ("scaffold", "fednova", "feddyn", "q-fedavg")}

METHODS: Mapping[str, Method] = {
    **TABLE,
    **ABLATIONS,
    **BEYOND,
    **BALANCED,
    **ZOO,
    **REMEMBERED,
    **SERVER,
    **TRAINING,
}

_DATASETS = (
    "digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "synthetic", "regression",
    "shakespeare", "adult",
)  # fmt: skip
#: Digits has 1797 samples in all: at the paper's step length it would hardly move. The paper has
#: no text and no table of persons: these have all natural clients, and settings of ours.
_OWN: Mapping[str, Mapping[str, Any]] = {
    "digits": {"training__lr": 0.1, "training__batch_size": 10, "data__n_clients": 50},
    "shakespeare": {
        "data__n_clients": 630,
        "training__lr": 1.0,
        "training__batch_size": 10,
        "training__epochs": 1,
    },
    "adult": {
        "data__n_clients": 131,
        "training__lr": 0.1,
        "training__batch_size": 32,
        "training__epochs": 1,
    },
}

#: Settings of each preset and data set that differ from `RunConfig`'s defaults.
PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "paper": {
        name: {
            "rounds": 200 if name.endswith("mnist") else 100,
            "selection__n_features": 300 if name.startswith("cifar") else None,
            **_OWN.get(name, {}),
        }
        for name in _DATASETS
    },
    "scripts": {
        name: {"rounds": 200, "training__batch_size": 32, "selection__n_features": 300}
        | dict(_OWN.get(name, {}))
        for name in _DATASETS
    },
}

#: The scripts' constant rate of the covariance estimate, where they use one.
_SCRIPTS_RATE = {"cifar10": 0.01, "cifar100": 0.01, "synthetic": 0.01}


def make_config(
    dataset: str | None = None,
    method: str = "fedavg",
    preset: str | None = None,
    **changes: Any,
) -> RunConfig:
    """Return the settings of one method on one data set.

    Parameters
    ----------
    dataset : str, optional
        A data set of `PRESETS`, one that an installed package registers, or ``"own"`` for a
        federation that the caller brings. Default: the one that the changes name, or
        ``"digits"``.
    method : str
        A name of `METHODS`; any other policy, such as one that an installed package
        registers; or METHOD+POLICY, as in ``"fedprox+oort"``: the first trains and merges,
        the second picks.
    preset : {"paper", "scripts"}, optional
        The paper's text, or the authors' scripts where they differ. Default: the paper's
        settings with a warm-up of "auto"; a preset that is named has the paper's 30 rounds.
    **changes
        Settings to change, as in `RunConfig.replace`.

    Examples
    --------
    >>> make_config("mnist", "fedcvr-bolt", rounds=20).selection.policy
    'fedcvr-bolt'
    """
    config, chosen, given = _preset(dataset, method, preset, changes)
    return _tuned(config, chosen, given.get("server", {}))


def _preset(
    dataset: str | None, method: str, preset: str | None, changes: Mapping[str, Any]
) -> tuple[RunConfig, Method, dict[str, Any]]:
    """Return the settings without a tuned server step, the method, and the nested changes."""
    given = nested(RunConfig, changes)
    dataset = _dataset(dataset, given)
    warmup = "auto" if preset is None else PAPER_WARMUP
    preset = "paper" if preset is None else preset
    known = look_up(preset, PRESETS, "preset")
    theirs = dataset == OWN or (dataset not in known and dataset in registered(DATASETS_GROUP))
    settings = {} if theirs else look_up(dataset, known, "dataset")
    chosen = find_method(method)
    options = dict(chosen.policy_options)
    if chosen.policy == "fedcvr-bolt":
        options = {"preset": preset, "warmup": warmup, **options}
        if preset == "scripts" and dataset in _SCRIPTS_RATE:
            options["rate"] = _SCRIPTS_RATE[dataset]
    elif chosen.policy == "active" and preset == "scripts":
        options["preset"] = "scripts"
    elif chosen.policy == "power-of-choice" and preset == "scripts":
        options["candidates"] = "uniform"
    config = RunConfig(
        method=method,
        preset=preset,
        aggregator=chosen.aggregator,
        aggregator_options=dict(chosen.aggregator_options),
        empty_test="zero" if preset == "scripts" else "skip",
        data=DataConfig(dataset=dataset),
        selection=SelectionConfig(
            policy=chosen.policy,
            features=chosen.features,
            server_samples=chosen.server_samples,
            options=options,
        ),
        algorithm=AlgorithmConfig(chosen.algorithm, dict(chosen.algorithm_options)),
        server=ServerConfig(**chosen.server),
    )
    return config.replace(**settings).replace(**given), chosen, given


def _tuned(config: RunConfig, method: Method, given: Mapping[str, Any]) -> RunConfig:
    """Return the settings with the step that was chosen, unless the caller chooses a server step.

    A length alone is that of a fixed step; a rule of the caller's has its own usual length.
    """
    step = method.step(config.data.dataset, config.data.n_clients)
    if step is None or "optimiser" in given:
        return config
    lr = given.get("lr")
    return config.replace(server__optimiser="sgd", server__lr=step if lr is None else lr)


def untuned(config: RunConfig) -> RunConfig:
    """Return the settings for data of the caller's own: without a step chosen on other data."""
    method = METHODS.get(config.method.partition("+")[0], METHODS["fedavg"])
    step = method.step(config.data.dataset, config.data.n_clients)
    if step is None or (config.server.optimiser, config.server.lr) != ("sgd", step):
        return config
    return config.replace(server=ServerConfig(**method.server))


def _dataset(named: str | None, changes: Mapping[str, Any]) -> str:
    """Return the one data set that the arguments of `make_config` name."""
    changed = _word(changes.get("data"), "dataset", "")
    if named is not None and changed and named != changed:
        raise ConfigError(f"dataset must be given once, got {named!r} and data.dataset={changed!r}")
    return named or changed or "digits"


def find_method(name: str) -> Method:
    """Return the method called `name`, in any of the forms that `make_config` takes."""
    if name in METHODS:
        return METHODS[name]
    base, plus, policy = name.partition("+")
    if plus:
        merging: Method = look_up(base, METHODS, "method", "cvrcore methods")
        if policy not in POLICIES and policy in METHODS:
            parts = METHODS[policy]
            raise ConfigError(
                f"policy must be a policy, got {policy!r}, a method: policy {parts.policy!r} with "
                f"aggregator {parts.aggregator!r}; name it as the method"
            )
        look_up(policy, POLICIES, "policy", "cvrcore policies")
        return dataclasses.replace(merging, policy=policy, policy_options={})
    if name in POLICIES:
        return Method(policy=name)
    others = (policy for policy in POLICIES if policy not in METHODS)
    known = {**METHODS, **dict.fromkeys(others)}
    found: Method = look_up(name, known, "method", "cvrcore methods")
    return found


def resolve(file: Mapping[str, Any], changes: Mapping[str, Any]) -> RunConfig:
    """Return the settings of a preset, changed by a file, changed by arguments.

    Parameters
    ----------
    file : mapping
        Nested settings, as read from TOML; its ``method``, ``preset`` and ``data.dataset``
        choose the preset.
    changes : mapping
        As in `RunConfig.replace`, with ``method``, ``preset`` and ``data__dataset``
        choosing the preset instead of the file's.
    """
    data = file.get("data", {})
    changes = nested(RunConfig, changes)
    named = {
        "dataset": _word(changes.get("data"), "dataset", "") or _word(data, "dataset", "digits"),
        "method": changes.get("method") or _word(file, "method", "fedavg"),
    }
    preset = changes.get("preset") or (_word(file, "preset", "") if "preset" in file else None)
    known = {**file, "method": named["method"]}
    if file.get("method", named["method"]) != named["method"]:
        # Settings of the file's own method do not describe the requested method.
        for own in ("algorithm", "aggregator", "aggregator_options", "server"):
            known.pop(own, None)
        if isinstance(known.get("selection"), Mapping):
            own_selection = ("policy", "options", "features")
            kept = {k: v for k, v in known["selection"].items() if k not in own_selection}
            known["selection"] = kept
    base, chosen, _ = _preset(**named, preset=preset, changes={})
    known["preset"] = base.preset
    if isinstance(data, Mapping):
        known["data"] = {**data, "dataset": named["dataset"]}
    config = RunConfig.from_dict(merged(base.to_dict(), known)).replace(**changes)
    servers = (known.get("server"), changes.get("server"))
    given = {k: v for table in servers if isinstance(table, Mapping) for k, v in table.items()}
    return _tuned(config, chosen, given)


def _word(table: Any, key: str, default: str) -> str:
    value = table.get(key, default) if isinstance(table, Mapping) else default
    if not isinstance(value, str):
        raise ConfigError(f"{key} must be a string, got {value!r}")
    return value
