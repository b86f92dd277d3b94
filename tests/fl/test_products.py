import pytest
import torch

from fl import products

SIZES = [(100, 784, 200), (100, 128, 10), (1, 1, 1), (37, 129, 301), (128, 4096, 64)]


@pytest.fixture(params=["oneDNN", "MKL"], autouse=True)
def library(request, monkeypatch):
    if request.param == "MKL":
        monkeypatch.setattr(products, "_pointwise", lambda: None)
    elif products._pointwise() is None:
        pytest.skip("oneDNN is not used on this processor")


@pytest.mark.parametrize("size", SIZES)
def test_products_are_those_of_double_precision(size):
    n, n_in, n_out = size
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, n_in, generator=generator)
    weight = torch.randn(n_out, n_in, generator=generator)
    bias = torch.randn(n_out, generator=generator)
    delta = torch.randn(n, n_out, generator=generator)
    # Sums of up to 4096 products of size 1.
    close = {"rtol": 1e-5, "atol": 2e-4}
    expected = torch.addmm(bias.double(), x.double(), weight.double().t())
    torch.testing.assert_close(products.linear(x, weight, bias).double(), expected, **close)
    expected = delta.double() @ weight.double()
    torch.testing.assert_close(products.product(delta, weight).double(), expected, **close)
    moved = weight.clone()
    products.descend(moved, delta, x, 0.1)
    expected = weight.double() - 0.1 * delta.double().t() @ x.double()
    torch.testing.assert_close(moved.double(), expected, **close)


def test_double_precision_stays_double():
    x, weight = torch.rand(200, 300, dtype=torch.float64), torch.rand(100, 300, dtype=torch.float64)
    output = products.linear(x, weight, torch.zeros(100, dtype=torch.float64))
    torch.testing.assert_close(output, x @ weight.t(), rtol=1e-13, atol=0)


def test_values_that_are_not_finite_spread():
    x, weight, bias = torch.ones(128, 128), torch.ones(128, 128), torch.zeros(128)
    x[3, 5], x[7, 9], x[11, 1] = float("nan"), float("inf"), 0.0
    weight[2, 1] = float("inf")
    expected = torch.addmm(bias, x, weight.t())
    torch.testing.assert_close(products.linear(x, weight, bias), expected, equal_nan=True)
