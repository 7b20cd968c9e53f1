"""Fused RoPE for Megatron-Core 0.19.2, and for its main branch with the signatures of August 2026.

    import trope.megatron
    handle = trope.megatron.patch()  # handle.undo() undoes it; print(handle) lists the changes, handle.calls the calls

patch() replaces Megatron's functions by the functions of this module, in every module that has imported them, and counts
their calls. If one of Megatron's functions has an unknown signature, nothing is changed.

Results are those of Megatron's own unfused code: cos and sin times mscale are rounded to the dtype of the tensor, and so is
each later operation. Calls with cos and sin have the same bits. Calls with freqs have them too, except where torch.cos and
trope's cosine round differently. trope also fuses calls that Megatron does not fuse: M-RoPE with batch over 1, mscale,
mla_rotary_interleaved, inverse, positions in the stream, any dtype, the CPU. Gradients are the transpose, and can be
differentiated again. The host does not read cu_seqlens. config.apply_rope_fusion changes no result, but it is useful with
MLA, where key and value are then one launch.

Differences from Megatron-Core:
- Its fused thd ignores mscale and mla_rotary_interleaved without an error, and treats freqs with a row for each token of
  the stream as freqs of a sequence. Here these calls work as in its unfused thd.
- apply_rotary_pos_emb_with_cos_sin always uses flash-attention's formula. If flash-attention is not installed, Megatron
  takes the cosine of cos and of sin.
- Tokens after the end of cu_seqlens become 0, and so do their gradients. (0.19.2 raises an error in its unfused code and
  otherwise leaves memory unchanged. main gives these tokens some position.)
- Positions that the table has no row for are an error on the CPU and NaN on CUDA. With max_seqlen, in main's thd, they use
  the last row, as in Megatron.
- fused_apply_mla_rope_for_q and fused_mla_rope_inplace write into t, as in Megatron, but not into the gradient. If another
  operation saved t for its backward, autograd raises an error. In Megatron, that operation gets wrong gradients. A leaf
  that requires a gradient, or a view of one, is refused while autograd runs a backward. An activation checkpoint that
  begins with the rotation would otherwise rotate it twice, as happens in Megatron.
- The gradient of k_pos_emb is summed over the heads in fp32, by a tree, and then rotated back.
- fused_single_qkv_rope does not need TransformerEngine. Megatron does not pass it rotary_interleaved, and trope cannot
  detect it.

patch(fuse_norm=True) lets the rotation compute q_layernorm and k_layernorm of SelfAttention, if they are RMS norms.

These are not replaced: get_pos_emb_on_this_cp_rank, which cuts tables; mla_rope_apply_raw_ and mla_rope_unapply_raw; and
functions that classes, closures and default arguments already hold when patch() is called.
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
