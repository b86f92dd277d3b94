"""FedAvg in pfl, with users selected by cvrcore: digits, offline, seconds.

    pip install '.[pfl]' torch scikit-learn
    python examples/pfl_digits.py [POLICY]

Softmax regression, 20 users of two classes each.
"""

import sys

import softmax_digits
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel

from cvrcore.integrations.pfl import SelectedUsers

N_USERS, N_SELECT = 20, 5


class Softmax(torch.nn.Module):
    """Scores of ten classes; the images bring a column of ones, so there is no bias."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.from_numpy(softmax_digits.initial_model()))

    def forward(self, x):
        """Return the scores."""
        return x @ self.weight.T

    def loss(self, x, y, eval=False):
        """Return what training minimises."""
        return torch.nn.functional.cross_entropy(self(x), y)

    def metrics(self, x, y, eval=False):
        """Return the accuracy."""
        hits = (self(x).argmax(1) == y).sum().item()
        return {"accuracy": Weighted(hits, len(y))}


def user_data(user):
    """Return the data set of one user."""
    x, y, parts = softmax_digits.digits(N_USERS)
    own = parts[user]
    raw = [torch.from_numpy(x[own]), torch.from_numpy(y[own])]
    return Dataset(raw_data=raw, user_id=user)


def losses(model, data):
    """Return the loss of each sample, for policies that use losses."""
    x, y = data.raw_data
    with torch.no_grad():
        scores = model.pytorch_model(x)
    return torch.nn.functional.cross_entropy(scores, y, reduction="none").numpy()


def simulate(policy="fedcvr-bolt", rounds=12, seed=0, losses=losses, **options):
    """Run the federation; return the users with their record, and the last model."""
    if policy == "fedcvr-bolt":
        options = {"warmup": 4, "n_features": 300, **options}
    module = Softmax()
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    users = SelectedUsers(
        model,
        user_data,
        {user: softmax_digits.size(user, N_USERS) for user in range(N_USERS)},
        policy,
        n_select=N_SELECT,
        seed=seed,
        losses=losses,
        label_counts={user: softmax_digits.label_counts(user, N_USERS) for user in range(N_USERS)},
        **options,
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,
            train_cohort_size=N_SELECT,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(users, users, postprocessors=[users]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=20, local_learning_rate=0.5, local_batch_size=None
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
    )
    return users, module.weight.detach().numpy().copy()


def main(*arguments):
    """Run one policy and show the users that it selected."""
    users, model = simulate(*arguments)
    for number, one in enumerate(users.rounds, start=1):
        print(f"round {number:2d}: users {one.selected}")
    print(f"test accuracy {softmax_digits.accuracy(model, N_USERS):.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
