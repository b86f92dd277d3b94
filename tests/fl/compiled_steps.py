"""Steps of a network by any kind of step, from one start."""

import copy

from fl.flat import FlatModule


def steps_of(kind, module, x, y, orders, lr=0.1, regression=False, n_out=3):
    """Return the model's vector after one step per array of row numbers."""
    model = FlatModule(copy.deepcopy(module))
    step = kind(model, regression)
    targets = step.targets(y, n_out)
    samples, _ = step.begin(x)
    for rows in orders:
        step(samples[rows], targets[rows], lr)
    step.end()
    return model.vector
