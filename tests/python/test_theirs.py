"""Compares trope.flash_attn and trope.liger with flash-attention and Liger Kernel, if these are installed. Their kernels
need a GPU."""

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("the kernels of flash-attention and Liger need a GPU", allow_module_level=True)

import reference  # noqa: E402
from checks import HALF_UNIT, as_list, random  # noqa: E402
from trope import flash_attn, liger  # noqa: E402

LOW = (torch.bfloat16, torch.float16)
by_pairing = pytest.mark.parametrize("interleaved", [False, True])


def on_gpu(*shape, dtype=torch.float32):
    return random(*shape, dtype=dtype, device="cuda")


def halves(*shape, dtype=torch.float32):
    """Returns random cos and sin with both halves of the columns equal, as models have them."""
    return [torch.cat([on_gpu(*shape, dtype=dtype)] * 2, -1) for _ in range(2)]


def compare(mine, theirs, inputs, selected=None):
    """Compares results and gradients. Each function gets copies of random upstream gradients, because it may overwrite
    them. Results may differ in the last bit, because fp32 operations may be fused in another way. selected: 16-bit tables
    [batch, seq, head_dim] for inputs [batch, heads, seq, head_dim]. With these tables, Liger computes in 16 bits, and the
    bound also allows a rounding of each product."""
    upstream, found = [torch.randn_like(x) for x in inputs], []
    for function in (mine, theirs):
        leaves = [x.clone().requires_grad_() for x in inputs]
        results = as_list(function(*(leaf * 1 for leaf in leaves)))
        torch.autograd.backward(results, [dy.clone() for dy in upstream])
        found.append([*(y.detach() for y in results), *(leaf.grad for leaf in leaves)])
    for y, z, x in zip(*found, [*inputs, *upstream]):
        bound = 2 * HALF_UNIT[y.dtype] * z.double().abs() + 2.0**-20
        if selected is not None:
            c1, s1, c2, s2 = reference.of_table(*(t.double().abs() for t in selected), "half")
            products = reference.rotate(x.double().abs().transpose(1, 2), (c1, -s1, c2, s2), "half").transpose(1, 2)
            bound += HALF_UNIT[y.dtype] * products
        assert ((y.double() - z.double()).abs() <= bound).all()


# ---- flash-attention ----


@pytest.fixture
def rotary():
    return pytest.importorskip("flash_attn.layers.rotary")


@by_pairing
@pytest.mark.parametrize("dtype", [torch.float32, *LOW])
@pytest.mark.parametrize("inplace", [False, True])
def test_apply_rotary_emb(rotary, interleaved, dtype, inplace):
    tables = on_gpu(80, 16, dtype=dtype), on_gpu(80, 16, dtype=dtype)
    words = *tables, interleaved, inplace, torch.tensor([11, 40], device="cuda")
    functions = [lambda x, m=module: m.apply_rotary_emb(x, *words) for module in (flash_attn, rotary)]
    compare(*functions, [on_gpu(2, 37, 3, 64, dtype=dtype)])


@by_pairing
def test_packed_sequences(rotary, interleaved):
    tables = on_gpu(30, 32, dtype=torch.bfloat16), on_gpu(30, 32, dtype=torch.bfloat16)
    words = *tables, interleaved, False, 0, torch.tensor([0, 20, 20, 50], dtype=torch.int32, device="cuda"), 30
    functions = [lambda x, m=module: m.apply_rotary_emb(x, *words) for module in (flash_attn, rotary)]
    compare(*functions, [on_gpu(50, 3, 64, dtype=torch.bfloat16)])


@pytest.mark.parametrize("heads, words", [((3, 4), {}), ((8,), dict(num_heads_q=4))])
def test_modules(rotary, heads, words):
    modules = [module.RotaryEmbedding(32, device="cuda") for module in (flash_attn, rotary)]
    functions = [lambda qkv, m=module: m(qkv, seqlen_offset=5, **words) for module in modules]
    compare(*functions, [on_gpu(2, 37, *heads, 64, dtype=torch.bfloat16)])


# ---- Liger Kernel ----


@pytest.fixture
def functional():
    return pytest.importorskip("liger_kernel.transformers.functional")


def make_qk(dtype):
    """Returns q and k as models have them: views of (batch, tokens, heads, head_dim)."""
    return [on_gpu(2, 37, heads, 64, dtype=dtype).transpose(1, 2) for heads in (8, 2)]


@pytest.mark.parametrize("dtype, table", [(torch.float32, torch.float32), (torch.bfloat16, torch.float32)]
                         + [(dtype, dtype) for dtype in LOW])  # fmt: skip
def test_rope(functional, dtype, table):
    tables = halves(2, 37, 32, dtype=table)
    functions = [lambda q, k, m=module: m.liger_rope(q, k, *tables) for module in (liger, functional)]
    compare(*functions, make_qk(dtype), tables if table in LOW else None)


@pytest.mark.parametrize("table", [torch.float32, torch.bfloat16])
def test_multimodal(functional, table):
    tables, sections = halves(3, 2, 37, 32, dtype=table), [8, 12, 12]
    axes = reference.axes_of_pairs("sections", sections) * 2
    selected = [torch.stack([t[axis, ..., i] for i, axis in enumerate(axes)], -1) for t in tables]
    functions = [lambda q, k, m=module: m.liger_qwen2vl_mrope(q, k, *tables, sections) for module in (liger, functional)]
    compare(*functions, make_qk(torch.bfloat16), selected if table in LOW else None)


def test_llama4_and_vision(functional):
    from liger_kernel.transformers import llama4_rope, rope

    table, name = torch.complex(on_gpu(1, 37, 32), on_gpu(1, 37, 32)), "liger_llama4_text_rotary_pos_emb"
    functions = [lambda q, k, m=module: getattr(m, name)(q, k, table) for module in (liger, llama4_rope)]
    for dtype in (torch.float32, torch.bfloat16):
        compare(*functions, [on_gpu(2, 37, heads, 64, dtype=dtype) for heads in (8, 2)])
    tables = halves(37, 32)
    functions = [lambda q, k, m=module: m.liger_rotary_pos_emb_vision(q, k, *tables) for module in (liger, rope)]
    compare(*functions, [on_gpu(37, 8, 64, dtype=torch.bfloat16) for _ in "qk"])
