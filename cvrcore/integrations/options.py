"""Option objects of the adapters: keywords of a constructor in, frozen and checked objects out."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ..tracking import Tracker
from ..tracking.registry import check_tracker
from ..validation import check_number

_Group = TypeVar("_Group")


@dataclasses.dataclass(frozen=True)
class Waiting:
    """How long the server waits for clients. It never changes which clients are selected.

    Attributes
    ----------
    timeout : float, optional
        Seconds for the replies to one task; later replies are dropped. Default: under Flower
        the `timeout` of ``start``, under NVFlare 3600.
    enough : float in (0, 1]
        Share of the replies after which the missing clients count as stragglers.
    grace : float
        Seconds that stragglers have left from then on. Default: until the timeout.
    connect : float, optional
        Seconds for clients to connect and to introduce themselves. As a plain keyword of an
        adapter it is called ``wait``. Default: 60, and one more for each client, an hour at most.

    Examples
    --------
    >>> from cvrcore.integrations.options import Waiting
    >>> Waiting(timeout=600, enough=0.8, grace=30).enough
    0.8
    """

    timeout: float | None = None
    enough: float = 1.0
    grace: float = math.inf
    connect: float | None = dataclasses.field(default=None, metadata={"keyword": "wait"})

    def __post_init__(self) -> None:
        if self.timeout is not None:
            check_number(self.timeout, "timeout", above=0)
        check_number(self.enough, "enough", above=0, maximum=1.0)
        if not self.grace >= 0:
            raise ValueError(f"grace must be at least 0 seconds, got {self.grace}")
        if self.connect is not None:
            check_number(self.connect, "connect (keyword: wait)", above=0)

    def connect_seconds(self, n_clients: int) -> float:
        """Return the seconds for that many clients to connect or to introduce themselves."""
        return min(60.0 + n_clients, 3600.0) if self.connect is None else self.connect

    def connect_text(self, n_clients: int) -> str:
        """Return the same as text for a log: the keyword, its value, and whether it was given."""
        given = "" if self.connect is not None else f", the default for {n_clients}"
        return f"wait={self.connect_seconds(n_clients):g} s{given}"

    def at_most(self, timeout: float | None) -> Waiting:
        """Return the same options with a timeout of at most `timeout`; None changes nothing."""
        if timeout is None or (self.timeout is not None and self.timeout <= timeout):
            return self
        return dataclasses.replace(self, timeout=timeout)


@dataclasses.dataclass(frozen=True)
class Reports:
    """What clients report beside their models, and by which names.

    Attributes
    ----------
    loss_key : str, optional
        Metric of a training reply that holds the loss, for policies that learn from losses. It
        must be the loss of the model *received* over the training samples: many apps call the
        loss of the last mini-batch ``train_loss``. Default: none; clients send the loss apart
        from their metrics.
    probe : str, optional
        How a policy that probes asks for the loss of the current model. Under Flower
        ``"query"`` (default), which `flower.client.selectable` answers, or ``"evaluate"``, the
        app's own evaluation. Under NVFlare the name of a task, by default ``"validate"``.
    probe_key : str, optional
        Metric of the reply to a probe that holds the loss. Default: ``"eval_loss"`` under
        Flower, where it counts for ``"evaluate"`` alone, and ``"loss"`` under NVFlare.
    durations : bool
        Whether the policy is told how long each reply took, by the server's clock. Off by
        default, since selections then depend on the clock; if on, Oort prefers fast clients. A
        policy that needs durations is told in any case.
    same_shape : bool
        Whether replies must have the names, shapes and kinds of the arrays that were sent; False
        for models that grow, such as trees.

    Examples
    --------
    >>> from cvrcore.integrations.options import Reports
    >>> Reports(loss_key="train_loss", durations=True).loss_key
    'train_loss'
    """

    loss_key: str | None = None
    probe: str | None = None
    probe_key: str | None = None
    durations: bool = False
    same_shape: bool = True


@dataclasses.dataclass(frozen=True)
class Tracking:
    """Where rounds are logged and shown. It never changes which clients are selected.

    Attributes
    ----------
    trackers : sequence of str or Tracker
        Names (``"tensorboard"``, ``"mlflow"``, ``"wandb"``, ``"csv"``, ``"details"``) or, where
        the adapter's arguments are not written to JSON, trackers of your own.
    folder : str
        Where they write. As a plain keyword of an adapter it is called ``track_folder``.
    watch : bool
        Whether to show the run live on a page of this machine, 127.0.0.1; the log has its
        address. It needs the extra ``watch``.

    Examples
    --------
    >>> Tracking(trackers=["csv"], folder="runs/a").trackers
    ['csv']
    """

    trackers: Sequence[str | Tracker] = ()
    folder: str = dataclasses.field(default="tracking", metadata={"keyword": "track_folder"})
    watch: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.trackers, (str, Tracker)):
            raise TypeError(f"trackers must be a list of names or trackers, got {self.trackers!r}")
        for one in self.trackers:
            if isinstance(one, str):
                check_tracker(one)
            elif not isinstance(one, Tracker):
                raise TypeError(f"trackers must be names or Tracker objects, got {one!r}")


def log_loss_statistic(
    statistic: str | None, loss_key: str | None, log: Callable[[str], None]
) -> None:
    """Log which loss clients are to report, and where it is read; nothing without a statistic."""
    if statistic is None:
        return
    meaning = {"mean": "mean", "rms": "root mean square"}.get(statistic, statistic)
    where = "sent apart from the metrics" if loss_key is None else f"metric {loss_key!r}"
    log(
        f"the policy learns from losses: the {meaning} over a client's training samples of the "
        f"loss of the model that it received ({where})"
    )


#: Defaults of the adapters' arguments `waiting`, `reports` and `tracking`.
WAITING, REPORTS, TRACKING = Waiting(), Reports(), Tracking()


def keyword_names(group: Any) -> dict[str, str]:
    """Return the fields of an option object by the plain keyword that sets each."""
    fields = dataclasses.fields(group)
    return {field.metadata.get("keyword", field.name): field.name for field in fields}


def adapter_keywords(adapter: type, *groups: Any) -> list[str]:
    """Return every keyword that the constructor of `adapter` takes itself."""
    parameters = inspect.signature(adapter).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind != parameter.VAR_KEYWORD]
    return [*names, *(keyword for group in groups for keyword in keyword_names(group))]


def take_group(name: str, group: _Group, default: _Group, keywords: dict[str, Any]) -> _Group:
    """Return an option object, or build it from plain keywords.

    Parameters
    ----------
    name : str
        The argument of the adapter, such as ``"waiting"``.
    group : object
        Its value.
    default : object
        Its default; `group` is this very object where the caller gave none.
    keywords : dict
        Further keywords of the caller. Those that set a field of the object are removed.

    Raises
    ------
    TypeError
        If `group` is of another type, or both the object and one of its keywords are given.
    """
    if not isinstance(group, type(default)):
        raise TypeError(f"{name} must be a {type(default).__name__}, got {group!r}")
    names = keyword_names(default)
    given = [keyword for keyword in names if keyword in keywords]
    if given and group is not default:
        field = f"{type(default).__name__}({names[given[0]]}=...)"
        raise TypeError(f"{name} and {given[0]} must not both be given: use {name}={field}")
    changes: dict[str, Any] = {names[keyword]: keywords.pop(keyword) for keyword in given}
    return dataclasses.replace(default, **changes) if changes else group  # type: ignore[type-var]


def join_options(
    options: Mapping[str, Any] | None, keywords: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return options and single keywords as one dict; None if there are neither."""
    for keyword in keywords:
        if keyword in (options or {}):
            raise TypeError(f"{keyword} must not be given both in options and by itself")
    return {**(options or {}), **keywords} or None


def check_keywords(
    given: Iterable[str], known: Iterable[str], policy: str, similar: Iterable[str] = ()
) -> None:
    """Refuse an unknown keyword, and suggest the most similar one of `known` and `similar`."""
    known = list(known)
    for keyword in given:
        if keyword not in known:
            close = difflib.get_close_matches(keyword, [*known, *similar], n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"unknown option {keyword!r} with policy {policy!r}{hint}")
