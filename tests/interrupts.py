"""Interrupt verbs at random moments and tell what is left; not a test.

`storm` arms a real timer (`signal.setitimer`) whose handler raises at a random moment of a
verb, `lines` raises at chosen source lines of it. Either way the object must hold the state
before (calling the verb again then leads to the state after), the state after, or refuse every
further call until a saved state is loaded.
"""

import collections
import copy
import signal
import sys
import time

import numpy as np

from cvrcore import make_selector
from cvrcore.aggregators import ServerOptimiser, make_aggregator
from cvrcore.selectors import policy_class

N_SELECT, N_FEATURES = 5, 8
GUARDS = {"max_share": 1.5, "min_share": 0.1, "max_norm": "median", "max_loss": "median"}
#: Selectors by name: policy, number of clients, rounds played first, options.
SELECTORS = {
    "uniform": ("uniform", 30, 3, {}),
    "power-of-choice": ("power-of-choice", 30, 3, {}),
    "active": ("active", 30, 3, {}),
    "oort": ("oort", 30, 45, {}),
    "fedcbs": ("fedcbs", 30, 3, {}),
    "warm-up": ("fedcvr-bolt", 30, 2, {"warmup": 9}),
    "factored": ("fedcvr-bolt", 60, 20, {"warmup": 1}),
    "dense": ("fedcvr-bolt", 30, 20, {"warmup": 1, "store": "dense"}),
    "window": ("fedcvr-bolt", 30, 12, {"warmup": 1, "store": "window", "window": 8}),
    "centred": ("fedcvr-bolt", 200, 5, {"warmup": 1}),
    "landmarks": (
        "fedcvr-bolt",
        200,
        5,
        {"warmup": 1, "clustering": "nystrom", "n_landmarks": 20},
    ),
    "counted": ("fedcvr-bolt", 40, 4, {"warmup": 1, "n_coalitions": "eigengap"}),
    "pivotal": ("pivotal", 30, 4, {}),
    "pivotal, given": ("pivotal", 12, 1, {"features": np.arange(24.0).reshape(12, 2) % 7}),
    "drift": ("drift", 30, 12, {}),
    "optimal": ("optimal", 30, 4, {}),
    "optimal, probed": ("optimal", 30, 2, {"norms": "probed", "design": "poisson"}),
    "k-vib": ("k-vib", 30, 4, {}),
    "multinomial": ("multinomial", 30, 2, {}),
    "reshuffle": ("reshuffle", 30, 8, {}),
    "clustered": ("clustered", 30, 8, {"form": "similarity"}),
    "divfl": ("divfl", 30, 8, {}),
    "divfl, coarse": ("divfl", 30, 8, {"epsilon": 0.5}),
    "balanced": ("fedcvr-bolt", 30, 4, {"warmup": 1, "n_coalitions": 3, "balance": "across"}),
    "hics": ("hics", 30, 8, {}),
    "fedcor": ("fedcor", 30, 5, {"warmup": 2, "interval": 2}),
    "shapley": ("shapley", 30, 8, {}),
    "learned": ("learned", 30, 4, {"features": ["loss", "norm", "duration"]}),
}
#: Aggregators by name: rule, options of the server's optimiser.
AGGREGATORS = {
    "sizes": ("sizes", None),
    "importance": ("importance", None),
    "memory": ("memory", None),
    "coalition-memory": ("coalition-memory", None),
    "factor-memory": ("factor-memory", None),
    "momentum": ("memory", {"kind": "sgd", "momentum": 0.9}),
    "adam": ("sizes", {"kind": "adam"}),
    "adaptive": ("memory", {"kind": "adaptive"}),
}
#: Where `lines` never raises: Python looks for signals at calls and jumps, not between the two
#: halves of a ``with lock``, but a trace function could raise there and leave the lock taken.
PASSED = ("__enter__", "__exit__")
VERBS = ("probe", "select", "observe", "resize", "guard", "forget", "load_state_dict")
MERGE_VERBS = ("aggregate", "forget", "load_state_dict")


class Stopped(BaseException):
    """Raised in the middle of a verb."""


def stop(*_):
    raise Stopped


def asked(selector, rng):
    """Return what `select` is to be told: losses of the clients probed, the model to be sent."""
    known, probed = {}, selector.probe()
    if probed is not None:
        known["losses"] = rng.random(probed.size)
    if "sent" in selector.needs:
        known["sent"] = rng.normal(size=selector.n_features)
    return known


def told(selector, clients, rng):
    """Return a report of these clients, in all that any policy needs."""
    shape = (clients.size, getattr(selector, "n_features", None) or N_FEATURES)
    found = {
        "models": rng.normal(size=shape) + clients[:, None] % 5,
        "losses": rng.random(clients.size),
        "durations": rng.random(clients.size) + 1,
        "updates": rng.normal(size=shape) + clients[:, None] % 5,
        "norms": rng.random(clients.size),
        "utilities": rng.random(clients.size),
    }
    wanted = {"models", "losses", "durations"} | selector.needs
    return {name: value for name, value in found.items() if name in wanted}


class Trial:
    """A selector that is about to be called, and the call."""

    def __init__(self, name, verb):
        policy, n_clients, rounds, options = SELECTORS[name]
        if policy == "fedcbs":
            options = {"label_counts": np.arange(1, 3 * n_clients + 1).reshape(n_clients, 3)}
        if "n_features" in policy_class(policy).option_names() and "features" not in options:
            options = {"n_features": N_FEATURES, **options}
        self.thing = make_selector(policy, n_clients, N_SELECT, seed=0, **GUARDS, **options)
        self.rng, self.verb = np.random.default_rng(0), verb
        for _ in range(rounds):
            self._select()
            self._observe(self.thing)
        if verb == "load_state_dict":
            self.saved = copy.deepcopy(self.thing.state_dict())
            self._select()
        elif verb == "observe":
            self._select()
        elif verb == "select":
            self.known = asked(self.thing, self.rng)

    def _select(self):
        self.thing.select(**asked(self.thing, self.rng))

    def _observe(self, selector):
        clients = selector._pending.clients
        rng = np.random.default_rng(selector.round)
        selector.observe(clients, **told(selector, clients, rng))

    def call(self, thing):
        if self.verb == "probe":
            thing.probe()
        elif self.verb == "select":
            thing.select(**self.known)
        elif self.verb == "observe":
            self._observe(thing)
        elif self.verb == "guard":
            thing.guard(max_share=2.0)
        elif self.verb == "forget":
            thing.forget(3)
        elif self.verb == "load_state_dict":
            thing.load_state_dict(self.saved)
        else:
            more = {"label_counts": np.ones((3, 3))} if thing.name == "fedcbs" else {}
            thing.resize(thing.n_clients + 3, np.ones(3), **more)


class Merge:
    """An aggregator that is about to be called, and the call."""

    def __init__(self, name, verb="aggregate"):
        rule, options = AGGREGATORS[name]
        server = None if options is None else ServerOptimiser(**options)
        self.thing, self.verb = make_aggregator(rule, server=server), verb
        self.selector = make_selector("uniform", 12, N_SELECT, seed=0)
        self.model, self.rng = [np.zeros((5, 4)), np.zeros(5)], np.random.default_rng(0)
        for t in range(4):
            self._prepare()
            self._aggregate(self.thing)
            self.selector.observe([])
            if t == 2:
                self.saved = copy.deepcopy(self.thing.state_dict())
        self._prepare()

    def _prepare(self):
        self.selection = self.selector.select()
        size = (len(self.selection),)
        self.updates = [
            [self.rng.normal(size=layer.shape) for layer in self.model] for _ in range(*size)
        ]

    def call(self, thing):
        if self.verb == "forget":
            thing.forget(int(self.selection.clients[0]))
        elif self.verb == "load_state_dict":
            thing.load_state_dict(self.saved)
        else:
            self._aggregate(thing)

    def _aggregate(self, thing):
        weights = np.arange(1.0, 13.0)
        thing.aggregate(self.model, self.updates, self.selection.clients, weights, self.selection)


def same(one, other):
    """Return whether two states are equal to the bit."""
    try:
        np.testing.assert_equal(one, other)
    except AssertionError:
        return False
    return True


def outcome(trial, thing, before, after):
    """Return "before", "after", "refused" or "mixed"."""
    try:
        found = thing.state_dict()
    except RuntimeError as error:
        return "refused" if "load the last saved state" in str(error) else "mixed"
    if same(found, after):
        return "after"
    if not same(found, before):
        # A cache that was dropped is no other state, if the call then leads to the same.
        again = copy.deepcopy(thing)
        trial.call(again)
        return "before" if same(again.state_dict(), after) else "mixed"
    return "before"


def prepared(trial):
    """Return the states before and after the call, and the seconds that it takes."""
    before, twin = trial.thing.state_dict(), copy.deepcopy(trial.thing)
    trial.call(copy.deepcopy(trial.thing))  # compiles
    start = time.perf_counter()
    trial.call(twin)
    return before, twin.state_dict(), time.perf_counter() - start


def storm(trial, n_moments, seed=0):
    """Interrupt the call by a timer at so many random moments; count what is left."""
    before, after, seconds = prepared(trial)
    rng, found = np.random.default_rng(seed), collections.Counter()
    last = signal.signal(signal.SIGALRM, stop)
    try:
        while found.total() < n_moments:
            thing, late = copy.deepcopy(trial.thing), True
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 1.2 * seconds + 2e-5))
                trial.call(thing)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Stopped:
                late = False
            seconds *= 0.98 if late else 1.005  # so that most moments fall into the call
            if not late:
                found[outcome(trial, thing, before, after)] += 1
    finally:
        signal.signal(signal.SIGALRM, last)
    return found


def lines(trial, step, offset=0):
    """Interrupt the call at every `step`-th line that it executes; count what is left."""
    before, after, _ = prepared(trial)
    found, at = collections.Counter(), offset
    while True:
        thing, left = copy.deepcopy(trial.thing), [at]

        def trace(frame, event, _, left=left):
            if "/cvrcore/" not in frame.f_code.co_filename or frame.f_code.co_name in PASSED:
                return None
            if event == "line":
                left[0] -= 1
                if left[0] < 0:
                    sys.settrace(None)
                    frame.f_trace = None
                    raise Stopped
            return trace

        try:
            sys.settrace(trace)
            trial.call(thing)
            return found
        except Stopped:
            found[outcome(trial, thing, before, after)] += 1
        finally:
            sys.settrace(None)
        at += step


if __name__ == "__main__":
    total = collections.Counter()
    n_moments = int(sys.argv[1]) if len(sys.argv) > 1 else 80
    for name in SELECTORS:
        for verb in VERBS:
            found = storm(Trial(name, verb), n_moments)
            total += found
            print(f"{name:16} {verb:16} {dict(found)}")
    for name in AGGREGATORS:
        for verb in MERGE_VERBS:
            found = storm(Merge(name, verb), n_moments)
            total += found
            print(f"{name:16} {verb:16} {dict(found)}")
    print(f"{total.total()} moments: {dict(total)}")
    sys.exit(1 if total["mixed"] else 0)
