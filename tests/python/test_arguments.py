"""Each parameter of trope and trope.torch gets a wrong type, a wrong length and a wrong value. Each call must raise a
trope.Error that names the argument in the caller's words. No array is read beyond its end."""

import ctypes
import mmap
import re

import numpy as np
import pytest
import trope

torch = pytest.importorskip("torch") if __import__("importlib").util.find_spec("torch") else None
if torch:
    import trope.torch

LIBRARIES = ["numpy"] + ["torch"] * bool(torch)
# Names of the C library, which a Python caller does not know.
FOREIGN = re.compile(r"operands?\[|trope_|TROPE_|angle_rows|_stride\b|ids_layout|NULL|\bdst\b|\bsrc\b|struct_size")

f32 = np.float32
X = np.arange(4 * 2 * 3 * 8, dtype=f32).reshape(4, 2, 3, 8) / 100  # [tokens, batch, heads, head_dim]
FREQS = np.linspace(0, 3, 32, dtype=f32).reshape(4, 8)
INV_FREQ = [1.0, 0.5, 0.25, 0.125]
TABLE = dict(layout="sbhd", pairing="half", freqs=FREQS, angle_columns="half")
FREQUENCIES = dict(layout="sbhd", pairing="half", inv_freq=INV_FREQ)
CU_SEQLENS = np.array([0, 1, 4], np.int32)
PACKED = dict(FREQUENCIES, layout="thd", cu_seqlens=CU_SEQLENS)
PADDED = dict(PACKED, cu_seqlens=np.array([0, 1, 3], np.int32), cu_seqlens_padded=CU_SEQLENS, padding="zero")
AXES = dict(FREQUENCIES, pair_axis=[0, 1, 2, 0], position_ids=np.zeros((3, 2, 4), np.int64))
TABLES = dict(TABLE, freqs=None, cos=np.cos(FREQS), sin=np.sin(FREQS))
RANK = dict(FREQUENCIES, cp_size=2, cp_rank=0, cp_layout="zigzag")
GOOD = [TABLE, FREQUENCIES, PACKED, PADDED, AXES, TABLES, RANK]

ids, starts = np.zeros((2, 4), np.int64), np.zeros(2, np.int32)
NOT_ARRAYS = (5, "0123", [0, 1, 2, 3], object(), np.zeros((4, 8), object))
NOT_FLAGS = (0, 1, "no", None, 1.0, [True])
NOT_INTEGERS = (True, 1.0, "1", [1.0], {}, None)


def rows(kind, option, call, *values):
    return [(kind, option, call, value) for value in values]


# (kind of error, option, options of a valid call, wrong value)
ROWS = [
    *rows("type", "layout", TABLE, None, 5, b"sbhd", ["sbhd"]),
    *rows("value", "layout", TABLE, "shbd", "SBHD", ""),
    *rows("type", "pairing", TABLE, None, 1, True, ["half"]),
    *rows("value", "pairing", TABLE, "neox", "Half", ""),
    *rows("type", "pairing_out", TABLE, 1, ["half"]),
    *rows("value", "pairing_out", TABLE, "full", ""),
    *rows("type", "inv_freq", FREQUENCIES, 1.0, "1111", [None] * 4, ["1"] * 4, [[1.0] * 4], {0: 1.0}, [1j] * 4),
    *rows("type", "inv_freq", FREQUENCIES, np.ones(4, np.float16), np.ones((1, 4)), np.ones(4, complex), [True] * 4),
    *rows("length", "inv_freq", FREQUENCIES, INV_FREQ + [1.0], [], [1.0] * 513),
    *rows("length", "inv_freq", dict(FREQUENCIES, rotary_dim=8), INV_FREQ[:3], INV_FREQ + [1.0], trope.Frequencies([1.0])),
    *rows("value", "inv_freq", FREQUENCIES, [float("nan")] * 4, [float("inf")] * 4, [2.0**64] * 4, None),
    *rows("value", "inv_freq", TABLE, INV_FREQ),
    *rows("type", "freqs", TABLE, *NOT_ARRAYS, FREQS.astype(np.int32), FREQS.astype(np.float64), FREQS > 0),
    *rows("length", "freqs", TABLE, np.tile(FREQS, (1, 2)), FREQS[:3], FREQS[0]),
    *rows("length", "freqs", dict(TABLE, rotary_dim=8), FREQS[:, :6], FREQS[:, :7], np.tile(FREQS, (1, 2)), FREQS[:, :0]),
    *rows("length", "freqs", TABLE, FREQS[None, None, None], np.stack([FREQS] * 3), np.stack([FREQS] * 2)[:, None]),
    *rows("length", "freqs", TABLE, np.zeros((5, 4, 1, 8), f32)),
    *rows("length", "freqs", dict(TABLE, rotary_dim=6), FREQS, FREQS[:, :7], FREQS[:, :5]),
    *rows("length", "freqs", dict(TABLE, angle_columns="pair", rotary_dim=8), FREQS, FREQS[:, :3], FREQS[:, :5]),
    *rows("value", "freqs", TABLE, FREQS[:0], FREQS[:, ::-1]),
    *rows("type", "cos", TABLES, *NOT_ARRAYS, FREQS.astype(np.int64)),
    *rows("length", "cos", dict(TABLES, rotary_dim=8), FREQS[:, :6], FREQS[0], np.stack([FREQS] * 3)),
    *rows("value", "cos", TABLES, None),
    *rows("type", "sin", TABLES, *NOT_ARRAYS, FREQS.astype(np.float16)),
    *rows("length", "sin", TABLES, FREQS[:, :6], FREQS[:3], np.tile(FREQS, (1, 2)), np.stack([FREQS] * 2)),
    *rows("value", "sin", TABLES, None, np.asfortranarray(FREQS)),
    *rows("type", "angle_columns", TABLE, None, 1, ["half"]),
    *rows("value", "angle_columns", TABLE, "Half", "both"),
    *rows("value", "angle_columns", FREQUENCIES, "half"),
    *rows("type", "mscale", TABLE, "1", True, [1.0], np.ones(1), 1j, object()),
    *rows("value", "mscale", TABLE, 0, float("nan"), float("inf"), 1e-60, 1e60, 10**400),
    *rows("type", "inverse", TABLE, *NOT_FLAGS),
    *rows("value", "inverse", TABLE, "yes"),
    *rows("type", "rounding", TABLE, None, 1, ["once"]),
    *rows("value", "rounding", TABLE, "twice", "ONCE"),
    *rows("type", "rotary_dim", TABLE, True, 8.0, "8", [8.0], {8: 8}),
    *rows("length", "rotary_dim", TABLE, [], [8, 8], (8, -1)),
    *rows("value", "rotary_dim", TABLE, 0, -1, -2, 2**32 + 8, [-1], 2**70),
    *rows("value", "rotary_dim", dict(FREQUENCIES, inv_freq=INV_FREQ + [0.1]), 10),
    *rows("type", "rotary_offset", TABLE, True, 0.0, "0", [0.0], None),
    *rows("length", "rotary_offset", TABLE, [], [0, 0]),
    *rows("value", "rotary_offset", TABLE, -1, 1, 2**32, 2**70),
    *rows("type", "parts", TABLE, *NOT_INTEGERS),
    *rows("value", "parts", TABLE, 0, -1, 5, 2**32 + 1),
    *rows("value", "rotary_dim", dict(FREQUENCIES, inv_freq=INV_FREQ[:3], parts=2), 6),
    *rows("type", "pair_axis", AXES, 0, "0120", [0.0] * 4, [None] * 4, [[0, 1, 2, 0]], [True] * 4, {0, 1, 2}),
    *rows("length", "pair_axis", AXES, [], [0, 1, 2], [0, 1, 2, 0, 0], [2]),
    *rows("value", "pair_axis", AXES, [0, 1, 4, 0], [0, 1, -1, 0], [0, 1, 2, 256]),
    *rows("value", "pair_axis", FREQUENCIES, [0, 1, 2, 0]),
    *rows("value", "pair_axis", dict(FREQUENCIES, position_ids=ids), [0, 1, 2, 0]),
    *rows("type", "position_ids", FREQUENCIES, *NOT_ARRAYS, ids.astype(np.int16), ids.astype(f32), ids > 0),
    *rows("length", "position_ids", FREQUENCIES, ids[:, :3], np.zeros((2, 5), np.int64), np.zeros((3, 4), np.int64)),
    *rows("length", "position_ids", FREQUENCIES, np.zeros((3, 2, 4), np.int64), ids[0, 0], ids[None, None]),
    *rows("length", "position_ids", AXES, *[np.zeros((n, 2, 4), np.int64) for n in (2, 4, 5)]),
    *rows("value", "position_ids", TABLE, ids + 4, ids - 1, ids + 2**40),
    *rows("type", "start_positions", FREQUENCIES, *NOT_ARRAYS, starts.astype(np.uint8), starts.astype(np.int16)),
    *rows("length", "start_positions", FREQUENCIES, starts[:1], np.zeros(3, np.int32), starts[None], ids[:, ::4][:, 0]),
    *rows("length", "start_positions", PACKED, starts[:1], np.zeros(3, np.int32)),
    *rows("value", "start_positions", TABLE, starts + 1, starts - 1),
    *rows("value", "start_positions", dict(FREQUENCIES, position_ids=ids), starts),
    *rows("type", "stream_positions", PACKED, *NOT_FLAGS),
    *rows("value", "stream_positions", FREQUENCIES, True),
    *rows("type", "out_of_range", TABLE, None, 0, ["clamp"]),
    *rows("value", "out_of_range", TABLE, "Clamp", "identity"),
    *rows("value", "out_of_range", FREQUENCIES, "clamp"),
    *rows("type", "cu_seqlens", PACKED, *NOT_ARRAYS, CU_SEQLENS.astype(np.int16), CU_SEQLENS.astype(f32)),
    *rows("length", "cu_seqlens", PACKED, CU_SEQLENS[:0], CU_SEQLENS[:1], CU_SEQLENS[None], np.zeros(8, np.int32)[::2]),
    *rows("length", "cu_seqlens", PADDED, CU_SEQLENS[:0]),
    *rows("value", "cu_seqlens", PACKED, CU_SEQLENS + 1, CU_SEQLENS[::-1].copy(), np.int32([0, 3]), np.int32([0, -1, 4])),
    *rows("value", "cu_seqlens", FREQUENCIES, CU_SEQLENS),
    *rows("type", "cu_seqlens_padded", PADDED, *NOT_ARRAYS, CU_SEQLENS.astype(np.int64), CU_SEQLENS.astype(np.int8)),
    *rows("length", "cu_seqlens_padded", PADDED, CU_SEQLENS[:2], np.int32([0, 1, 4, 4]), CU_SEQLENS[None]),
    *rows("value", "cu_seqlens_padded", PADDED, np.int32([0, 2, 5]), np.int32([1, 0, 4])),
    *rows("type", "padding", PADDED, 0, True, ["zero"]),
    *rows("value", "padding", PADDED, None, "none", "Zero"),
    *rows("value", "padding", FREQUENCIES, "zero"),
    *rows("type", "cp_size", RANK, True, 2.0, "2", [2]),
    *rows("value", "cp_size", RANK, None, 0, -1, 2**32 + 2),
    *rows("type", "cp_rank", RANK, False, 0.0, "0", [0]),
    *rows("value", "cp_rank", RANK, None, -1, 2, 2**32),
    *rows("type", "cp_layout", RANK, 2, ["zigzag"], b"zigzag"),
    *rows("value", "cp_layout", RANK, None, "", "ring"),
    *rows("type", "shared_heads", FREQUENCIES, True, 1.0, "1", [1.0], None),
    *rows("length", "shared_heads", FREQUENCIES, [], [0, 0]),
    *rows("value", "shared_heads", FREQUENCIES, -1, 2**31, 2**32 + 1),
    *rows("type", "norms", FREQUENCIES, 5, "x", object(), [1.0], np.ones(8, f32), [np.ones(8, f32)], {0: None}, trope.Norm),
    *rows("length", "norms", FREQUENCIES, [], [None, None], (trope.Norm(eps=1e-6), None)),
    *rows("value", "norms", FREQUENCIES, trope.Norm(np.ones(8, f32), eps=1e-6, rounding="twice")),
    *rows("value", "norms", dict(FREQUENCIES, rounding="native"), trope.Norm(np.ones(8, f32), eps=1e-6)),
    *rows("value", "norms", dict(FREQUENCIES, shared_heads=2), trope.Norm(eps=1e-6)),
    *rows("type", "accumulate", FREQUENCIES, *NOT_FLAGS),
    *rows("value", "accumulate", FREQUENCIES, True),
    *rows("type", "status", TABLE, 0, [0], np.zeros(1, np.int64), np.zeros(1, f32)),
    *rows("length", "status", TABLE, np.zeros(0, np.int32), np.zeros(2, np.int32), np.zeros((1, 1), np.int32)),
    *rows("value", "status", TABLE, "0"),
    *rows("type", "threads", FREQUENCIES, *NOT_INTEGERS),
    *rows("value", "threads", FREQUENCIES, -1, 2**31),
]
SEQUENCES = {
    "inv_freq", "freqs", "cos", "sin", "rotary_dim", "rotary_offset", "pair_axis", "position_ids", "start_positions",
    "cu_seqlens", "cu_seqlens_padded", "shared_heads", "norms", "status",
}  # fmt: skip


def of_library(value, library):
    """Converts NumPy arrays to arrays of `library`. An array that PyTorch cannot represent stays a NumPy array, and is
    refused."""
    if library == "torch" and isinstance(value, np.ndarray) and value.dtype != object and min(value.strides, default=0) >= 0:
        return torch.from_numpy(value.copy()) if value.flags.c_contiguous else torch.from_numpy(value)
    return value


def call(function, library, tensors, options):
    tensors = [of_library(x, library) for x in tensors]
    return function(*tensors, **{name: of_library(value, library) for name, value in options.items()})


def refused(argument, function, *tensors, library="numpy", **options):
    with pytest.raises(trope.Error) as caught:
        call(function, library, tensors, options)
    error, name = caught.value, re.escape(argument)
    assert re.fullmatch(r"%s(\[\d+\])?" % name, error.argument), (error.argument, str(error))
    assert re.search(r"\b%s\b" % name, str(error)) and not FOREIGN.search(str(error)), str(error)
    assert error.status.startswith("TROPE_ERROR_")


def tensor_for(options):
    return X[:, 0].copy() if options.get("layout") == "thd" else X.copy()


@pytest.mark.parametrize("library", LIBRARIES)
def test_calls_without_wrong_values_are_valid(library):
    for options in GOOD:
        x = of_library(tensor_for(options), library)
        for function in (trope.rotate, trope.rotate_, trope.rotate_backward, trope.rotate_backward_):
            assert call(function, library, [x], options).shape == x.shape


def test_every_option_has_wrong_values():
    for option in trope.Options.__annotations__:
        kinds = {kind for kind, name, _, _ in ROWS if name == option}
        assert kinds == {"type", "value", "length"} if option in SEQUENCES else kinds == {"type", "value"}, option


def row_id(row):
    kind, option, _, value = row
    text = "%s%s" % (value.dtype, list(value.shape)) if isinstance(value, np.ndarray) else re.sub(r" at 0x\w+", "", repr(value))
    return "%s-%s-%.30s" % (option, kind, text)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_options_are_refused(row, library):
    _, option, options, value = row
    x = tensor_for(options)
    elsewhere = {("cos", "length"): "sin"}  # if cos and sin differ, the error names sin
    for function in (trope.rotate, trope.rotate_, trope.rotate_backward, trope.rotate_backward_, trope.kernel_name):
        if function is trope.kernel_name and (option == "accumulate" or row[0] == "value" and option in (
            "position_ids", "start_positions", "cu_seqlens", "cu_seqlens_padded"
        )):  # fmt: skip
            continue  # kernel_name reads no values of arrays, and accepts accumulate for backward
        with pytest.raises(trope.Error) as caught:
            call(function, library, [x], {**options, option: value})
        error = caught.value
        named = error.argument.partition("[")[0]
        assert named == option or named == elsewhere.get((option, row[0])), (error.argument, str(error))
        assert re.search(r"\b%s\b" % named, str(error)) and not FOREIGN.search(str(error)), str(error)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("function", ["rotate", "rotate_", "rotate_backward", "rotate_backward_", "kernel_name"])
def test_tensors_are_refused(function, library):
    function = getattr(trope, function)
    for bad in (None, 5, "x", [1.0], object(), X.astype(np.int32), X.astype(complex), X[0], X[0, 0, 0, 0]):
        refused("tensors", function, bad, library=library, **FREQUENCIES)
    refused("tensors", function, library=library, **FREQUENCIES)
    refused("tensors", function, X.copy(), X.astype(np.float64), library=library, **FREQUENCIES)
    for other in (X[:3].copy(), X[:, :1].copy(), X[0].copy(), None):
        refused("tensors", function, X.copy(), other, library=library, **FREQUENCIES)
    refused("inv_freq", function, X[..., :4].copy(), library=library, **FREQUENCIES)
    refused("rotary_dim", function, np.zeros((4, 2, 3, 12), f32), library=library, **FREQUENCIES)
    refused("rotary_dim", function, X.copy(), np.zeros((4, 2, 3, 12), f32), library=library, **FREQUENCIES)
    refused("tensors", function, *[X.copy() for _ in range(17)], library=library, **FREQUENCIES)


@pytest.mark.parametrize("library", LIBRARIES)
def test_unknown_keywords(library):
    for function in (trope.rotate, trope.rotate_, trope.rotate_backward, trope.rotate_backward_, trope.kernel_name):
        refused("positon_ids", function, X.copy(), library=library, positon_ids=None, **FREQUENCIES)
        with pytest.raises(trope.Error, match="did you mean position_ids"):
            call(function, library, [X.copy()], dict(FREQUENCIES, positon_ids=None))
    for name in ("out", "forward_src", "d_freqs"):
        refused(name, trope.rotate_, X.copy(), library=library, **{name: X.copy()}, **TABLE)
        if name != "out":
            refused(name, trope.rotate, X.copy(), library=library, **{name: X.copy()}, **TABLE)


@pytest.mark.parametrize("library", LIBRARIES)
def test_wrong_outputs_and_forward_src_are_refused(library):
    def backward(argument, **options):
        refused(argument, trope.rotate_backward, X, library=library, **options)

    for function in (trope.rotate, trope.rotate_backward):
        for bad in (5, "x", [1.0], X[:3].copy(), X[..., :7].copy(), X.astype(np.float64), X[0].copy(), X.astype(np.int32)):
            refused("out", function, X, library=library, out=of_library(bad, library), **TABLE)
            refused("out", function, X, library=library, out=[of_library(bad, library)], **TABLE)
        for bad in ([], [of_library(X.copy(), library)] * 2, [None]):
            refused("out", function, X, library=library, out=bad, **TABLE)
    good = dict(forward_src=X, d_freqs=np.zeros((4, 8), f32))
    call(trope.rotate_backward, library, [X], dict(good, **TABLE))
    for bad in (5, [5], X[:3].copy(), [], X.astype(np.float16)):
        backward("forward_src", **dict(good, forward_src=of_library(bad, library)), **TABLE)
    backward("forward_src", **dict(good, forward_src=None), **TABLE)
    for shape, dtype in (((3, 8), f32), ((5, 8), f32), ((4, 7), f32), ((4, 9), f32), ((4, 8), np.float64), ((8,), f32)):
        backward("d_freqs", **dict(good, d_freqs=np.zeros(shape, dtype)), **TABLE)
    backward("d_freqs", **dict(good, d_freqs=5), **TABLE)
    backward("d_freqs", **good, **FREQUENCIES)
    good = dict(forward_src=X, d_inv_freq=np.zeros(4))
    call(trope.rotate_backward, library, [X], dict(good, **FREQUENCIES))
    for bad in (np.zeros(3), np.zeros(5), np.zeros(4, f32), np.zeros((1, 4)), 5, [0.0] * 4):
        backward("d_inv_freq", **dict(good, d_inv_freq=bad), **FREQUENCIES)
    backward("d_inv_freq", **good, **TABLE)


@pytest.mark.parametrize("library", LIBRARIES)
def test_out_and_forward_src_in_every_form(library):
    wanted = trope.rotate(X, **TABLE)
    for form in (lambda x: x, lambda x: [x], lambda x: (x,)):
        out, d_freqs = of_library(np.zeros_like(X), library), np.zeros((4, 8), f32)
        assert call(trope.rotate, library, [X], dict(TABLE, out=form(out))) is out
        assert np.array_equal(np.asarray(out), wanted)
        d = of_library(d_freqs, library)
        call(trope.rotate_backward, library, [X], dict(TABLE, forward_src=form(of_library(X, library)), d_freqs=d))
        assert np.asarray(d).any()
        dx = of_library(np.zeros_like(X), library)
        call(trope.rotate_backward, library, [X], dict(TABLE, out=form(dx)))
        assert np.array_equal(np.asarray(dx), trope.rotate_backward(X, **TABLE))


class OnlyDlpack:
    """An array that offers NumPy's DLPack methods and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_arrays_with_only_dlpack(dtype):
    x = X.astype(dtype)
    y, z = trope.rotate(OnlyDlpack(x), OnlyDlpack(x[:, :, ::2]), **dict(TABLE, freqs=OnlyDlpack(FREQS)))
    assert type(y) is np.ndarray and y.dtype == dtype and np.array_equal(y, trope.rotate(x, **TABLE))
    assert np.array_equal(z, trope.rotate(x[:, :, ::2], **TABLE))
    out = np.empty_like(x)
    trope.rotate_backward(OnlyDlpack(x), out=OnlyDlpack(out), **TABLE)
    assert np.array_equal(out, trope.rotate_backward(x, **TABLE))


def test_rotary_dim_is_required_if_the_head_is_wider_than_the_angles():
    for angles in (dict(freqs=FREQS, angle_columns="half"), dict(inv_freq=INV_FREQ), dict(inv_freq=trope.Frequencies(INV_FREQ))):
        options = dict(layout="sbhd", pairing="half", **angles)
        wide = np.tile(X, (1, 1, 1, 2))
        refused("rotary_dim", trope.rotate, wide, **options)
        y = trope.rotate(wide, rotary_dim=8, **options)
        assert np.array_equal(y[..., 8:], wide[..., 8:]) and np.array_equal(y[..., :8], trope.rotate(X, **options))
        y, z = trope.rotate(wide, X, rotary_dim=8, rotary_offset=(8, 0), **options)
        assert np.array_equal(y[..., :8], wide[..., :8]) and np.array_equal(y[..., 8:], z)


def test_stream_and_other_parameters():
    for bad in ("x", 1.0, True, -1, 2**64, 0):
        refused("stream", trope.rotate, X, stream=bad, **TABLE)
    for bad in (1, "yes", None):
        refused("backward", trope.kernel_name, X, backward=bad, **TABLE)
    for bad in (None, 1, "hw", ["sections"]):
        refused("order", trope.pair_axis, bad, [2, 1, 1])
    for bad in (None, 4, "4", [], [1] * 5, [1.0], [True], [-1, 2], [None], [0], [513], [2**40], {1: 2}):
        refused("sections", trope.pair_axis, "sections", bad)
    refused("sections", trope.pair_axis, "interleaved", [1, 2, 3])
    assert trope.pair_axis("sections", np.array([2, 1])) == (0, 0, 1)


def test_unsupported_arrays_are_refused():
    refused("tensors", trope.rotate, X, np.ma.masked_array(X), **FREQUENCIES)
    refused("tensors", trope.rotate, X.astype(">f4"), **FREQUENCIES)

    class Lies:
        """An array that reports its 2-byte elements as f32."""

        __array_interface__ = X.astype(np.float16).__array_interface__
        dtype, shape = X.dtype, X.shape

    refused("tensors", trope.rotate, Lies(), **FREQUENCIES)


# ---- Guard pages ----

_libc = ctypes.CDLL(None, use_errno=True)
_guards = []


def guarded(array):
    """A copy of an array that ends directly before a page that cannot be read."""
    array = np.ascontiguousarray(array)
    page = mmap.PAGESIZE
    size = -(-max(array.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, size + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert _libc.mprotect(ctypes.c_void_p(start + size), ctypes.c_size_t(page), 0) == 0
    _guards.append(memory)
    copy = np.frombuffer(memory, array.dtype, array.size, size - array.nbytes).reshape(array.shape)
    copy[...] = array
    return copy


# (options, option, axis): with one element fewer or more along the axis, the call is refused or still right.
LENGTHS = [
    (TABLE, "freqs", 0), (TABLE, "freqs", 1), (TABLES, "cos", 0), (TABLES, "cos", 1), (TABLES, "sin", 0), (TABLES, "sin", 1),
    (dict(TABLE, freqs=FREQS[:, :4], angle_columns="pair"), "freqs", 1), (dict(TABLE, position_ids=ids), "position_ids", 0),
    (dict(TABLE, freqs=np.stack([FREQS] * 2)), "freqs", 0), (dict(TABLE, position_ids=ids), "position_ids", 1),
    (AXES, "position_ids", 0), (AXES, "position_ids", 1), (AXES, "position_ids", 2), (AXES, "pair_axis", 0),
    (dict(FREQUENCIES, inv_freq=np.array(INV_FREQ)), "inv_freq", 0), (PACKED, "cu_seqlens", 0),
    (dict(FREQUENCIES, start_positions=starts), "start_positions", 0), (PADDED, "cu_seqlens", 0),
    (PADDED, "cu_seqlens_padded", 0), (dict(PACKED, start_positions=starts), "start_positions", 0),
    (dict(TABLE, status=np.zeros(1, np.int32)), "status", 0),
]  # fmt: skip
# Rows of a table beyond the last position are not read, and a last sequence may be empty.
MAY_BE_LONGER = {("freqs", 0), ("cu_seqlens", 0)}


def guards(value):
    return guarded(value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("options, option, axis", LENGTHS, ids=lambda v: None if isinstance(v, dict) else str(v))
def test_no_array_is_read_beyond_its_end(options, option, axis, library):
    given = np.asarray(options[option])
    x = guarded(tensor_for(options))
    exact = {name: guards(value) for name, value in options.items()}
    wanted = call(trope.rotate, "numpy", [tensor_for(options)], options)
    for function in (trope.rotate, trope.rotate_backward):
        call(function, library, [x], exact)
    assert np.array_equal(np.asarray(call_shared(library, x, exact)), wanted)
    shorter = np.take(given, range(given.shape[axis] - 1), axis)
    longer = np.concatenate([given, np.take(given, [-1], axis)], axis)
    for value in (shorter, longer):
        changed = dict(exact, **{option: value.tolist() if option == "pair_axis" else guarded(value)})
        try:
            result = call_shared(library, x, changed)
        except trope.Error:
            continue
        is_for_all = value is shorter and value.ndim > 1 and value.shape[axis] == 1  # one entry for all of the batch
        assert is_for_all or (value is longer and (option, axis) in MAY_BE_LONGER)
        assert np.array_equal(np.asarray(result), wanted)


def call_shared(library, x, options):
    """Calls trope.rotate on the memory of the arrays, without copies, also for PyTorch."""
    if library == "numpy":
        return trope.rotate(x, **options)
    shared = {n: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for n, v in options.items()}
    return trope.rotate(torch.from_numpy(x), **shared)


@pytest.mark.parametrize("library", LIBRARIES)
def test_outputs_and_sources_may_end_at_a_guard_page(library):
    for options in GOOD:
        x = guarded(tensor_for(options))
        out, forward_src = guarded(np.zeros_like(x)), guarded(x)
        more = dict(d_inv_freq=guarded(np.zeros(4))) if "inv_freq" in options else dict(d_freqs=guarded(np.zeros((4, 8), f32)))
        options = {name: guards(value) for name, value in options.items()}
        if library == "torch":
            convert = lambda v: torch.from_numpy(v) if isinstance(v, np.ndarray) else v  # noqa: E731
            options = {name: convert(v) for name, v in options.items()}
            x, out, forward_src, more = convert(x), convert(out), convert(forward_src), {n: convert(v) for n, v in more.items()}
        trope.rotate(x, out=out, **options)
        trope.rotate_backward(x, out=[out], forward_src=[forward_src], **more, **options)
        trope.rotate_(x, **options)


# ---- Special cases ----


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("shape, rows", [((2, 0, 3, 8), 0), ((2, 0, 3, 8), 4), ((0, 4, 3, 8), 4), ((0, 4, 3, 8), 0)])
def test_gradients_of_calls_without_tokens(library, shape, rows):
    """d_freqs is set to zeros. A d_freqs without elements is not written."""
    table = dict(layout="bshd", pairing="half", angle_columns="half")
    for batch in ((), (shape[0],)):
        freqs = np.zeros((*batch, rows, 8), f32)
        d_freqs = guarded(np.full_like(freqs, 7))
        x = np.zeros(shape, f32)
        if library == "torch":
            x, freqs, d_freqs = (torch.from_numpy(a) if a.size else torch.zeros(a.shape) for a in (x, freqs, d_freqs))
        trope.rotate_backward(x, forward_src=x, d_freqs=d_freqs, freqs=freqs, **table)
        assert not np.asarray(d_freqs).any()
        if library == "torch":
            y = trope.rotate(x.requires_grad_(), freqs=freqs.requires_grad_(), **table)
            y.sum().backward()
            assert y.shape == x.grad.shape == x.shape and freqs.grad.shape == freqs.shape and not freqs.grad.any()


@pytest.mark.skipif(not torch, reason="torch is missing")
def test_torch_tensors_beside_numpy_arrays():
    x = torch.from_numpy(X.copy())
    for others in ((x, X), (X, x), (x, [1.0])):
        refused("tensors", trope.rotate, *others, **TABLE)
    lazily = torch.complex(torch.ones(4, 8), torch.ones(4, 8)).conj().imag
    refused("freqs", trope.rotate, X, **dict(TABLE, freqs=lazily))
    refused("out", trope.rotate, X, out=torch.from_numpy(X.copy()), **TABLE)
    refused("status", trope.rotate, X, status=torch.zeros(1, dtype=torch.int32), **TABLE)
    assert np.array_equal(trope.rotate(X, **dict(TABLE, freqs=torch.from_numpy(FREQS))), trope.rotate(X, **TABLE))
    for name, value in (("cp_rank", 0), ("cp_size", 2), ("parts", 1), ("threads", 1), ("rotary_dim", 8)):
        refused(name, trope.rotate, X, **dict(RANK, **{name: torch.tensor(value)}))


def test_array_interfaces_that_cannot_be_read():
    good = dict(X.__array_interface__)

    def array(**change):
        interface = {name: value for name, value in {**good, **change}.items() if value != "absent"}
        return type("Array", (), {"__array_interface__": interface, "dtype": X.dtype, "shape": X.shape})()

    trope.rotate(array(), out=np.empty_like(X), **TABLE)
    for change in (
        dict(data="absent"), dict(data=None), dict(data=b"bytes"), dict(shape="absent"), dict(typestr=5),
        dict(strides=(4,)), dict(strides=(192, 96, 32)),
    ):  # fmt: skip
        refused("tensors", trope.rotate, array(**change), **TABLE)


@pytest.mark.parametrize("library", LIBRARIES)
def test_kernel_name_accepts_what_rotate_accepts(library):
    expanded = np.broadcast_to(X[:, :, :1], X.shape)
    for x, options in ((X[:, :, :1], dict(FREQUENCIES, shared_heads=3)), (expanded, FREQUENCIES)):
        call(trope.rotate, library, [x], options)
        assert call(trope.kernel_name, library, [x], options).startswith("cpu-")
    if library == "torch":
        x = torch.from_numpy(X.copy()).requires_grad_()
        assert trope.kernel_name(x, max_position=9, **FREQUENCIES).startswith("cpu-")


def test_a_table_with_one_row_may_have_any_row_stride():
    cos, sin = np.cos(FREQS[:1]), np.asfortranarray(np.sin(FREQS[:1]))[:, :]
    sin = np.lib.stride_tricks.as_strided(sin, sin.shape, (400, 4))
    y = trope.rotate(X[:1], layout="sbhd", pairing="half", cos=cos, sin=sin, angle_columns="half")
    assert np.array_equal(y, trope.rotate(X[:1], layout="sbhd", pairing="half", cos=cos, sin=sin.copy(), angle_columns="half"))


def test_messages_of_frequencies_and_pair_axis_have_no_names_of_c():
    for make in (
        lambda: trope.pair_axis("alternating", [1, 2]),
        lambda: trope.frequencies(rope_type="default", rope_theta=1.0, head_dim=8),
        lambda: trope.frequencies(rope_type="dynamic", rope_theta=1e4, head_dim=2, factor=2.0, max_position_embeddings=8),
        lambda: trope.frequencies(
            rope_type="yarn", rope_theta=1e4, head_dim=8, factor=0.0, original_max_position_embeddings=8
        ),
        lambda: trope.frequencies(
            rope_type="llama3", rope_theta=1e4, head_dim=8, factor=2.0, original_max_position_embeddings=1.0,
            low_freq_factor=1.0, high_freq_factor=4.0,
        ),
    ):  # fmt: skip
        with pytest.raises(trope.Error) as caught:
            make()
        assert not FOREIGN.search(str(caught.value)) and "frequencies:" not in str(caught.value), str(caught.value)
