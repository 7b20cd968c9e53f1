"""Rotary position embedding by its formulas, slowly: what the tests compare trope with.

Nothing here is taken from the library. Positions, frequencies and the rotation are written from the documentation. A NumPy
array is rotated in double precision. A torch tensor is rotated in the dtypes that it and its coefficients have, operation by
operation, as eager PyTorch code does: so in half precision the bits are those of eager code, and autograd has the gradients.

A tensor is [tokens..., heads, head_dim] here, whatever its layout. `from_layout` and `to_layout` convert. Coefficients and
positions are of tokens, and broadcast against them: every head of a token has the same.
"""

import math

import numpy as np

# Where batch, tokens, heads and head_dim are in a tensor of each layout.
DIMENSIONS = {"sbhd": (1, 0, 2, 3), "bshd": (0, 1, 2, 3), "bhsd": (0, 2, 1, 3), "thd": (0, 1, 2)}


def from_layout(x, layout):
    """A view [batch, tokens, heads, head_dim] of a NumPy array, or [tokens, heads, head_dim] with thd."""
    return x.transpose(DIMENSIONS[layout])


def to_layout(x, layout):
    """The inverse of from_layout."""
    return x.transpose(np.argsort(DIMENSIONS[layout]))


# ---- The rotation ----


def pairs(width, pairing, parts=1):
    """The first and the second elements of all pairs of a window: two lists of offsets."""
    size, half = width // parts, width // parts // 2
    if pairing == "interleaved":
        first = [part * size + 2 * i for part in range(parts) for i in range(half)]
        return first, [i + 1 for i in first]
    first = [part * size + i for part in range(parts) for i in range(half)]
    return first, [i + half for i in first]


def of_angles(angles):
    """Coefficients of angles [tokens..., pairs]."""
    return np.cos(angles), np.sin(angles), np.cos(angles), np.sin(angles)


def of_table(cos, sin, columns):
    """Coefficients of tables: one column for each pair, or one for each element, by halves or interleaved."""
    if columns == "pair":
        return cos, sin, cos, sin
    first, second = pairs(cos.shape[-1], columns)
    return cos[..., first], sin[..., first], cos[..., second], sin[..., second]


def to_columns(values, columns):
    """A table with a column for each element, of values for each pair."""
    width = 2 * values.shape[-1]
    first, second = pairs(width, columns)
    both = first + second
    return concatenate((values, values))[..., [both.index(i) for i in range(width)]]


def concatenate(arrays):
    """Along the last dimension. Arrays of NumPy or tensors of torch, which names it as NumPy does."""
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(arrays, -1)
    import torch

    return torch.cat(arrays, -1)


def rotate(x, coefficients, pairing, pairing_out=None, parts=1, offset=0, mscale=1.0, inverse=False, backward=False):
    """x [tokens..., heads, head_dim] rotated, or dy by the transpose.

    coefficients: (cos1, sin1, cos2, sin2), each [tokens..., pairs]. The window begins at `offset` and is as wide as they say.
    The first element that a pair gives has cos1 and sin1, the second cos2 and sin2.
    """
    if isinstance(x, np.ndarray):
        x = x.astype(np.float64)
    cos1, sin1, cos2, sin2 = (c[..., None, :] for c in coefficients)
    if inverse:
        sin1, sin2 = -sin1, -sin2
    source, target = pairing, pairing_out or pairing
    if backward:
        source, target = target, source
    width = 2 * cos1.shape[-1]
    first, second = ([offset + i for i in elements] for elements in pairs(width, source, parts))
    x1, x2 = x[..., first], x[..., second]
    if backward:
        y1, y2 = x1 * cos1 + x2 * sin2, x2 * cos2 - x1 * sin1
    else:
        y1, y2 = x1 * cos1 - x2 * sin1, x2 * cos2 + x1 * sin2
    rest = [i for i in range(x.shape[-1]) if not offset <= i < offset + width]
    results = concatenate((mscale * y1, mscale * y2, x[..., rest]))
    first, second = ([offset + i for i in elements] for elements in pairs(width, target, parts))
    written = first + second + rest
    return results[..., [written.index(i) for i in range(x.shape[-1])]]


def norm(x, weight, eps, plus_one=False, scope="head"):
    """The RMS norm of each head of x [tokens..., heads, head_dim], or of all heads of a token. weight: [head_dim], [heads, head_dim]
    or [heads * head_dim], None for none."""
    axes = (-2, -1) if scope == "token" else -1
    mean = (x * x).mean(axes, keepdims=True)
    result = x / (mean + eps) ** 0.5
    if weight is None:
        return result
    if weight.shape != (x.shape[-1],):
        weight = weight.reshape(x.shape[-2:])
    return result * (1 + weight if plus_one else weight)


def magnitude(x, width, pairing, pairing_out=None, parts=1, offset=0, mscale=1.0, backward=False):
    """|x1| + |x2| of the pair that gives each element, times |mscale|: rounding errors are in proportion to it. It is 0 for
    elements outside of the window, which are copied."""
    ones = np.ones(width // 2)
    sums = rotate(abs(x), (ones, -ones, ones, ones), pairing, pairing_out, parts, offset, abs(mscale), backward=backward)
    sums[..., :offset] = sums[..., offset + width :] = 0
    return sums


def pad(y, x, is_padding, padding):
    """y, which is x rotated, with what the tokens of padding get instead."""
    if padding == "rotate":
        return y
    return np.where(is_padding[..., None, None], x if padding == "copy" else 0.0, y)


# ---- Positions ----


def positions_on_rank(tokens, layout="none", size=1, rank=0):
    """The positions, in its whole sequence, of the tokens of it that a context parallel rank has."""
    index = np.arange(tokens)
    if layout == "contiguous":
        return rank * tokens + index
    if layout == "striped":
        return index * size + rank
    if layout == "zigzag":
        # The whole sequence is cut in 2 * size chunks; the rank has chunk number rank and chunk 2 * size - 1 - rank.
        chunk = tokens // 2
        return np.concatenate((rank * chunk + index[:chunk], (2 * size - 1 - rank) * chunk + index[: tokens - chunk]))
    return index


def packed_positions(tokens, cu, padded=None, starts=None, stream=False, cp=("none", 1, 0)):
    """Positions of the tokens of packed sequences on a rank, and which of them are padding."""
    (layout, size, rank), storage = cp, padded or cu
    local = [n - rank * tokens if layout == "flat" else n // size for n in storage]
    # Tokens behind the last sequence count on.
    positions, is_padding = np.arange(tokens) - local[-1], np.ones(tokens, bool)
    for i, (begin, end) in enumerate(zip(local, local[1:])):
        index = positions_on_rank(end - begin, layout, size, rank)
        here = slice(max(-begin, 0), max(tokens - begin, 0))  # with flat, the rank may have a part of the sequence
        first = starts[i] if starts else cu[i] if stream else 0
        written = slice(max(begin, 0), max(end, 0))
        positions[written] = first + index[here]
        is_padding[written] = index[here] >= cu[i + 1] - cu[i]
    return positions, is_padding


def axes_of_pairs(order, sections):
    """The axis of each pair: one section after the other, or in turns as long as an axis has pairs left."""
    if order == "sections":
        return [axis for axis, count in enumerate(sections) for _ in range(count)]
    axes = [i % len(sections) for i in range(sum(sections))]
    return [axis if i < len(sections) * sections[axis] else 0 for i, axis in enumerate(axes)]


def angles_of(positions, frequencies, axes=None):
    """Angles [tokens..., pairs] of positions [tokens...]; or of positions [axes, tokens...], each pair by its axis."""
    positions = np.asarray(positions, np.float64)
    of_pairs = positions[..., None] if axes is None else np.moveaxis(positions[list(axes)], 0, -1)
    return of_pairs * np.asarray(frequencies)


# ---- Frequencies, by their papers and as transformers' modeling_rope_utils.py has them ----


def default(dim, base=10000.0):
    return [base ** (-2.0 * i / dim) for i in range(dim // 2)]


def linear(dim, base, factor):
    return [f / factor for f in default(dim, base)]


def dynamic(dim, base, factor, length, context):
    length = max(length, context)
    return default(dim, base * (factor * length / context - (factor - 1)) ** (dim / (dim - 2)))


def ntk_alpha(dim, base, alpha):
    return default(dim, base * alpha ** (dim / (dim - 2)))


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


def yarn(dim, base, factor, context, fast=32.0, slow=1.0, truncate=True):
    """arXiv:2309.00071, section 3.2, with the ramp between pairs as its authors' code has it. (frequencies, mscale)"""
    low, high = (dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (fast, slow))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramps = [min(max((i - low) / (high - low), 0), 1) for i in range(dim // 2)]
    frequencies = [f / factor * ramp + f * (1 - ramp) for ramp, f in zip(ramps, default(dim, base))]
    return frequencies, yarn_mscale(factor)


def yarn_mscale(factor, weight=1.0):
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def longrope(dim, base, divisors):
    return [f / divisor for f, divisor in zip(default(dim, base), divisors)]


def longrope_mscale(factor, context):
    return math.sqrt(1 + math.log(factor) / math.log(context)) if factor > 1 else 1.0


def proportional(dim, base, factor, fraction):
    turning = int(fraction * dim) // 2
    return [f / factor if i < turning else 0.0 for i, f in enumerate(default(dim, base))]
