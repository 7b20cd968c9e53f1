"""Features of PyTorch that trope.torch does not support raise a trope.Error that names a workaround."""

import pytest

torch = pytest.importorskip("torch")

import trope  # noqa: E402
import trope.torch  # noqa: E402
from trope.torch import _ops  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from checks import DEVICES  # noqa: E402
from refusals import refused  # noqa: E402

PLAIN = dict(layout="sbhd", pairing="half", inv_freq=trope.Frequencies([1.0, 0.3, 0.1, 0.03]))
FUNCTIONS = {
    "rotate": trope.torch.rotate,
    "rotate_backward": trope.torch.rotate_backward,
    "rotate_": lambda x, **options: trope.torch.rotate_(x.clone(), **options),
    "rotate_backward_": lambda x, **options: trope.torch.rotate_backward_(x.clone(), **options),
    "trope.rotate": trope.rotate,
    "module": lambda x, **options: trope.torch.RotaryEmbedding(
        options.pop("inv_freq"), layout=options.pop("layout"), pairing=options.pop("pairing")
    )(x, **options),
}

pytestmark = pytest.mark.parametrize("device", DEVICES)
each_function = pytest.mark.parametrize("name", FUNCTIONS)


def random(*shape, device, dtype=torch.float32, grad=False):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(device, dtype).requires_grad_(grad)


def operator(x):
    """Calls torch.ops.trope.rotate directly."""
    spec, side, _ = trope.torch._resolve((x.detach(),), PLAIN)
    return torch.ops.trope.rotate(False, [x], *side[: _ops.SIDE], *_ops.options_of(spec))[0]


def test_forward_mode_of_the_operators(device):
    x = random(5, 2, 3, 8, device=device)
    assert torch.equal(operator(x), trope.torch.rotate(x, **PLAIN))
    for requires_grad in (False, True):
        with forward_ad.dual_level():
            with pytest.raises((trope.Error, RuntimeError), match="forward-mode|forward mode"):
                operator(forward_ad.make_dual(x.detach().requires_grad_(requires_grad), x))
    with pytest.raises((trope.Error, RuntimeError), match="forward-mode|forward mode|torch.func"):
        torch.func.jvp(operator, (x,), (x,))


@each_function
def test_jit_trace(device, name):
    x = random(5, 2, 3, 8, device=device)
    with pytest.raises(trope.Error, match="torch.compile or torch.export"):
        torch.jit.trace(lambda x: FUNCTIONS[name](x, **PLAIN), (x,))


@each_function
def test_nested_and_sparse_tensors(device, name):
    parts = [random(n, 3, 8, device=device) for n in (2, 4)]
    packed = dict(PLAIN, layout="thd")
    for x, words in (
        (torch.nested.nested_tensor(parts, layout=torch.jagged), "values.*cu_seqlens"),
        (torch.nested.nested_tensor(parts), "values.*cu_seqlens"),
        (random(5, 3, 8, device=device).to_sparse(), "to_dense"),
    ):
        refused("tensors[0]", FUNCTIONS[name], x, words=words, **packed)
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    way_round = trope.torch.rotate(jagged.values(), cu_seqlens=jagged.offsets(), **packed)
    assert torch.equal(way_round[2:], trope.torch.rotate(parts[1], **packed))


def test_unusual_side_tensors_are_refused(device):
    x = random(4, 2, 3, 8, device=device)
    ids = torch.arange(4, device=device)
    freqs = random(4, 8, device=device)
    table = dict(layout="sbhd", pairing="half", angle_columns="half")
    for bad in (ids.to_sparse(), ids.numpy(force=True), ids.tolist(), ids.to("meta")):
        refused("position_ids", trope.torch.rotate, x, position_ids=bad, **PLAIN)
    refused("start_positions", trope.torch.rotate, x, start_positions=5, **PLAIN)
    for bad in (freqs.to_sparse(), freqs.numpy(force=True), freqs.to("meta"), [[0.0] * 8] * 4):
        refused("freqs", trope.torch.rotate, x, freqs=bad, **table)
    inv_freq = torch.ones(4, dtype=torch.bfloat16)
    refused(
        "inv_freq",
        trope.torch.rotate,
        x,
        words="bfloat16.*(trope.Frequencies|list|float32)",
        **dict(PLAIN, inv_freq=inv_freq),
    )


def test_operators_check_their_options(device):
    """A direct call of torch.ops.trope.rotate skips the checks of trope.torch.rotate."""
    x = random(4, 2, 3, 8, device=device)
    spec, side, _ = trope.torch._resolve((x,), PLAIN)
    options = dict(zip(spec._fields, _ops.options_of(spec)))

    def call(tensors=(x,), freqs=None, **change):
        return torch.ops.trope.rotate(False, list(tensors), freqs, *side[1 : _ops.SIDE], *{**options, **change}.values())

    assert torch.equal(call()[0], trope.torch.rotate(x, **PLAIN))
    for change, argument in (
        (dict(inv_freq=[1.0, 0.5]), "inv_freq"),
        (dict(inv_freq=[1.0] * 5), "inv_freq"),
        (dict(inv_freq=[]), "inv_freq"),
        (dict(rotary_dims=[16]), "inv_freq"),
        (dict(rotary_dims=[8, 8]), "rotary_dim"),
        (dict(rotary_offsets=[]), "rotary_offset"),
        (dict(rotary_offsets=[1]), "rotary_offset"),
        (dict(pair_axis=[0, 1]), "pair_axis"),
        (dict(pair_axis=[0, 1, 2, 9]), "pair_axis"),
        (dict(layout="sdhb"), "layout"),
        (dict(layout="thd"), "tensors[0]"),
        (dict(rounding=""), "rounding"),
        (dict(parts=0), "parts"),
        (dict(freqs=random(4, 8, device=device)), "inv_freq"),
        (dict(freqs=random(4, 4, device=device), inv_freq=[], angle_columns="half"), "freqs"),
        (dict(shared_heads=[-1]), "shared_heads"),
        (dict(tensors=(x, x)), "rotary_dim"),
        (dict(accumulate=True), "accumulate"),
    ):
        refused(argument, call, **change)


def test_gradient_operator_checks_its_options(device):
    x, freqs = random(4, 2, 3, 8, device=device), random(4, 8, device=device)
    table = dict(layout="sbhd", pairing="half", freqs=freqs, angle_columns="half")
    spec, side, _ = trope.torch._resolve((x,), table)
    rest, options = side[1 : _ops.SIDE], _ops.options_of(spec)
    gradient = torch.ops.trope.angle_gradient
    assert gradient([x], [x], freqs, *rest, *options).shape == freqs.shape
    for call, argument in (
        (lambda: gradient([x], [x, x], freqs, *rest, *options), "xs"),
        (lambda: gradient([x], [], freqs, *rest, *options), "xs"),
        (lambda: gradient([x], [x], None, *rest, *_ops.options_of(trope.torch._resolve((x,), PLAIN)[0])), "freqs"),
        (lambda: gradient([x], [x], freqs, freqs, freqs, *rest[2:], *options), "freqs"),
    ):
        refused(argument, call)
    cos = freqs.cos().requires_grad_()
    refused("cos", torch.ops.trope.rotate, False, [x], None, cos, freqs.sin(), *rest[2:], *options)


def test_tracing_records_writes(device):
    """make_fx records operators. A call that operators cannot express is refused."""
    from torch.fx.experimental.proxy_tensor import make_fx

    x, other = random(4, 2, 3, 8, device=device), random(4, 2, 3, 8, device=device) + 1

    def into(x):
        out = torch.zeros_like(x)
        trope.torch.rotate(x, out=out, **PLAIN)
        return out

    def back(x):
        return trope.torch.rotate_backward_(x * 1, **PLAIN)

    for function in (into, back):
        assert torch.equal(make_fx(function)(x)(other), function(other))
        assert torch.equal(torch.compile(function, backend="eager")(other), function(other))
    gradient = torch.zeros(4, dtype=torch.float64, device=device)
    for change, argument in (
        (dict(forward_src=x, d_inv_freq=gradient), "d_inv_freq"),
        (dict(out=torch.zeros_like(x), accumulate=True), "accumulate"),
    ):
        refused(argument, make_fx(lambda x: trope.torch.rotate_backward(x, **PLAIN, **change)), x)
