"""patch(fuse_norm=True): the rotation of q and k computes the norms that Megatron-Core's SelfAttention applies before it.

SelfAttention.forward decides which norms a rotation can compute. Megatron calls a norm by apply_module, which then returns
the norm's input instead of its result. The rotation that gets this input computes both. Before forward returns, it raises
an error if a norm is still waiting.
"""

import functools
import inspect
import threading

import torch

from .._errors import Error
from .._norms import Norm
from ..torch import rotate
from ..torch._norm_modules import HOOKS, default_eps, is_original, refuse_added_code
from ._move import rotate_apart

NAMES = "q_layernorm", "k_layernorm"
# The methods that run between the norms and the rotations, and their parameters after self.
METHODS = {
    "forward": "hidden_states attention_mask key_value_states inference_context rotary_pos_emb rotary_pos_cos"
    " rotary_pos_sin rotary_pos_cos_sin attention_bias packed_seq_params sequence_len_offset inference_params",
    "get_query_key_value_tensors": "hidden_states key_value_states output_gate split_qkv",
    "_adjust_key_value_for_inference": "inference_context query key value rotary_pos_emb rotary_pos_cos rotary_pos_sin"
    " rotary_pos_cos_sin sequence_len_offset inference_params",
}
_FORWARD = METHODS["forward"].split()
# The call of a norm runs forward pre-hooks, and refuses the others.
_REFUSED_HOOKS = {name: words for name, words in HOOKS.items() if name != "_forward_pre_hooks"}


# ---- Norms of modules ----


def _find_norm(module, name, x):
    """Returns the Norm that a module computes for x [..., head_dim]. `name` is the module's attribute of SelfAttention."""
    kind, head_dim = type(module), x.shape[-1]
    weight, eps, plus_one = getattr(module, "weight", None), getattr(module, "eps", None), False
    if kind is torch.nn.RMSNorm:
        eps = default_eps(x) if eps is None else eps
    elif kind.__name__ == "RMSNorm" and kind.__module__.partition(".")[0] == "transformer_engine":
        plus_one = module.zero_centered_gamma
        _check_dtype_of_te(weight, name, x)
    elif (kind.__module__, kind.__name__) != ("megatron.core.transformer.torch_norm", "L2Norm"):
        message = (
            "%s is a %s of %s, which fuse_norm does not know: it knows torch.nn.RMSNorm, TransformerEngine's RMSNorm and"
            " Megatron-Core's L2Norm. Set normalization='RMSNorm' in the config, or leave out fuse_norm"
        )
        raise Error(message % (name, kind.__name__, kind.__module__), name)
    if not is_original(module, "forward"):
        message = "%s is a %s of %s whose forward has been replaced: leave out fuse_norm"
        raise Error(message % (name, kind.__name__, kind.__module__), name)
    for shape in (getattr(module, "normalized_shape", None), getattr(weight, "shape", None)):
        if shape is not None and tuple(shape) != (head_dim,):
            given = name, list(shape), head_dim
            raise Error("%s is a norm of %s elements, but fuse_norm is for norms of a head, which has %d" % given, name)
    return Norm(weight, eps=eps, plus_one=plus_one, rounding=None if weight is None else "product")


def _check_dtype_of_te(weight, name, x):
    """Refuses x if TransformerEngine's result would have another dtype."""
    dtype = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else weight.dtype
    if weight.dtype != x.dtype or dtype != x.dtype:
        message = "%s has weights in %s and results in %s, and its input has %s: fuse_norm needs one dtype"
        raise Error(message % (name, weight.dtype, dtype, x.dtype), name)


def _run_pre_hooks(module, name, x):
    """Runs the forward pre-hooks. Megatron's DDP waits for weights in them (overlap_param_gather)."""
    for key, hook in list(module._forward_pre_hooks.items()):
        if key in module._forward_pre_hooks_with_kwargs:
            result = hook(module, (x,), {})
            args, kwargs = ((x,), {}) if result is None else result
        else:
            result = hook(module, (x,))
            args, kwargs = (x,) if result is None else result if isinstance(result, tuple) else (result,), {}
        if len(args) != 1 or args[0] is not x or kwargs:
            message = "%s has a forward pre-hook that changes the input, which fuse_norm does not do: leave it out"
            raise Error(message % name, name)


# ---- Norms that wait for a rotation ----


def _version(t):
    return None if t.is_inference() else t._version


class _Waiting:
    """The norm of x, until a rotation computes it."""

    def __init__(self, norm, x):
        self.norm, self.x, self.version, self.is_taken = norm, x, _version(x), False

    def is_of(self, t):
        """Whether t has the heads of x in the same memory: it is x or a view of x, such as x.squeeze(1)."""
        x = self.x
        if t is x:
            return True
        return (
            t.untyped_storage()._cdata == x.untyped_storage()._cdata
            and (t.storage_offset(), t.numel()) == (x.storage_offset(), x.numel())
            and (t.shape[-2:], t.stride()[-2:]) == (x.shape[-2:], x.stride()[-2:])
        )


class _Forward:
    """One forward of a SelfAttention that leaves the norms of these names to its rotations."""

    def __init__(self, attention, names, counts):
        self.modules = {name: getattr(attention, name) for name in names}
        self.counts, self.waiting = counts, {}

    def find_name(self, module):
        """Returns the name of a norm that has not been called yet, or None. (q and k may share one module.)"""
        return next((name for name, m in self.modules.items() if m is module and name not in self.waiting), None)

    def defer(self, name, x):
        """Handles the call of a norm: it returns the input of the norm."""
        module = self.modules[name]
        refuse_added_code(module, name, name, "leave out fuse_norm", _REFUSED_HOOKS)
        _run_pre_hooks(module, name, x)
        self.waiting[name] = _Waiting(_find_norm(module, name, x), x)
        return x

    def take(self, t):
        """Returns the name of the norm that waits for the rotation of t, and the Norm, or (None, None)."""
        for name, waiting in self.waiting.items():
            if waiting.is_of(t):
                if _version(t) != waiting.version:
                    message = "the input of %s was written to before the rotation, in which fuse_norm computes the norm"
                    raise Error(message % name, name)
                waiting.is_taken = True
                self.counts[name] += 1
                return name, waiting.norm
        return None, None

    def check_all_taken(self):
        for name in self.modules:
            if name not in self.waiting:
                message = (
                    "%s was not called by apply_module of megatron.core.transformer.attention, which fuse_norm requires"
                )
                raise Error(message % name, name)
            if not self.waiting[name].is_taken:
                message = "fuse_norm left %s to the rotation of its input, but no rotation of trope received that tensor"
                raise Error(message % name, name)


class _Current(threading.local):
    forward = None


_current = _Current()


def rotate_normed(t, **options):
    """Returns rotate_apart(t), with the norm that waits for this rotation, if there is one."""
    if torch.compiler.is_compiling() or _current.forward is None:
        return rotate_apart(t, **options)
    name, norm = _current.forward.take(t)
    if norm is None:
        return rotate_apart(t, **options)
    try:
        return rotate(t, norms=norm, **options).contiguous()
    except Error as error:
        raise error.renamed({"norms[0]" + end: name + end for end in ("", ".weight")}) from None


# ---- Replacements of Megatron's functions ----


class Fusion:
    """The replacements that patch(fuse_norm=True) makes for SelfAttention.forward and apply_module.

    Attributes:
        counts: {"q_layernorm", "k_layernorm": the number of norms that rotations have computed}.
    """

    def __init__(self, attention):
        """attention: the module megatron.core.transformer.attention."""
        for name in ("SelfAttention", "apply_module", "IdentityOp", "InferenceMode"):
            if not hasattr(attention, name):
                message = "fuse_norm: %s has no %s, which fuse_norm needs: nothing has been patched"
                raise Error(message % (attention.__name__, name), "fuse_norm")
        self._attention, self._class = attention, attention.SelfAttention
        self._methods = {name: getattr(self._class, name) for name in METHODS}
        for name, method in self._methods.items():
            given = " ".join(list(inspect.signature(method).parameters)[1:])
            if given != METHODS[name]:
                message = (
                    "fuse_norm: SelfAttention.%s has the parameters (%s), which are not known: nothing has been patched"
                )
                raise Error(message % (name, given.replace(" ", ", ")), "fuse_norm")
        self.counts = dict.fromkeys(NAMES, 0)
        self.original_apply_module, self.original_forward = attention.apply_module, self._methods["forward"]
        self.apply_module = self._make_apply_module()
        self._before = vars(self._class).get("forward")
        self._forward = self._make_forward()
        self._is_active = False

    def start(self):
        """Replaces SelfAttention.forward. (The Patch replaces apply_module, like other globals.)"""
        self._class.forward, self._is_active = self._forward, True

    def undo(self):
        """Undoes start. If another library has wrapped forward, the wrapper stays and calls Megatron's forward."""
        self._is_active = False
        if vars(self._class).get("forward") is self._forward:
            if self._before is None:
                del self._class.forward
            else:
                self._class.forward = self._before

    def _make_apply_module(self):
        original = self.original_apply_module

        @functools.wraps(original)
        def apply_module(m, **options):
            called = original(m, **options)
            if torch.compiler.is_compiling() or _current.forward is None:
                return called
            name = _current.forward.find_name(m)
            return called if name is None else functools.partial(_current.forward.defer, name)

        return apply_module

    def _make_forward(self):
        original = self.original_forward

        @functools.wraps(original)
        def forward(attention, *args, **kwargs):
            if not self._is_active:
                return original(attention, *args, **kwargs)
            names = self._find_rotated(attention, {**dict(zip(_FORWARD, args)), **kwargs})
            if not names:
                return original(attention, *args, **kwargs)
            if torch.compiler.is_compiling():  # the waiting norm is no part of a graph: break the graph here
                return torch.compiler.disable(run)(attention, names, args, kwargs)
            return run(attention, names, args, kwargs)

        def run(attention, names, args, kwargs):
            outer, _current.forward = _current.forward, _Forward(attention, names, self.counts)
            try:
                results = original(attention, *args, **kwargs)
                _current.forward.check_all_taken()
                return results
            finally:
                _current.forward = outer

        return forward

    def _find_rotated(self, attention, given):
        """Returns the names of the norms before a rotation. In inference, which caches k, modules compute both norms."""
        config, angles = attention.config, given.get("rotary_pos_emb")
        if config.no_rope_freq and config.no_rope_freq[attention.layer_number - 1]:
            return []
        if given.get("inference_context") is not None or given.get("inference_params") is not None:
            return []
        if angles is None or self._attention.InferenceMode.is_active():
            return []
        names = [
            name
            for name, of_one in zip(NAMES, angles if isinstance(angles, tuple) else (angles, angles))
            if of_one is not None and not self._does_nothing(getattr(attention, name))
        ]
        if names:
            self._refuse_other_methods(type(attention), names[0])
        if names and attention.offload_core_attention and attention.training:
            message = (
                "offload_modules has core_attn, which frees the memory of query, key and value, but with fuse_norm the "
                "backward of %s reads them: leave out fuse_norm"
            )
            raise Error(message % names[0], "offload_modules")
        return names

    def _does_nothing(self, norm):
        return norm is None or isinstance(norm, self._attention.IdentityOp)

    def _refuse_other_methods(self, kind, name):
        for method in METHODS:
            if method != "forward" and getattr(kind, method) is not self._methods[method]:
                message = (
                    "%s belongs to a %s, whose %s is not SelfAttention's and may need the normalised tensors: leave out "
                    "fuse_norm"
                )
                raise Error(message % (name, kind.__name__, method), name)
