"""patch(), which replaces Megatron-Core's functions by the functions of this package."""

import functools
import importlib
import inspect
import logging
import sys
import warnings
from types import FunctionType, ModuleType

import torch

from .._dropin import flag, shown
from .._errors import Error
from ._mla import (
    fused_apply_mla_rope_for_kv, fused_apply_mla_rope_for_q, fused_mla_rope_concat, fused_mla_rope_inplace,
    fused_mla_rope_kv_split, fused_mla_rope_out_of_place,
)  # fmt: skip
from ._mrope import fused_apply_mrope, fused_apply_mrope_thd
from ._norms import Fusion
from ._rope import (
    _apply_rotary_pos_emb_bshd, _apply_rotary_pos_emb_thd, apply_fused_qkv_rotary_pos_emb, apply_rotary_pos_emb,
    apply_rotary_pos_emb_with_cos_sin, fused_apply_rotary_pos_emb, fused_apply_rotary_pos_emb_thd,
)  # fmt: skip

_logger = logging.getLogger("trope.megatron")
_ABSENT = object()  # the value of a missing global

_ROPE_UTILS = "megatron.core.models.common.embeddings.rope_utils"
_SHIMS = "megatron.core.extensions.transformer_engine"
_ATTENTION, _HAVE_QKV = "megatron.core.transformer.attention", "HAVE_FUSED_QKV_ROPE"
_FUNCTIONS = {
    _ROPE_UTILS: (
        apply_rotary_pos_emb, apply_rotary_pos_emb_with_cos_sin, _apply_rotary_pos_emb_bshd, _apply_rotary_pos_emb_thd,
    ),
    _SHIMS: (fused_apply_rotary_pos_emb, fused_apply_rotary_pos_emb_thd),
    _ATTENTION: (apply_fused_qkv_rotary_pos_emb,),
    "megatron.core.fusions.fused_mla_yarn_rope_apply": (
        fused_apply_mla_rope_for_q, fused_apply_mla_rope_for_kv, fused_mla_rope_inplace, fused_mla_rope_out_of_place,
        fused_mla_rope_kv_split, fused_mla_rope_concat,
    ),
    "megatron.core.fusions.fused_mrope": (fused_apply_mrope, fused_apply_mrope_thd),
}  # fmt: skip

# The functions above have main's signatures. These are the other known ones: of 0.19.2, or without later options.
_OTHER_SIGNATURES = {
    "apply_rotary_pos_emb": "t freqs config cu_seqlens mscale cp_group mla_rotary_interleaved",
    "_apply_rotary_pos_emb_bshd": "t freqs rotary_interleaved mla_rotary_interleaved mscale multi_latent_attention",
    "_apply_rotary_pos_emb_thd": "t cu_seqlens freqs rotary_interleaved mla_rotary_interleaved mscale cp_group"
    " multi_latent_attention",
    "fused_mla_rope_inplace": "t cos sin nope_dim emb_dim cu_seqlens_q cp_rank cp_size rotary_interleaved inverse"
    " remove_interleaving position_ids",
    "fused_apply_mrope": "t freqs mrope_section interleaved_mrope rotary_interleaved",
    "fused_apply_mrope_thd": "t cu_seqlens freqs mrope_section interleaved_mrope rotary_interleaved cp_size cp_rank",
}


def _import(name):
    """Imports a module, or returns None if there is none of this name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if name == error.name or name.startswith("%s." % error.name):
            return None
        raise


def _check_signature(function, original):
    name, given = function.__name__, list(inspect.signature(original).parameters)
    if given not in (list(inspect.signature(function).parameters), _OTHER_SIGNATURES.get(name, "").split()):
        message = "%s of Megatron-Core has the signature (%s), which is not known here: nothing has been patched"
        raise Error(message % (name, ", ".join(given)), name)


def _find_originals():
    """Returns {function: Megatron's function}. None: Megatron lacks it, because it would come from TransformerEngine."""
    originals = {}
    for module_name, functions in _FUNCTIONS.items():
        module = _import(module_name)
        if module is None and module_name == _ROPE_UTILS:
            raise ImportError("%s cannot be imported: is Megatron-Core installed?" % _ROPE_UTILS)
        for function in functions:
            original = getattr(module, function.__name__, None)
            if original is not None:
                _check_signature(function, original)
            if original is not None or module_name == _SHIMS or hasattr(module, _HAVE_QKV):
                originals[function] = original
    return originals


def _count_calls(function, original, calls, traced):
    """Returns `function` with the signature of the original. It counts calls in calls[its name], or in traced[its name]
    while torch.compile traces."""
    name, names = function.__name__, tuple(inspect.signature(original or function).parameters)
    rotated = functools.partial(function, max_seqlen=None) if "max_seqlen" in names else function
    calls[name] = traced[name] = 0

    @torch.compiler.assume_constant_result  # runs while torch.compile traces, and is not part of the compiled code
    def count_traced():
        traced[name] += 1

    @functools.wraps(original or function)
    def call(*args, **kwargs):
        if torch.compiler.is_compiling():
            count_traced()
        else:
            calls[name] += 1
        if len(args) > len(names):
            raise TypeError("%s takes %d arguments, and %d are given" % (name, len(names), len(args)))
        return rotated(**dict(zip(names, args)), **kwargs)

    return call


def _loaded_globals():
    """Yields (name of the module, name of the global, value) for all modules except TransformerEngine's."""
    for module_name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and module_name.partition(".")[0] != "transformer_engine":
            for name, value in list(vars(module).items()):
                yield module_name, name, value


_active = None
_NOT_FOUND = "%s must be found by patch(), not %s: call trope.megatron.patch(), which makes a Patch"


class Patch:
    """The result of patch(). It is a context manager that calls undo() at its end.

    Attributes:
        calls: {name of a function: number of calls}. Compiled code does not count its calls: if there is any, reading this
            gives a UserWarning.
        traced: {name of a function: number of calls that torch.compile has traced}. If it is over 0, compiled code contains
            the function.
        bindings: {(name of a module, name of a global): the old value}.
        norms: with fuse_norm, {"q_layernorm", "k_layernorm": number of norms that rotations have computed}; otherwise
            empty.
    """

    def __init__(self, originals, fusion=None):
        if not isinstance(originals, dict) or not set(originals) <= {f for known in _FUNCTIONS.values() for f in known}:
            raise Error(_NOT_FOUND % ("originals", shown(originals)), "originals")
        if fusion is not None and not isinstance(fusion, Fusion):
            raise Error(_NOT_FOUND % ("fusion", shown(fusion)), "fusion")
        self._calls, self.traced, self.bindings = {}, {}, {}
        self._fusion, self.norms = fusion, {} if fusion is None else fusion.counts
        self._ours = {
            _count_calls(function, original, self._calls, self.traced): original for function, original in originals.items()
        }
        by_name = {call.__name__: call for call in self._ours}
        by_original = {id(original): call for call, original in self._ours.items() if original is not None}
        for module_name, name, value in _loaded_globals():
            is_lacking = value is None and module_name.startswith("megatron.")
            call = by_name.get(name) if is_lacking else by_original.get(id(value))
            if call is not None:
                self._bind(module_name, name, call)
        for module_name in (_SHIMS, _ATTENTION):  # these lack the names
            for function in _FUNCTIONS[module_name]:
                if function in originals:
                    self._bind(module_name, function.__name__, by_name[function.__name__])
        if apply_fused_qkv_rotary_pos_emb in originals:
            self._bind(_ATTENTION, _HAVE_QKV, True)
        if fusion is not None:
            self._ours[fusion.apply_module] = fusion.original_apply_module
            self._bind(_ATTENTION, "apply_module", fusion.apply_module)
            self.bindings[_ATTENTION, "SelfAttention.forward"] = fusion.original_forward
            fusion.start()
        _logger.info("%s", self)

    @property
    def calls(self):
        traced = sum(self.traced.values())
        if traced:
            message = "calls does not count the calls of compiled code, and torch.compile has traced %d calls (see traced)"
            warnings.warn(message % traced, stacklevel=2)
        return self._calls

    def _counts(self):
        """Returns the number of calls, in words."""
        traced, calls = sum(self.traced.values()), sum(self._calls.values())
        return (
            "%d calls" % calls
            + (", besides uncounted calls of compiled code (%d traced)" % traced if traced else "")
            + (", %d norms" % sum(self.norms.values()) if self.norms else "")
        )

    def _bind(self, module_name, name, value):
        module = sys.modules.get(module_name)
        if module is not None:
            self.bindings.setdefault((module_name, name), getattr(module, name, _ABSENT))
            setattr(module, name, value)

    def undo(self):
        """Restores Megatron's own functions, also in modules that were imported since then. A second call does nothing."""
        global _active
        if _active is not self:
            return
        for module_name, name, value in _loaded_globals():
            if type(value) is FunctionType and value in self._ours:
                self._restore(module_name, name, self._ours[value])
        if (_ATTENTION, _HAVE_QKV) in self.bindings:
            self._restore(_ATTENTION, _HAVE_QKV, _ABSENT)
        if self._fusion is not None:
            self._fusion.undo()
        _active = None
        counts = ", ".join("%s %d" % item for item in self._calls.items() if item[1])
        _logger.info("undone, after %s: %s", self._counts(), counts or "none")

    def _restore(self, module_name, name, otherwise):
        before = self.bindings.get((module_name, name), otherwise)
        if before is _ABSENT:
            delattr(sys.modules[module_name], name)
        else:
            setattr(sys.modules[module_name], name, before)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.undo()

    def __repr__(self):
        state = "active" if _active is self else "undone"
        return "<trope.megatron.Patch: %s, %d names, %s>" % (state, len(self.bindings), self._counts())

    def __str__(self):
        places = {}
        for module_name, name in self.bindings:
            places.setdefault(name, []).append(module_name.removeprefix("megatron.core."))
        return "; ".join("%s in %s" % (name, ", ".join(modules)) for name, modules in places.items())


def patch(*others, fuse_norm=False, **named):
    """Replaces Megatron-Core's RoPE by the functions of this module, wherever it has been imported.

    Modules that are imported later take the replacements from the patched modules. Without TransformerEngine, patch also
    adds the two functions that Megatron takes from it, and fused_single_qkv_rope, so that configs with them are valid.

    Arguments:
        fuse_norm: True: the rotations of SelfAttention also compute q_layernorm and k_layernorm, which are then not called.
            Each must be torch.nn.RMSNorm, TransformerEngine's RMSNorm or Megatron's L2Norm. Layers that do not rotate, and
            inference, call them as before.
    Return:
        a Patch.
    Raises:
        ImportError: Megatron-Core is not installed.
        trope.Error: a function of Megatron has an unknown signature, which the error names, or Megatron is patched already.
            With fuse_norm, the forward of an attention raises it if it has another norm, a norm with hooks other than
            forward pre-hooks, or a subclass's method between norm and rotation.
    """
    global _active
    if others or named:
        given = shown(others[0]) if others else next(iter(named))
        message = "patch takes only the argument fuse_norm, not %s: it replaces functions in all modules of Megatron"
        raise Error(message % given, "patch")
    flag(fuse_norm, "fuse_norm")
    if _active is not None:
        raise Error("patch: Megatron-Core is patched already: undo() that first", "patch")
    originals = _find_originals()
    _active = Patch(originals, _find_fusion() if fuse_norm else None)
    return _active


def _find_fusion():
    attention = _import(_ATTENTION)
    if attention is None:
        raise ImportError("%s cannot be imported, but fuse_norm needs it" % _ATTENTION)
    return Fusion(attention)
