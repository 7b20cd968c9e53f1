"""Prepared calls: structs of the library that are filled in once for shapes and options. Later calls only set pointers."""

import ctypes
from typing import NamedTuple

from . import _abi
from ._abi import Args, Operand, lib
from ._errors import NAMES, Error
from ._norms import NormArrays, count_heads, rstd_shape, sums_shape
from ._options import Side, Spec
from ._spec import DIMS, Dims, check_spec, find_columns
from ._values import INT32_MAX

_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"}
_INDICES = {"int32": "i32", "int64": "i64"}
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}  # the bytes of an element
_MOST_PREPARED_CALLS = 512
# Libraries report address 0 for arrays without elements. Such an array gets a multiple of this, which is never read.
_NO_ELEMENTS = 64
_LAYOUTS_OF_GROUPS = [layout for layout, dims in DIMS.items() if dims.groups is not None]
# The settings that are numbers in trope_args. (With cp_size 1, the other two are 0.)
_NUMBERS = [name for name, type_, *_ in Args._fields_ if name in Spec._fields and type_ is not ctypes.c_void_p]


class Meta(NamedTuple):
    """The properties of an array without its address. Strides count elements, dtype is its name, device "cpu" or "cuda"."""

    shape: tuple
    strides: tuple
    dtype: object
    device: object


def name_of_dtype(dtype):
    """Returns "float32" for the float32 of NumPy, PyTorch, JAX, ..., and likewise for other dtypes."""
    return str(dtype).rpartition(".")[2]


def dtype_of(meta, argument):
    """Returns the library's constant for the dtype of a tensor or table."""
    name = name_of_dtype(meta.dtype)
    if name not in _DTYPES:
        message = "%s has dtype %s, and must be float32, float16, bfloat16 or float64"
        raise Error(message % (argument, name), argument)
    return _DTYPES[name]


def _index_dtype(meta, argument):
    name = name_of_dtype(meta.dtype)
    if name not in _INDICES:
        raise Error("%s has dtype %s, and must be int32 or int64" % (argument, name), argument)
    return _abi.INDICES[_INDICES[name]]


def _check_dtype(meta, wanted, argument):
    """Checks the dtype of an array that is written, because the library cannot: a call does not contain this dtype."""
    if name_of_dtype(meta.dtype) != wanted:
        raise Error("%s has dtype %s, and must be %s" % (argument, name_of_dtype(meta.dtype), wanted), argument)


def _is_contiguous(shape, strides):
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _flat(meta, size, argument, what):
    """Refuses an array that is not one contiguous dimension of `size` elements (None: any number). The error says that each
    element belongs to one `what`."""
    shape, strides = tuple(meta.shape), meta.strides
    if len(shape) != 1 or (size is not None and shape[0] != size):
        wanted = "[%s]" % what if size is None else "[%d], one for each %s" % (size, what) if what else "[%d]" % size
        raise Error("%s has shape %s, and must have shape %s" % (argument, list(shape), wanted), argument)
    if not _is_contiguous(shape, strides):
        raise Error("%s must be contiguous, and has stride %d" % (argument, strides[0]), argument)


def _sizes(layout, meta, argument):
    """Returns [batch, tokens, groups, heads, head_dim] and their strides. A layout without groups has one group."""
    shape, strides = meta.shape, meta.strides
    if len(shape) != len(layout):
        message = "%s has shape %s, which is not %s (layout %r)"
        raise Error(message % (argument, list(shape), list(layout), layout), argument)
    dims = DIMS[layout]
    sizes = [1 if dim is None else shape[dim] for dim in dims]
    for word, size in zip(Dims._fields[2:], sizes[2:]):
        if not 1 <= size <= INT32_MAX:
            raise Error("%s has %s %d, which must be 1 to %d" % (argument, word, size, INT32_MAX), argument)
    return sizes, [0 if dim is None else strides[dim] for dim in dims]


def _fill_tensor(operand, name, meta, layout, expected, is_sharing, argument):
    """Fills in one of an operand's tensors, of `expected` sizes. Shared heads are groups in the operand: a group has one
    head in the tensor that shares, and several consecutive heads in the other tensor."""
    sizes, strides = _sizes(layout, meta, argument)
    for word, size, right in zip(Dims._fields, sizes, expected):
        if size != right:
            message = "%s has shape %s, with %s %d where %d is needed"
            raise Error(message % (argument, list(meta.shape), word, size, right), argument)
    if operand.shared_heads:
        strides[2:4] = (strides[3], 0) if is_sharing else (strides[3] * operand.heads_per_group, strides[3])
    setattr(operand, name + "_layout", _abi.STRIDED)
    getattr(operand, name + "_stride")[:] = strides


class PreparedCall:
    """The structs of a call for arrays with these properties. The arguments after spec hold Metas, or arrays with their
    attributes. norms has NormArrays for each tensor, or nothing if the spec has no norms."""

    def __init__(self, backward, spec, srcs, dsts, forward_srcs, side, norms=()):
        self.spec = spec  # keeps it alive, because the keys of prepared calls have its id
        self.call = lib.trope_backward if backward else lib.trope_forward
        self.device = srcs[0].device
        self.table_name = "freqs" if side.freqs is not None else "cos"
        self.kept = []  # the objects that the structs point into
        self.args = Args(struct_size=ctypes.sizeof(Args), operand_size=ctypes.sizeof(Operand))
        self.operands = (Operand * len(srcs))()
        self.args.operands, self.args.operand_count = ctypes.addressof(self.operands), len(srcs)
        self.reference = ctypes.byref(self.args)
        self._fill_options(spec, srcs[0])
        self._fill_operands(backward, spec, srcs, dsts, forward_srcs)
        self._fill_norms(backward, spec, norms, srcs, forward_srcs)
        self._fill_angles(spec, side)
        self._fill_sequences(spec, side)
        self._fill_positions(spec, side)
        self._fill_gradients(spec, side)
        # In a call without tokens, the gradient has no elements: nothing is written, and nothing is read for it.
        self.skips_gradient = side.d_freqs is not None and 0 in side.d_freqs.shape
        for operand in self.operands if self.skips_gradient else ():
            operand.forward_src_layout, operand.forward_src_stride[:] = 0, [0] * _abi.MAX_DIMS
        if side.status is not None:
            _check_dtype(side.status, "int32", "status")
            _flat(side.status, 1, "status", "")
        if self.args.batch == 0:  # like 0 tokens: the library checks the call and does nothing
            self.args.batch, self.args.tokens = 1, 0
        self.workspace_size = None
        self.slots = self._find_slots(srcs, dsts, forward_srcs, side, norms)

    def _fill_options(self, spec, first):
        args = self.args
        if self.device not in _abi.DEVICES:
            message = "tensors[0] is on device %r, but this library supports %s"
            raise Error(message % (self.device, " and ".join(map(repr, _abi.DEVICES))), "tensors[0]")
        args.device = _abi.DEVICES[self.device]
        args.dtype = _abi.DTYPES[dtype_of(first, "tensors[0]")]
        for name in _NUMBERS:
            value = getattr(spec, name)
            setattr(args, name, _abi.WORDS[name].get(value, 0) if name in _abi.WORDS else value)
        if spec.pair_axis:
            self._keep("pair_axis", (ctypes.c_uint8 * len(spec.pair_axis))(*spec.pair_axis))

    def _keep(self, field, array):
        setattr(self.args, field, ctypes.addressof(array))
        self.kept.append(array)

    def _fill_operands(self, backward, spec, srcs, dsts, forward_srcs):
        args, count = self.args, len(srcs)
        if not len(spec.rotary_dims) == len(spec.rotary_offsets) == len(spec.shared_heads) == count:
            raise Error(
                "rotary_dim, rotary_offset and shared_heads need one entry for each of %d tensors" % count, "tensors"
            )
        for i, operand in enumerate(self.operands):
            argument, per_group = NAMES["src"] % i, spec.shared_heads[i]
            metas = {"src": srcs[i], "dst": dsts[i], "forward_src": forward_srcs[i]}
            for name, meta in metas.items():
                named = NAMES[name] % i
                if meta is not None and dtype_of(meta, named) != dtype_of(srcs[0], "tensors[0]"):
                    given = named, name_of_dtype(meta.dtype), name_of_dtype(srcs[0].dtype)
                    raise Error(
                        "%s has dtype %s, but tensors[0] has %s: all tensors of a call must have one dtype" % given, named
                    )
            shape = _sizes(spec.layout, srcs[i], argument)[0]
            batch, tokens, groups, heads, head_dim = shape
            if per_group and backward:
                if heads % per_group:
                    message = "%s has %d heads, which is not a multiple of shared_heads %d"
                    raise Error(message % (argument, heads, per_group), argument)
                heads //= per_group
            if i == 0:
                args.batch, args.tokens = batch, tokens
            if per_group:
                operand.groups, operand.heads_per_group, operand.shared_heads = heads, per_group, _abi.SHARED_GROUP
            else:
                operand.groups, operand.heads_per_group = groups, heads
            if heads * per_group > INT32_MAX:
                raise Error("shared_heads (%d) makes too many heads" % per_group, "shared_heads")
            width, offset = spec.rotary_dims[i], spec.rotary_offsets[i]
            if width + offset > head_dim:
                message = "%s (%d) is too large: %s has heads of %d elements, and rotary_dim is %d"
                blamed, value = ("rotary_offset", offset) if offset else ("rotary_dim", width)
                raise Error(message % (blamed, value, argument, head_dim, width), blamed)
            operand.head_dim, operand.rotary_dim = head_dim, width
            operand.rotary_offset, operand.accumulate = offset, spec.accumulate
            for name, meta in metas.items():
                if meta is not None:
                    is_other = per_group and name == ("src" if backward else "dst")
                    all_heads = heads * per_group if is_other else heads
                    expected = args.batch, args.tokens, groups, all_heads, head_dim
                    _fill_tensor(operand, name, meta, spec.layout, expected, not is_other, NAMES[name] % i)

    def _has_norm(self, i):
        return bool(self.spec.norms and self.spec.norms[i].scope)

    def _fill_norms(self, backward, spec, norms, srcs, forward_srcs):
        if len(norms) != len(spec.norms):
            raise Error("norms: this call does not support them", "norms")
        self.norms = (_abi.Norm * len(norms))()
        for i, arrays in enumerate(norms):
            if not self._has_norm(i):
                if any([array is not None for array in arrays]):
                    raise Error("d_weights[%d] is given, and norms[%d] is None" % (i, i), "d_weights[%d]" % i)
                continue
            if backward and forward_srcs[i] is None:
                message = "forward_src[%d] is missing: the backward of norms[%d] reads x of the forward call"
                raise Error(message % (i, i), "forward_src[%d]" % i)
            self._fill_norm(backward, spec, i, arrays, srcs[i].shape)
        if norms:
            pointers = [ctypes.addressof(norm) if self._has_norm(i) else None for i, norm in enumerate(self.norms)]
            self._keep("norms", (ctypes.c_void_p * len(norms))(*pointers))

    def _fill_norm(self, backward, spec, i, arrays, shape):
        settings, norm = spec.norms[i], self.norms[i]
        norm.struct_size, norm.eps = ctypes.sizeof(_abi.Norm), settings.eps
        for name, words in _abi.NORM_WORDS.items():
            setattr(norm, name, words.get(getattr(settings, name), 0))
        if settings.has_weight != (arrays.weight is not None):
            raise Error("norms[%d].weight is missing or unexpected" % i, "norms[%d].weight" % i)
        if settings.has_weight:
            self._fill_weight(i, arrays.weight, settings)
        heads = count_heads(spec.layout, shape)
        for name, argument, wanted in (
            ("rstd", "rstd of norms[%d]", rstd_shape(spec.layout, settings, shape)),
            ("d_weight", "d_weights[%d]", None if arrays.weight is None else tuple(arrays.weight.shape)),
            ("new_sums", "token_sums of norms[%d]", sums_shape(spec.layout, settings, shape)),
            ("token_sums", "token_sums of norms[%d]", sums_shape(spec.layout, settings, shape, True)),
        ):
            array = getattr(arrays, name)
            if array is not None:
                self._check_of_norm(array, wanted, argument % i, i)
        if arrays.rstd is not None:
            norm.rstd_use = _abi.RSTD_READ if backward else _abi.RSTD_WRITE
        if arrays.new_sums is not None:
            norm.token_sums_use = _abi.SUMS_WRITE
        if arrays.token_sums is not None:
            norm.token_sums_use = _abi.SUMS_READ
            norm.heads_of_all_ranks, norm.first_head = settings.ranks * heads, settings.rank * heads

    def _fill_weight(self, i, meta, settings):
        norm, operand, name, shape = self.norms[i], self.operands[i], "norms[%d].weight" % i, tuple(meta.shape)
        heads, head_dim = max(operand.groups, 1) * operand.heads_per_group, operand.head_dim
        per_head = [(heads, head_dim), (heads * head_dim,)]
        if self.spec.layout in _LAYOUTS_OF_GROUPS:
            per_head.append((operand.groups, operand.heads_per_group, head_dim))
        if shape != (head_dim,) and shape not in per_head:
            message = "%s has shape %s, and must be [head_dim] or [heads, head_dim], which may be flattened: %s"
            words = ", ".join(str(list(one)) for one in ((head_dim,), *per_head))
            raise Error(message % (name, list(shape), words), name)
        dtype = dtype_of(meta, name)
        if dtype == "f64" and self.args.dtype != _abi.DTYPES["f64"]:
            raise Error("%s has dtype float64, which is only for float64 tensors" % name, name)
        if not _is_contiguous(shape, meta.strides):
            raise Error("%s must be contiguous, and has strides %s" % (name, list(meta.strides)), name)
        norm.weight_dtype, norm.weight_per_head = _abi.DTYPES[dtype], shape != (head_dim,)
        norm.weight_plus_one = settings.plus_one

    def _check_of_norm(self, meta, shape, argument, i):
        if shape is None:
            raise Error("%s is given, and norms[%d] has no weight" % (argument, i), argument)
        _check_dtype(meta, "float64" if self.args.dtype == _abi.DTYPES["f64"] else "float32", argument)
        if tuple(meta.shape) != shape:
            raise Error("%s has shape %s, and must have %s" % (argument, list(meta.shape), list(shape)), argument)
        if 0 not in shape and not _is_contiguous(shape, meta.strides):
            raise Error("%s must be contiguous, and has strides %s" % (argument, list(meta.strides)), argument)

    def _table_strides(self, meta, argument):
        """Returns the strides of axis, batch, row and column: 0 for dimensions that are missing or have one entry."""
        find_columns(meta, argument)
        shape, strides = tuple(meta.shape), tuple(meta.strides)
        lacking = 4 - len(shape)
        shape, strides = (1,) * lacking + shape, (0,) * lacking + strides
        if not 1 <= shape[0] <= _abi.MAX_AXES:
            message = "%s has shape %s, and must have 1 to %d axes"
            raise Error(message % (argument, list(meta.shape), _abi.MAX_AXES), argument)
        if shape[1] not in (1, self.args.batch):
            message = "%s has shape %s, with batch %d where the tensors have %d"
            raise Error(message % (argument, list(meta.shape), shape[1], self.args.batch), argument)
        return shape, tuple(0 if size == 1 and i < 3 else stride for i, (size, stride) in enumerate(zip(shape, strides)))

    def _fill_angles(self, spec, side):
        args, name = self.args, self.table_name
        if spec.inv_freq:
            check_spec(spec, None, None)
            if spec.out_of_range != "poison":
                message = "out_of_range is %r, but it is only for tables: with inv_freq, no position is out of range"
                raise Error(message % spec.out_of_range, "out_of_range")
            self._keep("phase_step", _phase_steps(spec.inv_freq))
            return
        table = side.freqs if side.freqs is not None else side.cos
        if table is None:
            raise Error("the angles are missing: give exactly one of inv_freq, freqs, or cos with sin", "inv_freq")
        shape, strides = self._table_strides(table, name)
        check_spec(spec, name, shape[3])
        args.angle_dtype = _abi.DTYPES[dtype_of(table, name)]
        if side.sin is not None and (*self._table_strides(side.sin, "sin"), side.sin.dtype) != (
            shape,
            strides,
            table.dtype,
        ):
            message = (
                "sin has shape %s, strides %s and dtype %s, but cos has %s, %s and %s: they must be the same (make both "
                "contiguous)"
            )
            given = [
                x for meta in (side.sin, table) for x in (list(meta.shape), list(meta.strides), name_of_dtype(meta.dtype))
            ]
            raise Error(message % tuple(given), "sin")
        if args.angle_dtype == _abi.DTYPES["f64"] != args.dtype:
            raise Error("%s has dtype float64, which is only for float64 tensors: use float32" % name, name)
        args.angle_layout, args.angle_rows = _abi.TABLE_STRIDED, shape[2]
        if not args.batch * args.tokens:
            args.angle_rows = max(shape[2], 1)
        args.angle_stride[:] = strides
        if shape[0] > 1 and self._axes_of_pairs(spec) != shape[0]:
            message = "%s has shape %s, with %d axes where the pairs use %d (pair_axis, parts)"
            raise Error(message % (name, list(table.shape), shape[0], self._axes_of_pairs(spec)), name)

    @staticmethod
    def _axes_of_pairs(spec):
        """Returns how many axes the pairs use: those of pair_axis, or one for each part."""
        return max(spec.pair_axis, default=spec.parts - 1) + 1

    def _fill_positions(self, spec, side):
        args = self.args
        given = [name for name in ("position_ids", "start_positions") if getattr(side, name) is not None]
        given += ["stream_positions"] * spec.stream_positions
        if len(given) > 1:
            raise Error("%s is given beside %s: positions come from one of them" % (given[1], given[0]), given[1])
        if spec.stream_positions and side.cu_seqlens is None:
            raise Error("stream_positions is True, and cu_seqlens is missing", "stream_positions")
        if side.position_ids is not None:
            self._fill_ids(spec, side.position_ids)
        if side.start_positions is not None:
            sequences = args.batch if side.cu_seqlens is None else args.sequences
            what = "batch entry" if side.cu_seqlens is None else "sequence of cu_seqlens"
            _flat(side.start_positions, sequences, "start_positions", what)
            args.position_dtype = _index_dtype(side.start_positions, "start_positions")
        planes = self._table_strides(side.freqs or side.cos, self.table_name)[0][0] if not spec.inv_freq else 1
        ids = side.position_ids.shape if side.position_ids is not None else ()
        if spec.pair_axis and max(spec.pair_axis) > 0 and planes == 1 and (len(ids) < 3 or ids[0] == 1):
            message = (
                "pair_axis has %d axes, but neither position_ids nor a table has axes: all pairs would have the same "
                "position"
            )
            raise Error(message % self._axes_of_pairs(spec), "pair_axis")

    def _fill_ids(self, spec, meta):
        args, name = self.args, "position_ids"
        shape, strides = tuple(meta.shape), tuple(meta.strides)
        if not 1 <= len(shape) <= 3:
            message = "position_ids has shape %s, and must be [tokens], [batch, tokens] or [axes, batch, tokens]"
            raise Error(message % list(shape), name)
        lacking = 3 - len(shape)
        axes, batch, tokens = (1,) * lacking + shape
        if tokens != args.tokens or batch not in (1, args.batch):
            message = "position_ids has shape %s, and the tensors have batch %d and %d tokens"
            raise Error(message % (list(shape), args.batch, args.tokens), name)
        used = self._axes_of_pairs(spec)
        if axes != 1 and axes != used:
            message = "position_ids has shape %s, with %d axes where the pairs use %d (pair_axis, parts)%s"
            text_row = ": remove the first axis, which has text positions" if (axes, used) == (4, 3) else ""
            raise Error(message % (list(shape), axes, used, text_row), name)
        strides = (0,) * lacking + strides
        args.position_dtype = _index_dtype(meta, name)
        if strides[0] == 0:  # the dimension is expanded: all axes have the same ids
            axes = 1
        args.ids_layout, args.position_axes = _abi.IDS_STRIDED, axes
        args.ids_stride[:] = (strides[0] if axes > 1 else 0, strides[1] if batch > 1 else 0, strides[2])

    def _fill_sequences(self, spec, side):
        args = self.args
        if side.cu_seqlens is None:
            if side.cu_seqlens_padded is not None:
                raise Error("cu_seqlens is missing: cu_seqlens_padded is given", "cu_seqlens")
            if spec.padding:
                raise Error("padding is %r, and cu_seqlens is missing" % spec.padding, "padding")
            return
        _flat(side.cu_seqlens, None, "cu_seqlens", "sequences + 1")
        args.sequences = side.cu_seqlens.shape[0] - 1
        if args.sequences < 0:
            raise Error("cu_seqlens is empty, and must have shape [sequences + 1]", "cu_seqlens")
        args.cu_seqlens_dtype = _index_dtype(side.cu_seqlens, "cu_seqlens")
        if args.batch != 1:
            message = "cu_seqlens is for packed sequences with batch 1 (layout 'thd'), but tensors[0] has batch %d"
            raise Error(message % args.batch, "cu_seqlens")
        if side.cu_seqlens_padded is not None:
            _flat(side.cu_seqlens_padded, args.sequences + 1, "cu_seqlens_padded", "entry of cu_seqlens")
            if _index_dtype(side.cu_seqlens_padded, "cu_seqlens_padded") != args.cu_seqlens_dtype:
                raise Error("cu_seqlens_padded must have the dtype of cu_seqlens", "cu_seqlens_padded")
            if not spec.padding:
                words = ", ".join(map(repr, _abi.WORDS["padding"]))
                raise Error("padding is missing: cu_seqlens_padded needs one of %s" % words, "padding")

    def _fill_gradients(self, spec, side):
        args = self.args
        if side.d_freqs is not None:
            table = side.freqs if side.freqs is not None else side.cos
            if table is None:
                raise Error("d_freqs is given, but there is no table: use d_inv_freq for inv_freq", "d_freqs")
            _check_dtype(side.d_freqs, "float64" if args.dtype == _abi.DTYPES["f64"] else "float32", "d_freqs")
            shape, strides = self._table_strides(side.d_freqs, "d_freqs")
            if shape[2:] != tuple(table.shape[-2:]) or shape[0] not in (1, self._axes_of_pairs(spec)):
                message = "d_freqs has shape %s, but the table has %s"
                raise Error(message % (list(side.d_freqs.shape), list(table.shape)), "d_freqs")
            if 0 not in shape:
                args.d_freqs_layout = _abi.TABLE_STRIDED
                args.d_freqs_stride[:] = strides
        if side.d_inv_freq is not None:
            if not spec.inv_freq:
                raise Error("d_inv_freq is given, but inv_freq is not: use d_freqs for a table", "d_inv_freq")
            _check_dtype(side.d_inv_freq, "float64", "d_inv_freq")
            _flat(side.d_inv_freq, len(spec.inv_freq), "d_inv_freq", "pair")

    def _find_slots(self, srcs, dsts, forward_srcs, side, norms):
        """Returns where the addresses of the present arrays go, in order: (words of a struct, index of the word, the
        address to use if the array has no elements). That address differs for each array, because equal addresses would
        mean a call in place."""
        args = (ctypes.c_uint64 * (ctypes.sizeof(Args) // 8)).from_buffer(self.args)
        slots = []
        for name, metas in (("src", srcs), ("dst", dsts), ("forward_src", forward_srcs)):
            for operand, meta in zip(self.operands, metas):
                if meta is not None:
                    words = (ctypes.c_uint64 * (ctypes.sizeof(Operand) // 8)).from_buffer(operand)
                    slots.append((words, getattr(Operand, name).offset // 8))
        slots += [(args, getattr(Args, name).offset // 8) for name in Side._fields if getattr(side, name) is not None]
        if self.skips_gradient:  # d_freqs and forward_src are left out
            nowhere = (ctypes.c_uint64 * 1)()
            unread = Operand.forward_src.offset // 8, Args.d_freqs.offset // 8
            slots = [(nowhere, 0) if at == unread[words is args] else (words, at) for words, at in slots]
        for norm, arrays in zip(self.norms, norms):
            words = (ctypes.c_uint64 * (ctypes.sizeof(_abi.Norm) // 8)).from_buffer(norm)
            present = [name for name in NormArrays._fields if getattr(arrays, name) is not None]
            fields = [getattr(_abi.Norm, "token_sums" if name == "new_sums" else name) for name in present]
            slots += [(words, field.offset // 8) for field in fields]
        return [(words, at, _NO_ELEMENTS * (i + 1)) for i, (words, at) in enumerate(slots)]

    def _check(self, status):
        """Raises the library's last error, in the words of the caller, unless status is OK."""
        if status != _abi.OK:
            operands = self.operands
            raise _abi.error_of_call(status, self.table_name, lambda i: operands[i].src == operands[i].dst)

    def run(self, addresses, stream=None, allocate=None):
        """Makes the call. addresses: the addresses of the present arrays, in this order: src of all operands, dst,
        forward_src, `side`, norms.

        allocate(bytes) returns scratch memory, which gradients of angles and of norms need: (the object that keeps it
        alive, its address).
        """
        for (words, at, nothing), address in zip(self.slots, addresses):
            words[at] = address or nothing
        self.args.stream = stream  # None: the legacy stream, whatever stream an earlier run had
        if allocate is not None:
            args, size = self.args, self._find_workspace_size()
            kept, args.workspace = allocate(size) if size else (None, None)
            args.workspace_size = size
        status = self.call(self.reference)
        if status:
            self._check(status)

    def find_kernel(self, addresses, backward):
        """Calls trope_kernel_name."""
        name = ctypes.create_string_buffer(128)
        for (words, at, nothing), address in zip(self.slots, addresses):
            words[at] = address or nothing
        self._check(lib.trope_kernel_name(self.reference, backward, name, len(name)))
        return name.value.decode()

    def _find_workspace_size(self):
        if self.workspace_size is None:
            size = ctypes.c_uint64()
            self._check(lib.trope_workspace_size(self.reference, ctypes.byref(size)))
            self.workspace_size = size.value
        return self.workspace_size


_prepared_calls: dict = {}


def run(key, make, addresses, stream=None, allocate=None):
    """Runs the prepared call with this key. `make` makes it if there is none. A running prepared call belongs to one
    thread: taking it out and putting it back are one operation each, so threads need no lock. The prepared calls that were
    unused longest are dropped first."""
    prepared = _prepared_calls.pop(key, None)
    if prepared is None:
        prepared = make()
    try:
        prepared.run(addresses, stream, allocate)
    finally:
        _prepared_calls[key] = prepared
        if len(_prepared_calls) > _MOST_PREPARED_CALLS:
            try:
                _prepared_calls.pop(next(iter(_prepared_calls)), None)
            except (RuntimeError, StopIteration):  # another thread has changed the dict meanwhile
                pass


def _phase_steps(inv_freq):
    steps = getattr(inv_freq, "phase_steps", None)
    return _abi.make_phase_steps(inv_freq) if steps is None else steps
