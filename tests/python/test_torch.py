"""trope.torch: values against trope.rotate, derivatives against finite differences, and use with PyTorch's own tools."""

import copy
import gc
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import trope  # noqa: E402
import trope.torch  # noqa: E402
from checks import DEVICES  # noqa: E402
from reference import angles_of, of_angles, rotate  # noqa: E402
from refusals import refused  # noqa: E402

INV_FREQ = trope.Frequencies([1.0, 0.3, 0.1, 0.03])
PLAIN = dict(layout="sbhd", pairing="half", inv_freq=INV_FREQ)
TABLE = dict(layout="sbhd", pairing="half", angle_columns="pair")

pytestmark = pytest.mark.parametrize("device", DEVICES)


def random(*shape, device, dtype=torch.float32, seed=0, grad=False):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype).requires_grad_(grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("layout", ["sbhd", "bshd", "bhsd"])
def test_same_bits_as_for_numpy_arrays(device, dtype, layout):
    q, k = random(6, 6, 6, 12, device=device, dtype=dtype), random(6, 6, 6, 8, device=device, dtype=dtype, seed=1)
    options = dict(layout=layout, pairing="interleaved", inv_freq=INV_FREQ, rotary_dim=8, rotary_offset=(4, 0))
    y, z = trope.torch.rotate(q, k, **options)
    wanted, also = trope.rotate(q.cpu().numpy(), k.cpu().numpy(), **options)
    if device == "cuda" and dtype == torch.float64:  # on the CPU, float64 uses the C library's sine
        np.testing.assert_allclose(y.cpu().numpy(), wanted, rtol=1e-13, atol=1e-15)
    else:
        assert np.array_equal(y.cpu().numpy(), wanted) and np.array_equal(z.cpu().numpy(), also)
    assert torch.equal(trope.rotate(q, k, **options)[0], y)


def test_results_have_the_strides_of_eager(device):
    x = random(3, 5, 4, 8, device=device)
    options = dict(layout="bshd", pairing="half", inv_freq=INV_FREQ.inv_freq[:1], rotary_dim=2)
    for view in (
        x, x.transpose(1, 2), x.permute(3, 0, 2, 1), x[..., ::2], x[:, :, 1:3], x[:1].expand(3, 5, 4, 8),
        x[..., :1].expand(3, 5, 4, 8),
    ):  # fmt: skip
        y = trope.torch.rotate(view, **options)
        assert y.stride() == (view * 1).stride() and y.shape == view.shape
        assert torch.equal(y, trope.torch.rotate(view.clone(), **options))


@pytest.mark.parametrize("columns", ["pair", "half", "interleaved"])
@pytest.mark.parametrize("wants", ["k", "freqs", "in place"])
def test_gradients_of_only_the_narrower_tensor(device, columns, wants):
    """A table has the columns of the widest tensor, even if that tensor has no gradient."""
    q = random(3, 2, 2, 8, device=device, dtype=torch.float64)
    k = random(3, 2, 1, 4, device=device, dtype=torch.float64, grad=wants != "freqs")
    freqs = random(3, 4 if columns == "pair" else 8, device=device, dtype=torch.float64, grad=wants == "freqs")
    options = dict(layout="sbhd", pairing="half", angle_columns=columns, rotary_dim=(8, 4))

    def call(k, freqs):
        if wants == "in place":
            k = k * 1
            trope.torch.rotate_(q.clone(), k, freqs=freqs, **options)
            return k
        return trope.torch.rotate(q, k, freqs=freqs, **options)[1]

    assert torch.autograd.gradcheck(call, (k, freqs)) and torch.autograd.gradgradcheck(call, (k, freqs))


def test_learned_frequencies(device):
    x = random(5, 2, 2, 6, device=device, dtype=torch.float64, grad=True)
    inv_freq = torch.tensor([1.0, 0.2], dtype=torch.float64, device=device, requires_grad=True)
    ids = torch.tensor([[0, 3, 2, 2, 7]], device=device)
    for options in (dict(rotary_dim=4), dict(rotary_dim=4, position_ids=ids, max_position=8)):

        def call(x, inv_freq):
            return trope.torch.rotate(x, layout="sbhd", pairing="half", inv_freq=inv_freq, **options)

        assert torch.autograd.gradcheck(call, (x, inv_freq)) and torch.autograd.gradgradcheck(call, (x, inv_freq))
        exact = trope.torch.rotate(
            x.detach(), layout="sbhd", pairing="half", inv_freq=(1.0, 0.2), rotary_dim=4,
            position_ids=options.get("position_ids"),
        )  # fmt: skip
        torch.testing.assert_close(call(x, inv_freq), exact)
    words = dict(layout="sbhd", pairing="half", inv_freq=inv_freq, position_ids=ids)
    refused("max_position", trope.torch.rotate, x, **words)


def test_errors_of_learned_frequencies_name_the_option_of_the_caller(device):
    x, inv_freq = random(4, 2, 2, 8, device=device), torch.ones(4, device=device, requires_grad=True)
    options, ids = dict(layout="sbhd", pairing="half", inv_freq=inv_freq), torch.arange(4, device=device)
    for change, argument, words in (
        (dict(position_ids=ids, max_position=4, out_of_range="clamp"), "out_of_range", "only for tables"),
        (dict(inv_freq=torch.ones(3, device=device, requires_grad=True)), "rotary_dim", "inv_freq"),
        (dict(angle_columns="pair"), "inv_freq", "angle_columns"),
        (dict(freqs=random(4, 8, device=device)), "inv_freq", "freqs"),
        (dict(inv_freq=torch.ones(4, device=device, dtype=torch.bfloat16, requires_grad=True)), "inv_freq", "bfloat16"),
        (dict(inv_freq=torch.ones(1, 4, device=device, requires_grad=True)), "inv_freq", "shape"),
    ):
        refused(argument, trope.torch.rotate, x, words=words, **{**options, **change})
    if device == "cpu":  # on CUDA, such a position gives NaN
        with pytest.raises(trope.Error, match="max_position - 1"):
            trope.torch.rotate(x, position_ids=ids, max_position=3, **options)
    d_inv_freq = torch.zeros(4, dtype=torch.float64, device=device)
    refused("d_inv_freq", trope.torch.rotate_backward, x, forward_src=x, d_inv_freq=d_inv_freq, **options)


def test_status_may_be_cleared_before_backward(device):
    x, status = random(4, 2, 2, 8, device=device, grad=True), torch.zeros(1, dtype=torch.int32, device=device)
    table = dict(layout="sbhd", pairing="half", freqs=random(4, 4, device=device, grad=True), angle_columns="pair")
    for function in (
        lambda: trope.torch.rotate(x, status=status, **table),
        lambda: trope.torch.rotate_(x * 1, status=status, **dict(table, freqs=table["freqs"].detach())),
    ):
        y = function()
        status.zero_()
        (dx,) = torch.autograd.grad(y.square().sum(), x)
        assert torch.allclose(dx, 2 * x.detach(), atol=1e-5)


def test_inference_tensors_that_backward_needs_are_refused(device):
    x = random(4, 2, 2, 8, device=device, grad=True)
    with torch.inference_mode():
        freqs, ids = random(4, 8, device=device), torch.arange(4, device=device)
    table = dict(layout="sbhd", pairing="half", angle_columns="half")
    for function in (trope.torch.rotate, lambda x, **o: trope.torch.rotate_(x * 1, **o)):
        for change, argument in (
            (dict(freqs=freqs), "freqs"),
            (dict(freqs=freqs.clone(), position_ids=ids), "position_ids"),
        ):
            refused(argument, function, x, words="clone", **table, **change)
            function(x.detach(), **table, **change)


def test_missing_and_strided_upstream_gradients(device):
    x, k = random(5, 2, 3, 8, device=device, grad=True), random(5, 2, 1, 8, device=device, grad=True)
    y, z = trope.torch.rotate(x, k, **PLAIN)
    y.sum().backward()
    assert k.grad is None
    assert torch.equal(x.grad, trope.torch.rotate_backward(torch.ones_like(x), **PLAIN))
    (g,) = torch.autograd.grad(trope.torch.rotate(x, **PLAIN).transpose(0, 3).mean(), x)
    torch.testing.assert_close(g, x.grad / x.numel())
    freqs = random(5, 4, device=device, grad=True)
    y, z = trope.torch.rotate(x, k, freqs=freqs, **TABLE)
    (alone,) = torch.autograd.grad(z.square().sum() + z.sum(), freqs, retain_graph=True)
    again = trope.torch.rotate(k.detach(), freqs=freqs, **TABLE)
    torch.testing.assert_close(alone, torch.autograd.grad(again.square().sum() + again.sum(), freqs)[0])


def test_tables_of_other_dtypes_and_autocast(device):
    layer = torch.nn.Linear(8, 8, device=device)
    table = random(5, 8, device=device)
    options = dict(layout="sbhd", pairing="half", angle_columns="half")
    with torch.autocast(device, dtype=torch.bfloat16):
        q = layer(random(5, 2, 3, 8, device=device))
        y = trope.torch.rotate(q, cos=table.cos(), sin=table.sin(), **options)
        assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert layer.weight.grad.abs().sum() > 0
    freqs = table.to(torch.bfloat16).requires_grad_()
    trope.torch.rotate(q.detach(), freqs=freqs, **options).float().square().sum().backward()
    assert freqs.grad.dtype == torch.bfloat16
    for t in (table.cos().requires_grad_(), table.sin()):
        refused("cos", trope.torch.rotate, q, cos=table.cos().requires_grad_(), sin=t, **options)


def test_complex_tables_and_lazy_negation(device):
    x = random(5, 2, 3, 8, device=device)
    angles = random(5, 4, device=device)
    options = dict(layout="sbhd", pairing="interleaved", angle_columns="pair")
    cis = torch.polar(torch.ones_like(angles), angles)
    wanted = trope.torch.rotate(x, cos=cis.real.contiguous(), sin=cis.imag.contiguous(), **options)
    assert torch.equal(trope.torch.rotate(x, cos=cis.real, sin=cis.imag, **options), wanted)
    back = cis.conj()
    assert back.imag.is_neg()
    y = trope.torch.rotate(x, cos=back.real.contiguous(), sin=back.imag, **options)
    assert torch.equal(y, trope.torch.rotate(x, cos=cis.real, sin=cis.imag, inverse=True, **options))


def test_in_place(device):
    x = random(5, 2, 3, 8, device=device, grad=True)
    h = x * 2
    out = trope.torch.rotate_(h, **PLAIN)
    assert out is h and torch.equal(h, trope.torch.rotate((x * 2).detach(), **PLAIN))
    h.square().sum().backward()
    torch.testing.assert_close(x.grad, 8 * x.detach())
    buffer = random(5, 2, 3, 24, device=device, grad=True)
    qkv = buffer * 1
    q, k = qkv[..., :8], qkv[..., 8:16]
    trope.torch.rotate_(q, k, **PLAIN)
    (qkv * torch.arange(24, device=device)).sum().backward()
    weight = torch.arange(24.0, device=device).expand(5, 2, 3, 24)
    wanted = torch.cat(
        [trope.torch.rotate_backward(weight[..., a : a + 8], **PLAIN) for a in (0, 8)] + [weight[..., 16:]], -1
    )
    torch.testing.assert_close(buffer.grad, wanted)
    with torch.inference_mode():
        t = random(5, 2, 3, 8, device=device)
        assert torch.equal(trope.torch.rotate_(t.clone(), **PLAIN), trope.torch.rotate(t, **PLAIN))


def test_in_place_on_one_view_after_another(device):
    base = random(5, 2, 3, 8, device=device, grad=True)
    heads = base * 1
    freqs = random(5, 8, device=device)
    for view in (heads[:, :, 0:1], heads[:, :, 1:3]):
        trope.torch.rotate_(view, layout="sbhd", pairing="half", freqs=freqs, angle_columns="half")
    weight = random(5, 2, 3, 8, device=device, seed=1)
    (heads * weight).sum().backward()
    wanted = trope.torch.rotate_backward(weight, layout="sbhd", pairing="half", freqs=freqs, angle_columns="half")
    assert torch.equal(base.grad, wanted)


@pytest.mark.parametrize("layout, grouped", [("sbhd", "sbghd"), ("bshd", "bsghd"), ("bhsd", "bghsd"), ("thd", "tghd")])
def test_groups_of_packed_qkv(device, layout, grouped):
    at = layout.index("h")
    shape = [{"s": 5, "b": 2, "t": 5}.get(word, 0) for word in layout]
    shape[at], shape[-1] = 3, 4 * 8  # three groups, each of two query heads, one key head and one value head
    packed = random(*shape, device=device, grad=True)
    parts = packed.unflatten(-1, (4, 8)).movedim(-2, at + 1)  # [.., groups, heads, ..]
    q, k, v = parts.split((2, 1, 1), at + 1)
    options = dict(pairing="half", inv_freq=INV_FREQ, rotary_dim=(8, 8, trope.COPY))
    results = trope.torch.rotate(q, k, v, layout=grouped, **options)
    wanted = trope.torch.rotate(*(t.flatten(at, at + 1) for t in (q, k, v)), layout=layout, **options)
    assert all(torch.equal(a.flatten(at, at + 1), b) for a, b in zip(results, wanted))
    (a,) = torch.autograd.grad(sum((y * y.detach()).sum() for y in results), packed)
    (b,) = torch.autograd.grad(sum((y * y.detach()).sum() for y in wanted), packed)
    assert torch.equal(a, b)
    refused("shared_heads", trope.torch.rotate, q, layout=grouped, pairing="half", inv_freq=INV_FREQ, shared_heads=2)


def test_failed_in_place_call_leaves_autograd_unchanged(device):
    w = random(1, 4, 2, 8, device=device, grad=True)
    q, k = w * 1, (w * 1).bfloat16()
    with pytest.raises(trope.Error, match="dtype"):
        trope.torch.rotate_(q, k, layout="bshd", pairing="half", inv_freq=INV_FREQ)
    q.sum().backward()
    assert torch.equal(w.grad, torch.ones_like(w))


def test_in_place_with_a_copied_tensor(device):
    w = random(5, 2, 3, 8, device=device, grad=True)
    q, v = w * 1, w * 2
    trope.torch.rotate_(q, v, rotary_dim=(8, trope.COPY), **PLAIN)
    (q.sum() + v.sum()).backward()
    torch.testing.assert_close(w.grad, trope.torch.rotate_backward(torch.ones_like(w), **PLAIN) + 2)


def test_third_derivatives_are_refused(device):
    x = random(4, 2, 3, 8, device=device, dtype=torch.float64, grad=True)
    freqs = random(4, 4, device=device, dtype=torch.float64, grad=True)
    y = trope.torch.rotate(x, freqs=freqs, **TABLE)
    (first,) = torch.autograd.grad((y**2 * torch.arange(8, device=device)).sum(), freqs, create_graph=True)
    (second,) = torch.autograd.grad((first**2).sum(), freqs, create_graph=True)
    with pytest.raises(trope.Error, match="once"):
        torch.autograd.grad((second**2).sum(), freqs)


def test_calls_that_would_lose_gradients_or_writes_are_refused(device):
    x, table = random(4, 2, 3, 8, device=device), random(4, 4, device=device, grad=True)
    refused("cos", trope.torch.rotate_backward, x, cos=table, sin=table, **TABLE)
    refused("out", trope.torch.rotate, x, out=torch.empty_like(x), freqs=table, **TABLE)
    lazy = random(4, 2, 3, 8, device=device, dtype=torch.complex64).conj().imag
    with pytest.raises(trope.Error, match="negated"):
        trope.torch.rotate_(lazy, **PLAIN)


def test_offsets_on_the_meta_device_are_refused(device):
    x, cu_seqlens = random(5, 3, 8, device=device), torch.tensor([0, 1, 4], device=device)
    padded = torch.tensor([0, 2, 5], device=device)
    options = dict(layout="thd", pairing="half", inv_freq=INV_FREQ, padding="zero", cu_seqlens=cu_seqlens)
    trope.torch.rotate(x, cu_seqlens_padded=padded, **options)
    with pytest.raises(trope.Error, match="meta"):
        trope.torch.rotate(x, cu_seqlens_padded=padded.to("meta"), **options)


def test_one_shared_head_changes_nothing(device):
    x = random(5, 2, 3, 8, device=device)
    assert torch.equal(trope.torch.rotate(x, shared_heads=1, **PLAIN), trope.torch.rotate(x, **PLAIN))
    assert torch.equal(trope.torch.rotate_backward(x, shared_heads=1, **PLAIN), trope.torch.rotate_backward(x, **PLAIN))


def test_in_place_refuses_tensors_that_autograd_needs(device):
    x = random(5, 2, 3, 8, device=device, grad=True)
    refused("tensors[0]", trope.torch.rotate_, x, **PLAIN)
    refused("freqs", trope.torch.rotate_, x * 1, freqs=random(5, 4, device=device, grad=True), **TABLE)
    e = x.exp()
    trope.torch.rotate_(e, **PLAIN)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        e.sum().backward()
    parts = (x * 1).split(1, 2)
    kept = parts[0].detach().clone()
    with pytest.raises(trope.Error, match="multiple views"):
        trope.torch.rotate_(parts[0], **PLAIN)
    assert torch.equal(parts[0].detach(), kept)
    y = x.detach() * 1
    z = y.requires_grad_() * y
    with torch.no_grad():
        trope.torch.rotate_(y, **PLAIN)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_out_and_accumulate(device):
    x = random(5, 2, 3, 8, device=device)
    out = torch.full_like(x, float("nan"))
    assert trope.torch.rotate(x, out=out, **PLAIN) is out
    assert torch.equal(out, trope.torch.rotate(x, **PLAIN))
    dx = trope.torch.rotate_backward(x, **PLAIN)
    assert torch.equal(trope.torch.rotate_backward(x, out=torch.ones_like(x), accumulate=True, **PLAIN), 1 + dx)
    d_freqs = torch.empty(5, 4, device=device)
    freqs = random(5, 4, device=device, grad=True)
    y = trope.torch.rotate(x, freqs=freqs, **TABLE)
    y.backward(x)
    with torch.no_grad():
        trope.torch.rotate_backward(x, forward_src=x, d_freqs=d_freqs, freqs=freqs, **TABLE)
    assert torch.equal(d_freqs, freqs.grad)
    refused("out", trope.torch.rotate, x.clone().requires_grad_(), out=out, **PLAIN)
    refused("accumulate", trope.torch.rotate, x, accumulate=True, **PLAIN)


def test_checkpointing_and_deterministic_mode(device):
    from torch.utils.checkpoint import checkpoint

    x = random(64, 2, 4, 8, device=device, dtype=torch.bfloat16, grad=True)
    freqs = random(64, 4, device=device, grad=True)

    def block(x, freqs):
        return trope.torch.rotate(x, freqs=freqs, **TABLE).sin()

    wanted = torch.autograd.grad(block(x, freqs).float().square().sum(), (x, freqs))
    for reentrant in (False, True):
        got = torch.autograd.grad(checkpoint(block, x, freqs, use_reentrant=False).float().square().sum(), (x, freqs))
        assert all(torch.equal(a, b) for a, b in zip(wanted, got))
    torch.use_deterministic_algorithms(True)
    try:
        got = torch.autograd.grad(block(x, freqs).float().square().sum(), (x, freqs))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(wanted, got))


def test_views_of_a_flat_buffer(device):
    flat = random(2 * 5 * 2 * 3 * 8, device=device, grad=True)
    q, k = (part.view(5, 2, 3, 8) for part in flat.chunk(2))
    y, z = trope.torch.rotate(q, k, **PLAIN)
    (y.sum() + 2 * z.sum()).backward()
    ones = trope.torch.rotate_backward(torch.ones(5, 2, 3, 8, device=device), **PLAIN)
    torch.testing.assert_close(flat.grad, torch.cat((ones.flatten(), 2 * ones.flatten())))


def test_module(device):
    config = dict(
        model_type="llama", rope_theta=10000.0, hidden_size=64, num_attention_heads=8, max_position_embeddings=128
    )
    module = trope.torch.RotaryEmbedding(config, layout="bhsd", pairing="half").to(device)
    q, k = random(2, 4, 9, 8, device=device), random(2, 2, 9, 8, device=device)
    y, z = module(q, k, position_ids=torch.arange(3, 12, device=device))
    coefficients = of_angles(angles_of(range(3, 12), trope.frequencies(config).inv_freq))
    expected = rotate(q.transpose(1, 2).cpu().numpy(), coefficients, "half")
    torch.testing.assert_close(y.transpose(1, 2).cpu().double(), torch.from_numpy(expected), atol=1e-6, rtol=1e-5)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(q, k, position_ids=torch.arange(3, 12, device=device))[1], z)
    assert not module.state_dict() and "rotary_dim=8" in repr(module)
    learned = trope.torch.RotaryEmbedding(config, layout="bhsd", pairing="half", learned=True).to(device)
    torch.testing.assert_close(learned(q, k)[0], module(q, k)[0])
    learned(q, k)[0].square().mul(q).sum().backward()
    assert list(learned.state_dict()) == ["inv_freq"] and learned.inv_freq.grad.abs().sum() > 0


def test_refusals(device):
    """Refusals that only torch tensors can cause. test_arguments.py tests the values of each option."""
    x, rotate, d_inv_freq = random(5, 2, 3, 8, device=device), trope.torch.rotate, torch.empty(4).double().to(device)
    refused("inv_freq", rotate, x, **dict(PLAIN, inv_freq=random(4, device="meta")))
    refused("start_positions", rotate, x.to("meta"), start_positions=torch.zeros(2, dtype=torch.int32), **PLAIN)
    refused("stream", trope.rotate, x, stream=1, **PLAIN)
    refused("max_position", rotate, x, max_position=9, **PLAIN)
    refused("accumulate", trope.torch.rotate_backward, x, forward_src=x, d_inv_freq=d_inv_freq, accumulate=True, **PLAIN)


def test_many_threads(device):
    import concurrent.futures

    xs = [random(16, 2, 3, 8, device=device, seed=seed, grad=True) for seed in range(4)]
    wanted = [torch.autograd.grad(trope.torch.rotate(x, **PLAIN).square().sum(), x)[0] for x in xs]

    def work(i):
        return torch.equal(
            torch.autograd.grad(trope.torch.rotate(xs[i % 4], **PLAIN).square().sum(), xs[i % 4])[0], wanted[i % 4]
        )

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))


def test_nothing_leaks(device):
    x = random(16, 2, 3, 8, device=device, grad=True)
    for _ in range(3):
        trope.torch.rotate(x, **PLAIN).sum().backward()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(50):
        trope.torch.rotate(x, **PLAIN).sum().backward()
    gc.collect()
    assert len(gc.get_objects()) - before < 50


def needs_cuda(device):
    if device != "cuda":
        pytest.skip("CUDA only")


def test_graph_of_forward_and_backward(device):
    needs_cuda(device)
    x = random(256, 2, 8, 128, device=device, dtype=torch.bfloat16, grad=True)
    freqs, cu_seqlens = random(256, 64, device=device, grad=True), torch.tensor([0, 100, 512], device=device).int()
    options = dict(TABLE, layout="thd", freqs=freqs, cu_seqlens=cu_seqlens, padding="zero", out_of_range="clamp")

    def step():
        y = trope.torch.rotate(x.flatten(0, 1), **options)
        return (y, *torch.autograd.grad(y.float().square().sum() + y.float().sum(), (x, freqs)))

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        x.copy_(random(256, 2, 8, 128, device=device, seed=5))
        cu_seqlens.copy_(torch.tensor([0, 7, 500]))
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, step()))


def test_side_streams(device):
    needs_cuda(device)
    side = torch.cuda.Stream()
    x = random(1024, 4, 8, 128, device=device)
    wanted = trope.torch.rotate(x, **dict(PLAIN, rotary_dim=8))
    torch.cuda.synchronize()
    results = []
    for _ in range(20):
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            torch.cuda._sleep(2000000)
            mine = x
        temporary = x.clone()
        side.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(side):
            results.append(trope.torch.rotate(temporary, **dict(PLAIN, rotary_dim=8)))
        del temporary
        # Without record_stream, this new tensor would get the memory that the side stream still reads.
        torch.full_like(x, float("nan"))
        del mine
    torch.cuda.synchronize()
    assert all(torch.equal(result, wanted) for result in results)


def test_device_of_the_tensors(device):
    needs_cuda(device)
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x = random(64, 2, 3, 8, device="cuda:1", grad=True)
    with torch.cuda.device(0):
        y = trope.torch.rotate(x, **PLAIN)
        y.sum().backward()
    assert y.device == x.device and torch.equal(y.cpu(), trope.torch.rotate(x.detach().cpu(), **PLAIN))
    refused("tensors[1]", trope.torch.rotate, x, x.detach().to("cuda:0"), **PLAIN)
