"""RMSNorm modules: the trope.Norm of classes that are known by name, and the modules that a call must not replace."""

import types

import torch

from .._errors import Error
from .._norms import Norm, count_heads
from .._spec import DIMS

# The RMSNorm modules of transformers, by their rounding. Models that normalise after the rotation (HunYuan, Llama 4) are
# absent, because the module does not tell the order.
_TWICE = """
    ApertusRMSNorm Dots1RMSNorm Exaone4RMSNorm ExaoneMoeRMSNorm Glm4MoeRMSNorm Lfm2RMSNorm Lfm2MoeRMSNorm LlamaRMSNorm
    MiniMaxM2RMSNorm MistralRMSNorm OlmoeRMSNorm Qwen2RMSNorm Qwen3RMSNorm Qwen3MoeRMSNorm Qwen3OmniMoeTextRMSNorm
    Qwen3OmniMoeThinkerTextRMSNorm Qwen3VLTextRMSNorm Qwen3VLMoeTextRMSNorm SmolLM3RMSNorm
"""
_PRODUCT = "AfmoeRMSNorm FlexOlmoRMSNorm Gemma3nRMSNorm Gemma4RMSNorm Olmo2RMSNorm Olmo3RMSNorm OlmoHybridRMSNorm"
_PLUS_ONE = "Gemma3RMSNorm Qwen3NextRMSNorm Qwen3_5RMSNorm Qwen3_5MoeRMSNorm T5Gemma2RMSNorm"
# The `rounding` and `plus_one` of these modules.
_OF_TRANSFORMERS = {
    **{name: ("twice", False) for name in _TWICE.split()},
    **{name: ("product", False) for name in _PRODUCT.split()},
    **{name: ("product", True) for name in _PLUS_ONE.split()},
}
HOOKS = {
    "_forward_hooks": "forward hooks",
    "_forward_pre_hooks": "forward pre-hooks",
    "_backward_hooks": "backward hooks",
    "_backward_pre_hooks": "backward pre-hooks",
}
_ADVICE = "pass trope.Norm(weight, eps=..., ...) instead"


def refuse_added_code(module, where, argument, advice, hooks=HOOKS):
    """Refuses code that a call of the module runs besides the forward of its class.

    where, argument: the module's name in the message, and the argument of the Error
    advice: the end of the message
    hooks: the part of HOOKS that is refused
    """
    added = None
    for name, words in hooks.items():
        if len(getattr(module, name)) > 0:
            added = words
    if "forward" in vars(module):
        added = "its own forward"
    if torch.nn.modules.module._has_any_global_hook():
        added = "the global module hooks"
    if added is not None:
        raise Error("%s has %s, which would not run: %s" % (where, added, advice), argument)


def is_original(module, name):
    """Whether a method of a module is the function that the file of its class defines, or the class has no such method.
    A function that torch.compile or torch.compiler.disable has wrapped counts too. Compiled code notices a change."""
    if not hasattr(type(module), name):
        return True
    method = getattr(module, name)
    for base in type(module).__mro__:
        if name in vars(base) and isinstance(method, types.MethodType):
            function = getattr(method.__func__, "_torchdynamo_orig_callable", method.__func__)
            return function.__globals__["__name__"] == base.__module__
    return False


def default_eps(x):
    """Returns the eps that torch.nn.RMSNorm uses by default: the eps of its arithmetic's dtype, not of the dtype of x."""
    return 2.0**-52 if str(x.dtype).endswith("float64") else 2.0**-23


def find_norm(i, module, x, spec):
    """Returns the Norm that an RMSNorm module computes for tensors[i]. It is the find_norm of resolve_norms."""
    name, kind = "norms[%d]" % i, type(module)
    if not isinstance(module, torch.nn.Module):
        raise Error("%s must be a trope.Norm, an RMSNorm module or None, not a %s" % (name, kind.__name__), name)
    weight = getattr(module, "weight", None)
    if kind is torch.nn.RMSNorm:
        rounding, plus_one = "product", False
        eps = default_eps(x) if module.eps is None else module.eps
        shape = tuple(module.normalized_shape)
    elif kind.__name__ in _OF_TRANSFORMERS and kind.__module__.partition(".")[0] == "transformers":
        rounding, plus_one = _OF_TRANSFORMERS[kind.__name__]
        eps = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
        if weight is None or not getattr(module, "with_scale", True):  # a Gemma3nRMSNorm without scale has no size
            message = "%s has no weight, so that it may normalise heads or tokens: pass trope.Norm(eps=...)"
            raise Error(message % name, name)
        shape = (weight.numel(),)
    else:
        message = "%s is a %s, and how it normalises is not known: %s"
        raise Error(message % (name, kind.__name__, _ADVICE), name)
    refuse_added_code(module, name, name, _ADVICE)
    for method in ("forward", "_norm"):
        if not is_original(module, method):
            message = "%s is a %s whose %s has been replaced: %s"
            raise Error(message % (name, kind.__name__, method, _ADVICE), name)
    if weight is not None and tuple(weight.shape) != shape:
        message = "%s normalises %s elements, but its weight has shape %s"
        raise Error(message % (name, _product(shape), list(weight.shape)), name)
    is_rounded = spec.rounding != "once" and weight is not None
    scope = _find_scope(name, shape, i, x, spec.layout)
    try:
        return Norm(weight, eps=eps, plus_one=plus_one, scope=scope, rounding=rounding if is_rounded else None)
    except Error as error:
        raise error.renamed({"eps": name + ".eps"}) from None


def _product(shape):
    return " x ".join(map(str, shape))


def _find_scope(name, shape, i, x, layout):
    """Returns the scope of a norm over elements of this shape. A flat shape may have the elements of all heads."""
    dims = DIMS[layout]
    head_dim, heads = x.shape[dims.head_dim], count_heads(layout, x.shape)
    if shape == (head_dim,):
        return "head"
    if shape == (head_dim * heads,):
        return "token"
    inner = [dim for dim in dims[2:] if dim is not None]
    if len(shape) == 1 or shape != tuple([x.shape[dim] for dim in inner]):
        message = "%s normalises %s elements, but tensors[%d] has %d heads of %d"
        raise Error(message % (name, _product(shape), i, heads, head_dim), name)
    if inner != list(range(len(layout) - len(shape), len(layout))):
        message = "%s normalises the last %d dimensions, which are not the heads in layout %r: pass trope.Norm(weight, ...)"
        raise Error(message % (name, len(shape), layout), name)
    return "token"
