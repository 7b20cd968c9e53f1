"""The frequencies of a rotary position embedding: given as numbers, by keywords, or by a Hugging Face config.

    frequencies("Llama-3.1-8B/config.json")
    frequencies(model.config, layer_type="sliding_attention")
    frequencies(rope_type="llama3", rope_theta=500000.0, head_dim=128, factor=8.0, low_freq_factor=1.0,
                high_freq_factor=4.0, original_max_position_embeddings=8192)

The library computes the rules (trope_frequencies, section 6 of include/trope/trope.h). Keys have the same meaning and the
same places as in transformers 5 (modeling_rope_utils.py, and the config classes in models/). Configs may be written by
version 4 or 5. If a key is missing, or the rule does not use it, transformers continues with a warning or a default. Here
this is an Error that names the key, so that nobody trains with a forgotten value.
"""

import ctypes
import itertools
import numbers
from collections.abc import Iterable, Mapping, Set

from ._abi import MAX_ROTARY_DIM, RULES, FrequencyArgs, check, lib, make_phase_steps, reason
from ._config import (
    fail,
    hint,
    language_model,
    layer_sizes,
    listed,
    open_config,
    optional_integer,
    optional_number,
    read_rope,
    refuse_misspelt,
    refuse_without_rotation,
    rule_of,
    same,
)
from ._config_keys import (
    CLASS_HEAD_DIM,
    CLASS_PARTIAL,
    COMMON_KEYS,
    IGNORED_KEYS,
    ORIGINAL,
    OWN_BASE,
    OWN_ROPE,
    READ_BY,
    READS_ALPHA,
    ROPE_KEYS,
    RULE_KEYS,
    SIZE_KEYS,
    TRAILING_BY_PARTIAL,
    UNREAD_KEYS,
    bare,
    of_model,
    reads,
)
from ._errors import Error
from ._values import number, shown

# ---- The result ----


class Frequencies:
    """Frequencies of a rotation: immutable, hashable by value, picklable. len() is the number of pairs.

    inv_freq          tuple of float [rotary_dim / 2]: radians per position, for each pair in order
    attention_factor  float: multiplies cos and sin, as mscale of a call does (not 1 with YaRN and LongRoPE)
    rotary_dim        int: the number of elements of a head that rotate, two for each pair
    rule              str: the rope_type of the rule, "ntk_alpha" (HunYuan's), or "given"
    """

    __slots__ = ("inv_freq", "attention_factor", "rotary_dim", "rule", "_phase_steps", "_hash")

    def __init__(self, inv_freq, attention_factor=1.0, rule="given"):
        """inv_freq: 1 to 512 finite numbers of magnitude below 2^64, as a list or as a 1-D array of float32 or float64.

        Raises Error, whose argument is inv_freq, attention_factor or rule.
        """
        values = frequency_list(inv_freq)
        steps = make_phase_steps(values)
        factor = number(attention_factor, "attention_factor")
        if not factor:
            fail("attention_factor", "must be a number other than 0")
        if not isinstance(rule, str):
            fail("rule", "must be a str, not %s", shown(rule))
        fields = values, factor, 2 * len(values), rule, steps, hash((values, factor, rule))
        for name, value in zip(self.__slots__, fields):
            object.__setattr__(self, name, value)

    @property
    def phase_steps(self):
        """Returns inv_freq as phase_step of a call: always the same ctypes array of c_uint64, 2^-64 turns per position."""
        return self._phase_steps

    def _refuse(self, name, value=None):
        raise AttributeError("Frequencies are immutable: %s" % name)

    __setattr__ = __delattr__ = _refuse

    def _value(self):
        return self.inv_freq, self.attention_factor, self.rule

    def __eq__(self, other):
        return self._value() == other._value() if isinstance(other, Frequencies) else NotImplemented

    def __hash__(self):
        return self._hash  # every call asks for it

    def __len__(self):
        return len(self.inv_freq)

    def __reduce__(self):
        return type(self), self._value()

    def __repr__(self):
        text = "<Frequencies %r, rotary_dim %d, inv_freq %.6g to %.6g, attention_factor %.6g>"
        return text % (self.rule, self.rotary_dim, self.inv_freq[0], self.inv_freq[-1], self.attention_factor)


def frequency_list(inv_freq, argument="inv_freq"):
    """Returns the tuple of floats [pairs] of the inverse frequencies that a caller passes.

    They may be a list or another iterable of numbers, or a 1-D array or tensor of float32 or float64 on the CPU. Smaller
    dtypes are refused: bfloat16 keeps 8 bits, so that a token at position 8000 would turn by the angle of position 7985 or
    8015. Raises Error, whose argument is `argument`.
    """
    if hasattr(inv_freq, "dtype"):
        _check_dtype(inv_freq, argument)
        given = _read_array(inv_freq, argument)
    elif isinstance(inv_freq, Iterable) and not isinstance(inv_freq, (str, bytes, bytearray, Mapping, Set)):
        given = inv_freq
    else:
        fail(argument, "must be a list of numbers, not %s", shown(inv_freq))
    most = MAX_ROTARY_DIM // 2
    values = _first(given, most + 1, argument)
    if not 1 <= len(values) <= most:
        fail(argument, "must have 1 to %d numbers, one for each pair, not %s", most, len(values) or "none")
    for value in values:
        if not isinstance(value, numbers.Integral) and hasattr(value, "dtype"):
            _check_dtype(value, argument)
        if not isinstance(value, numbers.Real):
            fail(argument, "must be a flat list of numbers: %s is not a number", shown(value))
    return tuple([number(value, argument) for value in values])


def _check_dtype(array, argument):
    """Refuses arrays and scalars of a dtype that cannot hold an inverse frequency."""
    name = str(getattr(array.dtype, "name", array.dtype)).rpartition(".")[2]
    if name not in ("float32", "float64"):
        text = "has dtype %s: use float32 or float64, and compute the frequencies in it (a cast does not restore lost bits)"
        fail(argument, text, name)


def _read_array(array, argument):
    """Returns the elements of a 1-D array or tensor on the CPU."""
    shape = tuple(getattr(array, "shape", ()))
    if len(shape) != 1:
        fail(argument, "must be 1-D, with an element for each pair, not of shape %s", list(shape))
    device = getattr(getattr(array, "device", None), "type", "cpu")
    if device != "cpu" or hasattr(array, "__cuda_array_interface__"):
        place = "cuda" if device == "cpu" else device
        fail(argument, "is on device %s: pass a CPU tensor, a list, or what trope.frequencies(...) returns", place)
    try:
        return array.tolist()
    except Exception as error:  # the tensor has no values, as in tracing
        text = "has no values to read (%s): pass a CPU tensor, a list, or what trope.frequencies(...) returns"
        fail(argument, text, type(error).__name__)


def _first(given, count, argument):
    """Returns a list of the first elements, at most `count`."""
    try:
        return list(itertools.islice(given, count))
    except Exception as error:  # an iterator runs code of the caller
        fail(argument, "cannot be read: %s: %s", type(error).__name__, error)


# ---- One rotation ----


class Rotation:
    """The keys of one rotation.

    keys        the Keys of the language model
    rope        the rope dict; a key that is None counts as missing
    sizes       SIZE_KEYS, and original_max_position_embeddings if the config itself has it for all layers
    model_type  decides about values that the config lacks; None if it is not known
    nested      names of configs within the config
    rule        "default", ..., "ntk_alpha", after a call of choose_rule()
    """

    def __init__(self, config, layer_type):
        keys = self.keys = language_model(open_config(config))
        self.model_type = keys.model_type
        refuse_without_rotation(keys)
        refuse_misspelt(keys)
        self.rope, chosen = read_rope(keys, layer_type)
        for key, names in SIZE_KEYS.items():
            if key != "head_dim" and keys.get(key) is None:
                keys.refuse_unused(*names)
        self.sizes = {**keys.sizes(), **layer_sizes(keys, chosen)}
        # HunYuan has attention_head_dim, which its class ignores. It may repeat what head_dim() returns.
        self.repeated = None if self.reads("attention_head_dim") else keys.get("attention_head_dim")
        if self.repeated is not None and keys.get("head_dim") is None:
            self.sizes["head_dim"] = None
        self.sizes[ORIGINAL] = None if chosen else keys.get(ORIGINAL)
        self.nested = keys.nested_names()

    def add(self, key, value):
        """Adds a keyword argument, which may complete the config but must not contradict it."""
        known = sorted(ROPE_KEYS.union(SIZE_KEYS))
        if key not in known:
            fail(key, "is not a key of a rotary embedding%s", hint(key, known) or ": the keys are " + ", ".join(known))
        if key == "rope_type":
            value = rule_of({key: value}, self.model_type)
        elif key in SIZE_KEYS:
            optional_integer(key, value)
        for given in (self.rope.get(key), self.sizes.get(key)):
            if not same(given, value):
                fail(key, "is %s in the config, and must not be %s here", shown(given), shown(value))
        if value is not None:
            (self.rope if key in ROPE_KEYS else self.sizes)[key] = value

    def choose_rule(self):
        """Sets rule, and refuses keys that the rule, or the class of the model, does not use."""
        self._refuse_rope_of_the_class()
        self.rule = self.rope["rope_type"] or "default"
        if self.rule == "dynamic" and self.rope.get("alpha") is not None and self.model_type in READS_ALPHA:
            self.rule = "ntk_alpha"
        known = {*COMMON_KEYS, *RULE_KEYS[self.rule], *UNREAD_KEYS.get(self.rule, ()), *IGNORED_KEYS}
        for key in self.rope:
            if key in ROPE_KEYS and key not in known and self.rope[key] is not None:
                fail(key, "is not used by rope_type %r", self.rule)
            if key not in ROPE_KEYS and key not in known:
                fail(key, "is not a known key beside rope_type %r%s", self.rule, hint(key, sorted(ROPE_KEYS)))

    def _refuse_rope_of_the_class(self):
        """Refuses a config whose rule its class replaces by its own."""
        rule = self.rope["rope_type"]
        if rule is None and bare(self.model_type) in OWN_ROPE and not self.keys.get("rope_parameters", "rope_scaling"):
            text = "is missing: without it, the class of a %s uses its own, whatever rope_theta is"
            fail("rope_parameters", text, self.model_type)
        if rule not in (None, "default") and not self.reads("rope_type"):
            fail("rope_type", "(%r) is not used by the class of a %s", rule, self.model_type)

    def reads(self, key):
        """Whether the class of the model uses a key."""
        return reads(self.model_type, key)

    def get(self, key):
        """Returns a number of the rope dict, or None if it is missing."""
        return optional_number(key, self.rope.get(key))

    def need(self, key):
        value = self.get(key)
        return self._missing(key) if value is None else value

    def positive(self, key):
        """Returns a number over 0, or 0.0, the library's default, if it is missing."""
        value = self.get(key)
        if value is not None and value <= 0:
            fail(key, "must be over 0, not %s", shown(value))
        return value or 0.0

    def _missing(self, key):
        fail(key, "is missing: rope_type %r needs it", self.rule)

    def base(self):
        """Returns rope_theta, which must not contradict a base that the class of the model always uses."""
        base, own = self.need("rope_theta"), OWN_BASE.get(bare(self.model_type))
        if own not in (None, base):
            fail("rope_theta", "is %s, but the class of a %s always uses %g", base, self.model_type, own)
        return base

    def max_position(self):
        """Returns max_position_embeddings of the config, in tokens."""
        key = "max_position_embeddings"
        value, inner = optional_integer(key, self.sizes[key]), optional_integer(key, self.rope.get(key))
        if value is None:
            self._missing(key)
        if inner not in (None, value):
            fail(key, "is %d in the config and %d beside rope_type", value, inner)
        return value

    def original(self):
        """Returns original_max_position_embeddings, in tokens. Some configs have it beside the rope dict (Phi-3).

        If it is missing, YaRN uses max_position_embeddings, as in transformers 4 and 5. LongRoPE with factor does the same,
        as in version 4. The other rules require it here: without it, version 4 fails, and version 5 does not scale.
        """
        own, inner = optional_number(ORIGINAL, self.sizes[ORIGINAL]), self.get(ORIGINAL)
        if not same(own, inner):
            outer, inner = shown(self.sizes[ORIGINAL]), shown(self.rope[ORIGINAL])
            fail(ORIGINAL, "is %s in the config and %s beside rope_type: remove one of them", outer, inner)
        falls_back = self.rule == "yarn" or self.rule == "longrope" and self.rope.get("factor") is not None
        if own is None:
            own = self.max_position() if falls_back and inner is None else self.need(ORIGINAL)
        if own <= 0:
            fail(ORIGINAL, "must be over 0, not %s", shown(own))
        return own

    def divisors(self, key, pairs):
        """Returns short_factor or long_factor as a ctypes array of double [pairs]."""
        values = self.rope.get(key)
        if values is None:
            self._missing(key)
        if not isinstance(values, (list, tuple)) or len(values) != pairs:
            fail(key, "must be a list of %d numbers, one for each pair, not %s", pairs, shown(values))
        return (ctypes.c_double * pairs)(*(number(value, key) for value in values))

    # -- Sizes --

    def partial(self):
        """Returns partial_rotary_factor, or the class's value if qk_rope_head_dim is missing too, or None.

        A class that does not use the factor rotates whole heads, or the last qk_rope_head_dim elements (MLA). With the rule
        proportional, the rule uses it.
        """
        value, of_class = self.get("partial_rotary_factor"), of_model(CLASS_PARTIAL, self.model_type)
        pe = self.sizes["qk_rope_head_dim"] if self.reads("qk_rope_head_dim") else None
        if pe is not None and bare(self.model_type) != "deepseek_v4":
            of_class = None
        if value is None and of_class == 0:
            fail("partial_rotary_factor", "is missing: a %s has no fixed value for it", self.model_type)
        value = of_class if value is None else value
        if value is not None and not 0 < value <= 1:
            fail("partial_rotary_factor", "must be over 0 and at most 1, not %r", value)
        if value in (None, 1) or pe is not None or self.rule == "proportional" or self.reads("partial_rotary_factor"):
            return value
        window = "whole heads" if bare(self.model_type) not in READ_BY["qk_rope_head_dim"] else "qk_rope_head_dim elements"
        text = "is %s, but the class of a %s does not use this key, and rotates %s: leave it out"
        fail("partial_rotary_factor", text, value, self.model_type, window)

    def head_dim(self):
        """Returns the number of elements of a head: head_dim, the class's default, or hidden_size / num_attention_heads."""
        names = ("head_dim", "hidden_size", "num_attention_heads")
        head, hidden, heads = (optional_integer(name, self.sizes[name]) for name in names)
        derived, own = None if None in (hidden, heads) else hidden // heads, of_model(CLASS_HEAD_DIM, self.model_type)
        if not self.reads("head_dim"):
            if not same(head, derived):
                text = "is %s, but the class of a %s does not use this key, and rotates heads of %s elements"
                fail("head_dim", text, head, self.model_type, derived)
            head = derived
        if head is None and own == 0:
            fail("head_dim", "is missing: in a %s it is not hidden_size / num_attention_heads", self.model_type)
        if head is None and own is not None and self.keys.is_null("head_dim") and not same(own, derived):
            text = "must not be null: a %s has heads of %d elements without the key"
            fail("head_dim", text, self.model_type, own)
        head = own if head is None else head
        if head is None and derived is None:
            looked_for = ["/".join(SIZE_KEYS[name]) for name in ("qk_rope_head_dim",) + names]
            nested = "; pass one of the nested configs instead: " + listed(self.nested) if self.nested else ""
            fail("head_dim", "not found; looked for %s, %s, %s with %s%s", *looked_for, nested)
        head = derived if head is None else head
        if not same(self.repeated, head):
            text = "is %s, but the class of a %s does not use this key, and has heads of %d elements"
            fail("attention_head_dim", text, shown(self.repeated), self.model_type, head)
        return head

    def rotary_dim(self):
        """Returns how many elements of a head have a frequency: head_dim * partial_rotary_factor, or qk_rope_head_dim
        (MLA).

        With the rule proportional, all elements have a frequency, because partial_rotary_factor belongs to the rule. GPT-J
        has rotary_dim instead. If given, rotary_dim and qk_rope_head_dim must equal the result. qk_rope_head_dim takes the
        place of head_dim if no factor tells which part of a head rotates.
        """
        partial, name = self.partial(), bare(self.model_type)
        given, pe = (optional_integer(key, self.sizes[key]) for key in ("rotary_dim", "qk_rope_head_dim"))
        if given and partial is None and (not name or name in READ_BY["rotary_dim"]):
            dim = given
        elif self.rule == "proportional" or partial in (None, 1):
            dim = pe if pe and self._window_is_pe(partial) else self._whole_head()
        else:
            dim = int(self.head_dim() * partial)
        for key, other in (("rotary_dim", given), ("qk_rope_head_dim", pe)):
            if other not in (None, dim):
                text = "(%d) contradicts the other sizes, with which %d elements of a head rotate"
                if not self.reads(key):
                    text = "is %%d, but the class of a %s does not use this key, and rotates %%d elements" % name
                fail(key, text, other, dim)
        if dim % 2 or not 2 <= dim <= MAX_ROTARY_DIM:
            key = "head_dim" if self.rule == "proportional" or partial in (None, 1) else "partial_rotary_factor"
            fail(key, "makes %d elements of a head rotate: this number must be even, and 2 to %d", dim, MAX_ROTARY_DIM)
        return dim

    def _window_is_pe(self, partial):
        """Whether qk_rope_head_dim alone tells how much of a head rotates, beside a factor that is 1 or None."""
        return self.reads("qk_rope_head_dim") and (partial is None or bare(self.model_type) not in TRAILING_BY_PARTIAL)

    def _whole_head(self):
        """Returns head_dim, if that is what rotates."""
        head, own = self.head_dim(), of_model(CLASS_HEAD_DIM, self.model_type)
        if bare(self.model_type) in READ_BY["qk_rope_head_dim"] and self.sizes["qk_rope_head_dim"] is None and head != own:
            fail("qk_rope_head_dim", "is missing: in a %s it is the number of elements that rotate", self.model_type)
        return head


# ---- The rules: the fields of trope_frequency_args that each uses, except for base, rotary_dim and seq_len ----


def _default(rotation, dim):
    return {}


def _linear(rotation, dim):
    return {"factor": rotation.need("factor")}


def _dynamic(rotation, dim):
    return {"factor": rotation.need("factor"), "original_max_position": rotation.max_position()}


def _ntk_alpha(rotation, dim):
    """The rule of HunYuan: the default rule with base * alpha^(d / (d - 2))."""
    if dim < 4:
        fail("alpha", "needs a rotary_dim of at least 4, not %d", dim)
    try:
        return {"base": rotation.need("rope_theta") * rotation.positive("alpha") ** (dim / (dim - 2))}
    except OverflowError:
        fail("alpha", "(%s) makes the base too large", shown(rotation.get("alpha")))


def _yarn(rotation, dim):
    if "factor" not in rotation.rope:
        rotation.need("factor")
    factor, original, truncate = rotation.get("factor"), rotation.original(), rotation.rope.get("truncate", True)
    if truncate is not True and truncate is not False:  # transformers reads null, 0 and "" as false
        fail("truncate", "must be true or false, not %s", shown(truncate))
    scales = rotation.get("mscale"), rotation.get("mscale_all_dim")
    scales = scales if all(scales) else (0.0, 0.0)  # transformers ignores one without the other, and 0
    return {
        "factor": rotation.max_position() / original if factor is None else factor,  # DeepSeek has null instead of no key
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
# The config keys of the library's fields, if their names differ.
KEYS_OF_FIELDS = {
    "base": "rope_theta",
    "original_max_position": ORIGINAL,
    "rotary_dim": "head_dim",
    "no_truncate": "truncate",
}


def fields_of(rotation, dim):
    """Returns the fields of trope_frequency_args for a Rotation of `dim` elements, without seq_len."""
    return {"base": rotation.base(), **FIELDS[rotation.rule](rotation, dim)}


def evaluate(rule, dim, fields):
    """Returns the Frequencies of a rule for `dim` elements, with these fields of trope_frequency_args."""
    library_rule = "default" if rule == "ntk_alpha" else rule
    args = FrequencyArgs(struct_size=ctypes.sizeof(FrequencyArgs), rule=RULES[library_rule], rotary_dim=dim, **fields)
    inv_freq, attention_factor = (ctypes.c_double * (dim // 2))(), ctypes.c_double()
    try:
        check(lib.trope_frequencies(ctypes.byref(args), inv_freq, ctypes.byref(attention_factor)))
    except Error as error:
        field = error.argument.split("[")[0]
        of_dynamic = (rule, field) == ("dynamic", "original_max_position")
        key = "max_position_embeddings" if of_dynamic else KEYS_OF_FIELDS.get(field, field)
        raise Error("%s is refused: %s" % (key, reason()), key, error.status) from None
    return Frequencies(tuple(inv_freq), attention_factor.value, rule)


def read_rotation(config, layer_type, keys):
    """Returns the Rotation of a config with these keywords, with its rule chosen."""
    rotation = Rotation(config, layer_type)
    for key, value in keys.items():
        rotation.add(key, value)
    rotation.choose_rule()
    return rotation


def frequencies(config=None, *, layer_type=None, seq_len=None, **keys):
    """Returns the Frequencies of a Hugging Face config, or of keywords with its names, as transformers computes them, in
    double.

    config      a dict, the path of a config.json or of its directory, or an object with its keys (model.config), as
                written by transformers 4 (rope_scaling, rope_theta) or 5 (rope_parameters, one or by layer type). For a
                multimodal model, its text_config is read.
    layer_type  "full_attention", "sliding_attention", ...: required if rotations differ by layer type, otherwise refused
    seq_len     the current length in tokens, for dynamic (None: max_position_embeddings) and longrope (None: short_factor)
    keys        rope_type, rope_theta, head_dim, partial_rotary_factor, factor, ...: everything if there is no config, or
                the values that the config lacks. None counts as missing.

    The pairs are in the rule's order, from fast to slow, even if a model has another order (Ernie 4.5 VL: HWT of
    trope_fill_pair_axis).

    Raises Error, whose argument is the key: it is missing or unknown, the rule or the model's class in transformers does
    not use it, it contradicts another key, or its value is impossible. Raises OSError if a file cannot be read.
    """
    rotation = read_rotation(config, layer_type, keys)
    dim = rotation.rotary_dim()
    fields = fields_of(rotation, dim)
    if seq_len is not None:
        if rotation.rule not in ("dynamic", "longrope"):
            fail("seq_len", "(%s) is not used by rope_type %r", shown(seq_len), rotation.rule)
        fields["seq_len"] = optional_integer("seq_len", seq_len)
    return evaluate(rotation.rule, dim, fields)
