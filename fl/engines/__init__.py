"""Names of engines in, engines out: where clients train."""

from __future__ import annotations

from ..config import EngineConfig
from ..devices import devices_of
from ..samples import ClientSamples
from .base import Engine, EngineError, Job, MeasureTask, TrainTask
from .processes import ProcessEngine, cores
from .serial import SerialEngine

__all__ = ["Engine", "EngineError", "Job", "MeasureTask", "TrainTask", "make_engine"]

#: Samples passed forward and back, times parameters, above which processes pay: some
#: seconds of work, against a second or two to start.
WORTH_STARTING = 1e11


def make_engine(
    config: EngineConfig, job: Job, samples: ClientSamples, work: float = float("inf")
) -> Engine:
    """Build the engine that `config` asks for.

    Parameters
    ----------
    config : EngineConfig
    job : Job
    samples : ClientSamples
    work : float
        Samples to be passed in the whole run times parameters; decides ``"auto"``.

    Notes
    -----
    On the CPU ``"auto"`` takes worker processes when the run is long enough. On other devices
    it has one worker each: this process for one, worker processes for several. Ray decides for
    itself where the devices are.
    """
    if config.name != "ray":
        devices = devices_of(job.training.device)
        if devices != ["cpu"]:
            return _on_devices(config, job, samples, devices)
    workers = config.workers or cores()
    alone = config.name == "auto" and (workers == 1 or work < WORTH_STARTING)
    if config.name == "serial" or alone:
        return SerialEngine(job, samples)
    try:
        if config.name == "ray":
            from .ray import RayEngine

            return RayEngine(
                job, samples, config.address, config.workers, config.timeout, config.gpu_share
            )
        if config.name == "flower":
            from .flower import FlowerEngine

            return FlowerEngine(job, samples, workers, config.timeout)
    except ImportError as error:  # missing or too old: the message says what to run
        raise EngineError(str(error)) from None
    return ProcessEngine(job, samples, workers, config.timeout)


def _on_devices(
    config: EngineConfig, job: Job, samples: ClientSamples, devices: list[str]
) -> Engine:
    """Build an engine of one worker for each device."""
    if config.name == "flower":
        raise EngineError("engine 'flower' trains on the CPU: leave training.device at 'cpu'")
    devices = devices[: config.workers or len(devices)]
    if config.name == "serial" or (config.name == "auto" and len(devices) == 1):
        return SerialEngine(job.on(devices[0]), samples)
    return ProcessEngine(job, samples, timeout=config.timeout, devices=devices)
