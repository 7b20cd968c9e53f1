"""Rotary position embedding by its formulas, in double, slowly: what `trope apply` is compared with.

Nothing here is taken from the library: positions, frequencies and the rotation are written anew, from the documentation.
"""

import math

ORDER = {"sbhd": "sbhd", "bshd": "bshd", "bhsd": "bhsd", "thd": "shd"}


def strides(layout, shape):
    """Strides of s, b, h and d in a flat list."""
    result, step = {"b": 0}, 1
    for dim, size in reversed(list(zip(ORDER[layout], shape))):
        result[dim] = step
        step *= size
    return result


def sizes(layout, shape):
    result = dict(zip(ORDER[layout], shape))
    result.setdefault("b", 1)
    return result


def pair(pairing, window_size, parts, index):
    """The two elements of a pair, from the start of the rotary window."""
    size = window_size // parts
    part, i = divmod(index, size // 2)
    first, second = (2 * i, 2 * i + 1) if pairing == "interleaved" else (i, i + size // 2)
    return part * size + first, part * size + second


# Positions


def cp_position(layout, size, rank, length, i):
    """Of local index i in a sequence with `length` tokens on this rank."""
    if layout == "contiguous":
        return rank * length + i
    if layout == "striped":
        return i * size + rank
    if layout == "zigzag":
        # The whole sequence is cut in 2 * size chunks; rank r has chunk r and chunk 2 * size - 1 - r.
        chunk = length // 2
        return rank * chunk + i if i < chunk else (2 * size - 1 - rank) * chunk + (i - chunk)
    return i


def packed_positions(tokens, cu, padded=None, starts=None, packed=False, cp=("none", 1, 0)):
    """[(position, is padding)] of each token of a packed batch."""
    layout, size, rank = cp
    storage = padded or cu
    result = []
    for token in range(tokens):
        found = None
        for sequence in range(len(cu) - 1):
            begin, end = storage[sequence], storage[sequence + 1]
            if layout == "flat":
                begin, end = begin - rank * tokens, end - rank * tokens
            else:
                begin, end = begin // size, end // size
            if begin <= token < end:
                index = cp_position(layout, size, rank, end - begin, token - begin)
                first = starts[sequence] if starts else cu[sequence] if packed else 0
                found = (first + index, index >= cu[sequence + 1] - cu[sequence])
        if found is None:
            last = storage[-1] - rank * tokens if layout == "flat" else storage[-1] // size
            found = (token - last, True)
        result.append(found)
    return result


# Frequencies, as in Hugging Face transformers' modeling_rope_utils.py


def default(dim, base=10000.0):
    return [base ** (-2.0 * i / dim) for i in range(dim // 2)]


def llama3(dim, base, factor, low, high, context):
    result = []
    for f in default(dim, base):
        wavelength = 2 * math.pi / f
        if wavelength < context / high:
            result.append(f)
        elif wavelength > context / low:
            result.append(f / factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            result.append((1 - smooth) * f / factor + smooth * f)
    return result


def dynamic(dim, base, factor, length, context):
    length = max(length, context)
    return default(dim, base * (factor * length / context - (factor - 1)) ** (dim / (dim - 2)))


def yarn(dim, base, factor, context, fast=32.0, slow=1.0, truncate=True):
    """Frequencies and mscale."""

    def correction(turns):
        return dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = correction(fast), correction(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    result = []
    for i, f in enumerate(default(dim, base)):
        ramp = min(max((i - low) / (high - low), 0), 1)
        result.append(f / factor * ramp + f * (1 - ramp))
    return result, 0.1 * math.log(factor) + 1 if factor > 1 else 1.0


def proportional(dim, base, factor, fraction):
    turning = int(fraction * dim) // 2
    return [f / factor if i < turning else 0.0 for i, f in enumerate(default(dim, base))]


# The rotation


class Rotation:
    """angles(b, t, pair) is the pair's (cos1, sin1, cos2, sin2); keep(b, t) says 'rotate', 'copy', 'zero' or 'nan'."""

    def __init__(self, angles, dim, offset=0, pairing="half", pairing_out=None, parts=1, mscale=1.0, inverse=False,
                 backward=False, keep=lambda b, t: "rotate"):
        self.angles, self.dim, self.offset, self.parts = angles, dim, offset, parts
        self.source, self.target = pairing, pairing_out or pairing
        if backward:
            self.source, self.target = self.target, self.source
        self.mscale, self.sign, self.backward, self.keep = mscale, -1.0 if inverse else 1.0, backward, keep

    def head(self, values, at, step, b, t, out, size):
        for i in range(self.dim // 2):
            c1, s1, c2, s2 = self.angles(b, t, i)
            s1, s2 = self.sign * s1, self.sign * s2
            read = [at + (self.offset + e) * step for e in pair(self.source, self.dim, self.parts, i)]
            write = [at + (self.offset + e) * step for e in pair(self.target, self.dim, self.parts, i)]
            x1, x2 = values[read[0]], values[read[1]]
            if self.backward:
                y1, y2 = x1 * c1 + x2 * s2, x2 * c2 - x1 * s1
            else:
                y1, y2 = x1 * c1 - x2 * s1, x2 * c2 + x1 * s2
            out[write[0]], out[write[1]] = self.mscale * y1, self.mscale * y2
            size[write[0]] = size[write[1]] = abs(self.mscale) * (abs(x1) + abs(x2))

    def apply(self, layout, shape, values):
        """The result, and for each element |x1| + |x2| times mscale, which errors are in proportion to (0: exact)."""
        step, count = strides(layout, shape), sizes(layout, shape)
        out, size = list(values), [0.0] * len(values)
        for b in range(count["b"]):
            for t in range(count["s"]):
                what = self.keep(b, t)
                for h in range(count["h"]):
                    at = b * step["b"] + t * step["s"] + h * step["h"]
                    if what == "zero":
                        for e in range(count["d"]):
                            out[at + e * step["d"]] = 0.0
                    elif what == "nan":
                        for e in range(self.dim):
                            out[at + (self.offset + e) * step["d"]] = math.nan
                    elif what == "rotate":
                        self.head(values, at, step["d"], b, t, out, size)
        return out, size
