"""The positions of a call: the tensors of indices, and the positions that the library computes from them."""

import ctypes

import numpy as np

from .. import _abi
from .layouts import refuse_shaped
from .refused import option_words, refuse, refuse_tensor

_DTYPES = {"I32": "i32", "I64": "i64"}


def read_positions(call):
    """Reads and checks the tensors of indices, and sets the attributes of a call that are about positions."""
    _read_cu_seqlens(call)
    _read_start_positions(call)
    _read_position_ids(call)
    if call.batch and call.tokens:
        _find_positions(call)


def _check_index(call, tensor):
    if tensor.dtype not in _DTYPES:
        refuse_shaped(call, tensor, "must have dtype I32 or I64")


def _tokens_of_stream(call):
    """Returns the number of tokens of all ranks."""
    return call.tokens * (call.options.cp_size or 1)


def _check_boundaries(call, tensor):
    """Checks that boundaries begin with 0. Lengths, which are a common mistake, usually begin with another number."""
    first = int(tensor.data[0])
    if first:
        are_lengths = int(tensor.data.sum(dtype=np.float64)) == _tokens_of_stream(call)
        text = "must be boundaries that begin with 0, not with %d%s"
        refuse_shaped(call, tensor, text, first, "; these are lengths" if are_lengths else "")


def _read_cu_seqlens(call):
    options, unpadded, padded = call.options, call.group.get("cu_seqlens"), call.group.get("cu_seqlens_padded")
    if unpadded is None:
        if padded is not None:
            refuse_shaped(call, padded, "needs 'cu_seqlens' too")
        for option, value in (("--packed-positions", options.packed_positions), ("--padding", options.padding)):
            if value:
                refuse("%s: has no effect without a tensor cu_seqlens", option)
        return
    _check_index(call, unpadded)
    if len(unpadded.shape) != 1 or not unpadded.elements:
        refuse_shaped(call, unpadded, "must be [sequences + 1]")
    if padded is not None and (padded.dtype, padded.shape) != (unpadded.dtype, unpadded.shape):
        refuse_shaped(call, padded, "must have the dtype and shape of 'cu_seqlens'")
    for tensor in (unpadded,) if padded is None else (unpadded, padded):
        _check_boundaries(call, tensor)
    end, stream = int(unpadded.data[-1]), _tokens_of_stream(call)
    if padded is None and end < stream and not options.padding:
        text = "ends at %d, before the last of %d tokens: give --padding for the tokens that are in no sequence"
        refuse_shaped(call, unpadded, text, end, stream)
    call.sequences = unpadded.elements - 1
    call.given["cu_seqlens"] = unpadded.data
    if padded is not None:
        call.given["cu_seqlens_padded"] = padded.data


def _read_start_positions(call):
    starts = call.group.get("start_positions")
    if starts is None:
        return
    if "position_ids" in call.group:
        refuse_shaped(call, starts, "must not be given together with 'position_ids'")
    _check_index(call, starts)
    if starts.shape != (call.batch if call.sequences is None else call.sequences,):
        refuse_shaped(call, starts, "must be [batch]" if call.sequences is None else "must be [sequences]")
    call.given["start_positions"] = starts.data


def _read_position_ids(call):
    """Reads position_ids: [tokens], [1 or batch, tokens] or [axes, 1 or batch, tokens]."""
    options, ids = call.options, call.group.get("position_ids")
    if ids is None:
        return
    _check_index(call, ids)
    if not 1 <= len(ids.shape) <= 3:
        refuse_shaped(call, ids, "must be [tokens], [batch, tokens] or [axes, batch, tokens]")
    axes, batch, tokens = (1,) * (3 - len(ids.shape)) + ids.shape
    if tokens != call.tokens or batch not in (1, call.batch):
        text = "must have the tokens of the operands (%d), and their batch (%d) or 1"
        refuse_shaped(call, ids, text, call.tokens, call.batch)
    if not 1 <= axes <= _abi.MAX_AXES:
        refuse_shaped(call, ids, "must be [axes, batch, tokens] with from 1 to %d axes", _abi.MAX_AXES)
    if options.cp_size and call.sequences is None:
        refuse_shaped(call, ids, "are taken as they are on every rank: --cp-size has no effect")
    data = ids.data.reshape(axes, batch, tokens)
    if axes > 1 and not call.has_axis_map() and options.windows == 1 and (data == data[:1]).all():
        data, axes = data[:1], 1  # the axes are equal, as for plain text
    if axes > 1 and not call.has_axis_map() and options.windows != axes:
        text = (
            "has %d axes that differ: give --axis-map and --axis-sections, which assign the axes to pairs, or --windows %d"
        )
        refuse_shaped(call, ids, text, axes, axes)
    call.position_axes = axes
    call.given["position_ids"] = data if axes > 1 else data[0]


# ---- The positions of the call ----


def _fill(call):
    """Returns trope_args with the fields that trope_positions reads, and the arrays that they point into."""
    options, given, axes = call.options, call.given, call.position_axes
    args = _abi.Args(struct_size=ctypes.sizeof(_abi.Args), batch=call.batch, tokens=call.tokens)
    kept = {name: np.ascontiguousarray(array) for name, array in given.items()}
    for name, array in kept.items():
        setattr(args, name, array.ctypes.data)
        dtype = _abi.INDICES["i32" if array.dtype.itemsize == 4 else "i64"]
        setattr(args, "cu_seqlens_dtype" if name.startswith("cu_seqlens") else "position_dtype", dtype)
    ids = kept.get("position_ids")
    if ids is not None:
        batch = ids.shape[-2]
        args.ids_layout, args.position_axes = _abi.IDS_STRIDED, axes
        args.ids_stride[:] = (batch * call.tokens if axes > 1 else 0, call.tokens if batch > 1 else 0, 1)
    if call.sequences is not None:
        args.sequences, args.stream_positions = call.sequences, bool(options.packed_positions)
        args.padding = _abi.WORDS["padding"][options.padding] if options.padding else 0
    if options.cp_size:
        args.cp_size, args.cp_rank = options.cp_size, options.cp_rank
        args.cp_layout = _abi.WORDS["cp_layout"][options.cp_layout]
    return args, kept


def _find_positions(call):
    """Makes the library compute the positions on the host. This also checks the indices."""
    args, kept = _fill(call)
    axes, count = max(call.position_axes, 1), call.batch * call.tokens
    try:
        positions, sequences = np.empty((axes, count), np.int64), np.empty(count, np.int32)
    except (MemoryError, ValueError):
        refuse("out of memory for the positions of %d tokens", count)
    status = _abi.lib.trope_positions(ctypes.byref(args), positions.ctypes.data, sequences.ctypes.data)
    if status != _abi.OK:
        refuse_error(call, _abi.error_of_call(status))
    is_padding = sequences < 0
    call.padded = is_padding if is_padding.any() else None
    is_rotated = ~is_padding if call.padded is not None and call.options.padding != "rotate" else slice(None)
    rotated = positions[:, is_rotated]
    call.is_origin = np.zeros(count, bool)
    call.is_origin[is_rotated] = (rotated == 0).all(axis=0)
    call.first_position, call.last_position = (int(rotated.min()), int(rotated.max())) if rotated.size else (0, 0)
    index = np.tile(np.arange(call.tokens), call.batch)[is_rotated]
    call.counts_tokens = axes == 1 and bool((rotated[0] == index).all())


# Words in messages of the library, each with the tensor that it refers to. Refusals name the first tensor that is present.
_BLAMED = (
    ("cu_seqlens_padded", "cu_seqlens_padded"),
    ("cu_seqlens", "cu_seqlens"),
    ("sequence", "cu_seqlens"),
    ("start_positions", "start_positions"),
    ("position", "position_ids"),
    ("position", "start_positions"),
)


def refuse_error(call, error, tensor=None):
    """Raises Refused for an error of the library. It names the tensor of indices that the message is about, or `tensor`."""
    found = [call.group[role] for word, role in _BLAMED if word in str(error) and role in call.group]
    text = option_words(str(error.renamed({"tensors[0]": "the tensor"})))
    for blamed in [*found, *([] if tensor is None else [tensor])]:
        refuse_tensor(call.file.path, blamed.name, "%s", text)
    refuse("%s", text)
