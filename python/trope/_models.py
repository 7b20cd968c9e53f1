"""Settings of a rotation in a Hugging Face config besides its frequencies: pairing, window, direction and axes.

Most of them have no key: the class of the model decides them. The tables are facts about the classes of transformers 5.24.
tests/python/test_models.py compares every model in them with the attention of its class.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ._config import fail
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


# ---- Tables. The model_type of a language model is without its suffix _text or _text_model here ----


class _Family(NamedTuple):
    pairing: str
    pairing_out: str | None = None
    is_trailing: bool = False
    inverse: bool = False


_UNKNOWN = _Family(None)
_MODELS = {
    _Family("half"): "afmoe apertus apertus1p5 arcee aria bamba beam bitnet chameleon cohere_compass cosmos3_edge csm "
    "csm_depth_decoder_model cwm dbrx deepseek_ocr2 dia_decoder dia_encoder diffllama diffusion_gemma doge dory dots1 "
    "embedding_gemma2 emu3 esm esmc eurobert evolla exaone exaone4 exaone_moe falcon falcon_h1 flex_olmo flint gemma gemma2 "
    "gemma3 gemma3n gemma4 gemma4_unified glm4_moe glm4v_moe glm_image glmasr_encoder gpt_neox gpt_neox_japanese gpt_oss "
    "gradium_phonon_tts granite granite4_vision granite_docling granite_swa granitemoe granitemoe_swa granitemoehybrid "
    "granitemoeshared gte higgs_audio_v2 hrm hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax internlm3 "
    "iquestcoder jais2 jetmoe jina_embeddings_v3 kolibri1 laguna lara_mini lfm2 lfm2_moe lfm3 llama mellum mimo_v2_flash "
    "minimax minimax_m2 minimax_m3_vl ministral ministral3 mistral mixtral mllama modernbert modernbert-decoder molmo2 "
    "muse_glimmer muse_spark nemotron neomme nomic_bert olmo olmo2 olmo3 olmo_hybrid olmoe paddleocr_vl persimmon phi phi3 "
    "phi4_multimodal phimoe qwen2 qwen2_5_omni qwen2_5_omni_talker qwen2_5_vl qwen2_moe qwen2_vl qwen3 qwen3_5 qwen3_5_moe "
    "qwen3_moe qwen3_next qwen3_omni_moe qwen3_omni_moe_talker qwen3_omni_moe_talker_code_predictor qwen3_vl qwen3_vl_moe "
    "qwen4_exp recurrent_gemma sarvam_moe seed_oss smollm3 solar_open stablelm starcoder2 step3p5 t5_gemma_module t5gemma2 "
    "t5gemma2_decoder ultrabert unlimited_ocr vaultgemma voxtral_realtime zamba2 zaya",
    _Family("half", inverse=True): "nanochat",
    _Family("half", is_trailing=True): "hy_v4 minicpm3",
    _Family("interleaved"): "blt_global_transformer blt_local_decoder blt_local_encoder blt_patcher codegen cohere cohere2 "
    "cohere2_moe ernie4_5 ernie4_5_moe ernie4_5_vl_moe glm glm4 glm4v glm_ocr gptj helium llama4 openai_privacy_filter",
    _Family("interleaved", is_trailing=True): "deepseek_v2 deepseek_v4 hy_v4_vl",
    _Family("interleaved", "half", True): "axk1 axk2 bailing_hybrid deepseek_v3 deepseek_v32 dots3_note glm4_moe_lite "
    "glm_moe_dsa longcat_flash mistral4 mistral_large4 sarvam_mla youtu",
}  # fmt: skip
FAMILIES = {model: family for family, models in _MODELS.items() for model in models.split()}
# Models that read partial_rotary_factor. Models with trailing windows do so too. All others ignore the factor and rotate
# whole heads, or fail.
READS_PARTIAL = frozenset(
    "bamba glm glm4 glm4_moe glm4v glm4v_moe glm_image glm_ocr glmasr_encoder gpt_neox gpt_neox_japanese laguna mimo_v2_flash "
    "minimax_m2 minimax_m3_vl nemotron neomme persimmon phi phi3 phi4_multimodal qwen3_5 qwen3_5_moe qwen3_next qwen4_exp "
    "recurrent_gemma sarvam_moe stablelm step3p5 zaya".split()
)
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


def _bare(model_type):
    """Returns a model_type without the suffix that language models have in multimodal models."""
    return model_type.removesuffix("_model").removesuffix("_text") if "_text" in model_type else model_type


def _family(keys, name):
    """Returns the _Family of a model, with rope_interleave taken into account."""
    family = FAMILIES.get(name, _UNKNOWN)
    interleave = keys.get("rope_interleave")
    if keys.is_null("rope_interleave") or not isinstance(interleave, (bool, type(None))):
        fail("rope_interleave", "must be true or false, not %s", "null" if interleave is None else shown(interleave))
    if name in READS_INTERLEAVE and interleave is False:
        return family._replace(pairing="half", pairing_out=None)
    if family is not _UNKNOWN and interleave not in (None, family.pairing == "interleaved"):
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
    name = _bare(rotation.model_type or "")
    family = _family(rotation.keys, name)
    reads_partial = family is _UNKNOWN or family.is_trailing or name in READS_PARTIAL or rotation.rule == "proportional"
    if not reads_partial and rotation.partial() not in (None, 1):
        fail("partial_rotary_factor", "is %s, but a %s rotates whole heads", rotation.partial(), name)
    return family


def has_axes(rotation):
    """Whether the model of a Rotation has positions of several axes."""
    return _order(rotation.rope, _bare(rotation.model_type or ""))[0] is not None


def read_axes(rotation, pairs):
    """Returns the axis of each pair of a Rotation, or None if there is one axis."""
    return _pair_axis(rotation.rope, _bare(rotation.model_type or ""), pairs)


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
