"""Modules of the drop-in libraries that hold frequencies: casts, devices and checkpoints."""

import copy
import types

import pytest

torch = pytest.importorskip("torch")

import trope  # noqa: E402
from checks import DEVICE  # noqa: E402
from dropins import B, D, H, R, S, randn  # noqa: E402
from trope import flash_attn, transformer_engine  # noqa: E402

pytestmark = pytest.mark.usefixtures("default_device")


def flash_table(module, dtype=torch.float32, rows=5000):
    module._update_cos_sin_cache(rows, torch.device(DEVICE), dtype)
    return module._cos_cached


def engine_table(module):
    return module(5000)


MAKERS = {
    "flash_attn": (lambda: flash_attn.RotaryEmbedding(R, base=500.0), flash_table),
    "transformer_engine": (lambda: transformer_engine.RotaryPositionEmbedding(D, 0.5, rotary_base=500.0), engine_table),
}


@pytest.fixture(params=MAKERS)
def kind(request):
    return types.SimpleNamespace(make=MAKERS[request.param][0], table=MAKERS[request.param][1])


def test_modules_that_leave_the_meta_device(kind):
    right = kind.make()
    for leave in (
        lambda module: module.to_empty(device=right.inv_freq.device),
        lambda module: torch.nn.Sequential(module).to_empty(device=right.inv_freq.device)[0],
    ):
        with torch.device("meta"):
            module = kind.make()
        assert module.inv_freq.is_meta
        module = leave(module)
        assert torch.equal(module.inv_freq, right.inv_freq) and torch.equal(kind.table(module), kind.table(right))


def test_modules_that_are_reset(kind):
    module = kind.make()
    right, table = module.inv_freq.clone(), kind.table(module)
    module.inv_freq.fill_(7)
    module.reset_parameters()
    assert torch.equal(module.inv_freq, right) and torch.equal(kind.table(module), table)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_casts_lose_no_precision(kind, dtype):
    module, right = kind.make(), kind.make()
    expected = kind.table(right)
    for cast in (lambda m: m.to(dtype), lambda m: torch.nn.Sequential(m).to(dtype)[0], lambda m: m.to(dtype).float(),
                 lambda m: copy.deepcopy(m).to(DEVICE, dtype)):  # fmt: skip
        assert torch.equal(kind.table(cast(kind.make())).to(expected.device), expected)
    assert torch.equal(kind.table(module.to(dtype)), expected)
    assert transformer_engine.RotaryPositionEmbedding(D).to(dtype).inv_freq.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_default_dtype_loses_no_precision(kind, dtype):
    expected = kind.table(kind.make())
    torch.set_default_dtype(dtype)
    try:
        module = kind.make()
        table = kind.table(module)
    finally:
        torch.set_default_dtype(torch.float32)
    assert module.inv_freq.dtype == torch.float32 and torch.equal(table, expected)


def test_a_buffer_that_was_cast_by_hand():
    """FSDP casts buffers to its buffer_dtype. flash_attn's module recomputes its frequencies. transformer_engine's module
    refuses the cast frequencies."""
    module = flash_attn.RotaryEmbedding(R)
    module.inv_freq = module.inv_freq.bfloat16()
    assert torch.equal(flash_table(module), flash_table(flash_attn.RotaryEmbedding(R)))
    module = transformer_engine.RotaryPositionEmbedding(R)
    module.inv_freq = module.inv_freq.bfloat16()
    with pytest.raises(trope.Error, match="inv_freq has dtype torch.bfloat16"):
        module(4)


def test_positions_in_the_dtype_of_a_cast_model():
    """With pos_idx_in_fp32=False, the tables are computed as in flash-attention."""
    for dtype in (torch.bfloat16, torch.float16):
        module = flash_attn.RotaryEmbedding(R, pos_idx_in_fp32=False)
        flash_table(module)
        module = module.to(dtype)
        assert module.inv_freq.dtype == dtype
        positions = torch.arange(5000, dtype=dtype)
        assert torch.equal(
            flash_table(module),
            torch.outer(positions, module.inv_freq).cos().float(),
        )


def test_checkpoints_of_cast_models():
    """A checkpoint of a cast TransformerEngine module holds rounded frequencies, which are not loaded."""
    right = transformer_engine.RotaryPositionEmbedding(D)
    state = {"inv_freq": right.inv_freq.bfloat16()}
    module = transformer_engine.RotaryPositionEmbedding(D)
    module.load_state_dict(state)
    assert torch.equal(module.inv_freq, right.inv_freq) and state["inv_freq"].dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match="inv_freq has dtype torch.bfloat16"):
        transformer_engine.RotaryPositionEmbedding(D, rotary_base=77.0).load_state_dict(state)
    other = transformer_engine.RotaryPositionEmbedding(D, rotary_base=77.0)
    other.load_state_dict(right.state_dict())
    assert torch.equal(other.inv_freq, right.inv_freq)


def test_a_kv_longer_than_q_has_its_own_positions():
    module, q, kv = flash_attn.RotaryEmbedding(R), randn(B, 2, H, D), randn(B, S, 2, H, D)
    alone = module(kv.clone()[:, :, :1].expand(-1, -1, 3, -1, -1).clone())[:, :, 0]
    assert torch.equal(flash_attn.RotaryEmbedding(R)(q.clone(), kv.clone())[1][:, :, 0], alone)


def test_an_interpolation_factor_needs_the_pretrained_length():
    with pytest.raises(trope.Error) as caught:
        transformer_engine.RotaryPositionEmbedding(D, 1.0, 4.0)
    assert caught.value.argument == "pretrained_max_position_embeddings"
