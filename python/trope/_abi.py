"""The C ABI by ctypes: the library, its structs, constants and errors. include/trope/trope.h is the reference."""

import ctypes
import os
import re
import sys
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint8, c_uint64, c_void_p

from ._errors import Error, from_library

OK = 0
COPY = -1
MAX_DIMS, MAX_AXES, MAX_ROTARY_DIM = 5, 4, 1024

DTYPES = {"f32": 1, "f16": 2, "bf16": 3, "f64": 4}
INDICES = {"i32": 1, "i64": 2}
DEVICES = {"cpu": 1, "cuda": 2}
STRIDED = 5  # the layout of all tensors: Python describes every layout by its strides
SHARED_GROUP = 1
TABLE_STRIDED = 4
IDS_STRIDED = 4
PAIRINGS = {"half": 1, "interleaved": 2}
# Python's words for the values of these fields.
WORDS = {
    "pairing": PAIRINGS,
    "pairing_out": PAIRINGS,
    "angle_columns": {"pair": 1, "half": 2, "interleaved": 3},
    "rounding": {"once": 0, "native": 1, "native_f32": 2},
    "out_of_range": {"poison": 0, "clamp": 1},
    "padding": {"zero": 1, "copy": 2, "rotate": 3},
    "cp_layout": {"contiguous": 1, "zigzag": 2, "striped": 3, "flat": 4},
    "dtype": DTYPES,
    "angle_dtype": DTYPES,
}
# Python's words for the fields of trope_norm. Its field rounding is the option rounding of trope.Norm.
NORM_WORDS = {
    "scope": {"head": 1, "token": 2},
    "order": {"before": 1, "after": 2},
    "rounding": {"twice": 1, "product": 2},
}
RSTD_WRITE, RSTD_READ = 1, 2
SUMS_WRITE, SUMS_READ = 1, 2
AXIS_ORDERS = {"sections": 1, "interleaved": 2, "alternating": 3, "hwt": 4}
RULES = {"default": 1, "linear": 2, "dynamic": 3, "yarn": 4, "longrope": 5, "llama3": 6, "proportional": 7}


class Operand(ctypes.Structure):
    """trope_operand."""

    _fields_ = [
        ("src", c_void_p),
        ("dst", c_void_p),
        ("forward_src", c_void_p),
        ("src_layout", c_int32),
        ("dst_layout", c_int32),
        ("forward_src_layout", c_int32),
        ("groups", c_int32),
        ("heads_per_group", c_int32),
        ("head_dim", c_int32),
        ("rotary_dim", c_int32),
        ("rotary_offset", c_int32),
        ("shared_heads", c_int32),
        ("accumulate", c_int32),
        ("src_stride", c_int64 * MAX_DIMS),
        ("dst_stride", c_int64 * MAX_DIMS),
        ("forward_src_stride", c_int64 * MAX_DIMS),
    ]


class Args(ctypes.Structure):
    """trope_args."""

    _fields_ = [
        ("struct_size", c_uint64),
        ("stream", c_void_p),
        ("device", c_int32),
        ("threads", c_int32),
        ("isa", c_int32),
        ("dtype", c_int32),
        ("rounding", c_int32),
        ("operand_count", c_int32),
        ("operands", c_void_p),
        ("operand_size", c_uint64),
        ("batch", c_int64),
        ("tokens", c_int64),
        ("pairing", c_int32),
        ("pairing_out", c_int32),
        ("parts", c_int32),
        ("inverse", c_int32),
        ("mscale", c_double),
        ("pair_axis", c_void_p),
        ("freqs", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("inv_freq", c_void_p),
        ("phase_step", c_void_p),
        ("angle_dtype", c_int32),
        ("angle_columns", c_int32),
        ("angle_layout", c_int32),
        ("out_of_range", c_int32),
        ("angle_rows", c_int64),
        ("angle_stride", c_int64 * 4),
        ("position_ids", c_void_p),
        ("start_positions", c_void_p),
        ("position_dtype", c_int32),
        ("ids_layout", c_int32),
        ("position_axes", c_int32),
        ("stream_positions", c_int32),
        ("ids_stride", c_int64 * 3),
        ("cu_seqlens", c_void_p),
        ("cu_seqlens_padded", c_void_p),
        ("sequences", c_int64),
        ("cu_seqlens_dtype", c_int32),
        ("padding", c_int32),
        ("cp_size", c_int32),
        ("cp_rank", c_int32),
        ("cp_layout", c_int32),
        ("reserved", c_int32),
        ("status", c_void_p),
        ("d_freqs", c_void_p),
        ("d_inv_freq", c_void_p),
        ("d_freqs_layout", c_int32),
        ("reserved_too", c_int32),
        ("d_freqs_stride", c_int64 * 4),
        ("workspace", c_void_p),
        ("workspace_size", c_uint64),
        ("norms", c_void_p),
    ]


class Norm(ctypes.Structure):
    """trope_norm."""

    _fields_ = [
        ("struct_size", c_uint64),
        ("weight", c_void_p),
        ("weight_dtype", c_int32),
        ("weight_per_head", c_int32),
        ("weight_plus_one", c_int32),
        ("scope", c_int32),
        ("order", c_int32),
        ("rounding", c_int32),
        ("eps", c_double),
        ("rstd", c_void_p),
        ("rstd_use", c_int32),
        ("token_sums_use", c_int32),
        ("d_weight", c_void_p),
        ("token_sums", c_void_p),
        ("heads_of_all_ranks", c_int32),
        ("first_head", c_int32),
    ]


class FrequencyArgs(ctypes.Structure):
    """trope_frequency_args."""

    _fields_ = [
        ("struct_size", c_uint64),
        ("rule", c_int32),
        ("rotary_dim", c_int32),
        ("base", c_double),
        ("factor", c_double),
        ("original_max_position", c_double),
        ("seq_len", c_double),
        ("low_freq_factor", c_double),
        ("high_freq_factor", c_double),
        ("beta_fast", c_double),
        ("beta_slow", c_double),
        ("attention_factor", c_double),
        ("mscale", c_double),
        ("mscale_all_dim", c_double),
        ("partial_rotary_factor", c_double),
        ("short_factor", POINTER(c_double)),
        ("long_factor", POINTER(c_double)),
        ("no_truncate", c_int32),
        ("reserved", c_int32),
    ]


STRUCTS = {"trope_operand": Operand, "trope_args": Args, "trope_norm": Norm, "trope_frequency_args": FrequencyArgs}


def _find_library():
    """Returns TROPE_LIBRARY, or the path of libtrope.so in the package, which has two folders in an editable install."""
    files = [os.path.join(folder, "libtrope.so") for folder in sys.modules[__package__].__path__]
    return os.environ.get("TROPE_LIBRARY") or next(filter(os.path.exists, files), files[-1])


def _declare(lib):
    status, args = c_int32, POINTER(Args)
    functions = {
        "trope_forward": (status, [args]),
        "trope_backward": (status, [args]),
        "trope_workspace_size": (status, [args, POINTER(c_uint64)]),
        "trope_positions": (status, [args, c_void_p, c_void_p]),
        "trope_fill_pair_axis": (status, [POINTER(c_uint8), c_int32, c_int32, POINTER(c_int32)]),
        "trope_phase_steps": (status, [POINTER(c_double), c_int32, POINTER(c_uint64)]),
        "trope_frequencies": (status, [POINTER(FrequencyArgs), POINTER(c_double), POINTER(c_double)]),
        "trope_kernel_name": (status, [args, c_int32, c_char_p, c_size_t]),
        "trope_log_calls": (status, [c_int32]),
        "trope_logged_calls": (c_size_t, [c_char_p, c_size_t]),
        "trope_status_name": (c_char_p, [status]),
        "trope_last_error": (c_char_p, []),
        "trope_last_error_argument": (c_char_p, []),
        "trope_version": (c_char_p, []),
        "trope_info": (c_char_p, []),
        "trope_sizeof": (c_size_t, [c_char_p]),
        "trope_offsetof": (c_int64, [c_char_p, c_char_p]),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments


def _compare_structs(lib, path):
    """Fails unless sizes and offsets here equal the library's. With another version, fields would be misread."""
    for name, struct in STRUCTS.items():
        wrong = ["size"] if ctypes.sizeof(struct) != lib.trope_sizeof(name.encode()) else []
        for field, _ in struct._fields_:
            if getattr(struct, field).offset != lib.trope_offsetof(name.encode(), field.encode()):
                wrong.append("offset of " + field)
        if wrong:
            named = path, lib.trope_version().decode(), wrong[0], name
            raise ImportError("trope: %s (version %s) does not have the same %s in %s as this Python package" % named)


def _load():
    path = _find_library()
    try:
        lib = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            "trope: the library cannot be loaded: %s (TROPE_LIBRARY may give the path of another file)" % error
        ) from None
    try:
        _declare(lib)
    except AttributeError as error:
        raise ImportError("trope: %s is not a library of this version of trope: %s" % (path, error)) from None
    _compare_structs(lib, path)
    return lib


lib = _load()


def check(status):
    """Raises the library's last error, in the words of trope.h, unless status is OK."""
    if status != OK:
        name = lib.trope_status_name(status).decode()
        raise Error(lib.trope_last_error().decode(), lib.trope_last_error_argument().decode(), name)


def error_of_call(status, table="freqs", in_place=bool):
    """Returns the library's last error as an Error in the words of a Python caller (see from_library)."""
    message, argument = lib.trope_last_error().decode(), lib.trope_last_error_argument().decode()
    return from_library(message, argument, lib.trope_status_name(status).decode(), WORDS, table, in_place)


def reason():
    """Returns the text of the library's last error, without the name of its function."""
    text = lib.trope_last_error().decode().partition(": ")[2]
    text = re.sub(r"TROPE_RULE_(\w+)", lambda match: "rope_type %r" % match[1].lower(), text)
    text = re.sub(r"TROPE_AXES_(\w+)", lambda match: "order %r" % match[1].lower(), text)
    return text.replace("original_max_position ", "original_max_position_embeddings ").replace("base ", "rope_theta ")


def make_phase_steps(inv_freq):
    """Calls trope_phase_steps. Returns a ctypes array of uint64, one for each inv_freq."""
    count = len(inv_freq)
    steps = (c_uint64 * count)()
    status = lib.trope_phase_steps((c_double * count)(*inv_freq), count, steps)
    if status != OK:
        raise error_of_call(status)
    return steps
