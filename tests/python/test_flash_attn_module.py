"""RotaryEmbedding of trope.flash_attn against its formulas in float64: its tables, XPos, and casts."""

import pytest

torch = pytest.importorskip("torch")

from test_flash_attn import (  # noqa: E402
    by_device, by_pairing, expected, gradient, positions_of, rand, rotate_parts, same,
)  # fmt: skip

import trope  # noqa: E402
from trope import flash_attn as fa  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


def tables_of(seqlen, dim, base, dtype, device):
    inv_freq = 1.0 / (float(base) ** (torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim))
    angles = torch.outer(torch.arange(seqlen, device=device, dtype=torch.float32), inv_freq)
    return torch.cos(angles).to(dtype), torch.sin(angles).to(dtype)


@by_device
@by_pairing
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embedding_of_qkv(device, interleaved, dtype):
    module = fa.RotaryEmbedding(6, base=500.0, interleaved=interleaved, device=device)
    rows, qkv = positions_of(2, 4, 0, device), rand(2, 4, 3, 2, 8, dtype=dtype, device=device)
    table = tables_of(4, 6, 500.0, dtype, device)
    reference = rotate_parts(qkv.reshape(2, 4, 6, 8), [2, 2, 2], [table] * 2, interleaved, rows)
    assert same(module(qkv).reshape(2, 4, 6, 8), reference)
    gqa = rand(2, 4, 7, 8, dtype=dtype, device=device)
    table = tables_of(7, 6, 500.0, dtype, device)
    reference = rotate_parts(gqa, [3, 2, 2], [table] * 2, interleaved, rows + 3)
    assert same(module(gqa, seqlen_offset=3, num_heads_q=3), reference)


@by_device
@pytest.mark.parametrize("offset", [0, 3, "tensor"])
def test_embedding_of_q_and_kv(device, offset):
    module, table = fa.RotaryEmbedding(8, device=device), tables_of(9, 8, 10000.0, torch.float32, device)
    q, kv = rand(2, 4, 5, 8, device=device), rand(2, 4, 2, 2, 8, device=device)
    offset = torch.tensor([5, 1], device=device) if offset == "tensor" else offset
    rows = positions_of(2, 4, offset, device)
    references = expected(q, *table, False, rows), expected(kv[:, :, 0], *table, False, rows)
    leaves = q.clone().requires_grad_(), kv.clone().requires_grad_()
    new_q, new_kv = module(leaves[0] * 1, leaves[1] * 1, seqlen_offset=offset, max_seqlen=9)
    assert same(new_q, references[0]) and same(new_kv[:, :, 0], references[1]) and torch.equal(new_kv[:, :, 1], kv[:, :, 1])
    (new_q.sum() + new_kv.sum()).backward()
    ones = torch.ones_like(q)
    assert same(leaves[0].grad, gradient(lambda t: expected(t, *table, False, rows), q, ones))
    assert same(leaves[1].grad[:, :, 0], gradient(lambda t: expected(t, *table, False, rows), kv[:, :, 0], ones[:, :, :2]))
    assert torch.equal(leaves[1].grad[:, :, 1], torch.ones_like(kv[:, :, 1]))


def test_embedding_keeps_its_tables():
    module = fa.RotaryEmbedding(8)
    module(rand(1, 6, 3, 2, 8))
    kept = module._cos_cached
    module(rand(1, 5, 3, 2, 8))
    assert module._cos_cached is kept and kept.shape == (6, 4)
    module(rand(1, 5, 3, 2, 8), seqlen_offset=2)
    assert module._cos_cached.shape == (7, 4)
    module(rand(1, 5, 3, 2, 8, dtype=torch.bfloat16))
    assert module._cos_cached.dtype == torch.bfloat16 and module._cos_cached.shape == (5, 4)
    assert module.state_dict() == {} and module.inv_freq.shape == (4,)


def test_embedding_of_a_cast_model():
    """Frequencies in bfloat16 would be other ones; only positions and frequencies of older versions are."""
    module = fa.RotaryEmbedding(8).bfloat16()
    module._update_cos_sin_cache(300, torch.device("cpu"), torch.float32)
    assert torch.equal(module._cos_cached, tables_of(300, 8, 10000.0, torch.float32, "cpu")[0])
    older = fa.RotaryEmbedding(8, pos_idx_in_fp32=False).bfloat16()
    older._update_cos_sin_cache(300, torch.device("cpu"), torch.float32)
    positions = torch.arange(300, dtype=torch.bfloat16)
    assert torch.equal(older._cos_cached, torch.outer(positions, older.inv_freq).cos().float())


def test_embedding_from_inference_to_training():
    module, x = fa.RotaryEmbedding(8), rand(1, 4, 3, 2, 8)
    with torch.inference_mode():
        module.eval()(x.clone())
    leaf = x.clone().requires_grad_()
    module.train()(leaf * 1).sum().backward()
    assert not module._cos_cached.is_inference() and torch.isfinite(leaf.grad).all()


# ---- XPos ----


def xpos_tables(seqlen, dim, scale_base, dtype, device):
    """Of q and of k, in float64 from the fp32 angles: cos and sin times zeta ** ((p - c) / scale_base), and divided by it."""
    inv_freq = 1.0 / (10000.0 ** (torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim))
    angles = torch.outer(torch.arange(seqlen, device=device, dtype=torch.float32), inv_freq).double()
    zeta = (torch.arange(0, dim, 2, device=device).double() + 0.4 * dim) / (1.4 * dim)
    power = (torch.arange(seqlen, device=device).double() - seqlen // 2) / scale_base
    scale = zeta ** power[:, None]
    return [[(t * s).to(dtype) for t in (angles.cos(), angles.sin())] for s in (scale, 1 / scale)]


def near(y, z):
    """Equal but for the rounding of tables that are computed in fp32."""
    return torch.allclose(y.detach().double(), z.double(), rtol=1e-5, atol=2e-6)


@by_device
@by_pairing
@pytest.mark.parametrize("scale_base", [512, 3.0])
def test_xpos_of_qkv(device, interleaved, scale_base):
    module = fa.RotaryEmbedding(6, interleaved=interleaved, scale_base=scale_base, device=device)
    tables, rows = xpos_tables(11, 6, scale_base, torch.float32, device), positions_of(2, 4, 2, device)
    qkv, d = rand(2, 4, 7, 8, device=device), rand(2, 4, 7, 8, device=device)

    def reference(t):
        return rotate_parts(t, [3, 2, 2], tables, interleaved, rows)

    leaf = qkv.clone().requires_grad_()
    y = module(leaf * 1, seqlen_offset=2, max_seqlen=11, num_heads_q=3)
    assert near(y, reference(qkv)) and torch.equal(y[:, :, 5:], qkv[:, :, 5:])
    y.backward(d)
    assert near(leaf.grad, gradient(reference, qkv, d))


@by_device
def test_xpos_of_q_and_kv(device):
    module = fa.RotaryEmbedding(8, scale_base=4, device=device)
    (q_table, k_table), rows = xpos_tables(5, 8, 4, torch.float32, device), positions_of(2, 5, 0, device)
    q, kv = rand(2, 5, 3, 8, device=device), rand(2, 5, 2, 2, 8, device=device)
    new_q, new_kv = module(q.clone(), kv.clone())
    assert near(new_q, expected(q, *q_table, False, rows))
    assert near(new_kv[:, :, 0], expected(kv[:, :, 0], *k_table, False, rows)) and torch.equal(new_kv[:, :, 1], kv[:, :, 1])


def test_xpos_depends_on_distances_alone():
    """q of position m times k of position n, wherever both are: the scales cancel but for m - n."""
    module = fa.RotaryEmbedding(8, scale_base=16)
    q, k = rand(1, 1, 1, 8).expand(1, 40, 1, 8), rand(1, 1, 1, 8).expand(1, 40, 1, 8)
    rotated = module(torch.stack((q, k, k), 2).clone())
    scores = torch.einsum("md,nd->mn", rotated[0, :, 0, 0].double(), rotated[0, :, 1, 0].double())
    for distance in (0, 3, 17):
        diagonal = scores.diagonal(-distance)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)


def test_xpos_of_a_cast_module():
    """Tables are computed in fp32, and rounded once."""
    qkv = rand(1, 6, 3, 2, 8, dtype=torch.bfloat16)
    cast, right = fa.RotaryEmbedding(8, scale_base=4).bfloat16(), fa.RotaryEmbedding(8, scale_base=4)
    assert cast.scale.dtype == torch.float32 and cast.state_dict() == {}
    assert torch.equal(cast(qkv.clone()), right(qkv.clone()))
    cast.scale = cast.scale.bfloat16()  # as FSDP does with buffer_dtype
    cast._forget_tables()
    assert torch.equal(cast(qkv.clone()), right(qkv.clone()))
    with torch.device("meta"):
        module = fa.RotaryEmbedding(8, scale_base=4)
    assert torch.equal(module.to_empty(device="cpu")(qkv.clone()), right(qkv.clone()))


@pytest.mark.parametrize("dtype, rows", [(torch.float16, 80), (torch.float32, 600), (torch.bfloat16, 600)])
def test_xpos_beyond_the_range_of_a_dtype_is_refused(dtype, rows):
    """flash-attention's tables have infinity there."""
    with pytest.raises(trope.Error) as caught:
        fa.RotaryEmbedding(8, scale_base=4)(torch.zeros(1, rows, 3, 1, 8, dtype=dtype))
    assert caught.value.argument == "scale_base"
    module = fa.RotaryEmbedding(8, scale_base=4)
    module(torch.zeros(1, 60, 3, 1, 8, dtype=dtype))
    for table in (module._cos_cached, module._sin_cached, module._cos_k_cached, module._sin_k_cached):
        assert torch.isfinite(table).all()


@by_device
def test_compile_of_xpos(device):
    module, qkv = fa.RotaryEmbedding(8, scale_base=4, device=device), rand(2, 4, 3, 2, 8, device=device)
    torch._dynamo.reset()
    compiled = torch.compile(fa.RotaryEmbedding(8, scale_base=4, device=device), backend="aot_eager", fullgraph=True)
    assert near(compiled(qkv.clone()), module(qkv.clone()))
