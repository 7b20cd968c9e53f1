"""Settings of a rotation in a Hugging Face config besides its frequencies: pairing, window, direction and axes.

Most of them have no key: the class of the model decides them. The tables are facts about the classes of transformers 5.24.
tests/python/test_models.py compares every model in them with the attention of its class.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ._config import fail
from ._config_keys import FAMILIES, UNKNOWN, bare
from ._errors import Error
from ._values import shown
from .frequencies import read_rotation


class ModelRotation(NamedTuple):
    """How a model rotates a head of q or k. trope.frequencies has the angles.

    pairing      "half" or "interleaved"; None if this model_type is not known
    pairing_out  the pairing of the result if it differs (DeepSeek V3: interleaved in, half out); None: same as pairing
    is_trailing  True: the last rotary_dim elements of a head rotate (MLA), False: the first ones
    inverse      True: the angles are negative (NanoChat)
    pair_axis    the axis of positions of each pair, as trope.pair_axis makes it; None: there is one axis
    rotary_dim   the number of elements of a head that rotate
    model_type   the model_type of the language model, "" if the config has none
    """

    pairing: str | None
    pairing_out: str | None
    is_trailing: bool
    inverse: bool
    pair_axis: tuple[int, ...] | None
    rotary_dim: int
    model_type: str


# ---- Tables. FAMILIES is in _config_keys.py ----

# Models that read rope_interleave. If it is false, their weights are reordered, and they use half pairing.
READS_INTERLEAVE = ("axk1", "deepseek_v3", "glm4_moe_lite", "mistral4", "sarvam_mla", "youtu")

# Models with three axes of positions: the order of the pairs' axes, and the mrope_section of the class if it is missing.
_AXES = {
    ("sections", (16, 24, 24)): "paddleocr_vl qwen2_5_omni qwen2_5_omni_talker qwen2_5_vl qwen2_vl",
    ("sections", (8, 12, 12)): "glm4v glm4v_moe glm_image glm_ocr",
    ("interleaved", (24, 20, 20)): "cohere_compass cosmos3_edge qwen3_omni_moe qwen3_omni_moe_talker qwen3_vl qwen3_vl_moe",
    ("interleaved", (11, 11, 10)): "qwen3_5 qwen3_5_moe qwen4_exp",
    ("interleaved", (12, 10, 10)): "hy_v4_vl",
    ("hwt", (22, 22, 20)): "ernie4_5_vl_moe",  # mrope_section is height, width, time
}
AXES = {model: axes for axes, models in _AXES.items() for model in models.split()}


# ---- Reading them ----


def _family(keys, name):
    """Returns the _Family of a model, with rope_interleave taken into account."""
    family = FAMILIES.get(name, UNKNOWN)
    interleave = keys.get("rope_interleave")
    if keys.is_null("rope_interleave") or not isinstance(interleave, (bool, type(None))):
        fail("rope_interleave", "must be true or false, not %s", "null" if interleave is None else shown(interleave))
    if name in READS_INTERLEAVE and interleave is False:
        return family._replace(pairing="half", pairing_out=None)
    if family is not UNKNOWN and interleave not in (None, family.pairing == "interleaved"):
        fail("rope_interleave", "is %r, but a %s has pairing %r", interleave, name, family.pairing)
    return family


def _order(rope, name):
    """Returns (order of the pairs' axes, default sections) of a model, or (None, None) if there is one axis."""
    given = {key: rope[key] for key in ("mrope_interleaved", "interleaved") if rope.get(key) is not None}
    for key, value in given.items():
        if not isinstance(value, bool):
            fail(key, "must be true or false, not %s", shown(value))
    sections = [key for key in ("xdrope_section", "mrope_section") if rope.get(key) is not None]
    if "xdrope_section" in sections or name == "hunyuan_vl" and sections:
        fail(
            sections[0],
            "gives the two elements of a pair different axes, as HunYuan-VL does: that is not a rotation of pairs",
        )
    if name in AXES:
        order, default = AXES[name]
        for key, value in given.items():
            if value != (order == "interleaved"):
                fail(key, "is %r, but the axes of a %s are always in the order %r", value, name, order)
        return order, default
    is_interleaved = True in given.values()
    if name in FAMILIES:
        for key in [key for key, value in given.items() if value] + sections:
            fail(key, "is not read by a %s, which has one axis of positions", name)
    elif is_interleaved and (False in given.values() or not sections):
        key = "interleaved" if sections else "mrope_section"
        fail(key, "contradicts mrope_interleaved" if sections else "is missing beside %s" % next(iter(given)))
    elif sections and not given:
        fail("mrope_interleaved", "is missing: the order of the axes in models of type %r is not known", name)
    return ("interleaved" if is_interleaved else "sections", None) if sections else (None, None)


def _pair_axis(rope, name, pairs):
    """Returns the axis of each pair, or None if there is one axis."""
    from . import pair_axis

    key, (order, default) = "mrope_section", _order(rope, name)
    if order is None:
        return None
    sections = default if rope.get(key) is None else rope[key]
    if not isinstance(sections, (list, tuple)) or [type(section) for section in sections] != [int] * 3:
        fail(key, "must be a list of three integers, not %s", shown(sections))
    if min(sections) < 0 or sum(sections) != pairs:
        source = "" if rope.get(key) is not None else " (the default of the class, as the config has none)"
        fail(key, "must be three numbers of pairs that add up to %d, not %s%s", pairs, list(sections), source)
    if order == "hwt":
        height, width, time = sections
        if height != width:
            fail(key, "must have equal numbers for height and width, not %s", list(sections))
        sections = time, height, width
    try:
        return pair_axis(order, sections)
    except Error as error:
        fail(key, "(%s) is refused: %s", list(sections), error)


def read_family(rotation):
    """Returns the _Family of a Rotation's (frequencies.py) model. Its pairing is None if the model is not known."""
    return _family(rotation.keys, bare(rotation.model_type))


def has_axes(rotation):
    """Whether the model of a Rotation has positions of several axes."""
    return _order(rotation.rope, bare(rotation.model_type))[0] is not None


def read_axes(rotation, pairs):
    """Returns the axis of each pair of a Rotation, or None if there is one axis."""
    return _pair_axis(rotation.rope, bare(rotation.model_type), pairs)


def model_rotation(config: Any, layer_type: str | None = None, **keys: Any) -> ModelRotation:
    """Returns the ModelRotation of a Hugging Face config.

    Arguments:
        config, layer_type, keys: as in trope.frequencies.
    Return:
        a ModelRotation. If the model_type is not known, pairing is None, and the caller must know pairing and window. The
        axes are then those of mrope_section. mrope_interleaved, which is required, decides their order.
    Raises:
        trope.Error: also if the config has a setting that the class of the model ignores.
    """
    rotation = read_rotation(config, layer_type, keys)
    dim = rotation.rotary_dim()
    family = read_family(rotation)
    axes = read_axes(rotation, dim // 2)
    return ModelRotation(*family, axes, dim, rotation.model_type or "")
