"""A slow reference implementation of rotary position embedding, with which the tests compare trope.

It shares no code with the library: positions, frequencies and the rotation follow the documentation. NumPy arrays are
rotated in double precision. Torch tensors are rotated in the dtypes of the tensor and its coefficients, operation by
operation, as in eager PyTorch code. So half-precision results have the bits of eager code, and autograd gives the
gradients.

Every tensor here is [tokens..., heads, head_dim]. `from_layout` and `to_layout` convert from and to other layouts.
Coefficients and positions are given for each token and broadcast: all heads of a token share them.
"""

import math

import numpy as np

# The dimensions of batch, tokens, heads and head_dim in a tensor of each layout.
DIMENSIONS = {"sbhd": (1, 0, 2, 3), "bshd": (0, 1, 2, 3), "bhsd": (0, 2, 1, 3), "thd": (0, 1, 2)}


def from_layout(x, layout):
    """A view [batch, tokens, heads, head_dim] of a NumPy array, or [tokens, heads, head_dim] with thd."""
    return x.transpose(DIMENSIONS[layout])


def to_layout(x, layout):
    """The inverse of from_layout."""
    return x.transpose(np.argsort(DIMENSIONS[layout]))


# ---- The rotation ----


def pairs(width, pairing, parts=1):
    """Two lists of offsets in a window: the first element of each pair, and the second."""
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
    """Coefficients from tables with one column for each pair, or with one for each element in half or interleaved order."""
    if columns == "pair":
        return cos, sin, cos, sin
    first, second = pairs(cos.shape[-1], columns)
    return cos[..., first], sin[..., first], cos[..., second], sin[..., second]


def to_columns(values, columns):
    """A table with one column for each element, made from one value for each pair."""
    width = 2 * values.shape[-1]
    first, second = pairs(width, columns)
    both = first + second
    return concatenate((values, values))[..., [both.index(i) for i in range(width)]]


def concatenate(arrays):
    """Concatenates NumPy arrays or torch tensors along the last dimension."""
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(arrays, -1)
    import torch

    return torch.cat(arrays, -1)


def rotate(x, coefficients, pairing, pairing_out=None, parts=1, offset=0, mscale=1.0, inverse=False, backward=False):
    """Rotates x [tokens..., heads, head_dim] or, with `backward`, applies the transpose to dy.

    coefficients: (cos1, sin1, cos2, sin2), each [tokens..., pairs]. The window begins at `offset` and has as many pairs as
    the coefficients. cos1 and sin1 give the first element of a rotated pair, cos2 and sin2 give the second.
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
    """Applies RMS norm to each head of x [tokens..., heads, head_dim] or, with scope "token", to all heads of a token
    together. weight: [head_dim], [heads, head_dim], [heads * head_dim] or None."""
    axes = (-2, -1) if scope == "token" else -1
    mean = (x * x).mean(axes, keepdims=True)
    result = x / (mean + eps) ** 0.5
    if weight is None:
        return result
    if weight.shape != (x.shape[-1],):
        weight = weight.reshape(x.shape[-2:])
    return result * (1 + weight if plus_one else weight)


def magnitude(x, width, pairing, pairing_out=None, parts=1, offset=0, mscale=1.0, backward=False):
    """The sum |x1| + |x2| of the pair that each element comes from, times |mscale|. Rounding errors are proportional to it.
    It is 0 for elements outside the window, which are copied."""
    ones = np.ones(width // 2)
    sums = rotate(abs(x), (ones, -ones, ones, ones), pairing, pairing_out, parts, offset, abs(mscale), backward=backward)
    sums[..., :offset] = sums[..., offset + width :] = 0
    return sums


def pad(y, x, is_padding, padding):
    """Returns y, which is x rotated, with padding tokens replaced according to `padding`."""
    if padding == "rotate":
        return y
    return np.where(is_padding[..., None, None], x if padding == "copy" else 0.0, y)


# ---- Positions ----


def positions_on_rank(tokens, layout="none", size=1, rank=0):
    """The positions, within the whole sequence, of the tokens that a context parallel rank holds."""
    index = np.arange(tokens)
    if layout == "contiguous":
        return rank * tokens + index
    if layout == "striped":
        return index * size + rank
    if layout == "zigzag":
        # The whole sequence is cut into 2 * size chunks. The rank holds the chunks rank and 2 * size - 1 - rank.
        chunk = tokens // 2
        return np.concatenate((rank * chunk + index[:chunk], (2 * size - 1 - rank) * chunk + index[: tokens - chunk]))
    return index


def packed_positions(tokens, cu, padded=None, starts=None, stream=False, cp=("none", 1, 0)):
    """The positions of a rank's tokens in packed sequences, and a mask of the tokens that are padding."""
    (layout, size, rank), storage = cp, padded or cu
    local = [n - rank * tokens if layout == "flat" else n // size for n in storage]
    # Tokens after the last sequence are padding. Their positions count from 0.
    positions, is_padding = np.arange(tokens) - local[-1], np.ones(tokens, bool)
    for i, (begin, end) in enumerate(zip(local, local[1:])):
        index = positions_on_rank(end - begin, layout, size, rank)
        here = slice(max(-begin, 0), max(tokens - begin, 0))  # with flat, the rank may hold only a part of the sequence
        first = starts[i] if starts else cu[i] if stream else 0
        written = slice(max(begin, 0), max(end, 0))
        positions[written] = first + index[here]
        is_padding[written] = index[here] >= cu[i + 1] - cu[i]
    return positions, is_padding


def axes_of_pairs(order, sections):
    """The axis of each pair. With order "sections", sections follow each other. Otherwise axes alternate, and axis 0
    replaces each axis whose section is used up."""
    if order == "sections":
        return [axis for axis, count in enumerate(sections) for _ in range(count)]
    axes = [i % len(sections) for i in range(sum(sections))]
    return [axis if i < len(sections) * sections[axis] else 0 for i, axis in enumerate(axes)]


def angles_of(positions, frequencies, axes=None):
    """Angles [tokens..., pairs] of positions [tokens...]. With `axes`, positions are [axes, tokens...], and each pair uses
    its own axis."""
    positions = np.asarray(positions, np.float64)
    of_pairs = positions[..., None] if axes is None else np.moveaxis(positions[list(axes)], 0, -1)
    return of_pairs * np.asarray(frequencies)


# ---- Frequencies, as in their papers and in transformers' modeling_rope_utils.py ----


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
    """Returns (frequencies, mscale) as in arXiv:2309.00071, section 3.2. The ramp over the pairs is as in the authors'
    code."""
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
