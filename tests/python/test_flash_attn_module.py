"""RotaryEmbedding of trope.flash_attn compared with its formulas in float64: its tables, XPos, and casts."""

import pytest

torch = pytest.importorskip("torch")

from checks import assert_rounded, check, device, random  # noqa: E402, F401 (device is a fixture)
from refusals import refused  # noqa: E402
from test_flash_attn import by_pairing, formula, formula_of_heads, rows_of  # noqa: E402
from trope import flash_attn as fa  # noqa: E402


def tables_of(seqlen, dim, base, dtype, device):
    inv_freq = 1.0 / (float(base) ** (torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim))
    angles = torch.outer(torch.arange(seqlen, device=device, dtype=torch.float32), inv_freq)
    return torch.cos(angles).to(dtype), torch.sin(angles).to(dtype)


@by_pairing
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embedding_of_qkv(device, interleaved, dtype):
    module = fa.RotaryEmbedding(6, base=500.0, interleaved=interleaved, device=device)
    rows, qkv = rows_of(2, 4, 0, device), random(2, 4, 3, 2, 8, dtype=dtype, device=device)
    tables = [tables_of(7, 6, 500.0, dtype, device)] * 2
    y = module(qkv.clone()).flatten(2, 3)
    assert_rounded(y, formula_of_heads(qkv.double().flatten(2, 3), [2, 2, 2], tables, rows, interleaved))
    gqa = random(2, 4, 7, 8, dtype=dtype, device=device)
    y = module(gqa.clone(), seqlen_offset=3, num_heads_q=3)
    assert_rounded(y, formula_of_heads(gqa.double(), [3, 2, 2], tables, rows + 3, interleaved))


@pytest.mark.parametrize("offset", [0, 3, "tensor"])
def test_embedding_of_q_and_kv(device, offset):
    module, table = fa.RotaryEmbedding(8, device=device), tables_of(9, 8, 10000.0, torch.float32, device)
    offset = torch.tensor([5, 1], device=device) if offset == "tensor" else offset
    rows = rows_of(2, 4, offset, device)
    check(
        lambda q, kv: module(q, kv, seqlen_offset=offset, max_seqlen=9),
        [random(2, 4, 5, 8, device=device), random(2, 4, 2, 2, 8, device=device)],
        lambda q, kv: (formula(q, *table, rows), torch.stack((formula(kv[:, :, 0], *table, rows), kv[:, :, 1]), 2)),
        in_place=True,
    )


def test_embedding_keeps_its_tables():
    module = fa.RotaryEmbedding(8)
    module(random(1, 6, 3, 2, 8))
    kept = module._cos_cached
    module(random(1, 5, 3, 2, 8))
    assert module._cos_cached is kept and kept.shape == (6, 4)
    module(random(1, 5, 3, 2, 8), seqlen_offset=2)
    assert module._cos_cached.shape == (7, 4)
    module(random(1, 5, 3, 2, 8, dtype=torch.bfloat16))
    assert module._cos_cached.dtype == torch.bfloat16 and module._cos_cached.shape == (5, 4)
    assert module.state_dict() == {} and module.inv_freq.shape == (4,)


def test_embedding_from_inference_to_training():
    module, x = fa.RotaryEmbedding(8), random(1, 4, 3, 2, 8)
    with torch.inference_mode():
        module.eval()(x.clone())
    leaf = x.clone().requires_grad_()
    module.train()(leaf * 1).sum().backward()
    assert not module._cos_cached.is_inference() and torch.isfinite(leaf.grad).all()


# ---- XPos ----


def xpos_tables(seqlen, dim, scale_base, dtype, device):
    """The tables of q and of k, in float64 from the fp32 angles. With f = zeta ** ((p - c) / scale_base) and c = seqlen //
    2, q's cos and sin are multiplied by f, and k's are divided by f."""
    inv_freq = 1.0 / (10000.0 ** (torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim))
    angles = torch.outer(torch.arange(seqlen, device=device, dtype=torch.float32), inv_freq).double()
    zeta = (torch.arange(0, dim, 2, device=device).double() + 0.4 * dim) / (1.4 * dim)
    power = (torch.arange(seqlen, device=device).double() - seqlen // 2) / scale_base
    scale = zeta ** power[:, None]
    return [[(t * s).to(dtype) for t in (angles.cos(), angles.sin())] for s in (scale, 1 / scale)]


FP32_TABLES = 1e-5  # the tables are computed in fp32, and have elements up to 4


@by_pairing
@pytest.mark.parametrize("scale_base", [512, 3.0])
def test_xpos_of_qkv(device, interleaved, scale_base):
    module = fa.RotaryEmbedding(6, interleaved=interleaved, scale_base=scale_base, device=device)
    tables, rows = xpos_tables(11, 6, scale_base, torch.float32, device), rows_of(2, 4, 2, device)
    check(
        lambda qkv: module(qkv, seqlen_offset=2, max_seqlen=11, num_heads_q=3),
        random(2, 4, 7, 8, device=device),
        lambda qkv: formula_of_heads(qkv, [3, 2, 2], tables, rows, interleaved),
        slack=FP32_TABLES,
        in_place=True,
    )


def test_xpos_of_q_and_kv(device):
    module, rows = fa.RotaryEmbedding(8, scale_base=4, device=device), rows_of(2, 5, 0, device)
    q_table, k_table = xpos_tables(5, 8, 4, torch.float32, device)
    check(
        lambda q, kv: module(q.clone(), kv.clone()),
        [random(2, 5, 3, 8, device=device), random(2, 5, 2, 2, 8, device=device)],
        lambda q, kv: (formula(q, *q_table, rows), torch.stack((formula(kv[:, :, 0], *k_table, rows), kv[:, :, 1]), 2)),
        slack=FP32_TABLES,
    )


def test_xpos_depends_on_distances_alone():
    """The product of q at position m and k at position n depends only on m - n, since the rest of the scales cancels."""
    module = fa.RotaryEmbedding(8, scale_base=16)
    q, k = random(1, 1, 1, 8).expand(1, 40, 1, 8), random(1, 1, 1, 8).expand(1, 40, 1, 8)
    rotated = module(torch.stack((q, k, k), 2).clone())
    scores = torch.einsum("md,nd->mn", rotated[0, :, 0, 0].double(), rotated[0, :, 1, 0].double())
    for distance in (0, 3, 17):
        diagonal = scores.diagonal(-distance)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)


def test_xpos_of_a_cast_module():
    """Tables are computed in fp32, and rounded once."""
    qkv = random(1, 6, 3, 2, 8, dtype=torch.bfloat16)
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
    refused("scale_base", fa.RotaryEmbedding(8, scale_base=4), torch.zeros(1, rows, 3, 1, 8, dtype=dtype))
    module = fa.RotaryEmbedding(8, scale_base=4)
    module(torch.zeros(1, 60, 3, 1, 8, dtype=dtype))
    for table in (module._cos_cached, module._sin_cached, module._cos_k_cached, module._sin_k_cached):
        assert torch.isfinite(table).all()


def test_compile_of_xpos(device):
    module, qkv = fa.RotaryEmbedding(8, scale_base=4, device=device), random(2, 4, 3, 2, 8, device=device)
    torch._dynamo.reset()
    compiled = torch.compile(fa.RotaryEmbedding(8, scale_base=4, device=device), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(qkv.clone()), module(qkv.clone()), rtol=1e-5, atol=2e-6)
