"""RoPE of Megatron-Core 0.19.2, and of its main branch by its signatures of August 2026, with nothing left unfused.

    import trope.megatron
    handle = trope.megatron.patch()  # handle.undo() takes it back; print(handle) says what is where, handle.calls how often

patch() puts the functions of this module in the place of Megatron's, in every module that has imported them, and counts
the calls that go through. If one of Megatron's has another signature than is known here, nothing is changed.

Results are those of Megatron's own unfused code: cos and sin times mscale are rounded to the dtype of the tensor, and so is
each operation after that. From cos and sin they have the same bits, from freqs too, but where torch.cos and trope's cosine
round differently. Fused is also what Megatron leaves unfused: M-RoPE with batch over 1, mscale, mla_rotary_interleaved,
inverse, positions in the stream, any dtype, the CPU. Gradients are the transpose, and can be differentiated again. The host
reads no cu_seqlens. config.apply_rope_fusion changes no result, but is worth having with MLA: key and value are one launch.

What differs from Megatron-Core:
- Its fused thd drops mscale and mla_rotary_interleaved in silence, and takes freqs with a row for each token of the stream
  for those of a sequence. Here all of it is as in its unfused thd.
- apply_rotary_pos_emb_with_cos_sin has flash-attention's formula also where that is not installed: there, Megatron takes
  the cosine of cos and of sin.
- Tokens behind the last of cu_seqlens become 0, and their gradients too. (0.19.2 raises if it is unfused and else leaves
  memory as it was, main gives them some position.)
- Positions that the table has no row for are an error on the CPU and NaN on CUDA; with max_seqlen, in main's thd, they have
  the last row, as there.
- fused_apply_mla_rope_for_q and fused_mla_rope_inplace write into t, as there, but not into the gradient. If another operation
  saved t for its backward, autograd raises an error; there, that operation gets wrong gradients. A leaf that requires a
  gradient, or a view of one, is refused while autograd runs a backward: an activation checkpoint that begins with the rotation
  would rotate it twice, as it does there.
- The gradient of k_pos_emb is summed over the heads in fp32, by a tree, and then rotated back.
- fused_single_qkv_rope needs no TransformerEngine. Megatron never tells it rotary_interleaved, nor can it be guessed here.

patch(fuse_norm=True) lets the rotation compute q_layernorm and k_layernorm of SelfAttention, if they are RMS norms.

Not replaced: get_pos_emb_on_this_cp_rank, which cuts tables; mla_rope_apply_raw_ and mla_rope_unapply_raw; what classes,
closures and default arguments hold already when patch() is called.
"""

from ._mla import (
    fused_apply_mla_rope_for_kv, fused_apply_mla_rope_for_q, fused_mla_rope_concat, fused_mla_rope_inplace,
    fused_mla_rope_kv_split, fused_mla_rope_out_of_place,
)  # fmt: skip
from ._mrope import fused_apply_mrope, fused_apply_mrope_thd
from ._patch import Patch, patch
from ._rope import (
    apply_fused_qkv_rotary_pos_emb, apply_rotary_pos_emb, apply_rotary_pos_emb_with_cos_sin, fused_apply_rotary_pos_emb,
    fused_apply_rotary_pos_emb_thd,
)  # fmt: skip

__all__ = [
    "Patch", "apply_fused_qkv_rotary_pos_emb", "apply_rotary_pos_emb", "apply_rotary_pos_emb_with_cos_sin",
    "fused_apply_mla_rope_for_kv", "fused_apply_mla_rope_for_q", "fused_apply_mrope", "fused_apply_mrope_thd",
    "fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd", "fused_mla_rope_concat", "fused_mla_rope_inplace",
    "fused_mla_rope_kv_split", "fused_mla_rope_out_of_place", "patch",
]  # fmt: skip
