"""Replacements for Megatron-Core's fused_mrope, which is M-RoPE with three tables."""

from .. import pair_axis
from .. import transformer_engine as _te
from .._dropin import arguments, check_table, flag, floats, indices, integers, shown
from .._errors import Error
from ._norms import rotate_normed
from ._options import _CP, _T, _check_columns, _sequences


def _not_in_mrope(value, name):
    """Checks rotary_interleaved."""
    flag(value, name)
    if value:
        raise Error("%s must be False for M-RoPE, as in Megatron-Core" % name, name)


def _sections(value, name):
    """Checks mrope_section."""
    integers(value, name)
    if len(value) != 3:
        raise Error("%s must be 3 integers, of time, height and width, not %s" % (name, shown(value)), name)


_MROPE = {
    "t": floats, "freqs": floats, "mrope_section": _sections, "interleaved_mrope": flag, "rotary_interleaved": _not_in_mrope,
    "fp32_compute": flag,
}  # fmt: skip


def _rotate_mrope(t, freqs, shape, mrope_section, interleaved_mrope, fp32_compute, options):
    if freqs.dim() != 4 or tuple(freqs.shape[:3]) != shape:
        raise Error(
            "freqs has shape %s, which is not %s with the pairs as last dimension" % (list(freqs.shape), list(shape)),
            "freqs",
        )
    _check_columns(t, 2 * freqs.shape[3], "freqs")
    check_table(freqs, t, "freqs", "t")
    if sum(mrope_section) != freqs.shape[3]:
        given = list(mrope_section), freqs.shape[3]
        raise Error("mrope_section is %s, but freqs has %d pairs" % given, "mrope_section")
    axes = pair_axis("interleaved" if interleaved_mrope else "sections", mrope_section)
    options.update(pairing="half", angle_columns="pair", rounding="native_f32" if fp32_compute else "native")
    options.update(freqs=freqs[: max(axes) + 1], pair_axis=axes, rotary_dim=2 * freqs.shape[3])
    return rotate_normed(t, **options)


@arguments({**_T, "sections": "mrope_section"}, **_MROPE)
def fused_apply_mrope(t, freqs, mrope_section, interleaved_mrope=False, rotary_interleaved=False, fp32_compute=False):
    """Rotates t [s, b, h, d] by freqs [3, b, s, pairs] of time, height and width.

    Arguments:
        mrope_section: the number of pairs of time, height and width. They add up to all pairs.
        interleaved_mrope: True: the axes alternate (Qwen3-VL). False: one axis follows another (Qwen2-VL).
        rotary_interleaved: must be False.
        fp32_compute: True computes in fp32 and rounds the result. False rounds each operation to the dtype of t.
    """
    _te._check_dims(t, "sbhd", "t")
    words = mrope_section, interleaved_mrope, fp32_compute
    return _rotate_mrope(t, freqs, (3, t.shape[1], t.shape[0]), *words, dict(layout="sbhd"))


@arguments({**_T, "sections": "mrope_section"}, **_MROPE, cu_seqlens=indices, **_CP)
def fused_apply_mrope_thd(
    t, cu_seqlens, freqs, mrope_section, interleaved_mrope=False, rotary_interleaved=False, cp_size=1, cp_rank=0,
    fp32_compute=False,
):  # fmt: skip
    """fused_apply_mrope for t [t, h, d], with freqs [3, 1, tokens of all cp ranks, pairs]."""
    _te._check_dims(t, "thd", "t")
    words = mrope_section, interleaved_mrope, fp32_compute
    options = dict(_sequences(cu_seqlens, cp_size, cp_rank), stream_positions=True)
    return _rotate_mrope(t, freqs, (3, 1, t.shape[0] * cp_size), *words, options)
