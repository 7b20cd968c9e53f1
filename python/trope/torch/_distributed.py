"""Calls of DTensors: each rank rotates its local tensors, and the results have the placements of the inputs.

A rotation only mixes elements of one head of one token. Any split of batch and heads is therefore valid. A split of tokens
is valid if each rank receives the positions of its own tokens.

All ranks know the shape of a whole DTensor, its mesh and its placements, and refuse a call for these reasons alone. If the
shape of a local tensor decided, a rank with another shard would raise an error while others go on.
"""

import math

import torch
from torch.autograd import Function
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from .._errors import Error
from .._options import ARRAYS, DEFAULTS
from .._spec import DIMS
from .._values import integers, word
from . import _launch

_WAY_ROUND = "pass to_local(), and cp_size, cp_rank and cp_layout if the tokens are split over ranks"
_BATCH, _TOKENS, _HEADS, _WHOLE = "batch", "tokens", "heads", "whole"


def is_distributed(t):
    return isinstance(t, DTensor)


class _ToLocal(Function):
    """The local tensor of x on this rank. Unlike DTensor.to_local (torch 2.11), it can be differentiated twice."""

    @staticmethod
    def forward(ctx, x, gradients):
        ctx.mesh, ctx.gradients, ctx.shape, ctx.stride = x.device_mesh, gradients, x.shape, x.stride()
        return x.to_local().view_as(x.to_local())

    @staticmethod
    def backward(ctx, grad):
        return _FromLocal.apply(grad, ctx.mesh, ctx.gradients, ctx.shape, ctx.stride), None


class _FromLocal(Function):
    """The DTensor that is made of the local tensors of the ranks."""

    @staticmethod
    def forward(ctx, local, mesh, placements, shape, stride):
        ctx.placements = tuple([Replicate() if type(p) is Partial else p for p in placements])
        return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)

    @staticmethod
    def backward(ctx, grad):
        if not is_distributed(grad):
            raise Error("tensors: is_grads_batched and vectorize=True are not for DTensors: %s" % _WAY_ROUND, "tensors")
        return _ToLocal.apply(grad.redistribute(placements=ctx.placements), ctx.placements), None, None, None, None


def _to_local(x, gradients):
    if torch.compiler.is_compiling() or not (x.requires_grad and torch.is_grad_enabled()):
        return x.to_local(grad_placements=gradients)
    return _ToLocal.apply(x, tuple(gradients))


def _from_local(local, mesh, placements, shape, stride):
    if torch.compiler.is_compiling() or not (local.requires_grad and torch.is_grad_enabled()):
        return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)
    return _FromLocal.apply(local, mesh, placements, shape, stride)


def _refuse(name, reason):
    raise Error("%s is a DTensor %s: %s" % (name, reason, _WAY_ROUND), name)


def _kind(layout, x, name, placement):
    """Returns which dimension of a tensor a dimension of the mesh splits, as _BATCH, _TOKENS, _HEADS or _WHOLE."""
    batch, tokens, groups, heads, element = DIMS[layout]
    if type(placement) is Replicate:
        return _WHOLE
    if type(placement) is not Shard:
        _refuse(name, "with placement %s, which is not Replicate or Shard" % (placement,))
    dim = placement.dim % x.dim()
    if dim == element:
        _refuse(name, "that is split within its heads")
    return _BATCH if dim == batch else _TOKENS if dim == tokens else _HEADS


def _kinds(layout, tensors, names):
    """Returns the kinds of all tensors for each dimension of the mesh. All tensors or none must split batch and tokens."""
    for x, name in zip(tensors, names):
        if not is_distributed(x):
            raise Error("%s is an ordinary tensor beside DTensors: pass DTensors, or to_local() of all" % name, name)
        if x.device_mesh != tensors[0].device_mesh:
            _refuse(name, "on another mesh than %s" % names[0])
        if x.dim() != len(layout):
            raise Error("%s has shape %s, which is not %s (layout %r)" % (name, list(x.shape), list(layout), layout), name)
        for kind, size in _sizes(layout, x).items():
            _check_size(x, name, kind, size, _sizes(layout, tensors[0]))
    of_mesh = []
    for m in range(tensors[0].device_mesh.ndim):
        kinds = [_kind(layout, x, name, x.placements[m]) for x, name in zip(tensors, names)]
        for kind, name in zip(kinds, names):
            if kind != kinds[0] and {kind, kinds[0]} & {_BATCH, _TOKENS}:
                _refuse(name, "whose batch and tokens are not split like those of %s" % names[0])
        of_mesh.append(kinds)
    return of_mesh


def _sizes(layout, x):
    """Returns the whole size of the dimensions that all tensors share."""
    dims = DIMS[layout]
    return {_BATCH: 1 if dims.batch is None else x.shape[dims.batch], _TOKENS: x.shape[dims.tokens]}


def _check_size(array, name, kind, size, sizes):
    if size != sizes[kind]:
        given = name, list(array.shape), kind, size, sizes[kind]
        raise Error("%s is a DTensor of shape %s, with %s %d, but tensors[0] has %d" % given, name)


def _check_shards(x, name, shares_heads, heads):
    """Refuses a split that leaves a rank without elements, and unequal shards where they must be equal, as for shared
    heads. Every rank checks the shards of all ranks, so all of them raise the error."""
    for dim, size in enumerate(x.shape):
        split = [m for m, p in enumerate(x.placements) if p.is_shard(dim) or p.is_shard(dim - x.dim())]
        ranks = math.prod([x.device_mesh.size(m) for m in split])
        needs_equal = len(split) > 1 or (shares_heads and dim == heads)
        if size % ranks if needs_equal else ranks > 1 and -(-size // ranks) * (ranks - 1) >= size:
            words = dim, size, ranks, "into unequal parts" if needs_equal else "so that one of them has no elements"
            _refuse(name, "whose dimension %d, of size %d, is split over %d ranks %s" % words)


def _dim_of(array, name, kind, has_sequences):
    """Returns the dimension of a side array that is split with the batch or the tokens, or None."""
    dims = array.dim()
    if name == "position_ids":
        dim = dims - 1 if kind == _TOKENS else dims - 2
    elif kind == _TOKENS or name in ("cu_seqlens", "cu_seqlens_padded", "inv_freq"):
        return None
    elif name == "start_positions":
        dim = None if has_sequences else 0
    else:
        dim = dims - 3  # tables
    if dim is None or dim < 0 or (kind == _BATCH and array.shape[dim] == 1):
        return None
    return dim


def _local_array(array, name, of_mesh, mesh, has_sequences, sizes):
    """Returns this rank's part of a side array. Its gradient is summed over ranks with different tensors."""
    placements, gradients = [], []
    for kinds in of_mesh:
        kind = ([kind for kind in kinds if kind != _WHOLE] or [_WHOLE])[0]
        dim = _dim_of(array, name, kind, has_sequences) if kind in (_BATCH, _TOKENS) else None
        placements.append(Replicate() if dim is None else Shard(dim))
        if dim is not None:
            if is_distributed(array):
                _check_size(array, name, kind, array.shape[dim], sizes)
            gradients.append(Shard(dim))
        elif len(set(kinds)) == 1:
            gradients.append(Replicate() if kind == _WHOLE else Partial())
        elif array.requires_grad and torch.is_grad_enabled():
            _refuse(
                name,
                "that requires a gradient, but the mesh splits the heads of some tensors of the call and not of others",
            )
        else:
            gradients.append(Replicate())
    if not is_distributed(array):
        if any([type(p) is Shard for p in placements]):
            message = "%s is an ordinary tensor, and must be a DTensor that is split like the tensors: %s"
            raise Error(message % (name, _WAY_ROUND), name)
        if array.requires_grad and torch.is_grad_enabled() and any([type(g) is Partial for g in gradients]):
            message = "%s requires a gradient, which is a sum over ranks: pass a replicated DTensor"
            raise Error(message % name, name)
        return array
    if array.device_mesh != mesh:
        _refuse(name, "on another mesh than tensors[0]")
    given = [Shard(p.dim % array.dim()) if type(p) is Shard else p for p in array.placements]
    if given != placements:
        _refuse(name, "with placements %s, and must have %s beside these tensors" % (tuple(given), tuple(placements)))
    local = _to_local(array, gradients)
    is_learned = isinstance(array, torch.nn.Parameter) or array.requires_grad
    if name == "inv_freq" and is_learned and not local.requires_grad:  # a frozen inv_freq also goes through a table
        return torch.nn.Parameter(local, requires_grad=False)
    return local


def _result(local, x, placements, shape):
    """Returns the DTensor of a local result. `shape` is the shape of the whole tensor."""
    stride = x.stride() if tuple(shape) == tuple(x.shape) else torch.empty(shape, device="meta").stride()
    return _from_local(local, x.device_mesh, tuple(placements), torch.Size(shape), stride)


def _listed_shared_heads(value, count):
    return (value,) * count if type(value) is int else tuple(integers(value, "shared_heads"))


def _results_of_sums(layout, dys, shared_heads):
    """Returns (placements of each result, shared_heads on each rank) of rotate_backward. If ranks split the heads of a sum,
    the result is Partial. _check_shards has checked that all ranks have equally many heads."""
    heads, placements, own = DIMS[layout].heads, [], []
    for i, (dy, per_head) in enumerate(zip(dys, shared_heads)):
        split = [m for m, p in enumerate(dy.placements) if type(p) is Shard and p.dim % dy.dim() == heads]
        of_result = list(dy.placements)
        if per_head and split:
            of_rank = dy.shape[heads] // math.prod([dy.device_mesh.size(m) for m in split])
            if of_rank % per_head:
                if dy.shape[heads] != per_head:
                    _refuse("tensors[%d]" % i, "whose heads are split within the groups that shared_heads sums")
                per_head = of_rank
                for m in split:
                    of_result[m] = Partial()
        placements.append(of_result)
        own.append(per_head)
    return placements, own


def call(function, transposed, in_place, tensors, options):
    """Calls function (rotate, rotate_, rotate_backward or rotate_backward_) with DTensors and options."""
    if not torch.compiler.is_compiling() and _launch.are_transforms_active():
        raise Error(
            "tensors[0] is a DTensor under a torch.func transform or in forward mode: %s" % _WAY_ROUND, "tensors[0]"
        )
    layout = word(options.get("layout"), DIMS, "layout")
    names = ["tensors[%d]" % i for i in range(len(tensors))]
    of_mesh = _kinds(layout, tensors, names)
    mesh, options = tensors[0].device_mesh, dict(options)
    for name in ("out", "forward_src", "d_freqs", "d_inv_freq", "d_weights", "status", "norms"):
        if options.get(name) is not None:
            raise Error("%s is not for DTensors: %s" % (name, _WAY_ROUND), name)
    if any([_TOKENS in kinds for kinds in of_mesh]):
        if options.get("position_ids") is None:
            _refuse("tensors[0]", "whose tokens are split, and position_ids, which must give their positions, is missing")
        if options.get("cu_seqlens") is not None:
            message = "cu_seqlens describes all tokens, but the tokens of tensors[0], a DTensor, are split: %s"
            raise Error(message % _WAY_ROUND, "cu_seqlens")
    has_sequences, sizes = options.get("cu_seqlens") is not None, _sizes(layout, tensors[0])
    for name in ("inv_freq", *ARRAYS):
        if isinstance(options.get(name), torch.Tensor):
            options[name] = _local_array(options[name], name, of_mesh, mesh, has_sequences, sizes)
    if in_place:
        for x, name in zip(tensors, names):
            if x.requires_grad and torch.is_grad_enabled():
                _refuse(name, "that requires a gradient, but autograd does not see a rotation in place. Use rotate, or")
    shared_heads = _listed_shared_heads(options.get("shared_heads", DEFAULTS["shared_heads"]), len(tensors))
    for x, name, per_head in zip(tensors, names, shared_heads):
        _check_shards(x, name, per_head > 0, DIMS[layout].heads)
    local = [_to_local(x, x.placements) for x in tensors]
    placements = [x.placements for x in tensors]
    if transposed and len(shared_heads) == len(tensors):
        placements, own = _results_of_sums(layout, tensors, shared_heads)
        options["shared_heads"] = own
    if mesh.get_coordinate() is None:  # this rank is not in the mesh: as in PyTorch's operations, it has no elements
        results = local[0] if len(local) == 1 else local
    else:
        results = function(*local, **options)
    if in_place:
        for x in tensors:
            if not x.is_inference() and not torch.compiler.is_compiling():
                torch.autograd.graph.increment_version(x)
        return tensors[0] if len(tensors) == 1 else tensors
    results = [results] if len(tensors) == 1 else results
    wrapped, heads = [], DIMS[layout].heads
    for x, y, of_result, per_head in zip(tensors, results, placements, shared_heads):
        shape = list(x.shape)
        if per_head:
            shape[heads] = shape[heads] // per_head if transposed else shape[heads] * per_head
        wrapped.append(_result(y, x, of_result, shape))
    return wrapped[0] if len(tensors) == 1 else tuple(wrapped)
