"""Models of the paper, initialised from an explicit stream.

Weights follow PyTorch's default law, drawn layer by layer, weight before bias, from one
`torch.Generator`; the global random state is neither read nor advanced. The last layer of
every model is called ``head``.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

#: Model of each data set when none is named.
DEFAULT_MODEL = {
    "digits": "mlp",
    "mnist": "mlp",
    "fashion-mnist": "mlp",
    "cifar10": "cnn",
    "cifar100": "cnn",
    "synthetic": "logistic",
    "regression": "linear",
    "shakespeare": "gru",
    "adult": "logistic",
}

Seed = int | np.random.SeedSequence | torch.Generator


class LinearRegression(nn.Module):
    """``y = theta . x``, without bias: an intercept is a constant column of x.

    Returns shape (n,), like the targets: a squared error between (n, 1) and (n,) would
    broadcast to (n, n) without a word.
    """

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.head = nn.Linear(n_features, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return predictions of shape (n,)."""
        out: Tensor = self.head(x.flatten(1))
        return out.squeeze(1)


class CharacterGRU(nn.Module):
    """Tokens (n, length) in, scores of the next one (n, length, n_classes) out."""

    def __init__(self, n_classes: int, n_embedded: int = 16, n_hidden: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_classes, n_embedded)
        self.gru = nn.GRU(n_embedded, n_hidden, batch_first=True)
        self.head = nn.Linear(n_hidden, n_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of each token's successor."""
        states, _ = self.gru(self.embedding(tokens.long()))
        scores: Tensor = self.head(states)
        return scores


def _gru(in_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    if len(in_shape) != 1:
        raise ValueError(f"in_shape must be (length,) for 'gru', got {in_shape}")
    return CharacterGRU(n_classes)


def _logistic(in_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return _chain(flatten=nn.Flatten(), head=nn.Linear(math.prod(in_shape), n_classes))


def _mlp(in_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return _chain(
        flatten=nn.Flatten(),
        hidden=nn.Linear(math.prod(in_shape), 200),
        relu=nn.ReLU(),
        head=nn.Linear(200, n_classes),
    )


def _cnn(in_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    if len(in_shape) != 3 or min(in_shape[1:]) < 4:
        raise ValueError(
            f"in_shape must be (channels, height >= 4, width >= 4) for 'cnn', got {in_shape}"
        )
    channels, height, width = in_shape
    return _chain(
        conv1=nn.Conv2d(channels, 32, kernel_size=3, padding=1),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 64, kernel_size=3, padding=1),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        hidden=nn.Linear(64 * (height // 4) * (width // 4), 128),
        relu3=nn.ReLU(),
        head=nn.Linear(128, n_classes),
    )


def _linear(in_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return LinearRegression(math.prod(in_shape))


MODELS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "logistic": _logistic,
    "linear": _linear,
    "gru": _gru,
}


def build_model(name: str, in_shape: Sequence[int], n_classes: int, seed: Seed = 0) -> nn.Module:
    """Build a model by name and draw its initial weights.

    Parameters
    ----------
    name : {"mlp", "cnn", "logistic", "linear", "gru"}
        One hidden layer of 200 ReLU units; two 3 x 3 convolutions (32 and 64 channels),
        each followed by ReLU and 2 x 2 max-pooling, then 128 ReLU units; a linear
        classifier; linear regression without bias; for tokens, an embedding of 16 numbers, a
        GRU of 128 units and a linear layer.
    in_shape : sequence of int
        Shape of one sample, ``federation.x.shape[1:]``.
    n_classes : int
        0 for "linear", at least 1 for the others.
    seed : int, SeedSequence or torch.Generator, default=0
        The same seed gives the same weights. A generator is advanced.

    Returns
    -------
    model : torch.nn.Module
        In training mode, on the CPU, float32.
    """
    if name not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {name!r}")
    shape = tuple(int(n) for n in in_shape)
    if not shape or min(shape) < 1:
        raise ValueError(f"in_shape must hold positive sizes, got {shape}")
    if name == "linear" and n_classes != 0:
        raise ValueError(f"n_classes must be 0 for 'linear', got {n_classes}")
    if name != "linear" and n_classes < 1:
        raise ValueError(f"n_classes must be at least 1 for {name!r}, got {n_classes}")
    # Built without storage, hence without drawing from the global random state.
    with torch.device("meta"):
        model = MODELS[name](shape, n_classes)
    model.to_empty(device="cpu")
    _initialise(model, torch_generator(seed))
    return model


def torch_generator(seed: Seed) -> torch.Generator:
    """Return a CPU generator for `seed`; a generator is returned as it is."""
    if isinstance(seed, torch.Generator):
        return seed
    if isinstance(seed, np.random.SeedSequence):
        # 63 bits: manual_seed reads a signed word.
        seed = int(seed.generate_state(1, np.uint64)[0] >> np.uint64(1))
    return torch.Generator().manual_seed(int(seed))


@torch.no_grad()
def _initialise(model: nn.Module, generator: torch.Generator) -> None:
    """Draw weights as PyTorch's own reset_parameters does, in the same order."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
            if layer.bias is not None:
                bound = 1 / math.sqrt(layer.weight[0].numel())
                nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
        elif isinstance(layer, nn.Embedding):
            nn.init.normal_(layer.weight, generator=generator)
        elif isinstance(layer, nn.GRU):
            for weight in layer.parameters():
                bound = 1 / math.sqrt(layer.hidden_size)
                nn.init.uniform_(weight, -bound, bound, generator=generator)


def _chain(**layers: nn.Module) -> nn.Module:
    return nn.Sequential(OrderedDict(layers))
