"""How tests compare a function of torch tensors with its formula: values, gradients, and what must not be written."""

import pytest
import torch

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
HALF_UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


@pytest.fixture(params=DEVICES)
def device(request):
    """Every test that takes it runs on each device, with random numbers of its own seed."""
    torch.manual_seed(11)
    return request.param


def random(*shape, device="cpu", dtype=torch.float32, grad=False):
    """Random numbers that are the same on each device."""
    return torch.randn(*shape, dtype=torch.float64).to(dtype).to(device).requires_grad_(grad)


def as_list(results):
    return [results] if torch.is_tensor(results) else list(results)


def assert_rounded(y, exact, slack=2.0**-20):
    """y is `exact` rounded once to its dtype, after fp32 that is off by `slack` at most (and 2^-30 of that in double)."""
    assert y.shape == exact.shape
    slack = slack * 2.0**-30 if y.dtype == torch.float64 else slack
    bound = HALF_UNIT[y.dtype] * exact.detach().abs() * 1.001 + slack
    excess = (y.detach().double() - exact.detach()).abs() - bound
    assert excess.numel() == 0 or excess.max() <= 0, "off by %g more than a rounding" % excess.max()


def rearranged(x, how):
    """The same values in other memory: the first or the last two dimensions swapped, or a slice of more heads."""
    if how == "first":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if how == "last":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    return torch.stack((x, x, x), -2)[..., 1, :]


def upstreams(results):
    """Random upstream gradients: contiguous, transposed as attention of another layout gives them, and those of a sum."""
    random_ones = [torch.randn(y.shape, device=y.device).to(y.dtype) for y in results]
    of_a_sum = [torch.ones((), dtype=y.dtype, device=y.device).expand(y.shape) for y in results]
    return random_ones, [rearranged(dy, "first") for dy in random_ones], of_a_sum


def check_results(results, inputs, expected, exact_inputs, bits=False, slack=2.0**-20):
    """Results, and the gradients of the inputs for several upstream ones, are the expected ones: rounded once, or to the bit.
    Upstream gradients are not written."""
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
    """Values and gradients of function(*inputs) are those of the formula, and nothing else is written.

    The formula gets the inputs in float64, and results are to be its results rounded once. With `bits` it gets them in their
    own dtype, and results are to have the same bits. A function that works in place gets copies, which it has to return.
    Returns the results.
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
