"""trope from plain Python: ctypes and the standard library, no compiler and no header.

The structs are declared as any language without a C compiler has to declare them; the library's own trope_sizeof says
whether they are right. The library is the first argument, or TROPE_LIBRARY.
"""

import ctypes
import math
import operator
import os
import random
import re
import sys
import unittest
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p

if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
    os.environ["TROPE_LIBRARY"] = sys.argv.pop(1)
HEADER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "include", "trope", "trope.h")

OK, ERROR_NULL, ERROR_ARGUMENT, ERROR_OVERLAP = 0, 1, 2, 3
F32, F64, I32, I64 = 0, 3, 0, 1
DEVICE_CPU = 1
HALF, INTERLEAVED = 1, 2
SBHD, BSHD, BHSD, THD = 1, 2, 3, 4
CP_ZIGZAG = 2
MAX_DIMS, MAX_OPERANDS, MAX_AXES = 5, 4, 3

Strides = c_int64 * MAX_DIMS


class Operand(ctypes.Structure):
    _fields_ = [
        ("src", c_void_p),
        ("dst", c_void_p),
        ("input", c_void_p),
        ("groups", c_int32),
        ("heads_per_group", c_int32),
        ("head_dim", c_int32),
        ("rotary_dim", c_int32),
        ("rotary_offset", c_int32),
        ("reserved", c_int32),
        ("src_stride", Strides),
        ("dst_stride", Strides),
        ("input_stride", Strides),
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
        ("batch", c_int64),
        ("tokens", c_int64),
        ("operands", Operand * MAX_OPERANDS),
        ("pairing", c_int32),
        ("pairing_out", c_int32),
        ("windows", c_int32),
        ("axis_map", c_int32),
        ("axis_sections", c_int32 * MAX_AXES),
        ("inverse", c_int32),
        ("mscale", c_double),
        ("freqs", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("inv_freq", POINTER(c_double)),
        ("angle_dtype", c_int32),
        ("angle_cols", c_int32),
        ("angle_rows", c_int64),
        ("angle_row_stride", c_int64),
        ("angle_batch_stride", c_int64),
        ("out_of_range", c_int32),
        ("position_dtype", c_int32),
        ("start_positions", c_void_p),
        ("position_ids", c_void_p),
        ("position_axis_stride", c_int64),
        ("position_batch_stride", c_int64),
        ("position_token_stride", c_int64),
        ("position_axes", c_int32),
        ("packed_positions", c_int32),
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
        ("workspace", c_void_p),
        ("workspace_size", c_uint64),
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


STRUCTS = {"trope_operand": Operand, "trope_args": Args, "trope_frequency_args": FrequencyArgs}


def load():
    lib = ctypes.CDLL(os.environ["TROPE_LIBRARY"])
    for name in ("trope_forward", "trope_backward"):
        getattr(lib, name).argtypes = [POINTER(Args)]
    lib.trope_workspace_size.argtypes = [POINTER(Args), POINTER(c_uint64)]
    lib.trope_positions.argtypes = [POINTER(Args), POINTER(c_int64), POINTER(c_int32)]
    lib.trope_fill_strides.argtypes = [POINTER(c_int64), c_int32, c_int64, c_int64, c_int32, c_int32]
    lib.trope_frequencies.argtypes = [POINTER(FrequencyArgs), POINTER(c_double), POINTER(c_double)]
    lib.trope_kernel_name.argtypes = [POINTER(Args), c_int32, c_char_p, c_size_t]
    lib.trope_status_name.argtypes = [c_int32]
    for name in ("trope_status_name", "trope_last_error", "trope_version", "trope_info"):
        getattr(lib, name).restype = c_char_p
    lib.trope_sizeof.argtypes = [c_char_p]
    lib.trope_sizeof.restype = c_size_t
    return lib


lib = load()


def address(array):
    return ctypes.addressof(array)


def random_array(kind, count, generator):
    return (kind * count)(*(generator.uniform(-1, 1) for _ in range(count)))


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
        self.args = args = Args(struct_size=ctypes.sizeof(Args), device=DEVICE_CPU, dtype=dtype, operand_count=1)
        args.batch, args.tokens, args.pairing = self.batch, self.tokens, pairing
        operand = args.operands[0]
        operand.heads_per_group, operand.head_dim = self.heads, self.head_dim
        operand.rotary_dim, operand.rotary_offset = self.rotary_dim, self.offset
        for strides in (operand.src_stride, operand.dst_stride, operand.input_stride):
            status = lib.trope_fill_strides(strides, SBHD, self.batch, self.tokens, self.heads, self.head_dim)
            assert status == OK, lib.trope_last_error()
        self.set_buffers(self.x, self.out)

    def set_buffers(self, src, dst):
        self.args.operands[0].src, self.args.operands[0].dst = address(src), address(dst)

    def use_freqs(self, kind, dtype, seed):
        generator = random.Random(seed)
        self.freqs = (kind * (self.tokens * self.rotary_dim // 2))(
            *(generator.uniform(-8, 8) for _ in range(self.tokens * self.rotary_dim // 2)))
        self.args.freqs, self.args.angle_dtype = address(self.freqs), dtype
        self.args.angle_rows, self.args.angle_cols = self.tokens, self.rotary_dim // 2

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

    def test_fields_are_the_headers(self):
        with open(HEADER, encoding="utf-8") as file:
            text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
        for name, struct in STRUCTS.items():
            body = re.search(r"typedef struct %s \{(.*?)\} %s;" % (name, name), text, re.S).group(1)
            fields = [re.search(r"(\w+)\s*(\[\w+\])?$", line.strip()).group(1) for line in body.split(";") if line.strip()]
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
        frequency_args = FrequencyArgs(struct_size=ctypes.sizeof(FrequencyArgs), rotary_dim=call.rotary_dim)
        inv_freq, mscale = (c_double * (call.rotary_dim // 2))(), c_double()
        self.check(lib.trope_frequencies(byref(frequency_args), inv_freq, byref(mscale)))
        self.assertEqual(mscale.value, 1.0)
        for i, frequency in enumerate(inv_freq):
            self.assertAlmostEqual(frequency, 10000.0 ** (-2 * i / call.rotary_dim), places=14)
        call.args.inv_freq = inv_freq
        self.check(lib.trope_forward(byref(call.args)))
        self.assert_close(call.out, call.expected(call.x, lambda t, pair: t * inv_freq[pair]), 5e-7)

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
        args.operands[0].input, args.d_freqs = address(call.x), address(d_freqs)
        size = c_uint64()
        self.check(lib.trope_workspace_size(byref(args), byref(size)))
        workspace = (c_double * (2 * (size.value // 16 + 2)))()
        args.workspace, args.workspace_size = (address(workspace) + 15) // 16 * 16, size
        self.check(lib.trope_backward(byref(args)))

        call.set_buffers(call.x, call.out)
        args.d_freqs, args.operands[0].input = None, None

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
        args = Args(struct_size=ctypes.sizeof(Args), device=DEVICE_CPU, batch=1, tokens=6)
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
        call = Call(c_float, F32, HALF, seed=8)
        call.use_freqs(c_float, F32, seed=9)
        untouched = bytes(call.out)

        def refused(change, status, *words):
            args = Args.from_buffer_copy(call.args)
            change(args)
            self.assertEqual(lib.trope_forward(byref(args)), status)
            message = lib.trope_last_error().decode()
            self.assertTrue(message.startswith("trope_forward: "), message)
            for word in words:
                self.assertIn(word, message)
            self.assertEqual(bytes(call.out), untouched)

        refused(lambda a: setattr(a.operands[0], "rotary_dim", 7), ERROR_ARGUMENT, "rotary_dim", "7")
        refused(lambda a: setattr(a.operands[0], "src", None), ERROR_NULL, "src")
        refused(lambda a: setattr(a, "struct_size", 4), ERROR_ARGUMENT, "struct_size", "4")
        refused(lambda a: setattr(a.operands[0], "dst", a.operands[0].src + 4), ERROR_OVERLAP, "dst")
        refused(lambda a: setattr(a, "mscale", math.nan), ERROR_ARGUMENT, "mscale")
        self.check(lib.trope_forward(byref(call.args)))
        self.assertNotEqual(bytes(call.out), untouched)


if __name__ == "__main__":
    unittest.main()
