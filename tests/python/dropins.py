"""A table of the public functions of all drop-in modules, with valid arguments for each function and wrong values for each
parameter. Helper functions find, call and check them."""

import inspect
import re
import types
import warnings

import numpy
import pytest

torch = pytest.importorskip("torch")

import trope  # noqa: E402
from trope import apex, flash_attn, liger, megatron, transformer_engine, transformers  # noqa: E402

MODULES = dict(
    apex=apex, flash_attn=flash_attn, liger=liger, megatron=megatron, transformer_engine=transformer_engine,
    transformers=transformers,
)  # fmt: skip
S, B, H, D, R = 6, 2, 3, 8, 4  # tokens, batch, heads, head_dim, rotary_dim
INT = torch.int32

# Names that an error message must not contain: names of the C library (FOREIGN), and parameters of trope.torch.rotate that
# the called function does not have (OF_ROTATE).
FOREIGN = re.compile(
    r"operands?\[|operand_count|trope_|angle_|_stride\b|_layout\b|\bphase_step|\bTROPE_(?!ERROR)|\bNULL\b|\bids_|\bsrc\b|\bdst\b"
)
OF_ROTATE = ("tensors", "tensors[0]", "tensors[1]", "start_positions", "rotary_dim", "rotary_offset", "pair_axis",
             "inv_freq", "layout", "pairing", "angle_columns", "rounding", "cos", "sin", "freqs", "position_ids",
             "cu_seqlens", "cp_size", "cp_rank", "shared_heads", "mscale", "out", "sections")  # fmt: skip


def randn(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def ints(*values, dtype=INT):
    return torch.tensor(values, dtype=dtype)


def nested(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([x.detach(), x.detach()])


# ---- Wrong values: each is a value, or a function that makes one from a valid value ----

NO_TENSOR = [None, 3, "text", [1.0, 2.0], lambda t: t.detach().resolve_conj().numpy(), lambda t: t.to_sparse(), nested]
FLOATS = [*NO_TENSOR, lambda t: t.to("meta"), lambda t: t.int(), lambda t: t[0], lambda t: t.unsqueeze(0).unsqueeze(0)]
NO_INDICES = [3, "text", [0, 1], lambda t: t.numpy(), lambda t: t.float(), lambda t: t.bool(), lambda t: t.to(torch.int16),
              lambda t: t.to(torch.uint8), lambda t: t[None], lambda t: t.to("meta"), lambda t: t[:0]]  # fmt: skip
FLAG = [None, 1, 0, "yes", [True], lambda v: torch.tensor(v), numpy.bool_(True)]
NO_INTEGER = ["2", 2.5, True, [1], numpy.float32(1), 2**70]
INTEGER = [None, *NO_INTEGER]
NUMBER = [None, "1", True, [1.0], float("nan"), float("inf"), 1j]


def narrow(t):
    return t[..., : t.shape[-1] // 2]


def odd(t):
    return t[..., :-1]


def wide(t):
    return torch.cat([t] * 4, -1)


def wrong_dtype(t):
    return t.bfloat16()


def few_rows(t):
    return t[:-1]


def learned(t):
    return t.clone().requires_grad_()


class Group:
    def __init__(self, size=1, rank=0):
        self.size, self.rank = (lambda: size), (lambda: rank)


GROUPS = [3, "text", object(), Group, Group(0), Group(2, 2), Group(2, -1), Group("2", 0), Group(2.0, 0)]
OF_CU = [*NO_INDICES, ints(0, S + 1), ints(0, 4, 3, S), ints(-1, S), ints(0, S)[::2].expand(2)]
WORDS = [None, 3, "bhsd", ["sbhd"]]
SPLITS = [None, 3, "text", [8, 8], [16, 8, 0], [12, 8, 8], [-16, 8, 8], [16.0, 8, 8], [16, 8, 12], [True, 8, 8]]
COMPLEX = [*NO_TENSOR, lambda t: t.real, lambda t: t.to(torch.complex128), lambda t: t[0, 0], odd, wide, learned,
           lambda t: t.to("meta"), few_rows]  # fmt: skip


def freqs_of(rows=S, columns=R):
    return randn(rows, 1, 1, columns)


def sbhd(**more):
    return dict(t=randn(S, B, H, D), **more)


# ---- The table: {name: (a function that makes valid arguments, {parameter: wrong values})} ----

ROWS = {}


def row(name, make, **wrong):
    ROWS[name] = make, wrong


for x, direction in (("input", "forward"), ("output_grads", "backward")):
    tables = [*FLOATS, few_rows, odd, wide, freqs_of(S + 1)]
    row("apex." + direction, lambda x=x: {x: randn(S, B, H, D), "freqs": freqs_of(), "transpose_output": False},
        **{x: FLOATS}, freqs=[*tables, lambda t: t.double()], transpose_output=FLAG)  # fmt: skip
    row("apex.%s_cached" % direction,
        lambda x=x: {x: randn(S, B, H, D), "cos": freqs_of(), "sin": freqs_of(), "transpose_output": True},
        **{x: FLOATS}, cos=tables, sin=[*tables, narrow, wrong_dtype], transpose_output=FLAG)  # fmt: skip
    row("apex.%s_thd" % direction,
        lambda x=x: {x: randn(S, H, D), "cu_seqlens": ints(0, 2, S), "freqs": freqs_of()},
        **{x: FLOATS}, cu_seqlens=[None, *OF_CU], freqs=[*FLOATS, odd, wide, lambda t: t[:1]])  # fmt: skip
    names = "cos_h", "sin_h", "cos_w", "sin_w"
    of_images = [*FLOATS, odd, narrow, lambda t: t[:, :1], lambda t: t.expand(B, -1, -1, -1)]
    row("apex.%s_2d" % direction,
        lambda x=x: {x: randn(B, 2, 3, H, D), **{name: randn(1, S, 1, D // 2) for name in names}},
        **{x: FLOATS}, **{name: of_images for name in names})  # fmt: skip
tables = [*tables, learned]
row("apex.fused_apply_rotary_pos_emb", lambda: sbhd(freqs=freqs_of(), transpose_output_memory=False), t=FLOATS,
    freqs=tables, transpose_output_memory=FLAG)  # fmt: skip
row("apex.fused_apply_rotary_pos_emb_cached",
    lambda: sbhd(cos_=freqs_of(), sin_=freqs_of(), transpose_output_memory=False),
    t=FLOATS, cos_=tables, sin_=[*tables, wrong_dtype], transpose_output_memory=FLAG)  # fmt: skip
row("apex.fused_apply_rotary_pos_emb_thd", lambda: dict(t=randn(S, H, D), cu_seqlens=ints(0, S), freqs=freqs_of()),
    t=FLOATS, cu_seqlens=[None, *OF_CU], freqs=[*FLOATS, odd, wide, learned, few_rows])  # fmt: skip
row("apex.fused_apply_rotary_pos_emb_2d",
    lambda: dict(t=randn(B, S, H, D), img_h=2, img_w=3, **{name: randn(1, 3, 1, D // 2) for name in names}),
    t=FLOATS, img_h=[*INTEGER, 0, -2], img_w=[*INTEGER, 0, -3], **{name: [*of_images, learned] for name in names})  # fmt: skip


# flash_attn

FA = [*FLOATS, few_rows, odd, wide, learned, lambda t: t.double()]  # for tables [S, R / 2]
OFFSETS = [*NO_INTEGER, -1, 1, *NO_INDICES[3:-1], ints(0), ints(0, 1), ints(-1, 0)]
LIKE_X = dict(
    cos=FA, sin=[*FA, wrong_dtype], interleaved=FLAG, inplace=FLAG, seqlen_offsets=OFFSETS, max_seqlen=[*NO_INTEGER, -1]
)


def of_x():
    return dict(x=randn(B, S, H, D), cos=randn(S, R // 2), sin=randn(S, R // 2), interleaved=False, inplace=False,
                seqlen_offsets=ints(0, 0), cu_seqlens=None, max_seqlen=None)  # fmt: skip


def of_packed_x():
    return dict(of_x(), x=randn(S, H, D), seqlen_offsets=0, cu_seqlens=ints(0, 2, S), max_seqlen=4)


for name in ("apply_rotary_emb", "apply_rotary_emb_func", "ApplyRotaryEmb"):
    row("flash_attn." + name, of_x, x=FLOATS, cu_seqlens=NO_INDICES[:3], **LIKE_X)
    row("flash_attn.%s packed" % name, of_packed_x, x=FLOATS, cu_seqlens=OF_CU, max_seqlen=NO_INTEGER)
row("flash_attn.apply_rotary", lambda: dict(of_x(), conjugate=False), x=FLOATS, cu_seqlens=NO_INDICES[:3], conjugate=FLAG,
    **LIKE_X)  # fmt: skip
row("flash_attn.apply_rotary packed", of_packed_x, x=FLOATS, cu_seqlens=OF_CU, max_seqlen=NO_INTEGER)
row("flash_attn.apply_rotary_emb_torch",
    lambda: dict(x=randn(B, S, H, D), cos=randn(B, S, R // 2), sin=randn(B, S, R // 2), interleaved=False),
    x=FLOATS, cos=[*FA[:-4], lambda t: t[:, 1:], lambda t: torch.cat([t, t]), wide, learned, wrong_dtype],
    sin=[*FLOATS[:-2], odd, learned, wrong_dtype], interleaved=FLAG)  # fmt: skip
for name in ("apply_rotary_emb_qkv_", "ApplyRotaryEmbQKV_"):
    row("flash_attn." + name,
        lambda: dict(qkv=randn(B, S, 3, H, D), cos=randn(S, R // 2), sin=randn(S, R // 2), cos_k=randn(S, R // 2),
                     sin_k=randn(S, R // 2), interleaved=False, seqlen_offsets=ints(0, 0), num_heads_q=None, cu_seqlens=None,
                     max_seqlen=None, headdim=None),
        qkv=[*FLOATS, lambda t: t[:, :, :2]], cos=FA, sin=[*FA, wrong_dtype], cos_k=[*FA[1:], True, False],
        sin_k=[*FA[1:], wrong_dtype], interleaved=FLAG, seqlen_offsets=OFFSETS, num_heads_q=[*NO_INTEGER, 0, -1],
        cu_seqlens=NO_INDICES[:3], max_seqlen=[*NO_INTEGER, -1], headdim=[*NO_INTEGER, 0, -8, 3])  # fmt: skip
row("flash_attn.apply_rotary_emb_qkv_ by heads",
    lambda: dict(qkv=randn(B, S, 5 * D), cos=randn(S, R // 2), sin=randn(S, R // 2), num_heads_q=3, headdim=D),
    qkv=[lambda t: t[0]], num_heads_q=[2, 5, 4], headdim=[7, 16, 3])  # fmt: skip
for name in ("apply_rotary_emb_kv_", "ApplyRotaryEmbKV_"):
    row("flash_attn." + name,
        lambda: dict(kv=randn(B, S, 2, H, D), cos=randn(S, R // 2), sin=randn(S, R // 2), interleaved=False,
                     seqlen_offsets=ints(0, 0)),
        kv=[*FLOATS, lambda t: t[:, :, :1]], cos=FA, sin=[*FA, wrong_dtype], interleaved=FLAG, seqlen_offsets=OFFSETS)  # fmt: skip

row("flash_attn.rotate_half", None)  # plain PyTorch

SIZES = [None, "8", 8.0, True, 0, -8, 7, 2**40]
BASES = [None, "1e4", True, 0, -1.0, float("inf"), float("nan"), 1e300, 1e-300]
row("flash_attn.RotaryEmbedding",
    lambda: dict(dim=R, base=1e4, interleaved=False, scale_base=None, device=None, pos_idx_in_fp32=True),
    dim=SIZES, base=BASES, interleaved=FLAG, scale_base=[*BASES[2:], "text"], device=[True, False, "nowhere", 1.5, [0]],
    pos_idx_in_fp32=FLAG)  # fmt: skip
row("flash_attn.RotaryEmbedding.forward",
    lambda: dict(qkv=randn(B, S, H, D), kv=randn(B, S, 2, H, D), seqlen_offset=ints(0, 0), max_seqlen=S, num_heads_q=H),
    qkv=[*FLOATS, lambda t: t[..., :2], lambda t: t[..., None]],
    kv=[*FLOATS[1:], lambda t: t[..., :2], lambda t: t[:, :, :1]],
    seqlen_offset=[*NO_INTEGER, -1, 2**24, *NO_INDICES[3:-1], ints(0), ints(0, 1), ints(0, -1)],
    max_seqlen=[*NO_INTEGER, -1, 5, 2**24 + 1], num_heads_q=[*NO_INTEGER, 0, 2])  # fmt: skip
row("flash_attn.RotaryEmbedding.forward of qkv",
    lambda: dict(qkv=randn(B, S, 3, H, D), seqlen_offset=0), qkv=[*FLOATS, lambda t: t[:, :, :2], lambda t: t[..., :2]],
    max_seqlen=[*NO_INTEGER, 5], num_heads_q=NO_INTEGER, seqlen_offset=[-1, 2**30])  # fmt: skip
row("flash_attn.RotaryEmbedding.forward of heads",
    lambda: dict(qkv=randn(B, S, 5, D), num_heads_q=3), num_heads_q=[2, 5, 4], qkv=[lambda t: t[..., :2]])  # fmt: skip


# liger

LIGER = [*FLOATS, lambda t: t.double(), odd, wide, learned, lambda t: t[:, 1:]]
IDS, DIMS = [3, "text", ints(0, 1)], [*INTEGER, 5, -5, 0, 2, 3]


def qk(names="qk", **more):
    return {names[0]: randn(B, H, S, D), names[1]: randn(B, 1, S, D), "cos": randn(B, S, R), "sin": randn(B, S, R), **more}


HEADS = [*FLOATS[:-1], lambda t: t[..., None], lambda t: t[..., :2], lambda t: t[:, :, :-1]]  # the last has fewer tokens
Q = [*FLOATS[:-2], lambda t: t[0], lambda t: t[..., None]]
ROPE = dict(cos=LIGER, sin=[*FLOATS[:-2], odd, learned, wrong_dtype], position_ids=IDS, unsqueeze_dim=DIMS,
            rotary_dim=[*NO_INTEGER, 0, -2, 3, D + 2])  # fmt: skip
for name in ("liger_rotary_pos_emb", "liger_rope", "rope_forward", "LigerRopeFunction"):
    row("liger." + name, lambda: qk(position_ids=None, unsqueeze_dim=1, rotary_dim=R), q=Q, k=[*HEADS, wrong_dtype], **ROPE)
row("liger.rope_backward", lambda: qk(("dq", "dk"), position_ids=None, unsqueeze_dim=1, rotary_dim=None), dq=Q,
    dk=[*HEADS, wrong_dtype], **ROPE)  # fmt: skip
row("liger.liger_rotary_pos_emb_gpt_oss", lambda: dict(qk(), cos=randn(B, S, D // 2), sin=randn(B, S, D // 2)),
    q=[*Q, odd], k=HEADS, cos=[*LIGER[:-4], narrow, learned, lambda t: t[:, 1:]], sin=[*FLOATS[:-2], odd, learned])  # fmt: skip
row("liger.liger_rotary_pos_emb_vision",
    lambda: dict(q=randn(S, H, D), k=randn(S, H, D), cos=randn(S, D), sin=randn(S, D)),
    q=Q, k=[*FLOATS, odd, wrong_dtype], cos=[*LIGER, few_rows], sin=[*FLOATS, odd, learned])  # fmt: skip
SECTIONS = [None, 3, "text", [2, 2], [2, 1, 2], [4, 1, -1], [2.0, 1, 1], [True, 1, 2], lambda v: torch.tensor(v), []]
for name in ("liger_multimodal_rotary_pos_emb", "liger_qwen2vl_mrope", "LigerQwen2VLMRopeFunction"):
    row("liger." + name,
        lambda: dict(qk(), cos=randn(3, B, S, D), sin=randn(3, B, S, D), mrope_section=[2, 1, 1], unsqueeze_dim=1),
        q=Q, k=HEADS,
        cos=[*NO_TENSOR, lambda t: t[0], narrow, learned, lambda t: t[:, :, 1:], lambda t: t[:, [0, 1, 1]],
             lambda t: t.double()],
        sin=[*NO_TENSOR, odd, learned, wrong_dtype], mrope_section=SECTIONS, unsqueeze_dim=DIMS)  # fmt: skip
row("liger.liger_llama4_text_rotary_pos_emb",
    lambda: dict(xq=randn(B, S, H, D), xk=randn(B, S, 1, D), freqs_cis=torch.complex(randn(S, D // 2), randn(S, D // 2))),
    xq=Q, xk=[*FLOATS, odd], freqs_cis=COMPLEX)  # fmt: skip
row("liger.LigerLlama4RopeFunction",
    lambda: dict(q=randn(B, S, H, D), k=randn(B, S, 1, D), freqs_cis=torch.complex(randn(S, D // 2), randn(S, D // 2)),
                 BLOCK_SIZE=None),
    q=Q, k=[*FLOATS, odd], freqs_cis=COMPLEX, BLOCK_SIZE=[0, -1, "text"])  # fmt: skip
row("liger.liger_llama4_vision_rotary_pos_emb",
    lambda: dict(query=randn(B, S, H, D), key=randn(B, S, 1, D), freqs_ci=torch.complex(randn(S, 1, D // 2), randn(S, 1, D // 2))),
    query=Q, key=[*FLOATS, odd], freqs_ci=COMPLEX)  # fmt: skip


# transformer_engine

TE = [*FLOATS, odd, wide, lambda t: t.to(torch.complex64), lambda t: t.expand(-1, B + 1, -1, -1)]
CP = dict(cp_size=[*INTEGER, 0, -1], cp_rank=[*INTEGER, -1, 1])
STARTS = [*NO_INDICES, ints(0), ints(0, 2 * S), ints(-1, 0)]
NOT_READ = [3, "text", [0, 1], numpy.zeros(2, numpy.int32), *(ints(0, S, dtype=dtype) for dtype in (
    torch.float32, torch.bool, torch.int16, torch.uint8)), ints(0, S)[None], ints(0, S).to("meta")]  # fmt: skip


def of_te(x, start_positions=True, **more):
    return dict({x: randn(S, B, H, D), "freqs": freqs_of(2 * S)}, start_positions=ints(0, 1) if start_positions else None,
                interleaved=False, cu_seqlens=None, cp_size=1, cp_rank=0, **more)  # fmt: skip


OF_TE = dict(freqs=TE, start_positions=STARTS, interleaved=FLAG, cu_seqlens=NOT_READ, **CP)
for x, name in (("input", "fused_rope_forward"), ("output_grads", "fused_rope_backward")):
    row("transformer_engine." + name, lambda x=x: of_te(x, qkv_format="sbhd"), **{x: FLOATS}, qkv_format=WORDS, **OF_TE)
row("transformer_engine.apply_rotary_pos_emb", lambda: of_te("t", tensor_format="sbhd", fused=True), t=FLOATS,
    tensor_format=WORDS, fused=FLAG, **OF_TE)  # fmt: skip
row("transformer_engine.FusedRoPEFunc", lambda: of_te("t", tensor_format="sbhd"), t=FLOATS, tensor_format=WORDS,
    **dict(OF_TE, freqs=[*TE, learned]))  # fmt: skip
THD_TE = lambda: dict(of_te("t"), t=randn(S, H, D), tensor_format="thd", cu_seqlens=ints(0, 4, S))  # noqa: E731
row("transformer_engine.apply_rotary_pos_emb thd", THD_TE, t=FLOATS, cu_seqlens=[None, *NO_INDICES, ints(0, 4, S + 1), ints(0, 7, S), ints(-1, 4, S)],
    start_positions=[ints(0), ints(0, 2 * S), ints(0, 0, 0)], freqs=[odd])  # fmt: skip
row("transformer_engine.apply_rotary_pos_emb by index", lambda: dict(t=randn(S, B, H, D), freqs=freqs_of(), cp_size=1),
    t=FLOATS, freqs=[*TE, few_rows])  # fmt: skip


def of_qkv(x="qkv", **more):
    return {x: randn(S, B, 2, 4 * D), "q_freqs": freqs_of(2 * S), "k_freqs": freqs_of(2 * S),
            "qkv_split_arg_list": [2 * D, D, D], "start_positions": ints(0, 1), "interleaved": False, "cu_seqlens": None,
            "cp_size": 1, "cp_rank": 0, **more}  # fmt: skip


OF_QKV = dict(q_freqs=TE, k_freqs=TE, qkv_split_arg_list=SPLITS, start_positions=STARTS, interleaved=FLAG,
              cu_seqlens=NOT_READ, **CP)  # fmt: skip
row("transformer_engine.fused_qkv_rope_forward", lambda: of_qkv("qkv_input", qkv_format="sbhd"), qkv_input=FLOATS,
    qkv_format=WORDS, **OF_QKV)  # fmt: skip
for module in ("transformer_engine", "megatron"):
    row(module + ".apply_fused_qkv_rotary_pos_emb", lambda: of_qkv(tensor_format="sbhd"), qkv=FLOATS, tensor_format=WORDS,
        **OF_QKV)  # fmt: skip
row("transformer_engine.FusedQKVRoPEFunc", lambda: of_qkv(tensor_format="sbhd"), qkv=FLOATS, tensor_format=WORDS,
    **dict(OF_QKV, q_freqs=[*TE, learned], k_freqs=[*TE, learned]))  # fmt: skip


def of_qkv_back():
    grads = dict(q_grad_out=randn(S, B, 4, D), k_grad_out=randn(S, B, 2, D), v_grad_out=randn(S, B, 2, D))
    return dict(grads, **{k: v for k, v in of_qkv(qkv_format="sbhd").items() if k != "qkv"})


row("transformer_engine.fused_qkv_rope_backward", of_qkv_back,
    q_grad_out=[*FLOATS[:-3], odd, few_rows, lambda t: t[0]], k_grad_out=[*FLOATS[:-2], lambda t: t[0], wrong_dtype],
    v_grad_out=[*FLOATS, odd, wrong_dtype], qkv_format=WORDS,
    **dict(OF_QKV, qkv_split_arg_list=SPLITS[:-2]))  # fmt: skip
row("transformer_engine.RotaryPositionEmbedding",
    lambda: dict(dim=D, rotary_percent=0.5, seq_len_interpolation_factor=2.0, pretrained_max_position_embeddings=16,
                 rotary_base=1e4, interleaved=False),
    dim=SIZES, rotary_percent=[*NUMBER, 0, -0.5, 1.5, 0.1], seq_len_interpolation_factor=[*NUMBER[1:], 0, -2.0],
    pretrained_max_position_embeddings=[*INTEGER, 0, -1], rotary_base=BASES, interleaved=FLAG)  # fmt: skip
row("transformer_engine.RotaryPositionEmbedding.forward", lambda: dict(max_seq_len=S, offset=0),
    max_seq_len=[*INTEGER, -1, 2**24 + 1], offset=[*INTEGER, 2**24, -(2**24) - 1])  # fmt: skip


# megatron

CONFIG = types.SimpleNamespace(rotary_interleaved=False, multi_latent_attention=False)
CONFIGS = [None, 3, "text", {}, types.SimpleNamespace(), types.SimpleNamespace(rotary_interleaved=None)]
MSCALE = [*NUMBER, 0, 0.0]
OF_T = dict(t=FLOATS[:-2], freqs=[*FLOATS[:-2], lambda t: t[:, 0], few_rows, odd, wide, lambda t: t.expand(-1, 5, -1, -1)])
LENGTHS = [*NO_INTEGER, 0, -1]


def of_megatron(**more):
    return sbhd(freqs=freqs_of(), config=CONFIG, mscale=1.0, inverse=False, mla_rotary_interleaved=True,
                mla_output_remove_interleaving=False, cu_seqlens=None, cp_group=None, max_seqlen=None, **more)  # fmt: skip


row("megatron.apply_rotary_pos_emb", of_megatron, **OF_T, config=CONFIGS, cu_seqlens=NOT_READ, mscale=MSCALE, inverse=FLAG,
    cp_group=GROUPS[:4], mla_rotary_interleaved=FLAG[1:], mla_output_remove_interleaving=FLAG, max_seqlen=LENGTHS)  # fmt: skip
row("megatron.apply_rotary_pos_emb thd",
    lambda: dict(of_megatron(), t=randn(S, H, D), cu_seqlens=ints(0, 4, S), cp_group=Group()), t=FLOATS,
    freqs=[*FLOATS[:-2], lambda t: t[:, 0], odd, wide], cu_seqlens=OF_CU, cp_group=GROUPS, max_seqlen=LENGTHS)  # fmt: skip
row("megatron.apply_rotary_pos_emb_with_cos_sin",
    lambda: sbhd(cos=randn(S, R // 2), sin=randn(S, R // 2), rotary_interleaved=False), t=FLOATS, cos=FA,
    sin=[*FA, wrong_dtype], rotary_interleaved=FLAG)  # fmt: skip
row("megatron.fused_apply_rotary_pos_emb", lambda: sbhd(freqs=freqs_of(), transpose_output_memory=False, interleaved=False),
    **OF_T, transpose_output_memory=[*FLAG, True], interleaved=FLAG)  # fmt: skip
row("megatron.fused_apply_rotary_pos_emb_thd",
    lambda: dict(t=randn(S, H, D), cu_seqlens=ints(0, 4, S), freqs=freqs_of(), cp_size=1, cp_rank=0, interleaved=False),
    t=FLOATS, cu_seqlens=[None, *OF_CU], freqs=[*FLOATS[:-2], lambda t: t[:, 0], odd, wide, lambda t: t[:3]], interleaved=FLAG,
    **CP)  # fmt: skip

NOPE = D - R
MLA_TABLE = [*FLOATS, odd, wide, few_rows, learned, lambda t: t.double()]
NOPES = [*INTEGER, -1, -NOPE]
EMBS = [*INTEGER, 0, -2, 3, -R, 2**20]
OF_MLA = dict(cos=MLA_TABLE, sin=[*MLA_TABLE, wrong_dtype], emb_dim=EMBS, rotary_interleaved=[*FLAG, True], **CP)
OF_Q = dict(OF_MLA, t=FLOATS, cu_seqlens_q=NOT_READ)


def of_mla(sequences="cu_seqlens_q", **more):
    return dict(cos=freqs_of(), sin=freqs_of(), emb_dim=R, rotary_interleaved=False, cp_rank=0, cp_size=1,
                **{sequences: None}, **more)  # fmt: skip


def of_mla_q(**more):
    return dict(
        of_mla(t=randn(S, B, H, D), nope_dim=NOPE, inverse=False, remove_interleaving=False), position_ids=None, **more
    )


MLA_Q = dict(OF_Q, nope_dim=NOPES, inverse=FLAG, remove_interleaving=FLAG, position_ids=NOT_READ)
row("megatron.fused_mla_rope_out_of_place", of_mla_q, **MLA_Q)
row("megatron.fused_mla_rope_inplace", lambda: of_mla_q(rope_first=False), **MLA_Q, rope_first=FLAG)
row("megatron.fused_mla_rope_out_of_place thd",
    lambda: dict(of_mla_q(), t=randn(S, H, D), cu_seqlens_q=ints(0, 4, S), position_ids=ints(*range(S))), t=FLOATS,
    position_ids=[*NO_INDICES[:8], ints(0, 1), ints(*range(1, S + 1)), ints(-1, *range(1, S))], cu_seqlens_q=NO_INDICES[:9])  # fmt: skip
row("megatron.fused_mla_rope_inplace thd",
    lambda: dict(of_mla_q(), t=randn(S, H, D), cu_seqlens_q=ints(0, 4, S)), t=FLOATS, cu_seqlens_q=OF_CU,
    cos=[*FLOATS, odd, learned], cp_size=[*INTEGER, 0])  # fmt: skip
row("megatron.fused_apply_mla_rope_for_q", lambda: of_mla(t=randn(S, B, H, D), qk_head_dim=NOPE), **OF_Q, qk_head_dim=NOPES)
OF_KV = dict(OF_MLA, kv=FLOATS, k_pos_emb=[*FLOATS, odd, few_rows, wrong_dtype], k_dim=[*NOPES, 0], v_dim=[*NOPES, 0],
             cu_seqlens_kv=NOT_READ)  # fmt: skip


def of_mla_kv(**more):
    tensors = dict(kv=randn(S, B, H, D + NOPE), k_pos_emb=randn(S, B, 1, R), k_dim=D, v_dim=NOPE)
    return dict(of_mla("cu_seqlens_kv"), **tensors, **more)


row("megatron.fused_mla_rope_kv_split", lambda: of_mla_kv(remove_interleaving=False), **OF_KV, remove_interleaving=FLAG)
row("megatron.fused_apply_mla_rope_for_kv", of_mla_kv, **OF_KV)
row("megatron.fused_mla_rope_kv_split thd",
    lambda: dict(of_mla_kv(), kv=randn(S, H, D + NOPE), k_pos_emb=randn(S, 1, R), cu_seqlens_kv=ints(0, 4, S)),
    kv=FLOATS, cu_seqlens_kv=OF_CU)  # fmt: skip
row("megatron.fused_mla_rope_concat",
    lambda: dict(nope=randn(S, B, H, NOPE), rope=randn(S, B, H, R), cos=freqs_of(), sin=freqs_of(), cu_seqlens=None,
                 cp_rank=0, cp_size=1),
    nope=[*FLOATS, few_rows, wrong_dtype, lambda t: t[..., :0]], rope=[*FLOATS[:-3], odd, lambda t: t[0]], cos=MLA_TABLE,
    sin=[*MLA_TABLE, wrong_dtype], cu_seqlens=NOT_READ, **CP)  # fmt: skip
MROPE = dict(t=FLOATS, mrope_section=SECTIONS, interleaved_mrope=FLAG, rotary_interleaved=[*FLAG, True], fp32_compute=FLAG,
             freqs=[*FLOATS[:-2], lambda t: t[:2], lambda t: t[:, :, 1:], wide])  # fmt: skip


def of_mrope(**more):
    return dict(mrope_section=[2, 1, 1], interleaved_mrope=False, rotary_interleaved=False, fp32_compute=False, **more)


row("megatron.fused_apply_mrope", lambda: of_mrope(t=randn(S, B, H, D), freqs=randn(3, B, S, D // 2)), **MROPE)
row("megatron.fused_apply_mrope_thd",
    lambda: of_mrope(t=randn(S, H, D), freqs=randn(3, 1, S, D // 2), cu_seqlens=ints(0, 4, S), cp_size=1, cp_rank=0),
    **MROPE, cu_seqlens=[None, *OF_CU], **CP)  # fmt: skip

# patch, and classes that users do not construct

row("megatron.patch", None)
row("megatron.Patch", lambda: dict(originals={}, fusion=None), originals=[None, 3, "text", CONFIG, {1: 2}],
    fusion=[3, "text", CONFIG, True])  # fmt: skip
row("transformers.Patch", lambda: dict(rotaries=[], fusions=[], compiled=False),
    **dict.fromkeys(("rotaries", "fusions"), [None, 3, "text", [1]]), compiled=FLAG)  # fmt: skip
row("transformers.patch", None)


# ---- Use of the table ----


def find_function(name):
    """Returns the function with this name in the table. A method is bound to an instance, made with valid arguments."""
    module, _, name = name.partition(" ")[0].partition(".")
    name, _, method = name.partition(".")
    thing = getattr(MODULES[module], name)
    if method:
        make = ROWS["%s.%s" % (module, name)][0]
        return getattr(thing(**make()), method)
    return thing


def find_parameters(function):
    if inspect.isclass(function) and hasattr(function, "apply") and not issubclass(function, torch.nn.Module):
        function = getattr(function, "forward", function.apply)
    return [name for name in inspect.signature(function).parameters if name != "ctx"]


def caller(function):
    """Returns f, where f(given) calls the function with the arguments in the dict `given`. autograd.Function.apply takes no
    keywords."""
    if inspect.isclass(function) and hasattr(function, "apply") and not issubclass(function, torch.nn.Module):
        names, apply = find_parameters(function), function.apply
        return lambda given: apply(*[given[name] for name in names if name in given])
    return lambda given: function(**given)


def call(function, given):
    return caller(function)(given)


OF_TENSORS = [name for name in ROWS if ROWS[name][0] and torch.is_tensor(next(iter(ROWS[name][0]().values()), None))]


def first_tensor(name):
    """Returns (function, its valid arguments, the name of its first tensor argument that is not a table)."""
    given = ROWS[name][0]()
    tables = "cos", "sin", "freqs", "q_freqs", "k_freqs"
    x = next(p for p in find_parameters(find_function(name)) if torch.is_tensor(given.get(p)) and p not in tables)
    return find_function(name), given, x


def results_of(function, given):
    results = call(function, given)
    return list(results) if isinstance(results, (tuple, list)) else [results]


def has_autograd(name):
    raw = ("apex.forward", "apex.backward", "transformer_engine.fused", "liger.rope_backward")
    return not name.startswith(raw)


ENGLISH = {"tensors", "out", "layout"}  # names that are also English words


def refused_row(name, parameter, wrong):
    """Calls a function with one wrong argument, and checks the argument and the words of its error. Returns the error."""
    function, given = find_function(name), ROWS[name][0]()
    given[parameter] = wrong(given[parameter]) if isinstance(wrong, types.FunctionType) else wrong
    try:
        call(function, given)
    except trope.Error as error:
        argument = re.sub(r"\[\d+\]$", "", error.argument)
        partner = argument.startswith("sin") and argument.replace("sin", "cos") == parameter
        assert argument == parameter or (partner and "%s has " % argument in str(error)), str(error)
        assert not FOREIGN.search(str(error)), str(error)
        parameters = find_parameters(function)
        for word in OF_ROTATE:
            if word not in parameters:
                assert not re.search(r"(?<![\w.])%s(?![\w[])" % re.escape(word), str(error)) or word in ENGLISH, str(error)
        assert parameter in str(error), str(error)
        return error
    raise AssertionError("%s accepts the wrong argument %s = %r" % (name, parameter, given[parameter]))
