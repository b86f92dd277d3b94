"""Steps of SGD on one core: the compiled steps against autograd, and against bare products.

Times are CPU seconds of this thread, alternated, the least of many: another process on the core
lengthens neither.
"""

import os
import subprocess
import sys
import time

import numpy as np
import torch
from torch import nn

from bench.rows import ROOT, Found, Row
from fl import conv_step
from fl.conv_step import ConvStep
from fl.flat import FlatModule
from fl.models import build_model
from fl.sparse_step import SparseStep
from fl.steps import AutogradStep, DenseStep

BATCH = 100
PART = "steps, batch 100, one core"


def alternated(works, repeats):
    """Return the least CPU seconds of each work, and its median."""
    times = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            began = time.thread_time()
            work()
            times[name].append(time.thread_time() - began)
    return {name: (min(values), float(np.median(values))) for name, values in times.items()}


def one_step(kind, module, x, y, n_classes):
    """Return a function that makes one step on the first batch of `x`."""
    step = kind(FlatModule(module), False)
    samples, _ = step.begin(x)
    batch, targets = samples[:BATCH], step.targets(y, n_classes)[:BATCH]
    return lambda: step(batch, targets, 0.01)


def cifar_step(repeats=40):
    """Return milliseconds of a step of the paper's CNN: compiled and by autograd."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 3, 32, 32, generator=generator)
    y = torch.randint(0, 10, (400,), generator=generator)
    kinds = {"ours": ConvStep, "autograd": AutogradStep}
    works = {
        name: one_step(kind, build_model("cnn", (3, 32, 32), 10, seed=0), x, y, 10)
        for name, kind in kinds.items()
    }
    return {name: 1e3 * least for name, (least, _) in alternated(works, repeats).items()}


def mnist_step(repeats=300):
    """Return milliseconds of a step of the paper's MLP, and of its products alone in MKL."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(400, 784, generator=generator)
    y = torch.randint(0, 10, (400,), generator=generator)
    hidden, delta = torch.rand(BATCH, 200), torch.rand(BATCH, 10)
    first, last = torch.rand(200, 784), torch.rand(10, 200)

    def products():
        torch.mm(x[:BATCH], first.t())
        torch.mm(hidden, last.t())
        torch.mm(delta, last)
        torch.mm(delta.t(), hidden)
        torch.mm(hidden.t(), x[:BATCH])

    works = {
        "ours": one_step(DenseStep, build_model("mlp", (784,), 10, seed=0), x, y, 10),
        "products": products,
    }
    return {name: 1e3 * least for name, (least, _) in alternated(works, repeats).items()}


def digits_step(repeats=300, share=0.19):
    """Return milliseconds of a step of the paper's MLP on samples that are mostly zeros.

    `share` is the share of MNIST's pixels that are not 0.
    """
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(400, 784, generator=generator)
    x[torch.rand(400, 784, generator=generator) >= share] = 0.0
    y = torch.randint(0, 10, (400,), generator=generator)
    works = {
        name: one_step(kind, build_model("mlp", (784,), 10, seed=0), x, y, 10)
        for name, kind in {"sparse": SparseStep, "dense": DenseStep}.items()
    }
    return {name: 1e3 * least for name, (least, _) in alternated(works, repeats).items()}


def measure(short=False):
    """Return rows of the paper's two models; AVX2 is measured in a process limited to it."""
    found = Found()
    if conv_step.kernel() is None:
        found.failed.append("the convolution kernel is not built")
        return found
    repeats = 10 if short else 40
    level = conv_step.kernel().__name__.split(".")[-2]
    results = {level: cifar_step(repeats)}
    if level == "v4":
        results["v3"] = _limited_to_avx2(repeats)
    for name, result in results.items():
        note = f"{result['ours']:.1f} against {result['autograd']:.1f} ms of CPU"
        ratio = result["autograd"] / result["ours"]
        found.rows.append(
            Row(PART, f"CNN of CIFAR, {name}, against autograd", ratio, "x", ">=", 2.2, 3.0, note)
        )
    result = mnist_step(100 if short else 300)
    note = f"{result['ours']:.2f} ms, its products in MKL {result['products']:.2f} ms"
    ratio = result["products"] / result["ours"]
    found.rows.append(
        Row(PART, "MLP of MNIST, products over step", ratio, "x", ">=", 0.65, 0.8, note)
    )
    result = digits_step(100 if short else 300)
    note = f"{result['sparse']:.2f} against {result['dense']:.2f} ms of CPU, 81 % zeros"
    ratio = result["dense"] / result["sparse"]
    name = "MLP of MNIST, zeros skipped, against whole products"
    found.rows.append(Row(PART, name, ratio, "x", ">=", 2.0, 2.5, note))
    return found


def _limited_to_avx2(repeats):
    """Both sides as on a processor without AVX-512."""
    limits = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    code = (
        "import importlib; from fl import conv_step; from bench import steps_fl;"
        "module = importlib.import_module('cvrcore_ext.v3.convolution');"
        "conv_step.kernel = lambda: module;"
        f"result = steps_fl.cifar_step({repeats}); print(result['ours'], result['autograd'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
        env={**os.environ, **limits, "PYTHONPATH": str(ROOT)},
    )
    ours, autograd = map(float, done.stdout.split())
    return {"ours": ours, "autograd": autograd}


class Residual(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return torch.relu(x + self.second(torch.relu(self.first(x))))


def make_resnet():
    """Return a small residual network for 3 x 32 x 32: autograd serves it."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        Residual(16),
        nn.MaxPool2d(2),
        Residual(16),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


class Recurrent(nn.Module):
    """A GRU over rows of 20 numbers, then a linear layer on its last state."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(20, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])
