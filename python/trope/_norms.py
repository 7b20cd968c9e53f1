"""trope.Norm, an RMS norm that a call computes in the same pass as the rotation, and its part of a call's Spec."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from . import _abi
from ._errors import Error
from ._options import NO_NORM, NormSettings
from ._spec import DIMS
from ._values import flag, number, shown, word


class NormArrays(NamedTuple):
    """The arrays of one tensor's norm. new_sums is token_sums of trope_norm if written, token_sums if read."""

    weight: Any = None
    rstd: Any = None
    d_weight: Any = None
    new_sums: Any = None
    token_sums: Any = None


class Norm:
    """An RMS norm of one tensor of a call: n(x) = x / sqrt(mean(x^2) + eps) * weight. A Norm is immutable.

    Arguments:
        weight: [head_dim], or a weight for each head: [heads, head_dim] or [heads * head_dim]. It is contiguous f32, f16 or
            bf16 (f64 with f64 tensors). None: the norm has no weight.
        eps: is added to the mean of the squares. An L2 norm, x / sqrt(sum(x^2) + e), has eps = e / D and the weight
            1 / sqrt(D), with D = head_dim.
        plus_one: True multiplies by 1 + weight, as Gemma 3 and Qwen3-Next do.
        scope: the elements that are normalised together. "head": each head of a token. "token": all heads of a token
            (OLMo 2, MiniMax M2).
        order: the norm is "before" or "after" the rotation (HunYuan, Llama 4).
        rounding: how a call with rounding "native" or "native_f32" rounds the norm. "twice" rounds x rstd to the dtype, and
            then the product with the weight (Qwen3). "product" rounds only the product (Gemma). A norm with a weight needs
            it in such a call. It must be None in a call with rounding "once".
        process_group: with scope "token", the torch.distributed group whose ranks have the other heads of each token. Each
            rank has the same number of heads, in the order of the ranks, and their weights. All ranks make the same calls:
            if they differ, or one of them refuses a call, all of them raise a trope.Error. Only for PyTorch.
    """

    __module__ = __package__
    __slots__ = ("weight", "eps", "plus_one", "scope", "order", "rounding", "process_group")

    weight: Any
    eps: float
    plus_one: bool
    scope: Literal["head", "token"]
    order: Literal["before", "after"]
    rounding: Literal["twice", "product"] | None
    process_group: Any

    def __init__(
        self,
        weight: Any = None,
        *,
        eps: float,
        plus_one: bool = False,
        scope: Literal["head", "token"] = "head",
        order: Literal["before", "after"] = "before",
        rounding: Literal["twice", "product"] | None = None,
        process_group: Any = None,
    ) -> None:
        eps = number(eps, "eps")
        if eps <= 0:
            raise Error("eps must be over 0, not %r" % eps, "eps")
        if flag(plus_one, "plus_one") and weight is None:
            raise Error("plus_one is True, and weight is missing", "plus_one")
        word(scope, _abi.NORM_WORDS["scope"], "scope")
        word(order, _abi.NORM_WORDS["order"], "order")
        if rounding is not None:
            word(rounding, _abi.NORM_WORDS["rounding"], "rounding")
            if weight is None:
                raise Error(
                    "rounding is %r, but weight is missing: a norm without a weight rounds only once" % rounding, "rounding"
                )
        if process_group is not None and scope != "token":
            raise Error("process_group is only for scope 'token': each rank normalises its own heads", "process_group")
        given = weight, eps, plus_one, scope, order, rounding, process_group
        for name, value in zip(Norm.__slots__, given):
            object.__setattr__(self, name, value)

    def __setattr__(self, name, value):
        raise AttributeError("a trope.Norm cannot be changed: make another one")

    def __delattr__(self, name):
        raise AttributeError("a trope.Norm cannot be changed: make another one")

    def __reduce__(self):
        return _make, tuple([getattr(self, name) for name in Norm.__slots__])

    def __repr__(self):
        weight = self.weight if self.weight is None else "<%s of shape %s>" % (
            type(self.weight).__name__, list(getattr(self.weight, "shape", ())))  # fmt: skip
        rest = ", ".join("%s=%r" % (name, getattr(self, name)) for name in Norm.__slots__[1:])
        return "trope.Norm(%s, %s)" % (weight, rest)


def _make(weight, *settings):
    return Norm(weight, **dict(zip(Norm.__slots__[1:], settings)))


def find_ranks(norm, i):
    """Returns the number of ranks, this rank and the name of the group of a norm. A group of one rank counts as none."""
    group = norm.process_group
    if group is None:
        return 1, 0, ""
    try:
        size, rank, name = group.size(), group.rank(), group.group_name
    except (AttributeError, TypeError):
        message = "norms[%d].process_group must be a process group of torch.distributed, not %s"
        raise Error(message % (i, shown(group)), "norms[%d].process_group" % i) from None
    if rank < 0:
        message = "norms[%d].process_group does not contain this process"
        raise Error(message % i, "norms[%d].process_group" % i)
    return (size, rank, name) if size > 1 else (1, 0, "")


def _settings(norm, spec, i):
    """Returns the NormSettings of the Norm of tensors[i]."""
    if spec.shared_heads[i]:
        raise Error("norms[%d] is given, but shared_heads of tensors[%d] is %d: shared heads cannot have a norm"
                    % (i, i, spec.shared_heads[i]), "norms[%d]" % i)  # fmt: skip
    name = "norms[%d].rounding" % i
    if spec.rounding == "once" and norm.rounding is not None:
        raise Error("%s is %r, but with rounding 'once', a norm has no rounding of its own" % (name, norm.rounding), name)
    if spec.rounding != "once" and norm.weight is not None:
        word(norm.rounding, _abi.NORM_WORDS["rounding"], name)
    settings = norm.scope, norm.order, norm.rounding or "", norm.eps, norm.plus_one, norm.weight is not None
    return NormSettings(*settings, *find_ranks(norm, i), i)


def resolve_norms(spec, tensors, norms, find_norm):
    """Returns the Spec with the settings of the norms, and the weight or None of each tensor: () if there is no norm.

    find_norm: find_norm(i, given, tensors[i], spec) returns the Norm for an entry of `norms` that is neither None nor a
        Norm.
    """
    count = len(tensors)
    given = norms if isinstance(norms, (list, tuple)) else [norms] * (count == 1)
    if len(given) != count:
        message = "norms has %d entries for %d tensors: it needs one for each, a trope.Norm or None"
        what = len(given) if isinstance(norms, (list, tuple)) else 1
        raise Error(message % (what, count), "norms")
    settings, weights = [], []
    for i, norm in enumerate(given):
        if norm is not None and not isinstance(norm, Norm):
            norm = find_norm(i, norm, tensors[i], spec)
        settings.append(NO_NORM if norm is None else _settings(norm, spec, i))
        weights.append(None if norm is None else norm.weight)
    if all([one is NO_NORM for one in settings]):
        return spec, ()
    return type(spec)(*spec[:-1], tuple(settings)), weights


def refuse_norm(i, given, x, spec):
    """The find_norm of arrays without norm modules: it refuses everything that is not a Norm."""
    raise Error("norms[%d] must be a trope.Norm or None, not %s" % (i, shown(given)), "norms[%d]" % i)


def _sizes(layout, shape):
    return [1 if dim is None else shape[dim] for dim in DIMS[layout][:4]]


def count_heads(layout, shape):
    """Returns the number of heads in all groups of a tensor of this shape."""
    _, _, groups, heads = _sizes(layout, shape)
    return groups * heads


def rstd_shape(layout, settings, shape):
    """Returns the shape of rstd for a tensor of this shape: one for each head, or for each token with scope "token"."""
    batch, tokens, _, _ = _sizes(layout, shape)
    return (batch, tokens) if settings.scope == "token" else (batch, tokens, count_heads(layout, shape))


def sums_shape(layout, settings, shape, of_all_ranks=False):
    """Returns the shape of token_sums for a tensor of this shape, for the heads of this rank or of all ranks."""
    batch, tokens, _, _ = _sizes(layout, shape)
    return count_heads(layout, shape) * (settings.ranks if of_all_ranks else 1), batch, tokens
