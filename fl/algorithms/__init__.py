"""Names of training algorithms in, algorithms out; one file for each."""

from __future__ import annotations

import inspect

from ..config import AlgorithmConfig, ConfigError, nearest
from ..settings import look_up
from .base import Algorithm, Resources, RoundUpdates
from .fedavg import FedAvg
from .feddyn import FedDyn
from .fednova import FedNova
from .fedprox import FedProx
from .fesem import FeSEM
from .ifca import IFCA
from .qfedavg import QFedAvg
from .scaffold import Scaffold

__all__ = ["ALGORITHMS", "Algorithm", "Resources", "RoundUpdates", "make_algorithm"]

ALGORITHMS: dict[str, type[Algorithm]] = {
    kind.name: kind for kind in (FedAvg, FedProx, IFCA, FeSEM, Scaffold, FedNova, FedDyn, QFedAvg)
}


def make_algorithm(config: AlgorithmConfig, resources: Resources) -> Algorithm:
    """Build the algorithm that `config` names, with its options.

    Raises
    ------
    ConfigError
        For a name or an option that does not exist, or a value that it cannot take.
    """
    kind: type[Algorithm] = look_up(config.name, ALGORITHMS, "algorithm.name")
    known_options = list(inspect.signature(kind).parameters)[1:]
    for option in config.options:
        if option not in known_options:
            hint = nearest(option, known_options)
            raise ConfigError(f"algorithm.options.{option} is not an option of {kind.name}{hint}")
    try:
        return kind(resources, **config.options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"algorithm.options: {error}") from error
