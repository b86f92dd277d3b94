"""The numbers of the paper's tables: mean and two standard deviations of each cell.

Accuracies are in percent, errors are mean squared errors, as printed. Keys are the names
that `fl` uses for data sets, methods and kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

Value = tuple[float, float]
Table = Mapping[str, Mapping[str, Value]]

#: Test accuracy by data set and method.
CLASSIFICATION: Table = {
    "mnist": {
        "fedavg": (86.30, 1.12),
        "power-of-choice": (81.00, 2.10),
        "active": (88.89, 0.98),
        "fedprox": (89.69, 0.91),
        "ifca": (89.46, 1.04),
        "fesem": (86.77, 1.85),
        "fedcbs": (90.05, 3.07),
        "oort": (89.43, 1.49),
        "fedcvr-bolt": (90.23, 0.82),
    },
    "cifar10": {
        "fedavg": (52.67, 1.25),
        "power-of-choice": (49.85, 1.71),
        "active": (55.19, 1.34),
        "fedprox": (46.44, 1.88),
        "ifca": (52.94, 1.09),
        "fesem": (44.66, 2.06),
        "fedcbs": (56.53, 2.36),
        "oort": (55.99, 1.11),
        "fedcvr-bolt": (57.06, 0.77),
    },
    "cifar100": {
        "fedavg": (22.92, 0.95),
        "power-of-choice": (23.46, 1.05),
        "active": (23.35, 1.12),
        "fedprox": (22.13, 1.34),
        "ifca": (22.55, 1.28),
        "fesem": (11.87, 0.77),
        "fedcbs": (21.57, 0.46),
        "oort": (19.91, 1.00),
        "fedcvr-bolt": (24.82, 0.88),
    },
}

#: Test accuracy of FedCVR-Bolt by data set and kernel.
KERNELS: Table = {
    "mnist": {
        "rbf": (90.23, 0.82),
        "cosine": (88.72, 0.97),
        "laplacian": (88.28, 0.65),
        "sigmoid": (88.92, 0.85),
    },
    "cifar10": {
        "rbf": (57.06, 0.77),
        "cosine": (55.32, 0.78),
        "laplacian": (49.85, 0.71),
        "sigmoid": (50.25, 1.12),
    },
}

#: Test error by regression model, heterogeneity and method.
REGRESSION: Table = {
    "D=1, IID": {
        "fedavg": (6.0171, 2.4884),
        "power-of-choice": (6.3587, 2.0280),
        "active": (6.1656, 2.5821),
        "fedcvr-bolt": (6.0136, 2.5170),
    },
    "D=1, non-IID": {
        "fedavg": (57.1336, 24.1335),
        "power-of-choice": (56.9701, 24.7835),
        "active": (56.8328, 25.7835),
        "fedcvr-bolt": (54.7102, 24.8973),
    },
    "D=2, IID": {
        "fedavg": (0.2142, 0.3520),
        "power-of-choice": (0.2143, 0.3533),
        "active": (0.2134, 0.3503),
        "fedcvr-bolt": (0.2085, 0.3386),
    },
    "D=2, non-IID": {
        "fedavg": (1.5875, 0.7291),
        "power-of-choice": (1.6742, 0.6820),
        "active": (1.7023, 0.7642),
        "fedcvr-bolt": (1.5127, 0.7336),
    },
}
