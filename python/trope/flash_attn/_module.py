"""RotaryEmbedding of flash-attention: frequencies, and tables that grow as needed."""

import torch

from .._abi import MAX_ROTARY_DIM
from .._dropin import arguments, check_writable, flag, floats, integer, optional, positive, shown
from .._errors import Error
from ..torch import _compiles
from ..torch._modules import keep_precision
from . import _QKV, apply_rotary_emb_qkv_
from ._rotary import KV, Parts, check_rank, check_seqlen_offsets, make_call, make_kv_call, rotate_in_place


def _even(value, name):
    """Checks dim."""
    integer(2, MAX_ROTARY_DIM)(value, name)
    if value % 2:
        raise Error("%s must be even, not %d" % (name, value), name)


def _device(value, name):
    if isinstance(value, bool):
        message = "%s is %r: pass pos_idx_in_fp32, which older versions have here, by keyword"
        raise Error(message % (name, value), name)
    try:
        torch.empty(0, device=value)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise Error("%s %s is not available in PyTorch here: %s" % (name, shown(value), reason), name) from None


_POSITIONS_MOST = 2**24  # float32 represents all integers up to this one


class RotaryEmbedding(torch.nn.Module):
    """Frequencies base ** (-2 i / dim), and tables of them in the dtype of the rotated tensors, as in flash-attention.

    Arguments:
        dim: the number of elements of a head that rotate
        base: float
        interleaved: pairs of even and odd elements (GPT-J), instead of 1st and 2nd half (GPT-NeoX).
        scale_base: None, or a number over 0 for XPos. Pair i of q at position p is multiplied by s_i ** ((p - c) /
            scale_base), and pair i of k is divided by it. s_i is (2 i + 0.4 dim) / (1.4 dim), and c is half the number
            of positions of the tables. (Sun et al., A Length-Extrapolatable Transformer, 2022, arXiv:2212.10554, use 512.)
            Tables of another length have another c: with cached keys, pass the same max_seqlen in all calls.
        device: the device of the frequencies
        pos_idx_in_fp32: True computes the tables in fp32, even if the module is cast. False multiplies positions and
            frequencies in the dtype of the frequencies, which a cast of the model changes (older versions of
            flash-attention).
    """

    @arguments(
        dim=_even, base=positive, interleaved=flag, scale_base=optional(positive), device=_device, pos_idx_in_fp32=flag
    )  # fmt: skip
    def __init__(self, dim, base=10000.0, interleaved=False, scale_base=None, device=None, pos_idx_in_fp32=True):
        super().__init__()
        self.dim, self.base, self.interleaved = dim, float(base), interleaved
        self.scale_base, self.pos_idx_in_fp32 = scale_base, pos_idx_in_fp32
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        self.register_buffer("scale", self._compute_scale(device), persistent=False)
        self._forget_tables()

    def _compute_inv_freq(self, device=None):
        exponents = torch.arange(0, self.dim, 2, device=device, dtype=torch.float32) / self.dim
        return 1.0 / self.base**exponents

    def _compute_scale(self, device=None):
        """Returns s of XPos, or None."""
        if self.scale_base is None:
            return None
        return (torch.arange(0, self.dim, 2, device=device, dtype=torch.float32) + 0.4 * self.dim) / (1.4 * self.dim)

    def _forget_tables(self):
        self._seq_len_cached = 0
        self._cos_cached = self._sin_cached = self._cos_k_cached = self._sin_k_cached = None

    def reset_parameters(self):
        """Computes inv_freq from dim and base, and the scale of XPos. Drops the tables."""
        with torch.no_grad():
            self.inv_freq.copy_(self._compute_inv_freq(self.inv_freq.device))
            if self.scale is not None:
                self.scale.copy_(self._compute_scale(self.scale.device))
        self._forget_tables()

    def _apply(self, fn, recurse=True):
        """With pos_idx_in_fp32, casts leave inv_freq in float32. Its values are set when it leaves the meta device."""
        was_meta = self.inv_freq.is_meta
        super()._apply(keep_precision(fn) if self.pos_idx_in_fp32 else fn, recurse)
        self._forget_tables()
        if was_meta and not self.inv_freq.is_meta:
            self.reset_parameters()
        return self

    def _is_cached(self, seqlen, device, dtype):
        cos = self._cos_cached
        if cos is None or seqlen > self._seq_len_cached or cos.device != device or cos.dtype != dtype:
            return False
        return not self.training or torch.compiler.is_compiling() or not cos.is_inference()

    def _update_cos_sin_cache(self, seqlen, device=None, dtype=None):
        """Makes new tables if seqlen exceeds the present ones, or if they have another device or dtype."""
        if self._is_cached(seqlen, device, dtype):
            return
        inv_freq = self.inv_freq
        if self.pos_idx_in_fp32 and inv_freq.dtype != torch.float32:  # the model was cast
            inv_freq = self._compute_inv_freq(device)
        positions = torch.arange(seqlen, device=device, dtype=inv_freq.dtype)
        angles = positions[:, None] * inv_freq.to(device)
        cos, sin = angles.cos(), angles.sin()
        self._seq_len_cached = seqlen
        if self.scale is None:
            self._cos_cached, self._sin_cached = cos.to(dtype), sin.to(dtype)
            return
        scale = self._find_scale(seqlen, device, dtype)
        self._cos_cached, self._sin_cached = (cos * scale).to(dtype), (sin * scale).to(dtype)
        self._cos_k_cached, self._sin_k_cached = (cos / scale).to(dtype), (sin / scale).to(dtype)

    def _find_scale(self, seqlen, device, dtype):
        """Returns XPos' factors (seqlen, dim / 2) at each position. q is multiplied by them, and k is divided by them."""
        largest = (3.5 ** (((seqlen + 1) // 2) / self.scale_base)) if seqlen < 512 * self.scale_base else float("inf")
        if largest > torch.finfo(dtype).max:
            message = (
                "scale_base is %s: with %d positions, XPos scales by up to 3.5 ** (%d / scale_base), which is too large "
                "for %s"
            )
            raise Error(message % (self.scale_base, seqlen, (seqlen + 1) // 2, dtype), "scale_base")
        scale = self.scale
        if self.pos_idx_in_fp32 and scale.dtype != torch.float32:
            scale = self._compute_scale(device)
        power = (torch.arange(seqlen, device=device, dtype=scale.dtype) - seqlen // 2) / self.scale_base
        return scale.to(device) ** power[:, None]

    @arguments(
        {**_QKV, "seqlen_offsets": "seqlen_offset", "start_positions": "seqlen_offset", "cos": "the table"}, qkv=floats,
        kv=optional(floats), seqlen_offset=check_seqlen_offsets, max_seqlen=optional(integer(0, _POSITIONS_MOST)),
        num_heads_q=optional(integer(1)),
    )  # fmt: skip
    def forward(self, qkv, kv=None, seqlen_offset=0, max_seqlen=None, num_heads_q=None):
        """Rotates qkv, or q and kv, in place.

        Arguments:
            qkv: (batch, seqlen, 3, nheads, headdim), or (batch, seqlen, num_heads_q + 2 * num_heads_k, headdim) with
                num_heads_q, if kv is None. Otherwise it is q: (batch, seqlen, nheads, headdim).
            kv: (batch, seqlen, 2, nheads, headdim)
            seqlen_offset: (batch,) or int. Each sequence is shifted by this amount.
            max_seqlen: int, one more than the largest position. The tables are made for it. If seqlen_offset is a tensor,
                it is required here or in an earlier call.
            num_heads_q: int, if qkv has one dimension for all heads
        Return:
            qkv, or (q, kv), rotated in place (see the module for leaves)
        """
        self._make_tables(qkv, self._count_tokens(qkv, kv, num_heads_q), seqlen_offset, max_seqlen)
        cos, sin, cos_k, sin_k = self._cos_cached, self._sin_cached, self._cos_k_cached, self._sin_k_cached
        if kv is None:
            return apply_rotary_emb_qkv_(
                qkv, cos, sin, cos_k, sin_k, self.interleaved, seqlen_offset, num_heads_q=num_heads_q
            )  # fmt: skip
        tables_of_k = (cos, sin) if cos_k is None else (cos_k, sin_k)
        return self._rotate_q_and_kv(qkv, kv, cos, sin, *tables_of_k, seqlen_offset)

    def _rotate_q_and_kv(self, q, kv, cos, sin, cos_k, sin_k, offset):
        """Rotates both in place, after all checks. The longer one is first: if it has a position beyond the tables, nothing
        has been written yet."""
        calls = [
            (
                "qkv",
                Parts(),
                make_call(q, "qkv", q.shape, cos, sin, None, None, self.interleaved, False, offset, None, None),
                q,
            ),
            ("kv", KV, make_kv_call(kv, cos_k, sin_k, self.interleaved, offset), kv),
        ]
        if _compiles():
            return tuple([rotate_in_place(*call) for call in calls])
        for name, _, _, x in calls:
            check_writable(x, name)
        order = (1, 0) if kv.shape[1] > q.shape[1] else (0, 1)
        rotated = {i: rotate_in_place(*calls[i]) for i in order}
        return rotated[0], rotated[1]

    def _count_tokens(self, qkv, kv, num_heads_q):
        """Returns the longer seqlen of qkv and kv."""
        shapes = {4: "(batch, seqlen, nheads, headdim)"}
        if kv is None:
            shapes = {4: "(batch, seqlen, heads, headdim) with num_heads_q", 5: "(batch, seqlen, 3, nheads, headdim)"}
        if qkv.dim() not in shapes or (kv is None and num_heads_q is None and qkv.dim() == 4):
            raise Error("qkv must be %s, not %s" % (" or ".join(shapes.values()), list(qkv.shape)), "qkv")
        if kv is not None:
            check_rank(kv, 5, "kv", "(batch, seqlen, 2, nheads, headdim)")
            if kv.device != qkv.device:
                raise Error("kv is on %s, but qkv is on %s" % (kv.device, qkv.device), "kv")
            if (kv.dtype == torch.float64) != (qkv.dtype == torch.float64):
                raise Error("kv has dtype %s, but qkv has %s: cast one of them" % (kv.dtype, qkv.dtype), "kv")
            if num_heads_q is not None and qkv.shape[2] != num_heads_q:
                raise Error("num_heads_q is %d, and qkv has %d heads" % (num_heads_q, qkv.shape[2]), "num_heads_q")
        for x, name in ((qkv, "qkv"), (kv, "kv")):
            if x is not None and x.shape[-1] < self.dim:
                raise Error("%s has headdim %d, but the module rotates %d elements" % (name, x.shape[-1], self.dim), name)
        return qkv.shape[1] if kv is None else max(qkv.shape[1], kv.shape[1])

    def _make_tables(self, qkv, seqlen, seqlen_offset, max_seqlen):
        """Makes tables for positions below max_seqlen, or for as many positions as the call needs."""
        if isinstance(seqlen_offset, torch.Tensor):
            end, rows = seqlen, self._seq_len_cached if max_seqlen is None else max_seqlen
            if max_seqlen is None and rows < max(end, 1):
                message = "max_seqlen is missing: seqlen_offset is a tensor, and the tables have only %d positions so far"
                raise Error(message % rows, "max_seqlen")
        else:
            end = seqlen + (seqlen_offset or 0)
            rows = end if max_seqlen is None else max_seqlen
            if end > _POSITIONS_MOST:
                message = "seqlen_offset is %d: with %d tokens, positions exceed %d, beyond which float32 is not exact"
                raise Error(message % (seqlen_offset or 0, seqlen, _POSITIONS_MOST), "seqlen_offset")
        if rows < end:
            message = "max_seqlen is %d, but the tokens of the call have positions up to %d"
            raise Error(message % (rows, end - 1), "max_seqlen")
        self._update_cos_sin_cache(rows, device=qkv.device, dtype=qkv.dtype)
