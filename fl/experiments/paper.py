"""The paper's tables as constants: mean and two standard deviations of each cell, as printed.

Accuracies are in percent, errors are mean squared errors. Keys are the names that `fl` uses
for data sets, methods and kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

Value = tuple[float, float]
PaperTable = Mapping[str, Mapping[str, Value]]

_NINE = ("fedavg", "power-of-choice", "active", "fedprox", "ifca", "fesem", "fedcbs", "oort",
         "fedcvr-bolt")  # fmt: skip
_FOUR = ("fedavg", "power-of-choice", "active", "fedcvr-bolt")
_KERNELS = ("rbf", "cosine", "laplacian", "sigmoid")


def _row(columns: tuple[str, ...], *values: Value) -> Mapping[str, Value]:
    return dict(zip(columns, values, strict=True))


#: Test accuracy by data set and method.
CLASSIFICATION: PaperTable = {
    "mnist": _row(_NINE, (86.30, 1.12), (81.00, 2.10), (88.89, 0.98), (89.69, 0.91),
                  (89.46, 1.04), (86.77, 1.85), (90.05, 3.07), (89.43, 1.49), (90.23, 0.82)),
    "cifar10": _row(_NINE, (52.67, 1.25), (49.85, 1.71), (55.19, 1.34), (46.44, 1.88),
                    (52.94, 1.09), (44.66, 2.06), (56.53, 2.36), (55.99, 1.11), (57.06, 0.77)),
    "cifar100": _row(_NINE, (22.92, 0.95), (23.46, 1.05), (23.35, 1.12), (22.13, 1.34),
                     (22.55, 1.28), (11.87, 0.77), (21.57, 0.46), (19.91, 1.00), (24.82, 0.88)),
}  # fmt: skip

#: Test accuracy of FedCVR-Bolt by data set and kernel.
KERNELS: PaperTable = {
    "mnist": _row(_KERNELS, (90.23, 0.82), (88.72, 0.97), (88.28, 0.65), (88.92, 0.85)),
    "cifar10": _row(_KERNELS, (57.06, 0.77), (55.32, 0.78), (49.85, 0.71), (50.25, 1.12)),
}

#: Test error by regression model, heterogeneity and method.
REGRESSION: PaperTable = {
    "D=1, IID": _row(_FOUR, (6.0171, 2.4884), (6.3587, 2.0280), (6.1656, 2.5821), (6.0136, 2.5170)),
    "D=1, non-IID": _row(_FOUR, (57.1336, 24.1335), (56.9701, 24.7835), (56.8328, 25.7835),
                         (54.7102, 24.8973)),
    "D=2, IID": _row(_FOUR, (0.2142, 0.3520), (0.2143, 0.3533), (0.2134, 0.3503), (0.2085, 0.3386)),
    "D=2, non-IID": _row(_FOUR, (1.5875, 0.7291), (1.6742, 0.6820), (1.7023, 0.7642),
                         (1.5127, 0.7336)),
}  # fmt: skip
