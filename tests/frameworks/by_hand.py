"""A round of FedCVR-Bolt and an aggregator without any framework: what adapters must equal."""

import numpy as np

import cvrcore
from cvrcore.features import FeatureMap


def rounds_by_hand(aggregator, model, train, sizes, n_select, seed, rounds, updates):
    """Yield the clients picked in each round, and the model after it.

    `train` is called with a client's slot, the model sent and the round's number; `updates` says
    whether the policy watches what clients changed instead of their models.
    """
    features = FeatureMap.last_layer(model)
    initial = {} if updates else {"initial": features.extract(model)}
    selector = cvrcore.make_selector(
        "fedcvr-bolt", len(sizes), n_select, weights=sizes, seed=seed, warmup=2,
        n_features=features.n_features, **initial,
    )  # fmt: skip
    for t in range(rounds):
        selection = selector.select()
        clients = np.sort(selection.clients)
        models = [train(int(k), model, t) for k in clients]
        watched = features.updates(models, model) if updates else features.extract_all(models)
        selector.observe(clients, watched)
        back = [list(one.values()) for one in models]
        merged = aggregator.aggregate(
            list(model.values()), back, clients, selector.weights, selection
        )
        model = dict(zip(model, merged, strict=True))
        yield selection.clients, model
