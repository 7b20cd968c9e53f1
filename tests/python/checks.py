"""Compares a function of torch tensors with its formula: values, gradients, and inputs that must stay unchanged."""

import pytest
import torch

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
DEVICE = DEVICES[-1]  # of tests that run on one device, with the fixture default_device of conftest.py
HALF_UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


@pytest.fixture(params=DEVICES)
def device(request):
    """A test with this fixture runs on each device, always with the same random seed."""
    torch.manual_seed(11)
    return request.param


def random(*shape, device=None, dtype=torch.float32, grad=False):
    """Random numbers that are the same on each device. Without `device` they are on PyTorch's default device."""
    numbers = torch.randn(*shape, dtype=torch.float64, device="cpu").to(dtype)
    return numbers.to(device or torch.empty(0).device).requires_grad_(grad)


def as_list(results):
    return [results] if torch.is_tensor(results) else list(results)


def assert_rounded(y, exact, slack=2.0**-20):
    """Checks that y is `exact` rounded once to its dtype. `slack` bounds the error of the fp32 arithmetic before that. In
    float64, the bound is slack * 2^-30."""
    assert y.shape == exact.shape
    slack = slack * 2.0**-30 if y.dtype == torch.float64 else slack
    bound = HALF_UNIT[y.dtype] * exact.detach().abs() * 1.001 + slack
    excess = (y.detach().double() - exact.detach()).abs() - bound
    assert excess.numel() == 0 or excess.max() <= 0, "the error exceeds one rounding by %g" % excess.max()


def rearranged(x, how):
    """The same values with other strides: the first or the last two dimensions swapped in memory, or a slice of a larger
    tensor."""
    if how == "first":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if how == "last":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    return torch.stack((x, x, x), -2)[..., 1, :]


def upstreams(results):
    """Three upstream gradients for each result. The first is random and contiguous. The second has the same values
    transposed in memory, as attention in another layout returns them. The third is an expanded scalar 1, as from sum()."""
    random_ones = [torch.randn(y.shape, device=y.device).to(y.dtype) for y in results]
    of_a_sum = [torch.ones((), dtype=y.dtype, device=y.device).expand(y.shape) for y in results]
    return random_ones, [rearranged(dy, "first") for dy in random_ones], of_a_sum


def check_results(results, inputs, expected, exact_inputs, bits=False, slack=2.0**-20):
    """Compares results, and the inputs' gradients for several upstream gradients, with the expected values. They must be
    these values rounded once or, with `bits`, have the same bits. The upstream gradients must stay unchanged."""
    results, inputs, expected, exact_inputs = map(as_list, (results, inputs, expected, exact_inputs))
    assert len(results) == len(expected)

    def compare(y, right):
        if bits:
            assert y.dtype == right.dtype and torch.equal(y, right)
        else:
            assert_rounded(y, right, slack)

    for y, right in zip(results, expected):
        compare(y, right)
    for upstream in upstreams(results):
        kept = [dy.clone() for dy in upstream]
        found = torch.autograd.grad(results, inputs, upstream, retain_graph=True)
        exact = [dy.to(right.dtype) for dy, right in zip(upstream, expected)]
        for dx, x, right in zip(found, inputs, torch.autograd.grad(expected, exact_inputs, exact, retain_graph=True)):
            assert dx.dtype == x.dtype
            compare(dx, right)
        assert all(map(torch.equal, upstream, kept))


def check(function, inputs, formula, bits=False, slack=2.0**-20, in_place=False):
    """Checks values and gradients of function(*inputs) against the formula, and that the inputs stay unchanged.

    The formula gets the inputs in float64. The function's results must be the formula's results, rounded once. With `bits`,
    the formula gets the inputs in their own dtype, and the results must have the same bits. A function that works in place
    gets copies, which it must return. Returns the results.
    """
    leaves = [x.detach().requires_grad_() for x in as_list(inputs)]
    kept = [x.detach().clone() for x in leaves]
    given = [leaf.clone() if in_place else leaf for leaf in leaves]
    results = as_list(function(*given))
    exact_inputs = [(x if bits else x.double()).requires_grad_() for x in kept]
    check_results(results, leaves, formula(*exact_inputs), exact_inputs, bits, slack)
    if in_place:
        assert all(y.data_ptr() == x.data_ptr() and torch.equal(x, y) for x, y in zip(given, results))
    assert all(map(torch.equal, leaves, kept))
    return results
