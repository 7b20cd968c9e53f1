"""A call as the library takes it: structs that are filled in once for shapes and options, and then get pointers alone."""

import ctypes
from typing import NamedTuple

from . import _abi
from ._abi import Args, Error, Operand, lib
from ._spec import DIMS

_DTYPES = {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64",
    "int32": "i32", "int64": "i64",
}  # fmt: skip
_PLANS_MOST = 512


class Side(NamedTuple):
    """What a call reads and writes beside its tensors, each an array or None.

    freqs, cos, sin  tables [rows, columns], [batch, rows, columns] or [axes, batch, rows, columns]
    position_ids     int [tokens], [batch, tokens] or [axes, batch, tokens]
    start_positions  int [sequences], or [batch]
    cu_seqlens(_padded)  int [sequences + 1]
    status           int32, one element
    d_freqs          like the table, f32 (f64 with f64 tensors)
    d_inv_freq       f64 [rotary_dim / 2]
    """

    freqs: object = None
    cos: object = None
    sin: object = None
    position_ids: object = None
    start_positions: object = None
    cu_seqlens: object = None
    cu_seqlens_padded: object = None
    status: object = None
    d_freqs: object = None
    d_inv_freq: object = None


class Meta(NamedTuple):
    """All of an array but where it is: strides count elements, dtype is what str() names, device "cpu" or "cuda"."""

    shape: tuple
    strides: tuple
    dtype: object
    device: object


def dtype_of(meta, argument):
    """The library's word for a dtype of NumPy, PyTorch, JAX, ..."""
    name = str(meta[2]).rpartition(".")[2]
    try:
        return _DTYPES[name]
    except KeyError:
        raise Error(
            "%s has dtype %s, and the library has float32, float16, bfloat16, float64" % (argument, name), argument
        ) from None


def _index_dtype(meta, argument):
    word = dtype_of(meta, argument)
    if word not in _abi.INDICES:
        raise Error("%s must be int32 or int64, not %s" % (argument, meta[2]), argument)
    return _abi.INDICES[word]


def _check_dtype(meta, word, argument):
    """Of what is written: the library is not told its dtype."""
    if dtype_of(meta, argument) != word:
        raise Error("%s has dtype %s, and must be %s" % (argument, meta[2], word), argument)


def _is_contiguous(shape, strides):
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _flat(meta, size, argument):
    """Refuses what is not one contiguous dimension (of `size` elements)."""
    shape, strides = meta[0], meta[1]
    if len(shape) != 1 or not _is_contiguous(shape, strides):
        raise Error("%s must have one contiguous dimension, not shape %s" % (argument, list(shape)), argument)
    if size is not None and shape[0] != size:
        raise Error("%s must have %d elements, not %d" % (argument, size, shape[0]), argument)


def _sizes(layout, meta, argument):
    """[batch, tokens, groups, heads, head_dim] and their strides. A layout without groups has one of all heads."""
    shape, strides = meta[0], meta[1]
    if len(shape) != len(layout):
        raise Error("%s has shape %s, which is not %s" % (argument, list(shape), layout), argument)
    dims = DIMS[layout]
    return [1 if dim is None else shape[dim] for dim in dims], [0 if dim is None else strides[dim] for dim in dims]


def _fill_tensor(operand, name, meta, layout, expected, is_sharing, argument):
    """One of an operand's tensors, of `expected` sizes. Where heads are shared, they are groups in the operand: of one head
    in the tensor that shares, and of several that are one after another in the other."""
    sizes, strides = _sizes(layout, meta, argument)
    for word, size, right in zip(("batch", "tokens", "groups", "heads", "head_dim"), sizes, expected):
        if size != right:
            raise Error("%s: %s has %s %d, where %d is wanted" % (argument, name, word, size, right), argument)
    if operand.shared_heads:
        strides[2:4] = (strides[3], 0) if is_sharing else (strides[3] * operand.heads_per_group, strides[3])
    setattr(operand, name + "_layout", _abi.STRIDED)
    getattr(operand, name + "_stride")[:] = strides


class Plan:
    """A call's structs, for arrays like these: each argument but spec is a Meta, or has them."""

    def __init__(self, backward, spec, srcs, dsts, forward_srcs, side):
        self.spec = spec  # alive: keys of plans have its id
        self.call = lib.trope_backward if backward else lib.trope_forward
        self.device = str(getattr(srcs[0][3], "type", srcs[0][3]))
        self.kept = []  # what the structs point into
        self.args = Args(struct_size=ctypes.sizeof(Args), operand_size=ctypes.sizeof(Operand))
        self.operands = (Operand * len(srcs))()
        self.args.operands, self.args.operand_count = ctypes.addressof(self.operands), len(srcs)
        self.reference = ctypes.byref(self.args)
        self._fill_options(spec, srcs[0])
        self._fill_operands(backward, spec, srcs, dsts, forward_srcs)
        self._fill_angles(spec, side)
        self._fill_positions(side)
        self._fill_sequences(side)
        self._fill_gradients(spec, side)
        if side.status is not None:
            _check_dtype(side.status, "i32", "status")
            _flat(side.status, 1, "status")
        self.workspace_size = None
        self.slots = self._find_slots(srcs, dsts, forward_srcs, side)

    def _fill_options(self, spec, first):
        args = self.args
        args.device = _abi.choose(_abi.DEVICES, self.device, "device")
        args.threads = spec.threads
        args.dtype = _abi.choose(_abi.DTYPES, dtype_of(first, "tensors[0]"), "tensors[0]")
        args.rounding = _abi.ROUNDINGS[spec.rounding]
        args.pairing = _abi.PAIRINGS[spec.pairing]
        args.pairing_out = _abi.PAIRINGS[spec.pairing_out] if spec.pairing_out else 0
        args.parts, args.inverse, args.mscale = spec.parts, spec.inverse, spec.mscale
        args.out_of_range = _abi.RANGES[spec.out_of_range]
        args.padding = _abi.PADDINGS[spec.padding] if spec.padding else 0
        args.stream_positions = spec.stream_positions
        if spec.cp_size > 1:
            args.cp_size, args.cp_rank = spec.cp_size, spec.cp_rank
            args.cp_layout = _abi.CP_LAYOUTS[spec.cp_layout]
        if spec.pair_axis:
            self._keep("pair_axis", (ctypes.c_uint8 * len(spec.pair_axis))(*spec.pair_axis))

    def _keep(self, field, array):
        setattr(self.args, field, ctypes.addressof(array))
        self.kept.append(array)

    def _fill_operands(self, backward, spec, srcs, dsts, forward_srcs):
        args = self.args
        for i, operand in enumerate(self.operands):
            argument, per_group = "tensors[%d]" % i, spec.shared_heads[i]
            metas = {"src": srcs[i], "dst": dsts[i], "forward_src": forward_srcs[i]}
            for name, meta in metas.items():
                if meta is not None and dtype_of(meta, argument) != dtype_of(srcs[0], argument):
                    raise Error("%s: %s has dtype %s, and the call %s" % (argument, name, meta[2], srcs[0][2]), argument)
            sharing = (dsts[i] or forward_srcs[i]) if per_group and backward else srcs[i]
            batch, tokens, groups, heads, head_dim = _sizes(spec.layout, sharing, argument)[0]
            if i == 0:
                args.batch, args.tokens = batch, tokens
            if per_group:
                operand.groups, operand.heads_per_group, operand.shared_heads = heads, per_group, _abi.SHARED_GROUP
            else:
                operand.groups, operand.heads_per_group = groups, heads
            operand.head_dim, operand.rotary_dim = head_dim, spec.rotary_dims[i]
            operand.rotary_offset, operand.accumulate = spec.rotary_offsets[i], spec.accumulate
            for name, meta in metas.items():
                if meta is not None:
                    is_other = per_group and name == ("src" if backward else "dst")
                    all_heads = heads * per_group if is_other else heads
                    expected = args.batch, args.tokens, groups, all_heads, head_dim
                    _fill_tensor(operand, name, meta, spec.layout, expected, not is_other, argument)

    def _table_strides(self, meta, argument):
        """Strides of axis, batch, row and column. A dimension that is not there, or has one entry for all, has 0."""
        shape, strides = tuple(meta[0]), tuple(meta[1])
        if not 2 <= len(shape) <= 4:
            raise Error(
                "%s has shape %s: [rows, columns], [batch, rows, columns] or [axes, batch, rows, columns]"
                % (argument, list(shape)),
                argument,
            )
        lacking = 4 - len(shape)
        shape, strides = (1,) * lacking + shape, (0,) * lacking + strides
        if shape[0] > _abi.MAX_AXES:
            raise Error(
                "%s has %d axes (shape %s), and %d is the most" % (argument, shape[0], list(meta[0]), _abi.MAX_AXES),
                argument,
            )
        if shape[1] not in (1, self.args.batch):
            raise Error("%s is of batch %d, and the tensors of %d" % (argument, shape[1], self.args.batch), argument)
        return shape, tuple(0 if size == 1 and i < 2 else stride for i, (size, stride) in enumerate(zip(shape, strides)))

    def _fill_angles(self, spec, side):
        args = self.args
        if spec.inv_freq:
            self._keep("phase_step", _phase_steps(spec.inv_freq))
            return
        table = side.freqs if side.freqs is not None else side.cos
        name = "freqs" if side.freqs is not None else "cos"
        shape, strides = self._table_strides(table, name)
        if side.sin is not None and (*self._table_strides(side.sin, "sin"), side.sin[2]) != (shape, strides, table[2]):
            raise Error("sin must have the shape, strides and dtype of cos", "sin")
        args.angle_dtype = _abi.choose(_abi.DTYPES, dtype_of(table, name), name)
        args.angle_columns = _abi.COLUMNS[spec.angle_columns]
        args.angle_layout, args.angle_rows = _abi.TABLE_STRIDED, shape[2]
        args.angle_stride[:] = strides
        if shape[0] > 1:
            axes = max(spec.pair_axis, default=spec.parts - 1) + 1
            if axes != shape[0]:
                raise Error("%s has %d axes, and pairs use %d (pair_axis, parts)" % (name, shape[0], axes), name)

    def _fill_positions(self, side):
        args = self.args
        if side.position_ids is not None:
            self._fill_ids(side.position_ids)
        if side.start_positions is not None:
            sequences = args.batch if side.cu_seqlens is None else side.cu_seqlens[0][0] - 1
            _flat(side.start_positions, sequences, "start_positions")
            args.position_dtype = _index_dtype(side.start_positions, "start_positions")

    def _fill_ids(self, meta):
        args = self.args
        shape, strides = tuple(meta[0]), tuple(meta[1])
        if not 1 <= len(shape) <= 3:
            raise Error(
                "position_ids has shape %s: [tokens], [batch, tokens] or [axes, batch, tokens]" % list(shape),
                "position_ids",
            )
        lacking = 3 - len(shape)
        axes, batch, tokens = (1,) * lacking + shape
        if tokens != args.tokens or batch not in (1, args.batch):
            raise Error(
                "position_ids has shape %s for batch %d with %d tokens" % (list(shape), args.batch, args.tokens),
                "position_ids",
            )
        strides = (0,) * lacking + strides
        args.position_dtype = _index_dtype(meta, "position_ids")
        args.ids_layout, args.position_axes = _abi.IDS_STRIDED, axes
        args.ids_stride[:] = (strides[0] if axes > 1 else 0, strides[1] if batch > 1 else 0, strides[2])

    def _fill_sequences(self, side):
        args = self.args
        if side.cu_seqlens is None:
            if side.cu_seqlens_padded is not None:
                raise Error("cu_seqlens_padded is given without cu_seqlens", "cu_seqlens")
            return
        _flat(side.cu_seqlens, None, "cu_seqlens")
        args.sequences = side.cu_seqlens[0][0] - 1
        args.cu_seqlens_dtype = _index_dtype(side.cu_seqlens, "cu_seqlens")
        if side.cu_seqlens_padded is not None:
            _flat(side.cu_seqlens_padded, args.sequences + 1, "cu_seqlens_padded")
            if _index_dtype(side.cu_seqlens_padded, "cu_seqlens_padded") != args.cu_seqlens_dtype:
                raise Error("cu_seqlens_padded must have the dtype of cu_seqlens", "cu_seqlens_padded")

    def _fill_gradients(self, spec, side):
        args = self.args
        if side.d_freqs is not None:
            table = side.freqs if side.freqs is not None else side.cos
            if table is None:
                raise Error("d_freqs is given, and there is no table: inv_freq has d_inv_freq", "d_freqs")
            _check_dtype(side.d_freqs, "f64" if args.dtype == _abi.DTYPES["f64"] else "f32", "d_freqs")
            shape, strides = self._table_strides(side.d_freqs, "d_freqs")
            axes = max(spec.pair_axis, default=spec.parts - 1) + 1
            if shape[2:] != tuple(table[0][-2:]) or shape[0] not in (1, axes):
                raise Error("d_freqs has shape %s, and the table %s" % (list(side.d_freqs[0]), list(table[0])), "d_freqs")
            args.d_freqs_layout = _abi.TABLE_STRIDED
            args.d_freqs_stride[:] = strides
        if side.d_inv_freq is not None:
            _check_dtype(side.d_inv_freq, "f64", "d_inv_freq")
            _flat(side.d_inv_freq, len(spec.inv_freq), "d_inv_freq")

    def _find_slots(self, srcs, dsts, forward_srcs, side):
        """Where the addresses go: (words of a struct, index of the word), for the arrays that are there, in their order."""
        args = (ctypes.c_uint64 * (ctypes.sizeof(Args) // 8)).from_buffer(self.args)
        slots = []
        for name, metas in (("src", srcs), ("dst", dsts), ("forward_src", forward_srcs)):
            for operand, meta in zip(self.operands, metas):
                if meta is not None:
                    words = (ctypes.c_uint64 * (ctypes.sizeof(Operand) // 8)).from_buffer(operand)
                    slots.append((words, getattr(Operand, name).offset // 8))
        slots += [(args, getattr(Args, name).offset // 8) for name in Side._fields if getattr(side, name) is not None]
        return slots

    def run(self, addresses, stream=None, allocate=None):
        """The call, on the addresses of the arrays that are there: src of all operands, dst, forward_src, and of `side`.

        allocate(bytes) gives scratch, which gradients of the angles need, as (what keeps it alive, its address).
        """
        for (words, at), address in zip(self.slots, addresses):
            words[at] = address
        self.args.stream = stream  # None: the legacy stream, whatever an earlier call of this plan had
        if allocate is not None:
            args, size = self.args, self._find_workspace_size()
            kept, args.workspace = allocate(size) if size else (None, None)
            args.workspace_size = size
        status = self.call(self.reference)
        if status:
            _abi.check(status)

    def find_kernel(self, addresses, backward):
        """trope_kernel_name."""
        name = ctypes.create_string_buffer(128)
        for (words, at), address in zip(self.slots, addresses):
            words[at] = address
        _abi.check(lib.trope_kernel_name(self.reference, backward, name, len(name)))
        return name.value.decode()

    def _find_workspace_size(self):
        if self.workspace_size is None:
            size = ctypes.c_uint64()
            _abi.check(lib.trope_workspace_size(self.reference, ctypes.byref(size)))
            self.workspace_size = size.value
        return self.workspace_size


_plans = {}


def run(key, make, addresses, stream=None, allocate=None):
    """Runs the plan of this key, which `make` makes if there is none. A plan is nobody else's while it runs: taking it out
    and putting it back are one operation each, so that threads need no lock. The longest unused go first."""
    plan = _plans.pop(key, None)
    if plan is None:
        plan = make()
    try:
        plan.run(addresses, stream, allocate)
    finally:
        _plans[key] = plan
        if len(_plans) > _PLANS_MOST:
            try:
                _plans.pop(next(iter(_plans)), None)
            except (RuntimeError, StopIteration):  # another thread has changed it meanwhile
                pass


def _phase_steps(inv_freq):
    steps = getattr(inv_freq, "phase_steps", None)
    return make_phase_steps(inv_freq) if steps is None else steps


def make_phase_steps(inv_freq):
    """trope_phase_steps: a ctypes array of uint64, one for each inv_freq."""
    count = len(inv_freq)
    steps = (ctypes.c_uint64 * count)()
    _abi.check(lib.trope_phase_steps((ctypes.c_double * count)(*inv_freq), count, steps))
    return steps
