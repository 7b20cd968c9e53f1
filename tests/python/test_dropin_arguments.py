"""Arguments of the drop-in modules: each parameter of each public function refuses wrong types, shapes and values with a
trope.Error that names the parameter as the function does. The table is in dropins.py."""

import re
import types

import pytest

torch = pytest.importorskip("torch")

import trope  # noqa: E402
from dropins import (  # noqa: E402
    CONFIG, INT, MODULES, NOPE, ROWS, B, D, Group, H, R, S, call, find_function, find_parameters, ints, randn, refused_row,
)  # fmt: skip
from refusals import refused  # noqa: E402
from trope import megatron, transformers  # noqa: E402


def test_the_table_has_all_public_names():
    names = {"%s.%s" % (name, public) for name, module in MODULES.items() for public in module.__all__}
    assert names <= ROWS.keys()


@pytest.mark.parametrize("name", [name for name in ROWS if ROWS[name][0] and " " not in name])
def test_the_table_has_all_parameters(name):
    parameters = find_parameters(find_function(name))
    assert sorted(parameters) == sorted(ROWS[name][1]) == sorted(ROWS[name][0]())


CASES = [(name, parameter) for name in ROWS for parameter in ROWS[name][1] if " " not in parameter]


@pytest.mark.parametrize("name, parameter", CASES)
def test_wrong_arguments_are_refused(name, parameter):
    torch.manual_seed(3)
    call(find_function(name), ROWS[name][0]())
    for wrong in ROWS[name][1][parameter]:
        refused_row(name, parameter, wrong)


def test_index_tensors_of_other_dtypes_are_refused():
    for name, parameter in CASES:
        valid = ROWS[name][0]()
        if torch.is_tensor(valid.get(parameter)) and valid[parameter].dtype == INT:
            for dtype in (torch.int16, torch.uint8, torch.float32, torch.bool):
                error = refused_row(name, parameter, lambda t, dtype=dtype: t.to(dtype))
                assert "int32 or int64" in str(error)


# ---- Arguments that are valid alone but not together ----


def tables(*shape, names=("cos", "sin")):
    return {name: randn(*shape) for name in names}


# (row, changed arguments, argument that the error names, words of the error)
TOGETHER = [
    ("apex.backward_2d", dict(output_grads=randn(B, 2, 3, H, 6)), "output_grads", "head_dim 6, and its halves must be even"),
    ("apex.forward_2d", dict(sin_h=randn(1, S, 1, D // 2).bfloat16()), "sin_h", "dtype"),
    ("apex.fused_apply_rotary_pos_emb_2d", dict(img_w=2), "t", "6 tokens, but the image has 2 x 2"),
    ("flash_attn.apply_rotary_emb", dict(tables(5, 2), seqlen_offsets=0), "cos", "too few for seqlen 6"),
    ("flash_attn.apply_rotary_emb packed", tables(3, 2), "cos", "too few for max_seqlen 4"),
    ("flash_attn.apply_rotary_emb_qkv_", dict(tables(3, 2, names=("cos_k", "sin_k")), seqlen_offsets=0), "cos_k", "too few"),
    ("flash_attn.apply_rotary_emb_qkv_ by heads",
     dict(qkv=randn(S, B, 32).transpose(0, 1), num_heads_q=2, cu_seqlens=ints(0, 2 * S)), "qkv", "to be one dimension"),
    ("flash_attn.RotaryEmbedding.forward", dict(max_seqlen=None), "max_seqlen", "seqlen_offset is a tensor"),
    ("liger.liger_rotary_pos_emb", dict(tables(B, S, 3), rotary_dim=8), "cos", "rotary_dim / 2 is 4"),
    ("liger.liger_rotary_pos_emb", dict(tables(B, S, 3), rotary_dim=None), "cos", "must be even"),
    ("liger.liger_rotary_pos_emb", tables(B, S - 1, R), "cos", "5 rows .* for 6 tokens"),
    ("liger.liger_rotary_pos_emb", tables(3, S, R), "cos", "has batch 3 .* but q has 2"),
    ("liger.liger_rotary_pos_emb_vision", tables(S - 1, D), "cos", "5 rows .* for 6 tokens"),
    ("liger.liger_multimodal_rotary_pos_emb", dict(tables(3, B, S, 6), mrope_section=[1, 1, 1]), "cos", "head_dim is 8"),
    ("liger.liger_llama4_text_rotary_pos_emb", dict(xk=randn(B, S, 1, D).bfloat16()), "xk", "dtype"),
    ("liger.liger_llama4_text_rotary_pos_emb", dict(freqs_cis=torch.ones(3, S, 4) * 1j), "freqs_cis", "has batch 3 .* xq has 2"),
    ("liger.liger_llama4_vision_rotary_pos_emb", dict(key=randn(B, S - 1, 1, D)), "key", "seq 5, but query has 6"),
    ("megatron.apply_rotary_pos_emb", dict(t=randn(H, D)), "t", "which is not"),
    ("megatron.apply_rotary_pos_emb", dict(config=types.SimpleNamespace(rotary_interleaved=True, multi_latent_attention=False)),
     "mla_rotary_interleaved", "both True"),
    ("megatron.apply_rotary_pos_emb thd", dict(cu_seqlens=ints(0, 6, 12), cp_group=Group(2, 0)), "cu_seqlens", "divisible by 4"),
    ("megatron.fused_mla_rope_out_of_place", dict(nope_dim=NOPE + 2), "t", r"nope_dim \+ emb_dim is 10"),
    ("megatron.fused_mla_rope_out_of_place", dict(position_ids=ints(*range(S))), "position_ids", "cu_seqlens_q is missing"),
    ("megatron.fused_mla_rope_kv_split", dict(v_dim=NOPE + 1), "kv", r"k_dim \+ v_dim is 13"),
    ("transformer_engine.apply_rotary_pos_emb", dict(t=randn(S - 1, B, H, D), cp_size=2), "t", "must be divisible by 4"),
    ("transformer_engine.apply_rotary_pos_emb thd", dict(cu_seqlens=ints(0, 6, 12), cp_size=2), "cu_seqlens", "divisible by 4"),
    ("transformer_engine.apply_rotary_pos_emb thd", dict(freqs=randn(S, 2, 1, R)), "freqs", "thd has no batch"),
    ("transformer_engine.apply_fused_qkv_rotary_pos_emb", dict(q_freqs=randn(5, 1, 1, R), start_positions=None), "q_freqs",
     "5 rows for 6 positions"),
    ("transformer_engine.apply_fused_qkv_rotary_pos_emb", dict(k_freqs=randn(5, 1, 1, R), start_positions=None), "k_freqs",
     "5 rows for 6 positions"),
]  # fmt: skip


@pytest.mark.parametrize("name, changes, argument, words", TOGETHER, ids=lambda v: v if isinstance(v, str) else "")
def test_arguments_that_do_not_fit_together_are_refused(name, changes, argument, words):
    given = ROWS[name][0]()
    assert changes.keys() <= given.keys() | set(find_parameters(find_function(name)))
    refused(argument, call, find_function(name), {**given, **changes}, words=words)


# ---- patch ----


@pytest.mark.parametrize("wrong, words", [
    (None, "not None"), (3, "not 3"), ("meta-llama/Llama-3.1-8B", "not the text"), (torch.nn.Linear, "the class Linear"),
    (types.SimpleNamespace(model_type="llama"), "not a config"), ([], "not []"),
])  # fmt: skip
def test_patch_refuses_objects_that_are_not_models(wrong, words):
    refused("model", transformers.patch, wrong, words=re.escape(words))


def test_patch_of_megatron_takes_no_model_or_config():
    for args, kwargs in (((CONFIG,), {}), ((None,), {}), ((), dict(config=CONFIG))):
        with pytest.raises(trope.Error, match="patch takes only the argument"):
            megatron.patch(*args, **kwargs)
