"""Layers for kernelize: the rotary functions of transformers, forward and backward, with the bits of eager PyTorch.

kernelize(model) replaces the functions that transformers names "rotary_pos_emb" by one of these layers, in all models of
the same classes. Layers for other functions can only be called.

Layers take q and k with 4 dimensions and tables cos and sin [batch or 1, tokens, columns], as transformers makes them.
Results have the dtype of q and k. If a layer does not support a call, it raises trope's Error, which names the argument.
"""

import torch

from ._rotation import check_replaced, turn


class RotaryPosEmb(torch.nn.Module):
    """Llama's apply_rotary_pos_emb, the layer "rotary_pos_emb" of transformers. Whole heads rotate, with half pairing."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, q, k, cos, sin, unsqueeze_dim=1):
        check_replaced(type(self), RotaryPosEmb)
        return turn({"q": q, "k": k}, cos, sin, unsqueeze_dim, "half", "half")


class RotaryPosEmbUpcast(torch.nn.Module):
    """The same for models that cast q and k to float32: ESM, Evolla, HunYuan-VL and ModernBERT."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, q, k, cos, sin, unsqueeze_dim=1):
        check_replaced(type(self), RotaryPosEmbUpcast)
        return turn({"q": q, "k": k}, cos, sin, unsqueeze_dim, "half", "half", upcasts=True)


class RotaryPosEmbPartial(torch.nn.Module):
    """The function of GPT-NeoX, Phi-3 and GLM-4-MoE: the tables have a column for each element of a head that rotates."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, q, k, cos, sin, unsqueeze_dim=1):
        check_replaced(type(self), RotaryPosEmbPartial)
        return turn({"q": q, "k": k}, cos, sin, unsqueeze_dim, "half", "half", may_be_part=True)


class RotaryPosEmbInterleaved(torch.nn.Module):
    """The function of GLM, GLM-4 and Helium: neighbours are pairs, and the first half of the tables' columns has a column
    for each pair. The tables may cover only the first elements of a head."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, q, k, cos, sin, unsqueeze_dim=1):
        check_replaced(type(self), RotaryPosEmbInterleaved)
        return turn({"q": q, "k": k}, cos, sin, unsqueeze_dim, "interleaved", "first half", may_be_part=True)


class RotaryPosEmbInterleavedUpcast(torch.nn.Module):
    """Cohere's function: neighbours are pairs, and the tables have a column for each element. Computes in float32."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, q, k, cos, sin, unsqueeze_dim=1):
        check_replaced(type(self), RotaryPosEmbInterleavedUpcast)
        return turn({"q": q, "k": k}, cos, sin, unsqueeze_dim, "interleaved", "interleaved", upcasts=True)


class RotaryPosEmbSingle(torch.nn.Module):
    """The function of Gemma 3n and Gemma 4, which rotates one tensor."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, x, cos, sin, unsqueeze_dim=1):
        return turn({"x": x}, cos, sin, unsqueeze_dim, "half", "half")[0]


class RotaryPosEmbNormed(torch.nn.Module):
    """RotaryPosEmb of the RMS norms of q and k, in one pass.

    q_norm and k_norm are RMSNorm modules of PyTorch or transformers, or trope's Norm. They round like eager code, but add
    the squares in another order, so a rare element of the result differs by one rounding.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, q, k, q_norm, k_norm, cos, sin, unsqueeze_dim=1):
        norms = ("q_norm", q_norm), ("k_norm", k_norm)
        return turn({"q": q, "k": k}, cos, sin, unsqueeze_dim, "half", "half", norms=norms)
