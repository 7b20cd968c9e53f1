"""In-place MLA of trope.megatron: leaves, views, tensors that autograd has saved, activation checkpoints, torch.compile.
The formulas are in test_megatron.py."""

import pytest

torch = pytest.importorskip("torch")

import torch.utils.checkpoint  # noqa: E402
from checks import check_results, device, random  # noqa: E402, F401 (device is a fixture)
from megatron_layers import Same  # noqa: E402
from refusals import refused  # noqa: E402
from test_megatron import BATCH, HEADS, NOPE, ROTARY, TOKENS, formula_of_mla, make_tables  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import trope  # noqa: E402
import trope.megatron as tm  # noqa: E402


class InPlace:
    """A leaf, a function that rotates it in place, and the formula of the rotation."""

    def __init__(self, device, function=tm.fused_apply_mla_rope_for_q):
        tables = make_tables(device, torch.float32)
        rows = torch.arange(TOKENS)[:, None]
        self.leaf = random(TOKENS, BATCH, HEADS, NOPE + ROTARY, device=device, grad=True)
        self.old = self.leaf.detach().clone().requires_grad_()
        self.dy = torch.randn(self.leaf.shape, device=device)
        self.rotate = lambda t: function(t, *tables, NOPE, ROTARY)
        self.formula = lambda t: formula_of_mla(t, *tables, rows)
        self.rotated = self.formula(self.old).detach()


@pytest.fixture(params=["fused_apply_mla_rope_for_q", "fused_mla_rope_inplace"])
def case(device, request):
    return InPlace(device, getattr(tm, request.param))


def test_mla_in_place_on_views_and_saved_tensors(case):
    """A view, for example of a projection's output, is rotated in place. If autograd has saved a tensor for another
    operation's backward, that backward raises an error."""
    view = case.old.flatten(2).clone().unflatten(-1, (HEADS, NOPE + ROTARY))
    check_results(case.rotate(view), case.old, case.formula(case.old), case.old, bits=True)
    for kept in (case.old.clone(), case.leaf):
        lost = kept.square()
        case.rotate(kept)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            lost.sum().backward()


@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter])
def test_mla_in_place_on_a_leaf_accumulates_its_gradient(case, kind):
    leaf = torch.nn.Parameter(case.leaf.detach()) if kind is torch.nn.Parameter else case.leaf
    version = leaf._version
    y = case.rotate(leaf)
    assert y.data_ptr() == leaf.data_ptr() and torch.equal(leaf, case.rotated) and torch.equal(y, case.rotated)
    assert leaf.is_leaf and not y.is_leaf and leaf._version == version + 1
    case.formula(case.old).backward(case.dy)
    y.backward(case.dy, retain_graph=True)
    assert torch.equal(leaf.grad, case.old.grad)
    y.backward(case.dy)
    assert torch.equal(leaf.grad, 2 * case.old.grad)
    assert torch.equal(leaf, case.rotated)  # backward wrote nothing


def test_mla_in_place_twice_on_a_leaf(case):
    """The second call rotates the result of the first. The third rotates the leaf again. Autograd refuses to use a result
    that has been rotated again."""
    first = case.rotate(case.leaf)
    second = case.rotate(first)
    expected = case.formula(case.formula(case.old))
    assert torch.equal(case.leaf, expected)
    check_results(second, case.leaf, expected, case.old, bits=True)
    with pytest.raises(RuntimeError, match="modified inplace"):
        first.sin()
    again = case.leaf.detach().clone().requires_grad_()
    third = case.rotate(case.leaf)
    check_results(third, case.leaf, case.formula(again), again, bits=True)
    with pytest.raises(RuntimeError, match="modified inplace"):
        second.sin()


@pytest.mark.parametrize("how", ["no_grad", "requires_no_grad"])
def test_mla_in_place_on_a_leaf_outside_of_autograd(case, how):
    leaf = case.leaf if how == "no_grad" else case.leaf.detach()
    version = leaf._version
    with torch.set_grad_enabled(how != "no_grad"):
        y = case.rotate(leaf)
    assert y.data_ptr() == leaf.data_ptr() and torch.equal(leaf, case.rotated)
    assert leaf._version == version + 1 and leaf.is_leaf and y.grad_fn is None


VIEWS = {
    "flat": lambda t: t.flatten(2).unflatten(-1, (HEADS, NOPE + ROTARY)),
    "slice": lambda t: t[:, 1:],
    "split": lambda t: t.split((1, BATCH - 1), 1)[1],
    "function": Same.apply,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_mla_in_place_on_a_view_of_a_leaf_writes_the_leaf_as_in_megatron(case, view):
    y = case.rotate(view(case.leaf))
    expected = case.formula(view(case.old))
    check_results(y, case.leaf, expected, case.old, bits=True)
    written = case.old.detach().clone()
    view(written).copy_(expected.detach())
    assert torch.equal(case.leaf, written)


def run_again(function, t, use_reentrant):
    return torch.utils.checkpoint.checkpoint(function, t, use_reentrant=use_reentrant)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_mla_in_place_under_activation_checkpointing(device, use_reentrant):
    """A checkpoint that computes a tensor and rotates it in place gives the gradients of the formula without a
    checkpoint."""
    case = InPlace(device)
    x = random(TOKENS, BATCH, 8, device=device, grad=True)
    weight = random(8, HEADS * (NOPE + ROTARY), device=device, grad=True)

    def project(x):
        return (x @ weight).unflatten(-1, (HEADS, NOPE + ROTARY))

    gradients = []
    for y in (run_again(lambda x: case.rotate(project(x)).sin(), x, use_reentrant), case.formula(project(x)).sin()):
        x.grad = weight.grad = None
        y.backward(case.dy)
        gradients.append((y.detach(), x.grad, weight.grad))
    assert all(torch.equal(found, right) for found, right in zip(*gradients))


INPUTS = {"leaf": lambda t: t, "result": lambda t: t * 1}  # the input of the checkpoint
BEGINNINGS = {"itself": lambda t: t, **VIEWS}  # how the checkpoint gets the rotated tensor from its input


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("begin", BEGINNINGS.values(), ids=BEGINNINGS)
@pytest.mark.parametrize("make_input", INPUTS.values(), ids=INPUTS)
def test_a_checkpoint_that_begins_with_mla_in_place_does_not_rotate_twice(device, make_input, begin, use_reentrant):
    """If the checkpoint detaches its input, trope raises an error. Otherwise autograd does."""
    case = InPlace(device)
    t = make_input(case.leaf)
    y = run_again(lambda t: case.rotate(begin(t)).sin(), t, use_reentrant)
    rotated = begin(case.rotated)
    assert torch.equal(begin(t), rotated) and torch.equal(y, rotated.sin())
    if use_reentrant:
        with pytest.raises(
            trope.Error, match="^t is a leaf .* a view of one, .* out of place .* the checkpoint begin"
        ) as caught:
            y.sum().backward()
        assert caught.value.argument == "t"
    else:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    assert torch.equal(begin(t), rotated)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_does_not_rotate_a_leaf_of_its_function_twice(device, use_reentrant):
    case, x = InPlace(device), torch.ones(1, device=device, requires_grad=True)
    y = run_again(lambda x: case.rotate(case.leaf) * x, x, use_reentrant)
    with pytest.raises(trope.Error, match="backward"):
        y.sum().backward()
    assert torch.equal(case.leaf, case.rotated)


@pytest.mark.parametrize("is_leaf", [False, True])
def test_compiled_mla_in_place(device, is_leaf):
    """torch.compile breaks the graph at a leaf. A function that was compiled for other tensors raises an error if it gets a
    leaf."""
    torch._dynamo.reset()
    case = InPlace(device)
    t = case.leaf if is_leaf else case.leaf * 1
    compiled = torch.compile(case.rotate, backend="aot_eager", fullgraph=not is_leaf)
    y = compiled(t)
    assert torch.equal(t, case.rotated)
    check_results(y, case.leaf, case.formula(case.old), case.old, bits=True)
    if not is_leaf:
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            compiled(case.leaf)


def test_a_checkpoint_that_begins_with_compiled_mla_in_place_does_not_rotate_twice(device):
    torch._dynamo.reset()
    case = InPlace(device)
    y = run_again(torch.compile(case.rotate, backend="aot_eager"), case.leaf * 1, True)
    with pytest.raises(trope.Error, match="a leaf that requires a gradient"):
        y.sum().backward()


def test_mla_in_place_on_a_leaf_under_a_dispatch_mode_is_refused(device):
    case = InPlace(device)
    with FlopCounterMode(display=False):
        assert torch.equal(case.rotate(case.leaf * 1), case.rotated)
        for view in BEGINNINGS.values():
            refused("t", case.rotate, view(case.leaf))
    assert torch.equal(case.leaf, case.old)
