"""trope.torch with torch.compile, torch.export, fake tensors and opcheck: the bits of eager calls, and no graph breaks."""

import pytest

torch = pytest.importorskip("torch")

import trope  # noqa: E402
import trope.torch  # noqa: E402
from trope.torch import _ops  # noqa: E402
from checks import DEVICES  # noqa: E402
from refusals import refused  # noqa: E402

INV_FREQ = trope.Frequencies([1.0, 0.3, 0.1, 0.03])

pytestmark = [
    pytest.mark.parametrize("device", DEVICES),
    pytest.mark.filterwarnings("ignore"),
]


def random(*shape, device, dtype=torch.float32, seed=0, grad=False):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype).requires_grad_(grad)


CALLS = {
    "frequencies": dict(layout="bshd", pairing="half", inv_freq=INV_FREQ),
    "list": dict(layout="bshd", pairing="interleaved", inv_freq=[1.0, 0.5, 0.25, 0.125], mscale=0.5, inverse=True),
    "window": dict(
        layout="bshd", pairing="interleaved", pairing_out="half", inv_freq=[1.0, 0.5], rotary_dim=4, rotary_offset=(4, 2)
    ),
    "context parallel": dict(layout="bshd", pairing="half", inv_freq=INV_FREQ, cp_size=2, cp_rank=1, cp_layout="zigzag"),
    "shared heads": dict(layout="bshd", pairing="half", inv_freq=INV_FREQ, shared_heads=(0, 3)),
    "native rounding": dict(layout="bshd", pairing="half", inv_freq=INV_FREQ, rounding="native"),
}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def gradients(function, *inputs):
    y, z = function(*inputs)
    return (
        y,
        z,
        *torch.autograd.grad(y.float().square().sum() + z.float().sin().sum(), [t for t in inputs if t.requires_grad]),
    )


@pytest.mark.parametrize("case", CALLS)
def test_same_bits_as_eager(device, case):
    q = random(2, 6, 4, 8, device=device, dtype=torch.bfloat16, grad=True)
    k = random(2, 6, 2, 8, device=device, dtype=torch.bfloat16, grad=True)

    def call(q, k):
        return trope.torch.rotate(q, k, **CALLS[case])

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for got, wanted in zip(gradients(compiled, q, k), gradients(call, q, k)):
        assert torch.equal(got, wanted) and got.stride() == wanted.stride()


def test_tables_sequences_and_their_gradients(device):
    x = random(12, 3, 8, device=device, grad=True)
    k = random(12, 1, 8, device=device, grad=True)
    freqs = random(12, 8, device=device, grad=True)
    cu_seqlens = torch.tensor([0, 5, 5, 12], device=device, dtype=torch.int32)

    def call(x, k, freqs):
        options = dict(layout="thd", pairing="half", freqs=freqs, angle_columns="half", cu_seqlens=cu_seqlens)
        return trope.torch.rotate(x.relu(), k * 2, **options)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for got, wanted in zip(gradients(compiled, x, k, freqs), gradients(call, x, k, freqs)):
        assert torch.equal(got, wanted)


def test_learned_frequencies_and_module(device):
    module = trope.torch.RotaryEmbedding(INV_FREQ, layout="bhsd", pairing="half", learned=True).to(device)
    q = random(2, 4, 6, 8, device=device, grad=True)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    wanted = torch.autograd.grad(module(q).square().mul(q).sum(), (q, module.inv_freq))
    got = torch.autograd.grad(compiled(q).square().mul(q).sum(), (q, module.inv_freq))
    for a, b in zip(got, wanted):
        torch.testing.assert_close(a, b)
    plain = trope.torch.RotaryEmbedding(INV_FREQ, layout="bhsd", pairing="half").to(device)
    assert torch.equal(torch.compile(plain, fullgraph=True, backend="aot_eager")(q), plain(q))


def test_inductor(device):
    q = random(2, 4, 6, 8, device=device, dtype=torch.bfloat16, grad=True)
    k = random(2, 2, 6, 8, device=device, dtype=torch.bfloat16, grad=True)

    def call(q, k):
        y, z = trope.torch.rotate(q.transpose(1, 2), k.transpose(1, 2), **CALLS["frequencies"])
        return y.transpose(1, 2), z.transpose(1, 2)

    compiled = torch.compile(call, fullgraph=True, mode="reduce-overhead" if device == "cuda" else None)
    for _ in range(3):
        results = [t.clone() for t in gradients(compiled, q, k)]
    for got, wanted in zip(results, gradients(call, q, k)):
        assert torch.equal(got, wanted)


def test_dynamic_shapes(device):
    def call(q, k):
        return trope.torch.rotate(q, k, **CALLS["frequencies"])

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (3, 6, 17):
        q, k = random(2, tokens, 4, 8, device=device), random(2, tokens, 2, 8, device=device)
        assert all(torch.equal(a, b) for a, b in zip(compiled(q, k), call(q, k)))


def test_in_place(device):
    def call(q):
        h = q * 2
        trope.torch.rotate_(h, **CALLS["frequencies"])
        return h + 1, h

    q = random(2, 6, 4, 8, device=device, grad=True)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for got, wanted in zip(gradients(compiled, q), gradients(call, q)):
        assert torch.equal(got, wanted)


def test_opcheck(device):
    x = random(5, 2, 3, 8, device=device, grad=True)
    y = random(5, 2, 3, 8, device=device, seed=1, grad=True)
    freqs = random(5, 8, device=device, grad=True)
    for options in (
        dict(layout="sbhd", pairing="half", freqs=freqs, angle_columns="half"),
        dict(layout="sbhd", pairing="interleaved", freqs=freqs, angle_columns="interleaved", rotary_offset=0, mscale=2),
    ):
        spec, side, _ = trope.torch._resolve((x,), options)
        rest = (*side[: _ops.SIDE], *_ops.options_of(spec))
        for transposed in (False, True):
            torch.library.opcheck(torch.ops.trope.rotate.default, (transposed, [x], *rest))
        torch.library.opcheck(torch.ops.trope.angle_gradient.default, ([x], [y], *rest))
    options = dict(layout="sbhd", pairing="half", pair_axis=(0, 1, 0, 1), inv_freq=INV_FREQ)
    spec, side, _ = trope.torch._resolve((x, y), options)
    ids = torch.zeros(2, 2, 5, dtype=torch.int32, device=device)
    rest = (None, None, None, ids, None, None, None, *_ops.options_of(spec))
    torch.library.opcheck(torch.ops.trope.rotate.default, (False, [x, y], *rest))


def test_operators_have_second_derivatives(device):
    x = random(3, 2, 2, 6, device=device, dtype=torch.float64, grad=True)
    freqs = random(3, 4, device=device, dtype=torch.float64, grad=True)

    def call(x, freqs):
        options = dict(layout="sbhd", pairing="half", freqs=freqs, angle_columns="half", inverse=True)
        options.update(rotary_dim=4, rotary_offset=1)
        spec, side, _ = trope.torch._resolve((x,), options)
        return _ops.Operators.rotate(False, spec, side, [x])[0]

    assert torch.autograd.gradcheck(call, (x, freqs)) and torch.autograd.gradgradcheck(call, (x, freqs))


def test_export_and_fake_tensors(device):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rope = trope.torch.RotaryEmbedding(INV_FREQ, layout="bshd", pairing="half")

        def forward(self, q):
            return self.rope(q)

    q = random(2, 6, 4, 8, device=device)
    program = torch.export.export(Model(), (q,))
    assert "trope.rotate" in str(program.graph) and torch.equal(program.module()(q), Model()(q))
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(2, 6, 4, 8, device=device)
        y = trope.torch.rotate(fake.transpose(1, 2), **dict(CALLS["frequencies"], layout="bhsd"))
        assert y.shape == (2, 4, 6, 8) and y.stride() == fake.transpose(1, 2).stride()


def test_checkpoint(device):
    from torch.utils.checkpoint import checkpoint

    q = random(2, 6, 4, 8, device=device, dtype=torch.bfloat16, grad=True)

    def call(q):
        return checkpoint(lambda q: trope.torch.rotate(q, **CALLS["frequencies"]).sin(), q, use_reentrant=False)

    (wanted,) = torch.autograd.grad(call(q).float().sum(), q)
    (got,) = torch.autograd.grad(torch.compile(call, fullgraph=True, backend="aot_eager")(q).float().sum(), q)
    assert torch.equal(got, wanted)


def test_changing_numbers_and_sizes(device):
    """A second value of a number or a size does not break the graph."""

    def call(x, mscale):
        return trope.torch.rotate(x, mscale=mscale, layout="sbhd", pairing="half", inv_freq=INV_FREQ)

    compiled = torch.compile(call, fullgraph=True, backend="eager")
    for tokens, mscale in ((5, 1.5), (6, 2.5), (7, 0.5)):
        x = random(tokens, 2, 3, 8, device=device)
        assert torch.equal(compiled(x, mscale), call(x, mscale))

    def window(x, freqs):
        return trope.torch.rotate(x, layout="sbhd", pairing="half", freqs=freqs, angle_columns="half")

    compiled = torch.compile(window, fullgraph=True, backend="eager", dynamic=True)
    for width in (8, 16, 24):
        x, freqs = random(5, 2, 3, width, device=device), random(5, width, device=device)
        assert torch.equal(compiled(x, freqs), window(x, freqs))


def test_refusals_under_compile_raise_trope_errors(device):
    x, cos = random(5, 2, 3, 8, device=device), random(5, 8, device=device, grad=True)
    status = torch.zeros(1, dtype=torch.int32, device=device)
    plain = dict(layout="sbhd", pairing="half", inv_freq=INV_FREQ)
    for argument, options in (
        ("status", dict(plain, status=status)),
        ("accumulate", dict(plain, accumulate=True)),
        ("inv_freq", dict(plain, rotary_dim=6)),
        ("inv_freq", dict(layout="sbhd", pairing="half")),
        ("cos", dict(layout="sbhd", pairing="half", cos=cos, sin=cos.detach(), angle_columns="half")),
        ("pairing", dict(layout="sbhd", inv_freq=INV_FREQ)),
        ("layout", dict(plain, layout="sbh")),
    ):
        refused(argument, torch.compile(lambda x: trope.torch.rotate(x, **options), backend="eager"), x)
