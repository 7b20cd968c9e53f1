"""trope from plain Python: ctypes and the standard library, no compiler and no header.

The structs are declared as any language without a C compiler has to declare them; the library's own trope_sizeof and
trope_offsetof say whether they are right. The library is the first argument, or TROPE_LIBRARY.
"""

import ctypes
import math
import operator
import os
import random
import re
import sys
import unittest
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint8, c_uint64, c_void_p

if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
    os.environ["TROPE_LIBRARY"] = sys.argv.pop(1)
HEADER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "include", "trope", "trope.h")

OK, ERROR_NULL, ERROR_ARGUMENT, ERROR_OVERLAP = 0, 1, 2, 3
F32, F64, I32, I64 = 1, 4, 1, 2
DEVICE_CPU = 1
HALF, INTERLEAVED = 1, 2
SBHD, BSHD, BHSD, THD, STRIDED = 1, 2, 3, 4, 5
COLUMNS_PAIR = 1
TABLE_ROWS = 1
QKV_GROUPS, Q, K, V = 1, 1, 2, 3
CP_ZIGZAG = 2
RULE_DEFAULT = 1
COPY = -1
MAX_DIMS = 5

Strides = c_int64 * MAX_DIMS


class Operand(ctypes.Structure):
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
        ("src_stride", Strides),
        ("dst_stride", Strides),
        ("forward_src_stride", Strides),
    ]


class Args(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("stream", c_void_p),
        ("device", c_int32),
        ("threads", c_int32),
        ("isa", c_int32),
        ("dtype", c_int32),
        ("rounding", c_int32),
        ("operand_count", c_int32),
        ("operands", POINTER(Operand)),
        ("operand_size", c_uint64),
        ("batch", c_int64),
        ("tokens", c_int64),
        ("pairing", c_int32),
        ("pairing_out", c_int32),
        ("parts", c_int32),
        ("inverse", c_int32),
        ("mscale", c_double),
        ("pair_axis", POINTER(c_uint8)),
        ("freqs", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("inv_freq", POINTER(c_double)),
        ("phase_step", POINTER(c_uint64)),
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
        ("status", POINTER(c_int32)),
        ("d_freqs", c_void_p),
        ("d_inv_freq", POINTER(c_double)),
        ("d_freqs_layout", c_int32),
        ("reserved_too", c_int32),
        ("d_freqs_stride", c_int64 * 4),
        ("workspace", c_void_p),
        ("workspace_size", c_uint64),
    ]


class Qkv(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("buffer", c_void_p),
        ("batch", c_int64),
        ("tokens", c_int64),
        ("layout", c_int32),
        ("order", c_int32),
        ("dtype", c_int32),
        ("q_heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("rotary_dim", c_int32),
        ("reserved", c_int32),
    ]


class FrequencyArgs(ctypes.Structure):
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


STRUCTS = {"trope_operand": Operand, "trope_args": Args, "trope_qkv": Qkv, "trope_frequency_args": FrequencyArgs}


def load():
    lib = ctypes.CDLL(os.environ["TROPE_LIBRARY"])
    for name in ("trope_forward", "trope_backward"):
        getattr(lib, name).argtypes = [POINTER(Args)]
    lib.trope_workspace_size.argtypes = [POINTER(Args), POINTER(c_uint64)]
    lib.trope_positions.argtypes = [POINTER(Args), POINTER(c_int64), POINTER(c_int32)]
    lib.trope_fill_operand.argtypes = [POINTER(Operand), c_void_p, c_int32, c_int32, c_int32, c_int32]
    lib.trope_fill_qkv.argtypes = [POINTER(Operand), POINTER(Qkv), c_int32]
    lib.trope_fill_strides.argtypes = [POINTER(c_int64), c_int32, c_int64, c_int64, c_int32, c_int32]
    lib.trope_fill_pair_axis.argtypes = [POINTER(c_uint8), c_int32, c_int32, POINTER(c_int32)]
    lib.trope_phase_steps.argtypes = [POINTER(c_double), c_int32, POINTER(c_uint64)]
    lib.trope_frequencies.argtypes = [POINTER(FrequencyArgs), POINTER(c_double), POINTER(c_double)]
    lib.trope_kernel_name.argtypes = [POINTER(Args), c_int32, c_char_p, c_size_t]
    lib.trope_status_name.argtypes = [c_int32]
    for name in ("status_name", "last_error", "last_error_argument", "version", "info"):
        getattr(lib, "trope_" + name).restype = c_char_p
    lib.trope_sizeof.argtypes = [c_char_p]
    lib.trope_sizeof.restype = c_size_t
    lib.trope_offsetof.argtypes = [c_char_p, c_char_p]
    lib.trope_offsetof.restype = c_int64
    return lib


lib = load()


def address(array):
    return ctypes.addressof(array)


def random_array(kind, count, generator):
    return (kind * count)(*(generator.uniform(-1, 1) for _ in range(count)))


def new_args(**fields):
    return Args(struct_size=ctypes.sizeof(Args), operand_size=ctypes.sizeof(Operand), device=DEVICE_CPU, **fields)


class Call:
    """One operand, [tokens, batch, heads, head_dim], with every buffer that a call may use."""

    batch, tokens, heads, head_dim, rotary_dim, offset = 2, 5, 3, 12, 8, 2

    def __init__(self, kind, dtype, pairing, seed):
        generator = random.Random(seed)
        self.count = self.tokens * self.batch * self.heads * self.head_dim
        self.pairing = pairing
        self.x = random_array(kind, self.count, generator)
        self.y = random_array(kind, self.count, generator)
        self.out = (kind * self.count)()
        ctypes.memset(self.out, 0xFF, ctypes.sizeof(self.out))
        self.operand = Operand()
        status = lib.trope_fill_operand(self.operand, address(self.x), SBHD, self.heads, self.head_dim, self.rotary_dim)
        assert status == OK, lib.trope_last_error()
        self.operand.rotary_offset = self.offset
        self.args = new_args(dtype=dtype, batch=self.batch, tokens=self.tokens, pairing=pairing)
        self.args.operands, self.args.operand_count = ctypes.pointer(self.operand), 1
        self.set_buffers(self.x, self.out)

    def set_buffers(self, src, dst):
        self.operand.src, self.operand.dst = address(src), address(dst)

    def use_freqs(self, kind, dtype, seed):
        generator = random.Random(seed)
        self.freqs = (kind * (self.tokens * self.rotary_dim // 2))(
            *(generator.uniform(-8, 8) for _ in range(self.tokens * self.rotary_dim // 2)))
        self.args.freqs, self.args.angle_dtype = address(self.freqs), dtype
        self.args.angle_columns, self.args.angle_layout = COLUMNS_PAIR, TABLE_ROWS
        self.args.angle_rows = self.tokens

    def elements_of_pair(self, pair):
        if self.pairing == HALF:
            return self.offset + pair, self.offset + pair + self.rotary_dim // 2
        return self.offset + 2 * pair, self.offset + 2 * pair + 1

    def expected(self, x, angle, direction=1):
        """The rotation by angle(token, pair), written from its definition."""
        out = list(x)
        for t in range(self.tokens):
            for row in range(self.batch * self.heads):
                start = (t * self.batch * self.heads + row) * self.head_dim
                for pair in range(self.rotary_dim // 2):
                    i, j = (start + e for e in self.elements_of_pair(pair))
                    turn = complex(math.cos(angle(t, pair)), direction * math.sin(angle(t, pair)))
                    z = complex(x[i], x[j]) * turn
                    out[i], out[j] = z.real, z.imag
        return out


class TestDeclarations(unittest.TestCase):
    def test_sizes_are_the_librarys(self):
        for name, struct in STRUCTS.items():
            self.assertEqual(ctypes.sizeof(struct), lib.trope_sizeof(name.encode()), name)
        self.assertEqual(lib.trope_sizeof(b"trope_nothing"), 0)

    def test_offsets_are_the_librarys(self):
        for name, struct in STRUCTS.items():
            for field, _ in struct._fields_:
                offset = lib.trope_offsetof(name.encode(), field.encode())
                self.assertEqual(getattr(struct, field).offset, offset, "%s.%s" % (name, field))
        self.assertEqual(lib.trope_offsetof(b"trope_args", b"nothing"), -1)

    def test_fields_are_the_headers(self):
        with open(HEADER, encoding="utf-8") as file:
            text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
        for name, struct in STRUCTS.items():
            body = re.search(r"typedef struct %s \{(.*?)\} %s;" % (name, name), text, re.S).group(1)
            declared = [part for line in body.split(";") for part in line.split(",") if part.strip()]
            fields = [re.search(r"(\w+)\s*(\[\w+\])?$", part.strip()).group(1) for part in declared]
            self.assertEqual(fields, [field[0] for field in struct._fields_], name)

    def test_version_and_names(self):
        self.assertRegex(lib.trope_version(), rb"^\d+\.\d+\.\d+$")
        self.assertIn(lib.trope_version(), lib.trope_info())
        self.assertEqual(lib.trope_status_name(ERROR_ARGUMENT), b"TROPE_ERROR_ARGUMENT")


class TestCalls(unittest.TestCase):
    def check(self, status):
        self.assertEqual(status, OK, lib.trope_last_error())

    def assert_close(self, got, want, bound):
        worst = max(abs(a - b) for a, b in zip(got, want))
        self.assertLess(worst, bound)

    def test_forward_from_frequencies(self):
        call = Call(c_float, F32, HALF, seed=1)
        rule = FrequencyArgs(struct_size=ctypes.sizeof(FrequencyArgs), rule=RULE_DEFAULT, base=10000)
        rule.rotary_dim = call.rotary_dim
        inv_freq, attention_factor = (c_double * (call.rotary_dim // 2))(), c_double()
        self.check(lib.trope_frequencies(byref(rule), inv_freq, byref(attention_factor)))
        self.assertEqual(attention_factor.value, 1.0)
        for i, frequency in enumerate(inv_freq):
            self.assertAlmostEqual(frequency, 10000.0 ** (-2 * i / call.rotary_dim), places=14)
        call.args.inv_freq = inv_freq
        self.check(lib.trope_forward(byref(call.args)))
        self.assert_close(call.out, call.expected(call.x, lambda t, pair: t * inv_freq[pair]), 5e-7)
        from_inv_freq = bytes(call.out)

        steps = (c_uint64 * len(inv_freq))()
        self.check(lib.trope_phase_steps(inv_freq, len(inv_freq), steps))
        call.args.inv_freq, call.args.phase_step = None, steps
        ctypes.memset(call.out, 0xFF, ctypes.sizeof(call.out))
        self.check(lib.trope_forward(byref(call.args)))
        self.assertEqual(bytes(call.out), from_inv_freq)

    def test_packed_qkv(self):
        buffer = (c_float * (3 * 4 * 8))(*range(96))
        qkv = Qkv(struct_size=ctypes.sizeof(Qkv), buffer=address(buffer), batch=1, tokens=3, layout=THD, order=QKV_GROUPS,
                  dtype=F32, q_heads=2, kv_heads=1, head_dim=8, rotary_dim=8)
        operands = (Operand * 3)()
        for i, which in enumerate((Q, K, V)):
            self.check(lib.trope_fill_qkv(operands[i], byref(qkv), which))
        self.assertEqual([o.src - address(buffer) for o in operands], [0, 64, 96])
        self.assertEqual([o.rotary_dim for o in operands], [8, 8, COPY])
        inv_freq = (c_double * 4)(1, 1, 1, 1)
        args = new_args(dtype=F32, batch=1, tokens=3, pairing=HALF, operands=operands, operand_count=3, inv_freq=inv_freq)
        self.check(lib.trope_forward(byref(args)))
        self.assertEqual(list(buffer[:32]), list(range(32)))  # position 0
        self.assertEqual(list(buffer[56:64]), list(range(56, 64)))  # v
        self.assertAlmostEqual(buffer[32], 32 * math.cos(1) - 36 * math.sin(1), places=4)

    def test_pair_axis(self):
        axis = (c_uint8 * 8)()
        self.check(lib.trope_fill_pair_axis(axis, 8, 1, (c_int32 * 4)(2, 3, 3, 0)))
        self.assertEqual(list(axis), [0, 0, 1, 1, 1, 2, 2, 2])

    def test_backward_is_the_transpose(self):
        call = Call(c_double, F64, INTERLEAVED, seed=2)
        call.use_freqs(c_double, F64, seed=3)
        self.check(lib.trope_forward(byref(call.args)))
        half = call.rotary_dim // 2
        angle = lambda t, pair: call.freqs[t * half + pair]
        self.assert_close(call.out, call.expected(call.x, angle), 1e-14)
        dx = (c_double * call.count)()
        call.set_buffers(call.y, dx)
        self.check(lib.trope_backward(byref(call.args)))
        self.assert_close(dx, call.expected(call.y, angle, direction=-1), 1e-14)
        forward, backward = (sum(map(operator.mul, a, b)) for a, b in ((call.out, call.y), (call.x, dx)))
        self.assertAlmostEqual(forward, backward, places=12)

    def test_gradient_of_the_angles(self):
        call = Call(c_double, F64, HALF, seed=4)
        call.use_freqs(c_double, F64, seed=5)
        args = call.args
        d_freqs = (c_double * len(call.freqs))()
        dx = (c_double * call.count)()
        call.set_buffers(call.y, dx)
        call.operand.forward_src, call.operand.forward_src_layout = address(call.x), SBHD
        args.d_freqs, args.d_freqs_layout = address(d_freqs), TABLE_ROWS
        size = c_uint64()
        self.check(lib.trope_workspace_size(byref(args), byref(size)))
        workspace = (c_double * (2 * (size.value // 16 + 2)))()
        args.workspace, args.workspace_size = (address(workspace) + 15) // 16 * 16, size
        self.check(lib.trope_backward(byref(args)))

        call.set_buffers(call.x, call.out)
        args.d_freqs, args.d_freqs_layout = None, 0
        call.operand.forward_src, call.operand.forward_src_layout = None, 0

        def loss():
            self.check(lib.trope_forward(byref(args)))
            return sum(map(operator.mul, call.out, call.y))

        step = 1e-5
        for i in (0, 7, len(call.freqs) - 1):
            kept = call.freqs[i]
            call.freqs[i] = kept + step
            above = loss()
            call.freqs[i] = kept - step
            below = loss()
            call.freqs[i] = kept
            self.assertAlmostEqual((above - below) / (2 * step), d_freqs[i], places=7)

    def test_positions_of_packed_sequences(self):
        boundaries = (c_int64 * 4)(0, 4, 4, 12)
        args = new_args(batch=1, tokens=6)
        args.cu_seqlens, args.sequences, args.cu_seqlens_dtype = address(boundaries), 3, I64
        args.cp_size, args.cp_rank, args.cp_layout = 2, 1, CP_ZIGZAG
        positions, sequences = (c_int64 * 6)(), (c_int32 * 6)()
        self.check(lib.trope_positions(byref(args), positions, sequences))
        self.assertEqual(list(positions), [1, 2, 2, 3, 4, 5])
        self.assertEqual(list(sequences), [0, 0, 2, 2, 2, 2])

    def test_kernel_name(self):
        call = Call(c_float, F32, HALF, seed=6)
        call.use_freqs(c_float, F32, seed=7)
        name = ctypes.create_string_buffer(64)
        self.check(lib.trope_kernel_name(byref(call.args), 0, name, len(name)))
        self.assertTrue(name.value.startswith(b"cpu-"), name.value)

    def test_refused(self):
        def refused(owner, field, value, status, argument):
            call = Call(c_float, F32, HALF, seed=8)
            call.use_freqs(c_float, F32, seed=9)
            untouched = bytes(call.out)
            setattr(getattr(call, owner), field, value)
            self.assertEqual(lib.trope_forward(byref(call.args)), status)
            message = lib.trope_last_error().decode()
            self.assertTrue(message.startswith("trope_forward: "), message)
            self.assertEqual(lib.trope_last_error_argument().decode(), argument, message)
            self.assertIn(argument, message)
            self.assertEqual(bytes(call.out), untouched)

        refused("operand", "rotary_dim", 7, ERROR_ARGUMENT, "operands[0].rotary_dim")
        refused("operand", "src_layout", 0, ERROR_ARGUMENT, "operands[0].src_layout")
        refused("operand", "src", None, ERROR_NULL, "operands[0].src")
        refused("args", "struct_size", 8, ERROR_ARGUMENT, "struct_size")
        refused("args", "operand_size", 0, ERROR_ARGUMENT, "operand_size")
        refused("args", "device", 0, ERROR_ARGUMENT, "device")
        refused("args", "dtype", 0, ERROR_ARGUMENT, "dtype")
        refused("args", "mscale", math.nan, ERROR_ARGUMENT, "mscale")
        call = Call(c_float, F32, HALF, seed=8)
        call.use_freqs(c_float, F32, seed=9)
        call.operand.dst = call.operand.src + 4
        self.assertEqual(lib.trope_forward(byref(call.args)), ERROR_OVERLAP)
        self.assertEqual(lib.trope_last_error_argument(), b"operands[0].dst")


if __name__ == "__main__":
    unittest.main()
