"""Every policy against a slow model, through any sequence of events that a server can see."""

import tempfile
from pathlib import Path

import numpy as np
import slow_models
from first_policies import FIRST_POLICIES
from fuzzing import fuzz
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import cvrcore
from cvrcore import make_selector

N_FEATURES, N_CLASSES, N_SELECT = 4, 3, 3
MAX_CLIENTS = 14
SEEDS = st.integers(0, 2**32 - 1)


class Server(RuleBasedStateMachine):
    """Probe, select, report, fail, join, leave, come back, save and load, in any order."""

    policy = ""
    guards: dict = {}

    @initialize(seed=SEEDS, n_clients=st.integers(4, 9))
    def start(self, seed, n_clients):
        rng = np.random.default_rng(seed)
        self.weights = rng.integers(0, 30, n_clients).astype(float)
        self.weights[0] = 7.0
        counts = rng.integers(1, 9, (n_clients, N_CLASSES))
        options = {
            "fedcbs": {"label_counts": counts},
            "fedcvr-bolt": {"n_features": N_FEATURES, "warmup": 2},
        }.get(self.policy, {})
        self.selector = make_selector(
            self.policy,
            n_clients,
            N_SELECT,
            weights=self.weights,
            seed=seed,
            **options,
            **self.guards,
        )
        kind = {
            "uniform": lambda: slow_models.Uniform(self.weights),
            "power-of-choice": lambda: slow_models.PowerOfChoice(self.weights),
            "active": lambda: slow_models.Active(self.weights),
            "oort": lambda: slow_models.Oort(self.weights),
            "fedcbs": lambda: slow_models.ClassBalanced(self.weights, counts),
            "fedcvr-bolt": lambda: slow_models.Coalition(self.weights, N_FEATURES, 2),
        }
        self.model = kind[self.policy]()
        self.here = np.ones(n_clients, dtype=bool)
        self.asked = self.answers = self.picked = None
        self.fresh = False  # whether a probe was made since the last selection
        self.picks, self.even = np.zeros(n_clients), np.zeros(n_clients)
        self.narrow = False  # whether a round was too small for the shares to be kept

    def eligible(self):
        return self.here & (np.array(self.model.weights) > 0)

    # -- the world ---------------------------------------------------------------

    @rule(seed=SEEDS, chance=st.sampled_from([0.0, 0.3, 0.8]))
    def come_and_go(self, seed, chance):
        rng = np.random.default_rng(seed)
        self.here ^= rng.random(self.here.size) < chance
        self.here[0] = True
        self.fresh = False

    @rule(seed=SEEDS, n_added=st.integers(1, 2))
    def join(self, seed, n_added):
        if self.here.size + n_added > MAX_CLIENTS:
            return
        rng = np.random.default_rng(seed)
        weights = rng.integers(0, 30, n_added).astype(float)
        more = {}
        if self.policy == "fedcbs":
            more["label_counts"] = rng.integers(1, 9, (n_added, N_CLASSES))
        self.selector.resize(self.here.size + n_added, weights, **more)
        self.model.join(weights, *more.values())
        self.here = np.append(self.here, np.ones(n_added, dtype=bool))
        self.picks = np.append(self.picks, np.zeros(n_added))
        self.even = np.append(self.even, np.zeros(n_added))
        self.asked = self.answers = self.picked = None
        self.fresh = False

    # -- the verbs ---------------------------------------------------------------

    @rule(seed=SEEDS)
    def probe(self, seed):
        rng = np.random.default_rng(seed)
        self.asked = self.selector.probe(self.here)
        self.answers = None
        if self.asked is not None:
            assert self.eligible()[self.asked].all()
            self.answers = rng.gamma(2.0, size=self.asked.size).round(3)
            self.answers[rng.random(self.asked.size) < 0.2] = np.nan
        self.fresh = True

    @precondition(lambda self: self.fresh)
    @rule()
    def select(self):
        eligible = self.eligible()
        self.picked = self.selector.select(self.here, losses=self.answers)
        assert eligible[self.picked.clients].all()
        assert len(set(self.picked.clients.tolist())) == len(self.picked)
        assert len(self.picked) == min(N_SELECT, eligible.sum())
        assert self.picked.round == self.model.rounds
        for law in (self.picked.probabilities, self.picked.inclusion):
            assert law is None or (np.isfinite(law).all() and not law[~eligible].any())
        if not self.guards:
            self.model.check(self.picked, eligible, self.asked, self.answers)
        # Guards charge a client when it is selected: rounds that nothing is told of count too.
        self.picks[self.picked.clients] += 1
        self.even[eligible] += len(self.picked) / eligible.sum()
        self.narrow |= eligible.sum() < 3 * N_SELECT
        self.asked = self.answers = None
        self.fresh = False

    @precondition(lambda self: self.picked is not None)
    @rule(seed=SEEDS)
    def observe(self, seed):
        rng = np.random.default_rng(seed)
        fate = rng.choice(["reported", "failed", "silent"], len(self.picked), p=[0.7, 0.2, 0.1])
        clients = rng.permutation(self.picked.clients[fate == "reported"])
        failed = self.picked.clients[fate == "failed"]
        models = rng.normal(size=(clients.size, N_FEATURES))
        losses = rng.gamma(2.0, size=clients.size).round(3)
        self.selector.observe(clients, models, losses, failed=failed)
        self.model.learn(self.picked, clients, models, losses, None, failed)
        self.picked = None

    @rule()
    def observe_twice(self):
        if self.picked is None:
            before = self.selector.state_dict()
            try:
                self.selector.observe([])
            except ValueError:
                np.testing.assert_equal(self.selector.state_dict(), before)
            else:
                raise AssertionError("a round was observed twice")

    @rule()
    def reload(self):
        state = self.selector.state_dict()
        with tempfile.TemporaryDirectory() as folder:
            self.selector.save(Path(folder) / "state.npz")
            self.selector = cvrcore.Selector.load(Path(folder) / "state.npz")
        np.testing.assert_equal(self.selector.state_dict(), state)

    @rule()
    def reload_in_place(self):
        other = type(self.selector).from_state_dict(self.selector.state_dict())
        other.load_state_dict(self.selector.state_dict())
        self.selector = other

    # -- what must always hold -----------------------------------------------------

    def teardown(self):
        if not hasattr(self, "model"):
            return
        assert self.selector.round == self.model.rounds
        assert self.selector.weights.tolist() == self.model.weights
        if isinstance(self.model, slow_models.Coalition) and not self.guards:
            np.testing.assert_allclose(self.selector.rows, self.model.rows)
            np.testing.assert_allclose(
                self.selector.covariance(), self.model.cov, rtol=1e-8, atol=1e-12
            )
        if "max_share" in self.guards and not self.narrow:
            assert (self.picks <= self.guards["max_share"] * self.even + 1 + 1e-9).all()


def machine(policy, guards):
    name = policy.title().replace("-", "") + ("Guarded" if guards else "")
    made = type(name, (Server,), {"policy": policy, "guards": guards}).TestCase
    made.settings = fuzz(12 if guards else 25)
    return f"Test{name}", made


GUARDS = {"max_share": 1.5, "min_share": 0.4, "max_loss": "median", "max_norm": "median"}
globals().update(machine(policy, guards) for policy in FIRST_POLICIES for guards in ({}, GUARDS))
