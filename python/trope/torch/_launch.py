"""Calls on torch tensors without autograd: the allocations, the stream, and the prepared call."""

import torch

from torch.autograd import forward_ad

from .. import _prepared
from .._errors import NAMES, Error
from .._norms import NormArrays
from .._options import Side, with_gradients
from .._prepared import Meta, PreparedCall
from .._spec import result_shape

_current_stream = getattr(
    torch._C, "_cuda_getCurrentRawStream", None
)  # returns the address of a stream in 0.1 us, if torch has CUDA
_current_device = getattr(torch._C, "_cuda_getDevice", None)


are_functions_transformed = torch._C._are_functorch_transforms_active
_is_batched = torch._C._functorch.is_legacy_batchedtensor  # for is_grads_batched and vectorize
_is_traced = torch._C._get_tracing_state
_follows_tangents = torch._C._is_fwd_grad_enabled


def are_transforms_active():
    """Whether a transform of torch.func or forward mode is active. (Neither is active in the forward of a Function.)"""
    return are_functions_transformed() or (forward_ad._current_level >= 0 and _follows_tangents())


def are_batched(tensors):
    """Whether one tensor is a batch of gradients (is_grads_batched, vectorize)."""
    for t in tensors:
        if t is not None and _is_batched(t):
            return True
    return False


def refuse_transforms(tensors=()):
    """Refuses transforms that would record or differentiate a call without seeing it: results would be garbage or zeros.

    For batched gradients it checks only the first of `tensors`: either all tensors of a call are batched, or none.
    """
    if are_transforms_active() or (tensors and _is_batched(tensors[0])):
        raise Error(
            "tensors: torch.func transforms, forward-mode derivatives, is_grads_batched and jacobian(vectorize=True) are for"
            " trope.torch.rotate without out, outside of torch.compile. Here, call torch.autograd.grad once for each gradient,"
            " and make the dimension of a vmap one of batch or heads",
            "tensors",
        )
    if _is_traced() is not None:
        raise Error(
            "tensors: torch.jit.trace would record a call that computes nothing: use torch.compile or torch.export",
            "tensors",
        )


def _meta(t):
    """Returns the properties of a tensor that a prepared call needs. Calls of meta tensors are checked like CPU calls."""
    return None if t is None else Meta(t.shape, t.stride(), t.dtype, "cpu" if t.is_meta else t.device.type)


def _names(count):
    """Returns the names of `count` tensors, of their out and forward_src, of the Side, and of their norms' arrays."""
    sums = "token_sums of norms[%d]"
    of_norms = "norms[%d].weight", "rstd of norms[%d]", "d_weights[%d]", sums, sums  # in the order of NormArrays
    named = [name % i for name in NAMES.values() for i in range(count)] + list(Side._fields)
    return named + [name % i for i in range(count) for name in of_norms]


def _flatten(norms):
    return [t for arrays in norms for t in arrays]


def _prepare(backward, spec, srcs, dsts, forward_srcs, side, norms):
    device = srcs[0].device
    for name, t in zip(_names(len(srcs)), (*srcs, *dsts, *forward_srcs, *side, *_flatten(norms))):
        if t is not None and t.device != device:
            raise Error("%s is on %s, but tensors[0] is on %s" % (name, t.device, device), name)
    metas = ([_meta(t) for t in tensors] for tensors in (srcs, dsts, forward_srcs))
    return PreparedCall(
        backward, spec, *metas, Side(*map(_meta, side)), [NormArrays(*map(_meta, arrays)) for arrays in norms]
    )


def _scratch(device):
    def allocate(size):
        memory = torch.empty(size, dtype=torch.uint8, device=device)
        return memory, memory.data_ptr()

    return allocate


def _keep_alive(device, tensors):
    """On a side stream, keeps the allocator from reusing the tensors' memory before the stream has finished with it."""
    if torch.cuda.is_current_stream_capturing():  # a graph keeps its memory anyway
        return
    current = torch.cuda.current_stream(device)
    for t in tensors:
        if t is not None and t.is_cuda:
            t.record_stream(current)


def launch(backward, spec, srcs, dsts, forward_srcs, side, are_new=False, norms=()):
    """Runs one call. The lists have None where a tensor is absent. `norms` has NormArrays for each tensor, or is empty.
    are_new: new_result made the dsts, so the srcs determine their shapes and strides.

    The key of the prepared call has everything that it depends on. Reading it from the tensors is most of this call's cost.
    """
    refuse_transforms(srcs)  # a transform can reach a backward that was recorded before it
    if srcs[0].is_meta:
        # Nothing has to run: making the prepared call checks the call.
        _prepare(backward, spec, srcs, dsts, forward_srcs, side, norms)
        return
    key, addresses = [backward, id(spec), are_new], []
    for t in srcs:
        if t.layout is not torch.strided:  # an upstream gradient: other tensors are checked earlier
            raise Error("tensors: an upstream gradient has layout %s: pass to_dense()" % t.layout, "tensors")
        if t.is_neg():  # negated lazily: the memory has the values with the other sign
            return launch(backward, spec, *_without_negations(srcs, dsts, forward_srcs, side, norms))
        key += (t.shape, t.stride(), t.dtype, t.get_device())
        addresses.append(t.data_ptr())
    if are_new:
        addresses += [t.data_ptr() for t in dsts]
    beside = (*side, *_flatten(norms)) if norms else side
    for i, t in enumerate(beside if are_new else (*dsts, *forward_srcs, *beside)):
        if t is not None:
            if t.is_neg():
                return launch(backward, spec, *_without_negations(srcs, dsts, forward_srcs, side, norms))
            key += (i, t.shape, t.stride(), t.dtype, t.get_device())
            addresses.append(t.data_ptr())
    if 0 in addresses:
        _check_memory(_names(len(srcs)), (*srcs, *dsts, *forward_srcs, *beside))

    def make():
        return _prepare(backward, spec, srcs, dsts, forward_srcs, side, norms)

    first = srcs[0]
    has_gradient = side.d_freqs is not None or side.d_inv_freq is not None or (backward and norms)
    allocate = _scratch(first.device) if has_gradient else None
    index = first.get_device()
    if index < 0:
        return _prepared.run(tuple(key), make, addresses, None, allocate)
    stream = _current_stream(index)
    if stream:
        _keep_alive(index, (*srcs, *dsts, *forward_srcs, *beside))
    if index == _current_device():
        return _prepared.run(tuple(key), make, addresses, stream, allocate)
    with torch.cuda.device(index):
        _prepared.run(tuple(key), make, addresses, stream, allocate)


def _without_negations(srcs, dsts, forward_srcs, side, norms):
    """Copies tensors that are negated lazily (the imaginary part of a conjugate). They can be read, but not written."""
    of_norms = _flatten(norms)
    written = [*dsts, side.status, side.d_freqs, side.d_inv_freq, *[arrays.d_weight for arrays in norms]]
    for name, t in zip(_names(len(srcs)), (*srcs, *dsts, *forward_srcs, *side, *of_norms)):
        if t is not None and t.is_neg() and any(t is one for one in written):
            message = "%s is written, but it is negated lazily (imag of a conjugate): pass its resolve_neg()"
            raise Error(message % (name,), name)

    def resolve(tensors):
        return [t.resolve_neg() if t is not None else None for t in tensors]

    resolved_norms = [NormArrays(*resolve(arrays)) for arrays in norms]
    return resolve(srcs), resolve(dsts), resolve(forward_srcs), Side(*resolve(side)), False, resolved_norms


def _check_memory(names, tensors):
    """Refuses a tensor that has elements but no address."""
    for name, t in zip(names, tensors):
        if t is not None and not t.data_ptr() and t.numel():
            message = "%s is a %s on %s that has no memory of its own: pass an ordinary tensor"
            raise Error(message % (name, type(t).__name__, t.device), name)


def new_result(backward, spec, i, x):
    """Makes a result as eager PyTorch's elementwise operations would: with the order of dimensions that x has in memory."""
    if not spec.shared_heads[i]:
        return torch.empty_like(x)
    return x.new_empty(result_shape(backward, spec, i, x.shape))


def rotate(transposed, spec, side, tensors):
    """Returns M x of each tensor, or M' x."""
    if any(spec.shared_heads):
        results = [new_result(transposed, spec, i, x) for i, x in enumerate(tensors)]
    else:
        results = [torch.empty_like(x) for x in tensors]
    launch(transposed, spec, tensors, results, (None,) * len(tensors), side, True)
    return results


def find_angle_gradient(spec, side, dys, xs):
    """Returns dL/d freqs from dy and x of each tensor, in the shape of the table and in f32 (f64 with f64 tensors)."""
    dtype = torch.float64 if dys[0].dtype == torch.float64 else torch.float32
    table = side.freqs if side.freqs is not None else side.cos
    d_freqs = torch.empty(table.shape, dtype=dtype, device=table.device)
    launch(True, spec, dys, (None,) * len(dys), xs, with_gradients(side, d_freqs, None))
    return d_freqs
