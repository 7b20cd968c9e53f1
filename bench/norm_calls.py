"""Norm and rotation of tensors with one call of the C library, without the cost of the Python package. q and k are
contiguous [batch, tokens, heads, head_dim], positions come from tokens, and pairing is half."""

import ctypes
from ctypes import c_double, c_uint64, c_void_p
from typing import List, NamedTuple

import torch

from trope import _abi

BSHD = 2  # TROPE_BSHD
NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}


class Norms(NamedTuple):
    """The norms of all tensors of a call, before the rotation.

    weights: [head_dim], or [heads, head_dim], for each tensor
    plus_one: multiply by 1 + weight
    scope: the elements that are normalised together, "head" or "token"
    """

    weights: List[torch.Tensor]
    eps: float
    plus_one: bool = False
    scope: str = "head"


class _Call:
    """The structs of a call on tensors x, without the outputs."""

    def __init__(self, x, norms, inv_freq):
        count, first = len(x), x[0]
        self.operands, self.norms = (_abi.Operand * count)(), (_abi.Norm * count)()
        self.pointers = (c_void_p * count)(*(ctypes.addressof(n) for n in self.norms))
        self.inv_freq = (c_double * len(inv_freq))(*inv_freq)
        args = self.args = _abi.Args(struct_size=ctypes.sizeof(_abi.Args), operand_count=count, pairing=1)
        args.operands, args.operand_size = ctypes.addressof(self.operands), ctypes.sizeof(_abi.Operand)
        args.norms, args.inv_freq = ctypes.addressof(self.pointers), ctypes.addressof(self.inv_freq)
        args.dtype, args.device = _abi.DTYPES[NAMES[first.dtype]], _abi.DEVICES[first.device.type]
        args.batch, args.tokens = first.shape[:2]
        if first.is_cuda:
            args.stream = torch.cuda.current_stream().cuda_stream
        for t, weight, operand, norm in zip(x, norms.weights, self.operands, self.norms):
            if not (t.is_contiguous() and t.dtype == first.dtype and t.shape[:2] == first.shape[:2]):
                raise ValueError("the tensors must be contiguous, of one dtype, and of the same tokens")
            operand.src_layout = operand.dst_layout = BSHD
            operand.heads_per_group, operand.head_dim = t.shape[2:]
            operand.rotary_dim = 2 * len(inv_freq)
            if not (weight.is_contiguous() and weight.shape in (t.shape[3:], t.shape[2:])):
                raise ValueError("a weight must be contiguous, [head_dim] or [heads, head_dim]")
            norm.struct_size, norm.eps = ctypes.sizeof(_abi.Norm), norms.eps
            norm.scope, norm.order = _abi.NORM_WORDS["scope"][norms.scope], _abi.NORM_WORDS["order"]["before"]
            norm.weight, norm.weight_dtype = weight.data_ptr(), _abi.DTYPES[NAMES[weight.dtype]]
            norm.weight_per_head, norm.weight_plus_one = weight.dim() == 2, norms.plus_one


def forward(x, norms, inv_freq):
    """Returns each x normalised and rotated, in new tensors."""
    call, results = _Call(x, norms, inv_freq), [torch.empty_like(t) for t in x]
    for t, y, operand in zip(x, results, call.operands):
        operand.src, operand.dst = t.data_ptr(), y.data_ptr()
    _abi.check(_abi.lib.trope_forward(call.args))
    return results


def backward(gradients, x, norms, inv_freq):
    """Returns the gradients of each x, and then of each weight in fp32. Recomputes rstd."""
    call, results = _Call(x, norms, inv_freq), [torch.empty_like(t) for t in x]
    real = torch.float64 if x[0].dtype == torch.float64 else torch.float32
    d_weights = [torch.empty(weight.shape, dtype=real, device=weight.device) for weight in norms.weights]
    for dy, t, dx, d_weight, operand, norm in zip(gradients, x, results, d_weights, call.operands, call.norms):
        if not (dy.is_contiguous() and dy.shape == t.shape and dy.dtype == t.dtype):
            raise ValueError("a gradient must be contiguous, of the shape and dtype of its tensor")
        operand.src, operand.dst, operand.forward_src = dy.data_ptr(), dx.data_ptr(), t.data_ptr()
        operand.forward_src_layout, norm.d_weight = BSHD, d_weight.data_ptr()
    size = c_uint64()
    _abi.check(_abi.lib.trope_workspace_size(call.args, size))
    workspace = torch.empty(max(size.value, 16), dtype=torch.uint8, device=x[0].device)
    call.args.workspace, call.args.workspace_size = workspace.data_ptr(), workspace.numel()
    _abi.check(_abi.lib.trope_backward(call.args))
    return results + d_weights
