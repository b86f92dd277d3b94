"""Clients picked in a round in; simulated seconds, lost devices and who is online out.

Each client has one device, drawn once: a speed and a bandwidth. A round lasts until the last
picked device has answered or was lost. Draws come from a stream of their own and depend on seed
and round alone; which clients are online depends on the simulated clock.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import FleetConfig
from .streams import Streams

Mask = NDArray[np.bool_]
Seconds = NDArray[np.float64]

#: Share of a training step that its forward pass takes.
FORWARD = 1.0 / 3.0
DEVICES, ROUND = 0, 1  # children of the stream


class FleetError(ValueError):
    """A trace of the fleet that cannot be read; the message names the line."""


@dataclasses.dataclass(frozen=True)
class RoundTimes:
    """When the devices of a round were done, in seconds after it began.

    Attributes
    ----------
    durations : ndarray of shape (n_picked,)
        Download, training and upload of each picked client; what policies are told.
    lost : ndarray of bool, shape (n_picked,)
        Devices that dropped out or missed the deadline: their models never arrive.
    seconds : float
        Length of the round.
    """

    durations: Seconds
    lost: Mask
    seconds: float


class Fleet:
    """The devices of all clients, and the simulated clock.

    Parameters
    ----------
    config : FleetConfig
    sizes : ndarray of shape (n_clients,)
        Training samples of each client.
    epochs : int
        Passes over them in a round.
    model_bytes : int
        Size of one model on its way.
    streams : Streams

    Attributes
    ----------
    speed : ndarray of shape (n_clients,)
        Of each device; the median device has speed 1.
    bandwidth : ndarray of shape (n_clients,)
        Bytes a second of downloads.
    clock : float
        Simulated seconds since the run began.
    """

    def __init__(
        self,
        config: FleetConfig,
        sizes: NDArray[np.float64],
        epochs: int,
        model_bytes: int,
        streams: Streams,
    ) -> None:
        self._config = config
        self._streams = streams
        self._model_bytes = model_bytes
        n_clients = len(sizes)
        rng = streams.generator("fleet", DEVICES)
        self.speed: Seconds = np.exp(config.speed_spread * rng.standard_normal(n_clients))
        self.bandwidth: Seconds = config.bandwidth * np.exp(
            config.bandwidth_spread * rng.standard_normal(n_clients)
        )
        self._phase = rng.random(n_clients)
        self._work = sizes * config.seconds_per_sample
        self._epochs = epochs
        self._trace = None
        if config.online_trace is not None:
            self._trace = OnlineTrace.read(config.online_trace, n_clients)
        self.clock = 0.0

    @property
    def lost_chance(self) -> Seconds:
        """Chance of each device to drop out of a round.

        Its odds are those of the median device times ``speed ** -loss_slope``.
        """
        config = self._config
        if config.loss >= 1.0:
            return np.ones_like(self.speed)
        odds = config.loss / (1.0 - config.loss) * self.speed**-config.loss_slope
        chance: Seconds = odds / (1.0 + odds)
        return chance

    def online(self, clock: float | None = None) -> Mask:
        """Return a mask (n_clients,) of the devices that are online now, or at `clock`."""
        now = self.clock if clock is None else clock
        if self._trace is not None:
            return self._trace.at(now)
        config = self._config
        if config.online_share >= 1.0:
            return np.ones(len(self.speed), dtype=bool)
        # Every device is online for one stretch of the day, which begins at its own hour.
        hour = now / config.day - config.online_spread * self._phase
        mask: Mask = hour % 1.0 < config.online_share
        return mask

    def round(
        self,
        t: int,
        picked: NDArray[np.int64],
        probed: NDArray[np.int64],
        models_sent: int = 1,
        models_returned: int = 1,
        trains_first: bool = False,
    ) -> RoundTimes:
        """Return the times of round `t`; the clock does not move.

        Probed clients are asked first: they download the model and measure it, all at once, and
        the picked ones among them need not download it again. With `trains_first` they train for
        the probe, and the picked ones only upload then: the round lasts as long as the slowest
        client that was asked, and the uploads after it.
        """
        config, n_clients = self._config, len(self.speed)
        rng = self._streams.generator("fleet", ROUND, t)
        jitter = np.exp(config.jitter * rng.standard_normal(n_clients))
        drops, moments = rng.random(n_clients), rng.random(n_clients)
        compute = self._work / self.speed * jitter
        download = self._model_bytes / self.bandwidth
        upload = models_returned * download / config.upload_share
        has_model = np.isin(picked, probed)
        if trains_first:
            asked = models_sent * download + self._epochs * compute + 2 * config.latency
            times = upload[picked] + 2 * config.latency
        else:
            asked = FORWARD * compute + download + 2 * config.latency
            times = (
                (models_sent - has_model) * download[picked]
                + self._epochs * compute[picked]
                + upload[picked]
                + 2 * config.latency
            )
        lost = drops[picked] < self.lost_chance[picked]
        ends = np.where(lost, moments[picked] * times, times)
        if config.deadline is not None:
            lost |= times > config.deadline
            ends = np.minimum(ends, config.deadline)
        seconds = float(ends.max(initial=0.0)) + float(asked[probed].max(initial=0.0))
        return RoundTimes(times, lost, seconds)

    def advance(self, seconds: float | None = None) -> dict[str, float]:
        """Move the clock on, by `idle` seconds if none are given; return a round's record."""
        spent = self._config.idle if seconds is None else seconds
        self.clock += spent
        return {"simulated_seconds": spent, "simulated_clock": self.clock}

    def state_dict(self) -> dict[str, Any]:
        """Return all state as plain values: devices follow from the settings."""
        return {"clock": self.clock}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.clock = float(state["clock"])


class OnlineTrace:
    """When each client is online: intervals of seconds, repeated after the last of them ends."""

    def __init__(
        self, clients: NDArray[np.int64], begins: Seconds, ends: Seconds, n_clients: int
    ) -> None:
        self._clients, self._begins, self._ends = clients, begins, ends
        self._n_clients = n_clients
        self.period = float(ends.max())

    @classmethod
    def read(cls, path: str, n_clients: int) -> OnlineTrace:
        """Read a CSV file of lines ``client,begin,end``, without header.

        Raises
        ------
        FleetError
            If the file is missing, empty or malformed.
        """
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise FleetError(f"fleet.online_trace {path!r} cannot be read: {error}") from None
        rows = []
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    rows.append(_interval(line, n_clients))
                except ValueError as error:
                    where = f"fleet.online_trace {path!r}, line {number}"
                    raise FleetError(f"{where}: {error}") from None
        if not rows:
            raise FleetError(f"fleet.online_trace {path!r} must have at least one line, got none")
        clients, begins, ends = (np.array(column) for column in zip(*rows, strict=True))
        return cls(clients, begins, ends, n_clients)

    def at(self, clock: float) -> Mask:
        """Return a mask (n_clients,) of the clients that are online at `clock`."""
        now = clock % self.period
        mask = np.zeros(self._n_clients, dtype=bool)
        mask[self._clients[(self._begins <= now) & (now < self._ends)]] = True
        return mask


def _interval(line: str, n_clients: int) -> tuple[int, float, float]:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != 3:
        raise ValueError(f"must be client,begin,end, got {line.strip()[:60]!r}")
    try:
        client, begin, end = int(cells[0]), float(cells[1]), float(cells[2])
    except ValueError:
        raise ValueError(f"must hold three numbers, got {line.strip()[:60]!r}") from None
    if not 0 <= client < n_clients:
        raise ValueError(f"client must lie in 0..{n_clients - 1}, got {client}")
    if not 0.0 <= begin < end < np.inf:
        raise ValueError(f"must have 0 <= begin < end, got {begin:g} and {end:g}")
    return client, begin, end
