"""The rotation of all layers: one call of trope.torch.rotate, for the shapes and dtypes that transformers passes."""

import functools
import itertools

import torch

from ._trope import Error
from ._trope import torch as rotations

_LAYOUTS = {1: "bhsd", -3: "bhsd", 2: "bshd", -2: "bshd"}  # by unsqueeze_dim, for tables of 3 dimensions


def _check_tensors(tensors, tables, unsqueeze_dim):
    """Checks what rotate does not check: it reads row p of a table for token p, and ignores further rows.

    Returns the layout.
    """
    for name, x in {**tensors, **tables}.items():
        if not isinstance(x, torch.Tensor):
            raise Error("%s must be a torch tensor, not %s" % (name, type(x).__name__), name)
        dims = 4 if name in tensors else 3
        if x.dim() != dims:
            raise Error("%s has shape %s, and must have %d dimensions" % (name, list(x.shape), dims), name)
    if type(unsqueeze_dim) is not int or unsqueeze_dim not in _LAYOUTS:
        message = "unsqueeze_dim must be 1 or -3 (heads before tokens), or 2 or -2 (tokens before heads), not %r"
        raise Error(message % (unsqueeze_dim,), "unsqueeze_dim")
    layout, cos, sin = _LAYOUTS[unsqueeze_dim], tables["cos"], tables["sin"]
    if sin.shape != cos.shape or sin.dtype != cos.dtype:
        given = list(sin.shape), sin.dtype, list(cos.shape), cos.dtype
        raise Error("sin is %s %s, and cos is %s %s: they must be alike" % given, "sin")
    for name, x in tensors.items():
        tokens = x.shape[layout.index("s")]
        if tokens != cos.shape[1]:
            message = "%s has %d tokens (unsqueeze_dim is %d), and cos has %d rows"
            raise Error(message % (name, tokens, unsqueeze_dim, cos.shape[1]), name)
    return layout


def _find_rounding(q, name, cos, upcasts):
    """Returns the rounding that gives the bits of eager PyTorch, with results in the dtype of q."""
    if upcasts and q.dtype == torch.float64:
        raise Error("%s is torch.float64, and this layer computes in float32" % name, name)
    if cos.dtype != q.dtype and cos.dtype != torch.float32 and q.dtype != torch.float32:
        message = "cos is %s, and %s is %s: the tables must have the same dtype, or one of the two must be float32"
        raise Error(message % (cos.dtype, name, q.dtype), "cos")
    return "native_f32" if upcasts or (q.dtype.itemsize == 2 and cos.dtype == torch.float32) else "native"


def _take_columns(tensors, tables, columns, may_be_part):
    """Returns (cos, sin, angle_columns, the number of elements of a head that rotate)."""
    cos, sin = tables["cos"], tables["sin"]
    width, first = cos.shape[2], next(iter(tensors))
    for name, x in tensors.items():
        head_dim = x.shape[3]
        if width < 2 or width % 2 or width > head_dim or (width < head_dim and not may_be_part):
            rule = "an even number up to %d" % head_dim if may_be_part else "%d" % head_dim
            message = "cos has %d columns, and must have %s, for %s with %d elements in a head"
            raise Error(message % (width, rule, name, head_dim), "cos" if name == first else name)
    if columns == "first half":
        return cos[..., : width // 2], sin[..., : width // 2], "pair", width
    return cos, sin, columns, width


def turn(tensors, cos, sin, unsqueeze_dim, pairing, columns, may_be_part=False, upcasts=False, norms=None):
    """Returns a tuple of new tensors.

    tensors: {name: tensor}; errors use these names
    columns: the order of the tables' columns. "half" and "interleaved" have a column for each element that rotates. "first
        half" is like "half", but the second half of the columns is not read
    may_be_part: whether the tables may cover only the first elements of a head
    upcasts: whether eager casts to float32 before it multiplies
    norms: (name, norm) of each tensor
    """
    tables = {"cos": cos, "sin": sin}
    layout = _check_tensors(tensors, tables, unsqueeze_dim)
    first, q = next(iter(tensors.items()))
    rounding = _find_rounding(q, first, cos, upcasts)
    cos, sin, angle_columns, width = _take_columns(tensors, tables, columns, may_be_part)
    if sin.stride() != cos.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    names = {"tensors[%d]" % i: name for i, name in enumerate(tensors)}
    options = {}
    if norms is not None:
        options["norms"] = [norm for _, norm in norms]
        names.update({"norms[%d]" % i: name for i, (name, _) in enumerate(norms)})
    try:
        results = rotations.rotate(
            *tensors.values(), layout=layout, pairing=pairing, cos=cos, sin=sin, angle_columns=angle_columns, rounding=rounding,
            rotary_dim=width, **options
        )  # fmt: skip
    except Error as error:
        raise error.renamed(names) from None
    return results if len(tensors) > 1 else (results,)


# ---- The function that a layer replaces ----


def check_replaced(cls, layer):
    """Raises an error if the layer and the class `cls`, whose forward it replaces, have different results.

    kernelize replaces every function that transformers names rotary_pos_emb, but these functions differ: nanochat's rotates
    in the opposite direction, and ModernBERT's casts to float32.
    """
    if not issubclass(cls, layer) and not _is_same(cls, layer):
        message = (
            "self: %s has other results than the %s that it replaces: kernelize this model with another layer, or with none"
        )
        raise Error(message % (layer.__name__, getattr(cls, "kernel_layer_name", cls.__name__)), "self")


@torch.compiler.assume_constant_result  # runs while torch.compile traces, and is not part of the compiled code
def _is_same(cls, layer):
    return _compare(cls, layer)


def _results(cls, call):
    """Returns the results of a class for a call, or None if it refuses the call."""
    try:
        return cls().forward(*call)
    except Exception:
        return None


@functools.lru_cache(maxsize=None)
def _compare(cls, layer):
    """Returns whether two classes give the same bits, and refuse the same tables, for small random tensors on the CPU."""
    generator, compared = torch.Generator("cpu").manual_seed(7), []
    with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):
        for columns, dtype in itertools.product((16, 32), (torch.float32, torch.bfloat16)):
            shapes = (2, 3, 5, 32), (2, 1, 5, 32), (2, 5, columns), (2, 5, columns)
            call = [torch.randn(shape, generator=generator, device="cpu").to(dtype) for shape in shapes]
            ours, theirs = _results(layer, call), _results(cls, call)
            if ours is None or theirs is None:
                compared += [False] if ours is not theirs else []
            else:
                compared += [x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(ours, theirs)]
    return bool(compared) and all(compared)
