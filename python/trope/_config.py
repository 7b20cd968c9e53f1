"""Reads a Hugging Face config: its keys, the language model in it, and the rope dict of one layer type.

frequencies.py and _models.py share this reader. The rope dict is `rope_parameters`, formerly `rope_scaling`.
"""

import numbers
import os
from collections.abc import Mapping

from ._abi import RULES
from ._config_keys import (
    ANY,
    FALLBACKS,
    GEMMA3,
    GLOBAL_HEAD_DIM,
    IGNORED_KEYS,
    KEYS_OF_ROTATIONS,
    LAYERED,
    MEANINGLESS_KEYS,
    MODERNBERT,
    NO_ROTATION,
    OLD_RULES,
    ORIGINAL,
    OTHER_ROTATION,
    ROPE_KEYS,
    ROTATES,
    SIZE_KEYS,
    UNREADABLE_KEYS,
    YARN_IS_LONGROPE,
    of_model,
    reads,
)
from ._errors import Error, closest
from ._values import integer, number, shown

# ---- Values ----


def fail(key, text, *values):
    """Raises an Error whose argument is `key`. Its message is the key, followed by the text."""
    raise Error("%s %s" % (key, text % values), str(key))


def optional_number(key, value):
    """Returns `value` as a float. None stays None."""
    return None if value is None else number(value, key)


def optional_integer(key, value):
    """Returns `value` as an int from 1 to 2^53, which a double can hold. None stays None."""
    return None if value is None else integer(value, key, 1, 2**53)


def same(a, b):
    """Whether two values of a key agree. A list agrees with an equal tuple, and None agrees with everything."""
    if a is None or b is None:
        return True
    if isinstance(a, tuple) and isinstance(b, list):
        a = list(a)
    elif isinstance(a, list) and isinstance(b, tuple):
        b = list(b)
    try:
        return bool(a == b)
    except Exception:  # the comparison of arrays is an array, and classes of the caller may do anything
        return False


def differences(a, b):
    """Returns two texts that show how two values differ. Of two dicts, they show the first key whose values differ."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in [*a, *b]:
            if key not in a or key not in b:
                return tuple("%s: %s" % (key, shown(each[key])) if key in each else "no %s" % key for each in (a, b))
            if not same(a[key], b[key]):
                return tuple("%s: %s" % (key, text) for text in differences(a[key], b[key]))
    return shown(a), shown(b)


def listed(names):
    return ", ".join(map(repr, names))


def hint(key, known):
    """Returns a clause with the known name that is closest to `key`, or "" if none is close."""
    close = closest(str(key), known)
    return ": did you mean %s?" % close if close else ""


def list_of(keys, key):
    """Returns the list at a key of the config, or () if the key is missing or null."""
    value = keys.get(key)
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        fail(key, "must be a list, not %s", shown(value))
    return value


# ---- The keys of one config ----


def _mapping_of(config, name):
    """Returns the dict that an object's to_dict() returns, or {} if it has no such method."""
    try:
        to_dict = getattr(config, "to_dict", None)
        mapping = {} if to_dict is None else to_dict()
    except Exception as error:  # to_dict is code of the caller
        fail(name, "cannot be read: its to_dict() raised %s: %s", type(error).__name__, error)
    if not isinstance(mapping, Mapping):
        fail(name, "must have a to_dict() that returns a dict, not %s", shown(mapping))
    return mapping


class Keys:
    """The keys of a config, which is a mapping or an object.

    An object is read by its to_dict(), and by its attributes for keys that the dict lacks: a transformers config has other
    names (attribute_map) and properties as attributes only.

    mapping     the config as a dict
    object      the object, or None if the config is a mapping
    model_type  the model_type of the config, otherwise the `model_type` argument; None if there is neither
    """

    def __init__(self, config, name="config", model_type=None):
        if isinstance(config, (str, bytes, numbers.Number, list, tuple, set, frozenset)):
            kinds = "a dict, the path of a config.json, or an object" if name == "config" else "a dict or an object"
            fail(name, "must be %s with the keys of a config, not %s", kinds, shown(config))
        self.object = None if isinstance(config, Mapping) else config
        self.mapping = dict(config if self.object is None else _mapping_of(config, name))
        self.model_type = self.get("model_type")
        if self.model_type is None:
            self.model_type = model_type
        elif not isinstance(self.model_type, str):
            fail("model_type", "must be a string, not %s", shown(self.model_type))

    def attribute(self, name):
        """Returns an attribute of the object, or None if it has none of this name."""
        try:
            return getattr(self.object, name, None)
        except Exception as error:  # a property is code of the caller
            fail(name, "cannot be read from the config: %s: %s", type(error).__name__, error)

    def _one(self, name):
        value = self.mapping.get(name)
        return self.attribute(name) if value is None and self.object is not None else value

    def find(self, *names):
        """Returns (name, value) of the first of these names that has a value, or (names[0], None).

        Raises Error if another one of the names has a different value.
        """
        found = [(name, value) for name in names if (value := self._one(name)) is not None]
        for name, value in found[1:]:
            if not same(value, found[0][1]):
                this, first = differences(value, found[0][1])
                fail(name, "(%s) contradicts %s (%s)", this, found[0][0], first)
        return found[0] if found else (names[0], None)

    def get(self, *names):
        """Returns the value that find() finds."""
        return self.find(*names)[1]

    def refuse_unused(self, *names):
        """Refuses these names of one key if some have a value, but the class of the model uses none of those."""
        given, used = [], []
        for name in names:
            given += [name] if self._one(name) is not None else []
            used += [name] if reads(self.model_type, name) else []
        if given and not set(given).intersection(used):
            text = "(%s) is not used by the class of a %s%s"
            instead = ": give " + used[0] if used else ""
            fail(given[0], text, shown(self._one(given[0])), self.model_type, instead)

    def is_null(self, name):
        """Whether the config has this key with the value null."""
        return name in self.mapping and self._one(name) is None

    def sizes(self):
        """Returns the values of SIZE_KEYS, with None for missing ones."""
        sizes = {key: self.get(*names) for key, names in SIZE_KEYS.items()}
        return {**sizes, "head_dim": self.get("head_dim", "kv_channels")} if self.model_type == "jetmoe" else sizes

    def has_sizes(self):
        """Whether a head size can be found."""
        sizes = {key for key, value in self.sizes().items() if value is not None}
        return bool(sizes & {"head_dim", "qk_rope_head_dim"}) or sizes >= {"hidden_size", "num_attention_heads"}

    def nested_names(self):
        """Returns the names of nested configs that have head sizes."""
        names = [name for name in self.mapping if isinstance(name, str) and name.endswith("_config")]
        return [name for name in names if isinstance(self.mapping[name], Mapping) and Keys(self.mapping[name]).has_sizes()]


def _unique(pairs):
    """Returns the dict of a JSON object's (key, value) pairs. Refuses equal keys, because readers use different ones."""
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        fail(next(key for key in found if keys.count(key) > 1), "must occur only once in an object of the config")
    return found


def _read_json(path):
    """Returns the object in a JSON file. A directory stands for the config.json in it."""
    import json  # here, because it takes a third of the time of `import trope`, and most calls need no file

    try:
        path = os.fsdecode(path)
        with open(os.path.join(path, "config.json") if os.path.isdir(path) else path, encoding="utf-8") as file:
            config = json.load(file, object_pairs_hook=_unique)
    except Error:
        raise
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or a path with a null character
        fail("config", "(%s) is not a JSON file: %s", shown(path), error)
    if not isinstance(config, dict):
        fail("config", "(%s) must hold a JSON object, not a %s", path, type(config).__name__)
    return config


def open_config(config):
    """Returns the Keys of a config: a mapping, an object, or the JSON file at a path. None is an empty config."""
    if isinstance(config, (str, os.PathLike)):
        config = _read_json(config)
    return Keys({} if config is None else config)


def language_model(keys):
    """Returns the Keys of text_config if there is one, as in transformers, otherwise the config's own.

    Some configs repeat keys of their text_config (Qwen2-VL, as transformers 4.5x writes it). These must agree.
    """
    text = None if keys.object is None else keys.attribute("text_config")
    text = keys.get("text_config") if text is None else text
    if text is None:
        return keys
    text = Keys(text, "text_config", keys.model_type and keys.model_type + "_text")
    names = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", ORIGINAL)
    for name in names + (sum(SIZE_KEYS.values(), ()) if keys.has_sizes() else ()):
        outer, inner = keys.get(name), text.get(name)
        if inner is None and name in FALLBACKS and not _rope_layers(text)[1]:
            inner = _rope_layers(text)[0].get(name)
        if not same(outer, inner):
            text_says = "is %s in the config and %s in its text_config: remove the one that is not meant"
            fail(name, text_says, *differences(outer, inner))
    return text


# ---- Models without a rotation ----


def refuse_without_rotation(keys):
    """Refuses a config of a model that does not rotate at all, and names the key that decides this."""
    if keys.model_type in OTHER_ROTATION:
        fail("model_type", "(%r) rotates by axes of an image or a video: no rope_type describes that", keys.model_type)
    if keys.model_type in NO_ROTATION:
        fail("model_type", "(%r) is a model without a rotary embedding", keys.model_type)
    for key, (rotating, of_models) in ROTATES.items():
        value, needed = keys.get(key), of_models.get(keys.model_type)
        if value is None and needed is not None:
            text = "is missing, and a %s without it does not rotate: %s makes it rotate"
            fail(key, text, keys.model_type, listed(needed))
        if value is not None and not any(same(value, each) for each in needed or rotating):
            fail(key, "(%s) says that this model does not rotate", shown(value))
    # Llama 4 and SmolLM3: a layer with 1 rotates, a layer with 0 does not.
    rotating_layers, interval = list_of(keys, "no_rope_layers"), keys.get("no_rope_layer_interval")
    if rotating_layers and not any(rotating_layers):
        fail("no_rope_layers", "(%s) says that no layer rotates", shown(rotating_layers))
    if not rotating_layers and interval is not None and same(interval, 1):
        fail("no_rope_layer_interval", "(1) says that no layer rotates")


# ---- Unknown keys ----


def refuse_misspelt(keys):
    """Refuses a key whose name is about rotations, unless this package reads it or MEANINGLESS_KEYS permits it."""
    for key, value in keys.mapping.items():
        is_about = isinstance(key, str) and any(word in key.lower() for word in ("rope", "rotary", "theta"))
        if not is_about or value is None or key in KEYS_OF_ROTATIONS:
            continue
        harmless = MEANINGLESS_KEYS.get(key, ())
        if harmless is not ANY and not any(same(value, each) for each in harmless):
            known = hint(key, sorted(KEYS_OF_ROTATIONS)) or ": leave it out if it means nothing for the rotation"
            fail(key, "(%s) is not a known key%s", shown(value), known)


# ---- The rope dict of one layer type ----


def _rope_dict(keys):
    """Returns (name, rope dict) of rope_parameters or rope_scaling, with {} if there is neither.

    A config may have both, if they mean the same: the keys in FALLBACKS may be in a dict or beside it.
    """
    found = {name: rope for name in ("rope_parameters", "rope_scaling") if (rope := keys.get(name)) is not None}
    for name, rope in found.items():
        if not isinstance(rope, Mapping):
            fail(name, "must be a dict or null, not %s", shown(rope))
    if len(found) == 2:
        new, old = (_completed(keys, rope) for rope in found.values())
        if not same(new, old):
            old, new = differences(old, new)
            fail("rope_scaling", "(%s) contradicts rope_parameters (%s): remove one of them", old, new)
    else:
        keys.refuse_unused("rope_scaling", "rope_parameters")
    return next(iter(found.items()), ("rope_parameters", {}))


def _completed(keys, rope):
    """Returns a rope dict without nulls, with its rule as rope_type, and with the config's own values of FALLBACKS."""
    outer = {} if any(isinstance(value, Mapping) for value in rope.values()) else FALLBACKS
    whole = {key: keys.get(*names) for key, names in outer.items()}
    whole.update((key, value) for key, value in rope.items() if value is not None and key != "type")
    whole["rope_type"] = rule_of(rope, keys.model_type) or "default"
    return {key: value for key, value in whole.items() if value is not None}


def _rope_layers(keys):
    """Returns the rope dict ({} if there is none), and the dicts by layer type in it ({} if one dict is for all layers)."""
    name, rope = _rope_dict(keys)
    if any(isinstance(value, Mapping) for value in rope.values()):
        known = ROPE_KEYS.union(IGNORED_KEYS)
        return rope, {
            key: value for key, value in rope.items() if isinstance(value, Mapping) or value is None and key not in known
        }
    for key, names in FALLBACKS.items():
        _refuse_contradiction(keys, names, name, rope.get(key))
    layers = _old_layers(keys, name, rope)
    return layers or rope, layers


def _refuse_contradiction(keys, names, rope_name, inner):
    """Refuses a key of the config that contradicts the same key in the rope dict of all layers."""
    outer_name, outer = keys.find(*names)
    if not same(outer, inner):
        fail(outer_name, "is %s in the config and %s in %s: remove one of them", shown(outer), shown(inner), rope_name)


def _old_layers(keys, rope_name, rope):
    """Returns the dicts by layer type of a config of transformers 4 whose model has two rotations, or {} for other configs.

    transformers 5 converts such configs in the same way (convert_rope_params_to_dict of Gemma3TextConfig, ModernBertConfig
    and Olmo3Config). There is one exception: the sliding layers of OLMo 3 have rope_theta here, as in transformers 4, while
    5.24 ignores rope_theta and gives them the class's 500000.
    """
    layout = of_model(LAYERED, keys.model_type)
    for sign, model in (("rope_local_base_freq", GEMMA3), ("global_rope_theta", MODERNBERT)):
        layout = model if layout is None and keys.get(sign) is not None else layout
    if layout is None:
        return {}
    if keys.get("rope_parameters"):
        fail(
            "rope_parameters",
            "of a %s must have a dict for each layer type: full_attention, sliding_attention",
            keys.model_type,
        )
    if rope.get("rope_type") is None and rule_of(rope, keys.model_type) not in (None, "default"):
        _refuse_type(keys, rope)
    full_key, full_base, sliding_key, sliding_base, both_scaled = layout
    layers = {"full_attention": dict(rope), "sliding_attention": dict(rope) if both_scaled else {}}
    bases = ((full_key, full_base), (sliding_key, sliding_base))
    for (layer_type, layer), (key, base) in zip(layers.items(), bases):
        _refuse_contradiction(keys, (key,), rope_name, layer.get("rope_theta"))
        given = keys.get(key) if layer.get("rope_theta") is None else layer["rope_theta"]
        layer["rope_theta"] = base if given is None else given
        if layer["rope_theta"] is None:
            fail(key, "is missing: it is the base of %s", layer_type)
    return layers


def _select(rope, layers, layer_type):
    """Returns the requested layer type. `layers` are the dicts in `rope`."""
    rotating = [name for name, layer in layers.items() if layer is not None]
    if layer_type is None and len(rotating) == 1:
        layer_type = rotating[0]
    if layer_type is None:
        fail("layer_type", "must be given: one of %s", listed(rotating))
    if layer_type not in list(layers):
        fail("layer_type", "must be one of %s, not %s", listed(rotating), shown(layer_type))
    if layers[layer_type] is None:
        fail("layer_type", "(%r) does not rotate: its rope_parameters are null", layer_type)
    for key in set(rope).difference(layers, ["truncate"]):
        if rope[key] is not None and any(layers[name].get(key) is None for name in rotating):
            fail(key, "stands beside the dicts of layer types, where nothing reads it: move it into each of them")
    return layer_type


def _move_truncate(rope, layer):
    """Gives a layer's dict the `truncate` that transformers uses, which stands next to the dicts of layer types."""
    inner = layer.pop("truncate", None)
    if "truncate" in rope:
        if not same(inner, rope["truncate"]):
            text = "is %s beside the dicts of layer types, which transformers reads, and %s in one of them: remove one"
            fail("truncate", text, shown(rope["truncate"]), shown(inner))
        if layer["rope_type"] == "yarn":
            layer["truncate"] = rope["truncate"]
    elif not (inner is None or inner is True):  # without the key, transformers uses True
        text = "(%s) is in the dict of a layer type, where transformers does not read it: move it out of that dict"
        fail("truncate", text, shown(inner))


def _refuse_unreadable(keys, rope):
    """Refuses keys that make layers differ, in a config with one rope dict."""
    for key in UNREADABLE_KEYS:
        if keys.get(key) is not None:
            fail(key, "is not read: give rope_parameters by layer type, or a config without it")
    bases = list_of(keys, "layer_rope_theta")  # GraniteSWA, Muse: a layer with 0 does not rotate
    if bases and all(same(base, 0) for base in bases):
        fail("layer_rope_theta", "(%s) says that no layer rotates", shown(bases))
    if not all(same(base, 0) or rope["rope_theta"] is not None and same(base, rope["rope_theta"]) for base in bases):
        text = "(%s) gives layers other bases: leave it out, and give the base of each kind of layer as rope_theta"
        fail("layer_rope_theta", text, shown(bases))
    scaled = list_of(keys, "rope_scaling_layers")  # Molmo 2: in a loaded config, it lists all layers
    layers = keys.get("num_hidden_layers")
    is_for_all = keys.get("rope_scaling_layers") is None or isinstance(layers, int) and layers == len(scaled)
    if rope["rope_type"] not in (None, "default") and not is_for_all:
        text = "(%s) says that other layers are not scaled: give each kind of layer a config without it"
        fail("rope_scaling_layers", text, shown(scaled))


def read_rope(keys, layer_type):
    """Returns (rope, layer_type): the rope dict of one layer type, and that type, or None if one dict is for all layers.

    The dict is a new one. It has the rule as rope_type, and the config's own values of the keys in FALLBACKS.
    """
    if not isinstance(layer_type, (str, type(None))):
        fail("layer_type", "must be a string, not %s", shown(layer_type))
    outer, layers = _rope_layers(keys)
    if layers:
        layer_type = _select(outer, layers, layer_type)
    elif layer_type is not None:
        # This type may be one that does not rotate (Cohere 2, Mamba layers). The config does not tell which layers rotate.
        fail("layer_type", "(%r) is given, but all layers that rotate do so alike: leave it out", layer_type)
    rope = dict(layers[layer_type] if layers else outer)
    for key, names in FALLBACKS.items():
        if rope.get(key) is None:
            rope[key] = _beside(keys, layer_type, key, names)
    rule = rule_of(rope, keys.model_type)
    if rope.get("rope_type") is None and rule not in (None, "default") and not reads(keys.model_type, "type"):
        _refuse_type(keys, rope)
    rope["rope_type"] = rule
    if layers:
        _move_truncate(outer, rope)
    else:
        _refuse_unreadable(keys, rope)
    return rope, layer_type


def _refuse_type(keys, rope):
    fail("type", "(%r) is not used by the class of a %s: give rope_type", rope["type"], keys.model_type)


def _beside(keys, layer_type, key, names):
    """Returns the value that the config itself has for a key that the rope dict lacks, or None."""
    value, layout = keys.get(*names), of_model(LAYERED, keys.model_type)
    if value is None:
        return None
    if key == "rope_theta":
        keys.refuse_unused(*names)
        if layer_type is not None and layout is not None and (layer_type, layout[0]) != ("full_attention", key):
            fail(key, "is missing in the dict of %s, and a %s uses no rope_theta beside it", layer_type, keys.model_type)
    elif keys.get(key) is None and not same(value, 1):
        keys.refuse_unused(*names)
    return value


def rule_of(rope, model_type):
    """Returns the rule that rope_type and type name, or None if there is neither."""
    names = {key: rope[key] for key in ("rope_type", "type") if rope.get(key) is not None}
    olds = {**OLD_RULES, "yarn": "longrope"} if model_type in YARN_IS_LONGROPE else OLD_RULES
    rules = {key: olds.get(name, name) if isinstance(name, str) else None for key, name in names.items()}
    for key, rule in rules.items():
        if rule not in RULES:
            fail("rope_type", "must be one of %s, not %s", listed([*RULES, *OLD_RULES]), shown(names[key]))
    if len(set(rules.values())) > 1:
        fail("type", "(%r) contradicts rope_type (%r)", names["type"], names["rope_type"])
    return next(iter(rules.values()), None)


# ---- Sizes of layers of one type ----


def layer_sizes(keys, layer_type):
    """Returns the sizes in which layers of this type differ from the config, by per_layer_config or global_head_dim."""
    given = keys.mapping.get("per_layer_config")
    if given is None:
        return _global_head_dim(keys) if layer_type == "full_attention" else {}
    if not isinstance(given, Mapping) or not all(isinstance(values, Mapping) for values in given.values()):
        fail("per_layer_config", "must be a dict with a dict for each layer, not %s", shown(given))
    types = list_of(keys, "layer_types")
    try:
        by_index = {int(index): values for index, values in given.items()}
    except (TypeError, ValueError):
        by_index = {-1: {}}
    if any(index < 0 or types and index >= len(types) for index in by_index):
        fail("per_layer_config", "must have the indices of layers as keys, not %s", listed(given))
    layers = [by_index.get(i, {}) for i, name in enumerate(types) if layer_type is None or same(name, layer_type)]
    layers = layers or list(by_index.values())
    sizes = [
        {key: optional_integer(key, layer[key]) for key in ("head_dim", "qk_rope_head_dim") if key in layer}
        for layer in layers
    ]
    if any(size != sizes[0] for size in sizes):
        fail("per_layer_config", "gives different sizes to layers that rotate alike: %s", shown(sizes))
    return sizes[0] if sizes else {}


def _global_head_dim(keys):
    wide = keys.get("global_head_dim")
    if wide is None and keys.model_type in GLOBAL_HEAD_DIM:
        fail("global_head_dim", "is missing: it is the head_dim of full_attention layers")
    if keys.get("head_dim") is None or not same(wide, keys.get("head_dim")):
        keys.refuse_unused("global_head_dim")
    return {} if wide is None else {"head_dim": wide}
