"""The server's optimiser: the model sent and the aggregated model in, the next model out.

The difference of the two is the round's pseudo-gradient, with its sign reversed. Any
aggregator goes with any optimiser: ``make_aggregator("memory", server=ServerOptimiser(lr=2))``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..guards import Guards
from ..runtime.journal import Noted, atomic
from ..runtime.threads import serialised
from ..selection import Selection
from ..validation import check_choice
from .base import Aggregator, Arrays, RoundUpdates, loading
from .step_length import StepLength

KINDS: Final = ("sgd", "adam", "yogi", "adaptive")
#: Step length of each kind if none is given. 1 takes the aggregated model as it is.
DEFAULT_LR: Final = {"sgd": 1.0, "adam": 0.01, "yogi": 0.01, "adaptive": 3.0}
#: The longest step of "adaptive" where models are averaged.
AVERAGED_LR: Final = 8.0

Array = NDArray[Any]


class ServerOptimiser(Noted):
    r"""Moves the model along the aggregated update ``d = aggregated - current``.

    ============ ==================================================================
    kind         step
    ============ ==================================================================
    ``sgd``      ``m <- momentum * m + d``; ``x <- x + lr * m`` (FedAvgM [2]_)
    ``adam``     ``m <- beta1 * m + (1 - beta1) * d``;
                 ``v <- beta2 * v + (1 - beta2) * d**2``;
                 ``x <- x + lr * m / (sqrt(v) + tau)`` (FedAdam [1]_)
    ``yogi``     the same with ``v <- v - (1 - beta2) * d**2 * sign(v - d**2)`` (FedYogi [1]_)
    ``adaptive`` ``x <- x + lr_t * d``, ``lr_t`` from noise and curvature, see below
    ============ ==================================================================

    ``adaptive`` takes a long step only where the noise of the draw and the curvature of the loss
    allow it, between `min_lr` and `lr`: `cvrcore.aggregators.step_length` has the rule. Steps are
    longer with `averaged`.

    ``sgd`` with ``lr=1`` and without momentum returns the aggregated model to the bit. As in
    [1]_, v starts at ``tau**2`` and there is no correction of the bias of m and v;
    `bias_correction` starts v at 0 and divides by ``1 - beta**t``, as `torch.optim.Adam` does.
    Arrays of integers, such as counters, are taken from the aggregated model.

    Parameters
    ----------
    kind : {"sgd", "adam", "yogi", "adaptive"}
    lr : float, optional
        Positive. Default: 1 for "sgd"; 0.01 for "adam" and "yogi", whose steps are about `lr`
        in each coordinate whatever the length of the update. Of "adaptive" it is the longest
        step: 3, or 8 if models are averaged.
    momentum : float
        In [0, 1); of "sgd" alone.
    beta1, beta2 : float
        In [0, 1); of "adam" and "yogi".
    tau : float
        Positive; "adam" and "yogi" adapt less the larger it is.
    bias_correction : bool
        Of "adam" and "yogi".
    min_lr : float
        Positive, at most `lr`; the shortest step of "adaptive".
    caution : float, optional
        Positive; "adaptive" takes this part of the step that would end in the minimum along the
        last direction. Default: 0.75, or 1.5 if models are averaged.
    averaged : bool
        Of "adaptive": whether the `ModelAverage` of the models is deployed, not the model itself.

    References
    ----------
    .. [1] Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar and McMahan, "Adaptive
       federated optimization", ICLR, 2021, Algorithm 2.
    .. [2] Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution for
       federated visual classification", 2019.

    Examples
    --------
    >>> import numpy as np
    >>> ServerOptimiser(lr=2.0).step([np.array([1.0])], [np.array([1.5])])
    [array([2.])]
    """

    def __init__(
        self,
        kind: str = "sgd",
        lr: float | None = None,
        momentum: float = 0.0,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
        bias_correction: bool = False,
        min_lr: float = 1.0,
        caution: float | None = None,
        averaged: bool = False,
    ) -> None:
        self.kind: str = check_choice(kind, "kind", KINDS)
        self.averaged = bool(averaged)
        usual = AVERAGED_LR if self.averaged else DEFAULT_LR[kind]
        self.lr = _positive(usual if lr is None else lr, "lr")
        self.momentum = _below_one(momentum, "momentum")
        self.beta1, self.beta2 = _below_one(beta1, "beta1"), _below_one(beta2, "beta2")
        self.tau = _positive(tau, "tau")
        self.bias_correction = bool(bias_correction)
        if self.momentum and kind != "sgd":
            raise ValueError(f"momentum must be 0 with kind {kind!r}, got {self.momentum:g}")
        self.min_lr = _positive(min_lr, "min_lr")
        if kind == "adaptive" and self.min_lr > self.lr:
            raise ValueError(f"min_lr must be at most lr ({self.lr:g}), got {min_lr:g}")
        if self.averaged and kind != "adaptive":
            raise ValueError(f"averaged must be False with kind {kind!r}, got {averaged!r}")
        self._rule = StepLength(
            self.lr,
            self.min_lr,
            None if caution is None else _positive(caution, "caution"),
            self.averaged,
        )
        self._steps = 0
        self._first: Arrays = []  # m
        self._second: Arrays = []  # v

    @property
    def is_identity(self) -> bool:
        """Whether steps return the aggregated model as it is."""
        return self.kind == "sgd" and self.lr == 1.0 and not self.momentum

    @property
    def caution(self) -> float:
        """Part of the step to the minimum along the last direction that "adaptive" takes."""
        return self._rule.caution

    @property
    def last_lr(self) -> float:
        """Length of the last step."""
        return self._rule.last_lr if self.kind == "adaptive" else self.lr

    @property
    def nbytes(self) -> int:
        """Bytes kept between rounds."""
        kept = (*self._first, *self._second, self._rule.means, *self._rule.last)
        return sum(array.nbytes for array in kept)

    @property
    def needs_noise(self) -> bool:
        """Whether `step` wants the variance of the aggregated update."""
        return self.kind == "adaptive"

    def step(
        self,
        current: Sequence[Array],
        aggregated: Sequence[Array],
        noise: float | None = None,
        fresh: Sequence[Array] | None = None,
    ) -> Arrays:
        """Return the next model.

        Parameters
        ----------
        current : list of arrays
            The model that was sent.
        aggregated : list of arrays
            What an aggregator made of the models received; of the same shapes.
        noise : float, optional
            Variance of `aggregated` over draws, summed over coordinates: "adaptive" needs it.
        fresh : list of arrays, optional
            Mean update of this round's reports alone, of the same shapes; default: the
            aggregated update. "adaptive" measures the curvature by it.

        Raises
        ------
        ValueError
            If shapes disagree, or the step overflows; nothing changes then.
        """
        wanted = [array.shape for array in current]
        shapes = [array.shape for array in aggregated]
        if shapes != wanted:
            raise ValueError(f"aggregated must be {wanted}, got {shapes}")
        if self.is_identity:
            return list(aggregated)
        if self.kind == "adaptive":
            return self._adaptive_step(current, aggregated, noise, fresh)
        kept = [array.shape for array in self._first]
        if self._first and kept != wanted:
            raise ValueError(f"current must be {kept}, as in the rounds before, got {wanted}")
        first, second, found = [], [], []
        for i, (before, after) in enumerate(zip(current, aggregated, strict=True)):
            m = self._first[i] if self._first else None
            v = self._second[i] if self._second else None
            with np.errstate(over="ignore", invalid="ignore"):  # refused below
                m, v, new = self._step(np.asarray(before), np.asarray(after), m, v)
            first.append(m)
            second.append(v)
            found.append(new)
        if not all(np.isfinite(array).all() for array in found):
            raise ValueError(f"the server's step must be finite; lr {self.lr:g} may be too large")
        self._first = first if self.kind != "sgd" or self.momentum else []
        self._second = second if self.kind != "sgd" else []
        self._steps += 1
        return found

    def _adaptive_step(
        self,
        current: Sequence[Array],
        aggregated: Sequence[Array],
        noise: float | None,
        fresh: Sequence[Array] | None,
    ) -> Arrays:
        """Return the next model; the rule's state changes only if it is finite."""
        if noise is None or not noise >= 0:
            raise ValueError(f"noise must be a non-negative number, got {noise!r}")
        pairs = [(np.asarray(x), np.asarray(y)) for x, y in zip(current, aggregated, strict=True)]
        moved = [_change(x, y) for x, y in pairs]
        step = self._rule.measure(moved, noise, moved if fresh is None else fresh)
        found = []
        for (before, after), change in zip(pairs, moved, strict=True):
            if before.dtype.kind != "f":
                found.append(after.copy())
                continue
            with np.errstate(over="ignore", invalid="ignore"):  # refused below
                found.append((before + step.lr * change).astype(before.dtype))
        finite = np.isfinite(step.means).all() and all(np.isfinite(a).all() for a in found)
        if not finite:
            raise ValueError(f"the server's step must be finite; lr {step.lr:g} may be too large")
        self._rule.take(step, moved)
        self._steps += 1
        return found

    def _step(
        self, before: Array, after: Array, m: Array | None, v: Array | None
    ) -> tuple[Array, Array, Array]:
        """Return m, v and the model of one array after the step."""
        if before.dtype.kind != "f":
            return np.zeros(before.shape), np.zeros(before.shape), after.copy()
        exact = before.dtype in (np.float32, np.float64)
        kind = before.dtype if exact else np.dtype(np.float64)
        change = np.subtract(after, before, dtype=kind)
        if m is None:
            m = np.zeros_like(change)
        if self.kind == "sgd":
            m = self.momentum * m + change if self.momentum else change
            new = before + kind.type(self.lr) * m
            return m, np.zeros(0), new.astype(before.dtype)
        if v is None:
            v = np.full_like(change, 0.0 if self.bias_correction else self.tau**2)
        square = np.square(change)
        m = self.beta1 * m + (1 - self.beta1) * change
        if self.kind == "adam":
            v = self.beta2 * v + (1 - self.beta2) * square
        else:
            v = v - (1 - self.beta2) * square * np.sign(v - square)
        lr, root = self.lr, np.sqrt(v)
        if self.bias_correction:
            lr /= 1 - self.beta1 ** (self._steps + 1)
            root /= (1 - self.beta2 ** (self._steps + 1)) ** 0.5
        new = before + kind.type(lr) * (m / (root + kind.type(self.tau)))
        return m, v, new.astype(before.dtype)

    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values; settings are not part of it."""
        state = {
            "kind": self.kind,
            "steps": self._steps,
            "first": [array.copy() for array in self._first],
            "second": [array.copy() for array in self._second],
        }
        if self.kind == "adaptive":
            state |= {
                "first": [self._rule.means.copy()] if self._rule.means.size else [],
                "last": [array.copy() for array in self._rule.last],
                "last_lr": self._rule.last_lr,
            }
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned.

        Raises
        ------
        ValueError
            If it is of another kind, or damaged; nothing changes then.
        """
        first, second, steps = self._checked(state)
        rule = StepLength(self.lr, self.min_lr, self.caution, self.averaged)
        if self.kind == "adaptive":
            first = _restore(rule, state, first)
        self._first, self._second, self._steps, self._rule = first, second, steps, rule

    def _checked(self, state: Any) -> tuple[Arrays, Arrays, int]:
        if not isinstance(state, dict) or state.get("kind") != self.kind:
            kind = state.get("kind") if isinstance(state, dict) else state
            raise ValueError(f"state must be of a server optimiser {self.kind!r}, got {kind!r}")
        steps = state.get("steps")
        if type(steps) is not int or steps < 0:
            raise ValueError(f"steps must be a non-negative integer, got {steps!r}")
        first, second = (_finite_arrays(state, name) for name in ("first", "second"))
        if any((array < 0).any() for array in second):
            raise ValueError("second must be non-negative: it holds mean squares")
        if self.kind == "adaptive":
            if second:
                raise ValueError(f"second must be empty with kind 'adaptive', got {len(second)}")
            _restore(StepLength(self.lr, self.min_lr), state, first)
        if self.kind == "sgd" and second:
            raise ValueError(f"second must be empty with kind 'sgd', got {len(second)} arrays")
        if self.kind in ("adam", "yogi") and [a.shape for a in first] != [a.shape for a in second]:
            raise ValueError("first and second must have arrays of the same shapes")
        return first, second, steps


class ServedAggregator(Aggregator):
    """An aggregator followed by a server optimiser; `make_aggregator` builds it.

    It has the name of the aggregator inside. Its state is that aggregator's with an entry
    ``"server"``, and goes only into an aggregator that has an optimiser of the same kind.
    In a round without reports nothing moves.

    Parameters
    ----------
    inner : Aggregator
    server : ServerOptimiser
        Not shared with another aggregator.

    Examples
    --------
    >>> import numpy as np
    >>> from cvrcore.aggregators import ServerOptimiser, make_aggregator
    >>> served = make_aggregator("mean", server=ServerOptimiser(lr=2.0))
    >>> type(served).__name__, served.name
    ('ServedAggregator', 'mean')
    >>> served.aggregate([np.zeros(1)], [[np.array([3.0])]], [0], [10, 10])
    [array([6.])]
    """

    name = "served"

    def __init__(self, inner: Aggregator, server: ServerOptimiser) -> None:
        self.inner = inner
        self.server = server
        # An instance has the name and the limits of the aggregator inside.
        self.name = inner.name  # type: ignore[misc]
        self.whole_population = inner.whole_population  # type: ignore[misc]
        self.needs_layers = inner.needs_layers  # type: ignore[misc]
        inner.measures_noise = server.needs_noise

    @property
    def nbytes(self) -> int:
        """Bytes that both keep between rounds."""
        return self.inner.nbytes + self.server.nbytes

    @atomic
    def aggregate(
        self,
        current: Sequence[Array],
        updates: Sequence[Sequence[Array]],
        clients: ArrayLike,
        weights: ArrayLike,
        selection: Selection | None = None,
    ) -> Arrays:
        """Return the next model; see `Aggregator.aggregate`."""
        merged = self.inner.aggregate(current, updates, clients, weights, selection)
        if not len(updates):
            return merged
        fresh, self.inner.fresh = self.inner.fresh, None  # as large as the model
        return self.server.step(current, merged, self.inner.noise, fresh)

    @atomic
    def guard(self, guards: Guards | str | None) -> None:
        """Bound what the aggregator inside takes in; see `Aggregator.guard`."""
        self.inner.guard(guards)

    @atomic
    def forget(self, client: int) -> None:
        """Erase what the aggregator inside remembers of a client; momentum is that of all."""
        self.inner.forget(client)

    def _merge(self, received: RoundUpdates) -> Arrays:
        """Merge as the aggregator inside does, without the server's step."""
        return self.inner._merge(received)

    @serialised
    def state_dict(self) -> dict[str, Any]:
        """Return the state of both, as arrays and plain values."""
        return {**self.inner.state_dict(), "server": self.server.state_dict()}

    @loading
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        own = dict(state)
        server = own.pop("server", None)
        if server is None:
            raise ValueError("state must hold the server's optimiser, got one without it")
        self.server._checked(server)  # before the aggregator inside takes anything over
        self.inner.load_state_dict(own)
        self.server.load_state_dict(server)


def _change(before: Array, after: Array) -> Array:
    """Return the change of an array of real numbers; float16 is widened, others do not move."""
    if before.dtype.kind != "f":
        return np.zeros(0, np.float32)
    return np.subtract(after, before, dtype=max(before.dtype, np.dtype(np.float32)))


def _finite_arrays(state: dict[str, Any], name: str, default: Any = None) -> Arrays:
    arrays = state.get(name, default)
    if not isinstance(arrays, list) or not all(
        isinstance(a, np.ndarray) and a.dtype.kind == "f" and np.isfinite(a).all() for a in arrays
    ):
        raise ValueError(f"{name} must be a list of finite real arrays")
    return [array.copy() for array in arrays]


def _restore(rule: StepLength, state: dict[str, Any], first: Arrays) -> Arrays:
    """Fill the rule "adaptive" from a state; return what is left of `first`: nothing."""
    if [a.shape for a in first] not in ([], [(2,)], [(4,)]):
        raise ValueError(f"first must hold four running means, got {[a.shape for a in first]}")
    # Curvature, the third, has either sign.
    if any((a[:2] < 0).any() or (a[3:] < 0).any() for a in first):
        raise ValueError("first must hold non-negative means of lengths, variances and steps")
    last_lr = state.get("last_lr", rule.shortest)
    if not isinstance(last_lr, float) or not (last_lr > 0 and np.isfinite(last_lr)):
        raise ValueError(f"last_lr must be a positive number, got {last_lr!r}")
    rule.last_lr, rule.last = float(last_lr), _finite_arrays(state, "last", [])
    if first:
        # States of earlier versions hold the first two means alone, and no last update.
        rule.means = np.concatenate([first[0], np.zeros(4 - first[0].size)])
    return []


def _positive(value: float, name: str) -> float:
    if not (value > 0 and np.isfinite(value)):
        raise ValueError(f"{name} must be positive and finite, got {value:g}")
    return float(value)


def _below_one(value: float, name: str) -> float:
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name} must lie in [0, 1), got {value:g}")
    return float(value)
