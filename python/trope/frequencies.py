"""The frequencies of a rotary position embedding: given as numbers, by keywords, or by a Hugging Face config.

    frequencies("Llama-3.1-8B/config.json")
    frequencies(model.config, layer_type="sliding_attention")
    frequencies(rope_type="llama3", rope_theta=500000.0, head_dim=128, factor=8.0, low_freq_factor=1.0,
                high_freq_factor=4.0, original_max_position_embeddings=8192)

The rules are those of the library (trope_frequencies, section 6 of include/trope/trope.h). What keys mean, and where they
are looked for, is as in transformers 5 (modeling_rope_utils.py, and the config classes in models/), for configs as 4 and 5
write them. Where a key is missing, or is one that the rule does not use, transformers goes on with a warning or a default;
here that is an Error that names the key, so that nobody trains with what was forgotten.
"""

import ctypes
import json
import math
import numbers
import operator
import os
from collections.abc import Iterable, Mapping

from ._abi import MAX_ROTARY_DIM, RULES, Error, FrequencyArgs, check, lib
from ._config_keys import (
    CLASS_HEAD_DIM,
    CLASS_PARTIAL,
    COMMON_KEYS,
    FALLBACKS,
    GEMMA3,
    GLOBAL_HEAD_DIM,
    IGNORED_KEYS,
    LAYERED,
    MODERNBERT,
    OLD_RULES,
    ORIGINAL,
    OTHER_ROTATION,
    READS_ALPHA,
    READS_ROTARY_DIM,
    ROPE_KEYS,
    RULE_KEYS,
    SIZE_KEYS,
    UNREADABLE_KEYS,
    UNREAD_KEYS,
    YARN_IS_LONGROPE,
)
from ._plan import make_phase_steps

# ---- Values, and what is said about them ----


def _fail(key, text, *values):
    raise Error("frequencies: %s %s" % (key, text % values), key)


def _is_number(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _number(key, value):
    """value as a float; None stays."""
    if value is None:
        return None
    try:
        result = float(value) if _is_number(value) else math.nan
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        _fail(key, "must be a finite number, not %.200r", value)
    return result


def _integer(key, value):
    """value as an int, 1 to 2^53, which a double holds; None stays."""
    if value is None:
        return None
    try:
        result = operator.index(value)
    except TypeError:
        result = 0
    if isinstance(value, bool) or not 1 <= result <= 2**53:
        _fail(key, "must be an integer, 1 to 2^53, not %.200r", value)
    return result


def _same(a, b):
    """Whether two values of a key say the same: a list and a tuple may, and None says nothing."""
    both_lists = isinstance(a, (list, tuple)) and isinstance(b, (list, tuple))
    return a is None or b is None or (list(a) == list(b) if both_lists else bool(a == b))


def _listed(names):
    return ", ".join(map(repr, names))


# ---- The result ----


class Frequencies:
    """Frequencies of a rotation: immutable, hashable by value, picklable. len() is the number of pairs.

    inv_freq          tuple of float [rotary_dim / 2]: radians a position, of each pair in order
    attention_factor  float: what cos and sin are multiplied by, mscale of a call (not 1 with YaRN and LongRoPE)
    rotary_dim        int: elements of a head that rotate, two for each pair
    rule              str: the rope_type that they are made by, "ntk_alpha" (HunYuan's), or "given"
    """

    __slots__ = ("inv_freq", "attention_factor", "rotary_dim", "rule", "_phase_steps", "_hash")

    def __init__(self, inv_freq, attention_factor=1.0, rule="given"):
        """inv_freq: numbers, a 1-D array or tensor [pairs], 1 to 512, finite, of magnitude below 2^64.

        Raises Error, whose argument is inv_freq, attention_factor or rule.
        """
        values = _frequency_list(inv_freq)
        steps = make_phase_steps(values)
        factor = _number("attention_factor", attention_factor)
        if not factor:
            _fail("attention_factor", "must be a number other than 0, not %r", attention_factor)
        if not isinstance(rule, str):
            _fail("rule", "must be a str, not %r", rule)
        fields = values, factor, 2 * len(values), rule, steps, hash((values, factor, rule))
        for name, value in zip(self.__slots__, fields):
            object.__setattr__(self, name, value)

    @property
    def phase_steps(self):
        """inv_freq as phase_step of a call: a ctypes array of c_uint64 [pairs], 2^-64 turns a position; always the same."""
        return self._phase_steps

    def _refuse(self, name, value=None):
        raise AttributeError("Frequencies are immutable: %s" % name)

    __setattr__ = __delattr__ = _refuse

    def _value(self):
        return self.inv_freq, self.attention_factor, self.rule

    def __eq__(self, other):
        return self._value() == other._value() if isinstance(other, Frequencies) else NotImplemented

    def __hash__(self):
        return self._hash  # asked for in every call

    def __len__(self):
        return len(self.inv_freq)

    def __reduce__(self):
        return type(self), self._value()

    def __repr__(self):
        text = "<Frequencies %r, rotary_dim %d, inv_freq %.6g to %.6g, attention_factor %.6g>"
        return text % (self.rule, self.rotary_dim, self.inv_freq[0], self.inv_freq[-1], self.attention_factor)


def _frequency_list(inv_freq):
    """The tuple of floats [pairs] that inv_freq is."""
    given = inv_freq.tolist() if hasattr(inv_freq, "tolist") else inv_freq
    values = tuple(given) if isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping)) else ()
    if not 1 <= len(values) <= MAX_ROTARY_DIM // 2 or not all(map(_is_number, values)):
        _fail("inv_freq", "must be 1 to %d numbers, not %.200r", MAX_ROTARY_DIM // 2, inv_freq)
    return tuple(_number("inv_freq", value) for value in values)


# ---- A config, by its keys ----


class _Keys:
    """A config: a mapping, or an object by its to_dict() and, for what is not in there, by its attributes.

    A transformers config knows other names (attribute_map) and properties as attributes only. mapping is the mapping;
    model_type is that of the config, or else the one given.
    """

    def __init__(self, config, model_type=None):
        self.object = None if isinstance(config, Mapping) else config
        self.mapping = config if self.object is None else getattr(config, "to_dict", dict)()
        self.model_type = self.get("model_type") or model_type

    def _one(self, name):
        value = self.mapping.get(name)
        return getattr(self.object, name, None) if value is None and self.object is not None else value

    def get(self, *names):
        """The value of the first of these names that has one, None if none has. Error if another one contradicts it."""
        found = [(name, value) for name in names if (value := self._one(name)) is not None]
        for name, value in found[1:]:
            if not _same(value, found[0][1]):
                _fail(name, "(%r) contradicts %s (%r)", value, *found[0])
        return found[0][1] if found else None

    def sizes(self):
        """SIZE_KEYS with their values, None where there is none."""
        sizes = {key: self.get(*names) for key, names in SIZE_KEYS.items()}
        return {**sizes, "head_dim": self.get("head_dim", "kv_channels")} if self.model_type == "jetmoe" else sizes

    def has_sizes(self):
        """Whether a head size can be found."""
        sizes = {key for key, value in self.sizes().items() if value is not None}
        return bool(sizes & {"head_dim", "qk_rope_head_dim"}) or sizes >= {"hidden_size", "num_attention_heads"}

    def nested_names(self):
        """Names of the configs in this one that have head sizes."""
        names = [name for name, value in self.mapping.items() if name.endswith("_config") and isinstance(value, Mapping)]
        return [name for name in names if _Keys(self.mapping[name]).has_sizes()]


def _open(config):
    """The keys of a mapping, an object, or a JSON file (by its path, or that of a directory with a config.json)."""
    if isinstance(config, (str, os.PathLike)):
        path = os.path.join(config, "config.json") if os.path.isdir(config) else config
        with open(path, encoding="utf-8") as file:
            try:
                config = json.load(file)
            except ValueError as error:
                _fail("config", "(%s) is not JSON: %s", os.fspath(path), error)
        if not isinstance(config, dict):
            _fail("config", "(%s) must be a JSON object, not a %s", os.fspath(path), type(config).__name__)
    if isinstance(config, (bytes, numbers.Number, list, tuple, set)):
        _fail("config", "must be a dict, the path of a config.json, or an object with its keys, not %.200r", config)
    return _Keys({} if config is None else config)


def _language_model(keys):
    """The keys of text_config where there is one, as in transformers, else the config's own.

    Where the config has sizes too (Qwen2-VL's as transformers 4.5x writes it), none of its keys may say anything else.
    """
    text = getattr(keys.object, "text_config", None) or keys.get("text_config")
    if text is None:
        return keys
    text = _Keys(text, keys.model_type and keys.model_type + "_text")
    names = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", ORIGINAL)
    for name in names + sum(SIZE_KEYS.values(), ()) if keys.has_sizes() else ():
        both = keys.get(name), text.get(name)
        if not _same(*both):
            _fail(name, "is %r in the config and %r in its text_config: give the one of the two that is meant", *both)
    return text


# ---- The rope dict of one layer type ----


def _rope_layers(keys):
    """The rope dict, {} if there is none, and the dicts in it by layer type, {} if it is one for all layers."""
    rope = keys.get("rope_parameters", "rope_scaling") or {}
    if not isinstance(rope, Mapping):
        _fail("rope_scaling", "must be a dict or null, not %r", rope)
    if any(isinstance(value, Mapping) for value in rope.values()):
        return rope, {key: value for key, value in rope.items() if value is None or isinstance(value, Mapping)}
    layers = _old_layers(keys, rope)
    return layers or rope, layers


def _old_layers(keys, rope):
    """The dicts by layer type of a config of transformers 4 whose model has two; {} for any other config.

    As convert_rope_params_to_dict of Gemma3TextConfig, ModernBertConfig and Olmo3Config. (But sliding layers of OLMo 3 have
    rope_theta, as in transformers 4; 5.24 gives them the 500000 of the class, whatever rope_theta is.)
    """
    layout = LAYERED.get(keys.model_type)
    for sign, model in (("rope_local_base_freq", GEMMA3), ("global_rope_theta", MODERNBERT)):
        layout = model if layout is None and keys.get(sign) is not None else layout
    if layout is None:
        return {}
    if keys.get("rope_parameters"):
        _fail("rope_parameters", "of a %s must be by layer type: full_attention, sliding_attention", keys.model_type)
    full_key, full_base, sliding_key, sliding_base, both_scaled = layout
    layers = {"full_attention": dict(rope), "sliding_attention": dict(rope) if both_scaled else {}}
    bases = ((full_key, full_base), (sliding_key, sliding_base))
    for layer, (key, base) in zip(layers.values(), bases):
        given = layer["rope_theta"] if layer.get("rope_theta") is not None else keys.get(key)
        layer["rope_theta"] = base if given is None else given
        if layer["rope_theta"] is None:
            _fail(key, "is missing: it is the base of %s", "sliding_attention" if key == sliding_key else "full_attention")
    return layers


def _select(rope, layers, layer_type):
    """The layer type that is meant, of `layers`, the dicts in `rope`."""
    turning = [name for name, layer in layers.items() if layer is not None]
    if layer_type is None and len(turning) == 1:
        layer_type = turning[0]
    if layer_type is None:
        _fail("layer_type", "must be given: one of %s", _listed(turning))
    if layer_type not in list(layers):
        _fail("layer_type", "must be one of %s, not %r", _listed(turning), layer_type)
    if layers[layer_type] is None:
        _fail("layer_type", "(%r) does not rotate: its rope_parameters are null", layer_type)
    for key in set(rope).difference(layers):
        if any(layers[name].get(key) is None for name in turning):
            _fail(key, "stands beside the dicts of layer types, where nothing reads it: it belongs into them")
    if layers[layer_type].get("truncate") is False:
        _fail("truncate", "of a layer type is not read by transformers, which truncates: leave it out if that is meant")
    return layer_type


def _refuse_unreadable(keys, rope):
    """Refuses keys by which layers differ, in a config with this one rope dict."""
    for key in UNREADABLE_KEYS:
        if keys.get(key) is not None:
            _fail(key, "is not read: give rope_parameters by layer type, or a config without it")
    bases = keys.get("layer_rope_theta") or ()  # GraniteSWA; 0 is a layer that does not rotate
    if any(base not in (0, rope["rope_theta"]) for base in bases):
        _fail("layer_rope_theta", "(%r) gives layers other bases: give each of them as rope_theta, without it", bases)
    scaled = keys.get("rope_scaling_layers")  # Molmo 2; once loaded, all of them
    if scaled is not None and rope["rope_type"] not in (None, "default") and len(scaled) != keys.get("num_hidden_layers"):
        _fail("rope_scaling_layers", "(%r) says that other layers are not scaled: give each sort without it", scaled)


def _read_rope(keys, layer_type):
    """The rope dict of one layer type as a new dict with the config's fallbacks; and that layer type, None for all."""
    rope, layers = _rope_layers(keys)
    if layers:
        layer_type = _select(rope, layers, layer_type)
        rope = layers[layer_type]
    elif layer_type is not None:
        # Not harmless: layers of a type may be without rotation (Cohere 2), or be Mamba's, and nothing here says which.
        _fail("layer_type", "(%r) is given, but all layers that rotate rotate alike: leave it out", layer_type)
    rope = dict(rope)
    for key, names in FALLBACKS.items():
        rope[key] = keys.get(*names) if rope.get(key) is None else rope[key]
    rope["rope_type"] = _rope_type(rope, keys.model_type)
    if not layers:
        _refuse_unreadable(keys, rope)
    return rope, layer_type


def _rope_type(rope, model_type):
    """The rule that rope_type and type name; None if neither is there."""
    names = {key: rope[key] for key in ("rope_type", "type") if rope.get(key) is not None}
    olds = {**OLD_RULES, "yarn": "longrope"} if model_type in YARN_IS_LONGROPE else OLD_RULES
    rules = {key: olds.get(name, name) if isinstance(name, str) else None for key, name in names.items()}
    for key, rule in rules.items():
        if rule not in RULES:
            _fail("rope_type", "must be one of %s, not %r", _listed([*RULES, *OLD_RULES]), names[key])
    if len(set(rules.values())) > 1:
        _fail("type", "(%r) contradicts rope_type (%r)", names["type"], names["rope_type"])
    return next(iter(rules.values()), None)


def _layer_sizes(keys, layer_type):
    """Sizes that layers of this type have for the config's: of per_layer_config ({}: none has), or global_head_dim."""
    given = keys.mapping.get("per_layer_config")
    if given is None:
        return _global_head_dim(keys) if layer_type == "full_attention" else {}
    given = {int(index): values for index, values in given.items()}
    types = keys.get("layer_types") or ()
    layers = [given.get(i, {}) for i, name in enumerate(types) if layer_type in (None, name)] or list(given.values())
    sizes = [{key: layer[key] for key in ("head_dim", "qk_rope_head_dim") if key in layer} for layer in layers]
    if any(size != sizes[0] for size in sizes):
        _fail("per_layer_config", "gives layers that rotate alike several sizes: %r", sizes)
    return sizes[0] if sizes else {}


def _global_head_dim(keys):
    wide = keys.get("global_head_dim")
    if wide is None and keys.model_type in GLOBAL_HEAD_DIM:
        _fail("global_head_dim", "is missing: the head_dim of full_attention layers")
    return {} if wide is None else {"head_dim": wide}


# ---- One rotation ----


class _Rotation:
    """The keys of one rotation.

    rope        the rope dict; None, or not there, is not given
    sizes       SIZE_KEYS, and original_max_position_embeddings where the config itself has it for all layers
    model_type  decides what a class has where the config says nothing
    nested      names of configs within the config
    rule        "default", ..., "ntk_alpha", once choose_rule() has been called
    """

    def __init__(self, config, layer_type):
        keys = _language_model(_open(config))
        if keys.model_type in OTHER_ROTATION:
            _fail("model_type", "(%r) has frequencies of two axes of an image, which no rope_type names", keys.model_type)
        self.rope, chosen = _read_rope(keys, layer_type)
        self.sizes = {**keys.sizes(), **_layer_sizes(keys, chosen)}
        self.sizes[ORIGINAL] = None if chosen else keys.get(ORIGINAL)
        self.model_type = keys.model_type
        self.nested = keys.nested_names()

    def add(self, key, value):
        """A keyword argument: says what the config does not, and must not contradict it."""
        if key not in ROPE_KEYS and key not in SIZE_KEYS:
            _fail(key, "is not a key of a rotation: those are %s", ", ".join(sorted(ROPE_KEYS.union(SIZE_KEYS))))
        if key == "rope_type":
            value = _rope_type({key: value}, self.model_type)
        for given in (self.rope.get(key), self.sizes.get(key)):
            if not _same(given, value):
                _fail(key, "is %r in the config, and cannot be %r", given, value)
        if value is not None:
            (self.rope if key in ROPE_KEYS else self.sizes)[key] = value

    def choose_rule(self):
        """Sets rule, and refuses keys that it does not use."""
        self.rule = self.rope["rope_type"] or "default"
        if self.rule == "dynamic" and self.rope.get("alpha") and self.model_type in READS_ALPHA:
            self.rule = "ntk_alpha"
        known = {*COMMON_KEYS, *RULE_KEYS[self.rule], *UNREAD_KEYS.get(self.rule, ()), *IGNORED_KEYS}
        for key in self.rope:
            if key not in known and self.rope[key] is not None:
                text = "is not used by rope_type %r" if key in ROPE_KEYS else "is not a known key beside rope_type %r"
                _fail(key, text, self.rule)

    def get(self, key):
        """A number of the rope dict, None if it is not there."""
        return _number(key, self.rope.get(key))

    def need(self, key):
        value = self.get(key)
        return self._missing(key) if value is None else value

    def positive(self, key):
        """A number over 0; 0.0, the library's default, if it is not there."""
        value = self.get(key)
        if value is not None and value <= 0:
            _fail(key, "must be over 0, not %r", value)
        return value or 0.0

    def _missing(self, key):
        _fail(key, "is missing: rope_type %r needs it", self.rule)

    def max_position(self):
        """max_position_embeddings of the config, in tokens."""
        key = "max_position_embeddings"
        value, inner = _integer(key, self.sizes[key]), _integer(key, self.rope.get(key))
        if value is None:
            self._missing(key)
        if inner not in (None, value):
            _fail(key, "is %d in the config and %d beside rope_type", value, inner)
        return value

    def original(self):
        """original_max_position_embeddings, in tokens; the config's own goes first, as in transformers (Phi-3).

        YaRN falls back to max_position_embeddings, as in transformers 4 and 5, and LongRoPE with factor, as in 4. The
        others fail in 4, and in 5 are not scaled: here it must be given.
        """
        own = _number(ORIGINAL, self.sizes[ORIGINAL])
        if own is not None:
            return own
        falls_back = self.rule == "yarn" or self.rule == "longrope" and self.rope.get("factor") is not None
        return self.max_position() if falls_back and self.rope.get(ORIGINAL) is None else self.need(ORIGINAL)

    def divisors(self, key, pairs):
        """short_factor or long_factor: a ctypes array of double [pairs]."""
        values = self.rope.get(key)
        if values is None:
            self._missing(key)
        if not isinstance(values, (list, tuple)) or len(values) != pairs or not all(map(_is_number, values)):
            _fail(key, "must be a list of %d numbers, one for each pair, not %.200r", pairs, values)
        return (ctypes.c_double * pairs)(*(_number(key, value) for value in values))

    # -- Sizes --

    def partial(self):
        """partial_rotary_factor, or that of the model's class unless qk_rope_head_dim says as much; None if not there."""
        value, of_class = self.get("partial_rotary_factor"), CLASS_PARTIAL.get(self.model_type)
        if self.sizes["qk_rope_head_dim"] is not None:
            of_class = None
        if value is None and of_class == 0:
            _fail("partial_rotary_factor", "is missing: a %s has no constant one", self.model_type)
        value = of_class if value is None else value
        if value is not None and not 0 < value <= 1:
            _fail("partial_rotary_factor", "must be over 0 and at most 1, not %r", value)
        return value

    def head_dim(self):
        """Elements of a head: head_dim, or that of the model's class, or hidden_size / num_attention_heads."""
        names = ("head_dim", "hidden_size", "num_attention_heads")
        head, hidden, heads = (_integer(name, self.sizes[name]) for name in names)
        head = CLASS_HEAD_DIM.get(self.model_type) if head is None else head
        if head == 0:
            _fail("head_dim", "is missing: in a %s it is not hidden_size / num_attention_heads", self.model_type)
        if head is None and None in (hidden, heads):
            looked_for = ["/".join(SIZE_KEYS[name]) for name in ("qk_rope_head_dim",) + names]
            nested = "; of the nested configs, give the one that is meant: " + _listed(self.nested) if self.nested else ""
            _fail("head_dim", "not found; looked for %s, %s, %s with %s%s", *looked_for, nested)
        return hidden // heads if head is None else head

    def rotary_dim(self):
        """Elements of a head that have a frequency: head_dim * partial_rotary_factor, or qk_rope_head_dim (MLA).

        proportional: all of them, partial_rotary_factor being the rule's. rotary_dim, which GPT-J has in its place, must
        not contradict them, nor may qk_rope_head_dim, but for a head_dim of which no factor says what rotates.
        """
        partial = self.partial()
        given, pe = (_integer(key, self.sizes[key]) for key in ("rotary_dim", "qk_rope_head_dim"))
        if given and partial is None and self.model_type in READS_ROTARY_DIM:
            dim = given
        elif self.rule == "proportional" or partial in (None, 1):
            dim = pe or self.head_dim()
        else:
            dim = int(self.head_dim() * partial)
        for key, other in (("rotary_dim", given), ("qk_rope_head_dim", pe)):
            if other not in (None, dim):
                _fail(key, "(%d) contradicts the other sizes, by which %d elements of a head rotate", other, dim)
        if dim % 2 or not 2 <= dim <= MAX_ROTARY_DIM:
            key = "head_dim" if self.rule == "proportional" or partial in (None, 1) else "partial_rotary_factor"
            _fail(key, "makes %d elements of a head rotate: that must be even, and 2 to %d", dim, MAX_ROTARY_DIM)
        return dim


# ---- The rules: what trope_frequency_args has of each, but for base, rotary_dim and seq_len ----


def _default(rotation, dim):
    return {}


def _linear(rotation, dim):
    return {"factor": rotation.need("factor")}


def _dynamic(rotation, dim):
    return {"factor": rotation.need("factor"), "original_max_position": rotation.max_position()}


def _ntk_alpha(rotation, dim):
    """HunYuan: the default rule with base * alpha^(d / (d - 2))."""
    if dim < 4:
        _fail("alpha", "needs a rotary_dim of at least 4, not %d", dim)
    return {"base": rotation.need("rope_theta") * rotation.positive("alpha") ** (dim / (dim - 2))}


def _yarn(rotation, dim):
    if "factor" not in rotation.rope:
        rotation.need("factor")
    factor, original, truncate = rotation.get("factor"), rotation.original(), rotation.rope.get("truncate")
    if not isinstance(truncate, (bool, type(None))):
        _fail("truncate", "must be true or false, not %r", truncate)
    scales = rotation.get("mscale"), rotation.get("mscale_all_dim")
    scales = scales if all(scales) else (0.0, 0.0)  # one alone, or 0, has no effect in transformers
    return {
        "factor": rotation.max_position() / original if factor is None else factor,  # null, not missing: DeepSeek
        "original_max_position": original,
        "beta_fast": rotation.get("beta_fast") or 0.0,
        "beta_slow": rotation.get("beta_slow") or 0.0,
        "attention_factor": rotation.positive("attention_factor"),
        "mscale": scales[0],
        "mscale_all_dim": scales[1],
        "no_truncate": int(truncate is False),
    }


def _longrope(rotation, dim):
    original, attention_factor = rotation.original(), rotation.positive("attention_factor")
    factor = rotation.positive("factor")
    return {
        "factor": factor if factor or attention_factor else rotation.max_position() / original,
        "original_max_position": original,
        "attention_factor": attention_factor,
        "short_factor": rotation.divisors("short_factor", dim // 2),
        "long_factor": rotation.divisors("long_factor", dim // 2),
    }


def _llama3(rotation, dim):
    fields = {key: rotation.need(key) for key in ("factor", "low_freq_factor", "high_freq_factor")}
    return {**fields, "original_max_position": rotation.original()}


def _proportional(rotation, dim):
    if rotation.partial() is None:
        rotation.need("partial_rotary_factor")
    return {"factor": rotation.positive("factor"), "partial_rotary_factor": rotation.partial()}


FIELDS = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "ntk_alpha": _ntk_alpha,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}
# Keys for the library's names, where they are others.
KEYS_OF_FIELDS = {
    "base": "rope_theta",
    "original_max_position": ORIGINAL,
    "rotary_dim": "head_dim",
    "no_truncate": "truncate",
}


def _evaluate(rule, dim, fields):
    """inv_freq [dim / 2] and the attention factor of a rule with these fields of trope_frequency_args."""
    library_rule = "default" if rule == "ntk_alpha" else rule
    args = FrequencyArgs(struct_size=ctypes.sizeof(FrequencyArgs), rule=RULES[library_rule], rotary_dim=dim, **fields)
    inv_freq, attention_factor = (ctypes.c_double * (dim // 2))(), ctypes.c_double()
    try:
        check(lib.trope_frequencies(ctypes.byref(args), inv_freq, ctypes.byref(attention_factor)))
    except Error as error:
        field = error.argument.split("[")[0]
        of_dynamic = (rule, field) == ("dynamic", "original_max_position")
        key = "max_position_embeddings" if of_dynamic else KEYS_OF_FIELDS.get(field, field)
        raise Error("frequencies: %s is refused: %s" % (key, error), key, error.status) from None
    return tuple(inv_freq), attention_factor.value


def frequencies(config=None, *, layer_type=None, seq_len=None, **keys):
    """The Frequencies of a Hugging Face config, or of keywords in its names; as transformers computes them, in double.

    config      a dict, the path of a config.json or of its directory, or an object with its keys (model.config), as
                transformers 4 (rope_scaling, rope_theta) or 5 (rope_parameters, one or by layer type) has it. Of a
                multimodal model's text_config is read.
    layer_type  "full_attention", "sliding_attention", ...: needed where rotations differ by it, refused where they do not
    seq_len     the length of now, in tokens: for dynamic (None: max_position_embeddings) and longrope (None: short_factor)
    keys        rope_type, rope_theta, head_dim, partial_rotary_factor, factor, ...: all of it, if there is no config; or
                what the config does not say. None is not given.

    partial_rotary_factor counts with every rule, also for models whose class in transformers 5 does not read it. The pairs
    are in the rule's order, from fast to slow, where a model has another (Ernie 4.5 VL: HWT of trope_fill_pair_axis).

    Raises Error, whose argument is the key: one that is missing, is unknown, is not used by the rule, contradicts another,
    or has a value that cannot be. Raises OSError where a file cannot be read.
    """
    rotation = _Rotation(config, layer_type)
    for key, value in keys.items():
        rotation.add(key, value)
    rotation.choose_rule()
    dim = rotation.rotary_dim()
    fields = {"base": rotation.need("rope_theta"), **FIELDS[rotation.rule](rotation, dim)}
    if seq_len is not None:
        if rotation.rule not in ("dynamic", "longrope"):
            _fail("seq_len", "(%r) is not used by rope_type %r", seq_len, rotation.rule)
        fields["seq_len"] = _integer("seq_len", seq_len)
    return Frequencies(*_evaluate(rotation.rule, dim, fields), rotation.rule)
