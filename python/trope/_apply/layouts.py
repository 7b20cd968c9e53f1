"""The layout of a call, and the batch, tokens and heads of its operands."""

from .files import REAL
from .options import INT32, LAYOUTS
from .refused import refuse_tensor, shorten

# The dimensions of batch (None: there is none), tokens, heads and head_dim in each layout, and its description in messages.
_DIMS = {
    "sbhd": (1, 0, 2, 3, "4 dims, [s, b, h, d]"),
    "bshd": (0, 1, 2, 3, "4 dims, [b, s, h, d]"),
    "bhsd": (0, 2, 1, 3, "4 dims, [b, h, s, d]"),
    "thd": (None, 0, 1, 2, "3 dims, [t, h, d]"),
}


def refuse_shaped(call, tensor, text, *values):
    """Raises a refusal that begins with the tensor's dtype and shape: "F32 [2, 3] must ..."."""
    refuse_tensor(call.file.path, tensor.name, "%s %s", tensor, text % values if values else text)


def shape_in(options, tensor, layout):
    """Returns the tensor's shape in the layout, with a dimension for heads, or None if the layout does not fit.

    With --head-dim, the last of 3 dims may hold all heads.
    """
    batch, tokens, heads, head_dim, _ = _DIMS[layout]
    shape, rank = tensor.shape, len(layout)
    if len(shape) == 3 and rank == 4 and heads == 2 and options.head_dim:
        if shape[2] % options.head_dim:
            return None
        return shape[:2] + (shape[2] // options.head_dim, options.head_dim)
    return shape if len(shape) == rank else None


def sizes(layout, shape):
    """Returns (batch, tokens, heads, head_dim) of a shape in a layout."""
    batch, *others, _ = _DIMS[layout]
    return (1 if batch is None else shape[batch], *(shape[dim] for dim in others))


def _cu_seqlens_end(tensor):
    return None if tensor is None or not tensor.elements else float(tensor.data.reshape(-1)[-1])


def _others_fit(call, batch, tokens):
    """Whether position_ids, start_positions, cu_seqlens and tables fit this number of tokens."""
    group = call.group
    ids, starts, cu_seqlens = group.get("position_ids"), group.get("start_positions"), group.get("cu_seqlens")
    if ids is not None and ids.shape and ids.shape[-1] != tokens:
        return False
    if ids is not None and len(ids.shape) > 1 and ids.shape[-2] not in (1, batch):
        return False
    if starts is not None and cu_seqlens is None and starts.elements != batch:
        return False
    if cu_seqlens is not None and cu_seqlens.elements:
        is_number = cu_seqlens.dtype in REAL + ("I32", "I64")
        end = _cu_seqlens_end(cu_seqlens) if is_number else 0
        if batch != 1 or end > tokens * (call.options.cp_size or 1):
            return False
    return call.table_fits(batch, tokens)


def _fits(call, layout):
    shapes = [shape_in(call.options, tensor, layout) for _, tensor in call.group.operands()]
    if None in shapes:
        return False
    found = {sizes(layout, shape)[:2] for shape in shapes}
    return len(found) == 1 and _others_fit(call, *found.pop())


def _choose_layout(call):
    """Returns --layout, or the only layout that fits. 3 dims without cu_seqlens may be [batch, tokens, hidden] or thd."""
    first, options = call.group.first(), call.options
    if options.layout is not None:
        return options.layout
    if len(first.shape) not in (3, 4):
        refuse_shaped(call, first, "must have 4 dims, or 3 for thd")
    if len(first.shape) == 3 and "cu_seqlens" in call.group and not options.head_dim:
        return "thd"  # only thd has sequences, so errors say why the tensor does not fit thd
    fitting = [layout for layout in LAYOUTS if _fits(call, layout)]
    if fitting == ["thd"] and "cu_seqlens" not in call.group:
        text = (
            "may be thd, or [batch, tokens, hidden]: give --layout thd for the first, or --layout bshd (or sbhd) with "
            "--head-dim for the second"
        )
        refuse_shaped(call, first, text)
    if len(fitting) > 1:
        refuse_shaped(call, first, "may be %s: give --layout", " or ".join(fitting))
    if not fitting:
        text = "has no layout that fits the other tensors: give --layout to see what does not fit"
        refuse_shaped(call, first, text)
    return fitting[0]


def _check_operand(call, role, tensor):
    first, head_dim = call.group.first(), call.options.head_dim
    if role != "v" and tensor.dtype not in REAL:
        refuse_shaped(call, tensor, "must have dtype F32, F16, BF16 or F64")
    shape = shape_in(call.options, tensor, call.layout)
    if shape is None:
        more = (
            "" if len(tensor.shape) != 3 else ", or [.., hidden] with " + ("heads of " if head_dim else "") + "--head-dim"
        )
        refuse_shaped(call, tensor, "must have %s, with --layout %s%s", _DIMS[call.layout][4], call.layout, more)
    batch, tokens, *head = sizes(call.layout, shape)
    if not all(1 <= size <= INT32 for size in head):
        refuse_shaped(call, tensor, "must have from 1 to 2^31 - 1 heads, and elements in a head")
    if tensor is first:
        call.batch, call.tokens = batch, tokens
    is_alike = role == "v" or tensor.dtype == first.dtype
    if not is_alike or (batch, tokens) != (call.batch, call.tokens):
        text = "must have the dtype, batch and tokens of '%s' (as %s)"
        refuse_shaped(call, tensor, text, shorten(first.name), call.layout)
    if head_dim and role != "v" and head[1] != head_dim:
        refuse_shaped(call, tensor, "must have heads of --head-dim (%d) elements", head_dim)


def read_operands(call):
    """Sets layout, dtype, batch, tokens and heads of a call."""
    call.layout = _choose_layout(call)
    for role, tensor in call.group.operands():
        _check_operand(call, role, tensor)
    call.dtype = call.group.first().dtype
    call.heads = [sizes(call.layout, call.shape_of(tensor))[3] for tensor in call.group.rotated()]
