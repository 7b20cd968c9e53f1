"""The devices of calls: the CPU, or a GPU through PyTorch. F32, F16 and BF16 have the same bits on both."""

import numpy as np

import trope

from .. import _arrays, _prepared
from .._spec import ARRAYS, resolve
from .files import Bf16
from .options import ISAS
from .refused import refuse


def find_device(options):
    if options.device in (None, "cpu"):
        return Cpu(options)
    torch = _find_torch()
    if isinstance(torch, str):
        if options.device == "cuda":
            refuse("--device cuda: %s", torch)
        return Cpu(options)
    if options.isa not in (None, "auto"):
        refuse("--isa: is for the CPU, and has no effect on CUDA")
    return Cuda(torch)


def _find_torch():
    """Returns PyTorch, or the reason why there is no GPU."""
    try:
        import torch
    except Exception as error:  # a broken installation may raise anything
        return "PyTorch cannot be imported: %s" % error
    if not torch.cuda.is_available():
        return "PyTorch has no CUDA device"
    if "cuda" not in trope.info():
        return "this build of trope has no CUDA"
    return torch


class Cpu:
    def __init__(self, options):
        self.isa = ISAS[options.isa or "auto"]

    def rotate(self, backward, x, out, arguments):
        """Rotates x into `out`, which may be x."""
        if self.isa:
            return self._rotate_by_isa(backward, x, out, arguments)
        if out is x:
            return (trope.rotate_backward_ if backward else trope.rotate_)(x, **arguments)
        return (trope.rotate_backward if backward else trope.rotate)(x, out=out, **arguments)

    def _rotate_by_isa(self, backward, x, out, arguments):
        """Rotates x with one instruction set. trope.rotate has no argument for it."""
        arrays = {name: _arrays.describe(arguments[name], name) for name in ARRAYS if arguments.get(name) is not None}
        src, dst = _arrays.describe(x, "tensors[0]"), _arrays.describe_destination(out, "out[0]")
        spec, side = resolve([src], {**arguments, **arrays})
        metas = [None if array is None else array.meta for array in side]
        prepared = _prepared.PreparedCall(backward, spec, [src.meta], [dst.meta], [None], type(side)(*metas))
        prepared.args.isa = self.isa
        prepared.run([src.pointer, dst.pointer] + [array.pointer for array in side if array is not None])


class Cuda:
    def __init__(self, torch):
        self.torch = torch

    def rotate(self, backward, x, out, arguments):
        """Rotates a copy of x on the device, and copies the result to `out`, which may be x."""
        on_device = {name: self._upload(arguments[name]) for name in ARRAYS if arguments.get(name) is not None}
        function = trope.rotate_backward_ if backward else trope.rotate_
        result = function(self._upload(x), **{**arguments, **on_device})
        self._host(out).copy_(result)
        if "status" in on_device:
            arguments["status"][:] = on_device["status"].cpu().numpy()

    def _host(self, array):
        """Returns a tensor that shares the memory of an array."""
        if isinstance(array, Bf16):
            return self.torch.from_numpy(array.bits.view(np.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(array)

    def _upload(self, array):
        return self._host(array).cuda()
