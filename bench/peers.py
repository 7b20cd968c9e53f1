"""The cases and the competitors of bench/compare.py: tensor shapes of models, their results in float64, and the ways to
compute them with this library, with PyTorch, and with each other library that can be imported.
"""

import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import types
from dataclasses import dataclass
from typing import Callable, Optional, Tuple

import norm_calls
import torch

import trope
import trope.torch

NOPE, ROPE, VALUE = 128, 64, 128  # elements of a head of DeepSeek V3
SECTIONS = (16, 24, 24)  # pairs of Qwen2-VL's axes
SEED, EPS = 1, 1e-6

# ---- Shapes ----


@dataclass(frozen=True)
class Case:
    """Tensors of a model as its projections produce them, on one GPU.

    kind: "rope": q and k, bshd, positions from tokens; "mrope": the same, with ids on three axes; "thd": q and k, packed
        sequences of `lengths`; "mla-q": q; only the end of each head rotates; "mla-kv": kv and k_pe become key and value;
        "norm": like "rope", with an RMS norm of each head before the rotation, as in Qwen3; "norm-token": the same, with
        one norm over all heads of a token, a weight for each head, and fp32 tables, as in OLMo 2. With a norm,
        backward takes the gradients, then q and k, and also returns the gradients of the two weights.
    heads: of q and k, or all heads of latent attention.
    plus_one: the norm multiplies by 1 + weight, as Gemma 3's does.
    """

    name: str
    kind: str
    tokens: int
    heads: Tuple[int, ...]
    base: float
    dim: int = 128
    batch: int = 1
    lengths: str = ""
    plus_one: bool = False

    @property
    def is_normed(self):
        return self.kind.startswith("norm")

    def tiny(self, tokens=None):
        """Returns the case with so few tokens that a CPU finishes at once. 64 packed sequences keep two tokens each."""
        tokens = tokens or (128 if self.kind == "thd" else 32)
        return dataclasses.replace(self, tokens=tokens)


CASES = (
    Case("llama-3-8b", "rope", 8192, (32, 8), 500000.0),
    Case("llama-3-8b-tp8", "rope", 16384, (4, 1), 500000.0),
    Case("llama-3-70b", "rope", 4096, (64, 8), 500000.0),
    Case("llama-3-70b-tp8", "rope", 8192, (8, 1), 500000.0),
    Case("llama-3-8b-512", "rope", 512, (32, 8), 500000.0),
    Case("qwen3-32b", "rope", 4096, (64, 8), 1000000.0, batch=4),
    Case("qwen2-vl-7b", "mrope", 8192, (28, 4), 1000000.0),
    Case("deepseek-v3-q", "mla-q", 1024, (128,), 10000.0, ROPE),
    Case("deepseek-v3-kv", "mla-kv", 1024, (128,), 10000.0, ROPE),
    Case("thd-64-sequences", "thd", 65536, (4, 1), 500000.0, lengths="64"),
    Case("thd-pareto", "thd", 65536, (4, 1), 500000.0, lengths="pareto"),
    Case("thd-4-tokens", "thd", 65536, (4, 1), 500000.0, lengths="4"),
    Case("thd-70b-tp8", "thd", 8192, (8, 1), 500000.0, lengths="64"),
    Case("thd-1-gb-64-sequences", "thd", 65536, (24, 8), 500000.0, lengths="64"),
    Case("thd-1-gb-pareto", "thd", 65536, (24, 8), 500000.0, lengths="pareto"),
    Case("thd-1-gb-4-tokens", "thd", 65536, (24, 8), 500000.0, lengths="4"),
    Case("norm-qwen3-8b", "norm", 8192, (32, 8), 1000000.0),
    Case("norm-qwen3-8b-2k", "norm", 2048, (32, 8), 1000000.0),
    Case("norm-qwen3-32b", "norm", 4096, (64, 8), 1000000.0),
    Case("norm-qwen3-32b-tp8", "norm", 8192, (8, 1), 1000000.0),
    Case("norm-gemma-3-4b", "norm", 8192, (8, 4), 10000.0, dim=256, plus_one=True),
    Case("norm-gemma-3-27b", "norm", 8192, (32, 16), 10000.0, plus_one=True),
    Case("norm-olmo-2-7b", "norm-token", 8192, (32, 32), 500000.0),
)


def lengths_of(rule, tokens):
    """Returns the lengths of packed sequences: 64 equal lengths, 4 tokens each, or Pareto lengths of 64 to 16384 tokens, as
    in `trope bench`."""
    if rule == "64":
        return [tokens // 64] * 64
    if rule == "4":
        return [4] * (tokens // 4)
    random = torch.rand(tokens, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)
    lengths, left = [], tokens
    for u in random.tolist():
        lengths.append(min(left, 16384, int(64 * (1 - u) ** (-1 / 1.16))))
        left -= lengths[-1]
        if not left:
            return lengths


class Problem:
    """A case on a device: shapes, positions and tables. Tables are made only when a way asks for them."""

    def __init__(self, case, device, dtype=torch.bfloat16):
        self.case, self.kind, self.device, self.dtype = case, case.kind, torch.device(device), dtype
        self.batch, self.tokens = case.batch, case.tokens // case.batch
        self.sections = list(SECTIONS)
        self.shapes_in, self.shapes_out = self._shapes()
        self.positions = self._positions()
        self.longest = 1 + int(self.positions.max())

    def _shapes(self):
        case, tokens = self.case, self.case.tokens
        if self.kind == "mla-q":
            shape = (tokens, case.heads[0], NOPE + ROPE)
            return [shape], [shape]
        if self.kind == "mla-kv":
            heads = case.heads[0]
            into = [(tokens, heads, NOPE + ROPE), (tokens, heads, VALUE)]
            return [(tokens, heads, NOPE + VALUE), (tokens, 1, ROPE)], into
        first = (tokens,) if self.kind == "thd" else (self.batch, self.tokens)
        shapes = [first + (heads, case.dim) for heads in case.heads]
        return shapes, shapes

    def _positions(self):
        """Returns [tokens] for thd and latent attention, otherwise [batch, tokens], or [3, batch, tokens] for M-RoPE."""
        index = torch.arange(self.tokens, device=self.device)
        if self.kind == "mrope":
            return self._picture(index).expand(3, self.batch, self.tokens).contiguous()
        if self.kind == "rope" or self.case.is_normed:
            return index.expand(self.batch, self.tokens).contiguous()
        if self.kind == "thd":
            lengths = torch.tensor(lengths_of(self.case.lengths, self.case.tokens))
            ends = lengths.cumsum(0)
            self.cu_seqlens = torch.cat((torch.zeros(1, dtype=torch.int64), ends)).to(torch.int32).to(self.device)
            self.max_seqlen = int(lengths.max())
            return index - (ends - lengths).repeat_interleave(lengths).to(self.device)
        return index

    def _picture(self, index):
        """Returns ids (t, h, w): a quarter of the tokens are text, the others are an image with 64 patches per line."""
        text = self.tokens // 4
        inside = index - text
        ids = [torch.full_like(index, text), text + inside // 64, text + inside % 64]
        return torch.stack([torch.where(index < text, index, axis) for axis in ids]).unsqueeze(1)

    def bytes(self, direction="forward"):
        """Bytes read and written: each input element and each output element counts once."""
        size = torch.empty((), dtype=self.dtype).element_size()
        into = self.shapes_out if direction == "forward" else self.shapes_in
        return size * sum(torch.Size(shape).numel() for shape in self.shapes(direction) + into)

    def shapes(self, direction):
        """Shapes of the inputs. The inputs of backward are the gradients and, with a norm, q and k after them."""
        if direction == "forward":
            return self.shapes_in
        return self.shapes_out + (self.shapes_in if self.case.is_normed else [])

    @functools.cached_property
    def weights(self):
        """Weights of the norms of q and k: [dim], or [heads, dim] for a norm over tokens. The factors are 1/2 to 3/2."""
        if not self.case.is_normed:
            return []
        generator = torch.Generator(self.device).manual_seed(SEED)
        least = -0.5 if self.case.plus_one else 0.5
        shapes = [(self.case.dim,) if self.kind == "norm" else (heads, self.case.dim) for heads in self.case.heads]
        return [(torch.rand(shape, generator=generator, device=self.device) + least).to(self.dtype) for shape in shapes]

    @functools.cached_property
    def norms(self):
        """The same weights for norm_calls."""
        scope = "token" if self.kind == "norm-token" else "head"
        return norm_calls.Norms(self.weights, EPS, self.case.plus_one, scope)

    # Angles in float64

    @functools.cached_property
    def inv_freq(self):
        pairs = torch.arange(0, self.case.dim, 2, dtype=torch.float64, device=self.device)
        return self.case.base ** (-pairs / self.case.dim)

    @functools.cached_property
    def host_inv_freq(self):
        """inv_freq as a list of numbers. Reading the tensor waits for the GPU, which is not allowed in a graph capture."""
        return self.inv_freq.tolist()

    @functools.cached_property
    def axis_angles(self):
        """[3, batch, tokens, pairs]: M-RoPE's angles before an axis is chosen for each pair."""
        return self.positions[..., None] * self.inv_freq

    @functools.cached_property
    def angles(self):
        """[batch, tokens, pairs], or [tokens, pairs]: the angles of each token."""
        if self.kind != "mrope":
            return self.axis_angles
        parts = self.axis_angles.split(self.sections, -1)
        return torch.cat([part[axis] for axis, part in enumerate(parts)], -1)

    @functools.cached_property
    def row_angles(self):
        """[positions, pairs]: the angles of each position."""
        return torch.arange(self.longest, device=self.device)[:, None] * self.inv_freq

    # Tables: half tables ("half_...") have one column per pair, the others one per element. Tables with "row" in their
    # names have one row per position, the others one per token.

    def _full(self, angles, function):
        dtype = torch.float32 if self.kind == "norm-token" else self.dtype
        return function(torch.cat((angles, angles), -1)).to(dtype)

    cos = functools.cached_property(lambda self: self._full(self.angles, torch.cos))
    sin = functools.cached_property(lambda self: self._full(self.angles, torch.sin))
    axis_cos = functools.cached_property(lambda self: self._full(self.axis_angles, torch.cos))
    axis_sin = functools.cached_property(lambda self: self._full(self.axis_angles, torch.sin))
    row_cos = functools.cached_property(lambda self: self._full(self.row_angles, torch.cos))
    row_sin = functools.cached_property(lambda self: self._full(self.row_angles, torch.sin))
    half_row_cos = functools.cached_property(lambda self: self.row_angles.cos().to(self.dtype))
    half_row_sin = functools.cached_property(lambda self: self.row_angles.sin().to(self.dtype))
    half_cos = functools.cached_property(lambda self: self.angles.cos().to(self.dtype).flatten(0, -2))
    half_sin = functools.cached_property(lambda self: self.angles.sin().to(self.dtype).flatten(0, -2))

    @functools.cached_property
    def row_freqs(self):
        """f32 radians [positions, 1, 1, dim], as in Megatron-Core."""
        return torch.cat((self.row_angles, self.row_angles), -1).float()[:, None, None]

    @functools.cached_property
    def freqs(self):
        """The same for each token of the stream, or of all batch entries one after the other."""
        return torch.cat((self.angles, self.angles), -1).float().flatten(0, -2)[:, None, None]

    @functools.cached_property
    def flat_positions(self):
        return self.positions.flatten().to(torch.int32)

    @functools.cached_property
    def frequencies(self):
        return trope.frequencies(rope_type="default", rope_theta=self.case.base, head_dim=self.case.dim)

    @functools.cached_property
    def options(self):
        """Keyword arguments of trope.torch.rotate."""
        options = {"layout": "thd", "pairing": "half", "inv_freq": self.frequencies}
        if self.kind in ("rope", "mrope") or self.case.is_normed:
            options["layout"] = "bshd"
        if self.kind == "mrope":
            options.update(position_ids=self.positions, pair_axis=trope.pair_axis("sections", self.sections))
        if self.kind == "thd":
            options["cu_seqlens"] = self.cu_seqlens
        if self.kind == "mla-q":
            options.update(pairing="interleaved", pairing_out="half", rotary_dim=ROPE, rotary_offset=NOPE)
        if self.kind == "mla-kv":
            options.update(pairing="interleaved", pairing_out="half")
        return options


def describe(problem, direction):
    """Returns the problem as values of JSON, for a process without torch."""
    def plain(x):
        return x if isinstance(x, str) else x.tolist() if isinstance(x, torch.Tensor) else list(x)

    options = {name: plain(x) for name, x in dict(problem.options, inv_freq=problem.host_inv_freq).items()}
    shapes, positions = problem.shapes(direction), problem.positions.tolist()
    return {"direction": direction, "shapes": shapes, "positions": positions, "options": options}


def make_flats(problem, direction, seed):
    """Makes memory for the inputs, with values between 1/8 and 2 of both signs."""
    generator = torch.Generator(problem.device).manual_seed(seed)
    flats = []
    for shape in problem.shapes(direction):
        x = torch.rand(torch.Size(shape).numel(), generator=generator, device=problem.device)
        x = 3.75 * x - 1.875
        flats.append((x + x.sign() / 8).to(problem.dtype))
    return flats


def views_of(flats, shapes, memory):
    """Returns tensors of these shapes. Dimensions are in memory in this order or, with "bhsd", heads before tokens."""
    if memory == "bhsd":
        return [flat.view(b, h, s, d).transpose(1, 2) for flat, (b, s, h, d) in zip(flats, shapes)]
    return [flat.view(shape) for flat, shape in zip(flats, shapes)]


# ---- Expected results ----


def _turn(x, problem, transposed):
    """Rotates in float64. Latent attention has pairs 2i, 2i + 1 before the rotation and i, i + 32 after it."""
    cos, sin = problem.angles.cos().unsqueeze(-2), problem.angles.sin().unsqueeze(-2)
    mla = problem.kind.startswith("mla")
    first, second = (x[..., 0::2], x[..., 1::2]) if mla and not transposed else x.chunk(2, -1)
    if transposed:
        sin = -sin
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.stack(turned, -1).flatten(-2) if mla and transposed else torch.cat(turned, -1)


def _mean(x, problem):
    """Returns the mean over the elements that are normalised together."""
    return x.mean((-2, -1) if problem.kind == "norm-token" else -1, keepdim=True)


def _rstd(x, problem):
    return 1 / (_mean(x.square(), problem) + EPS).sqrt()


def _factors(problem):
    """Returns the factors of the norms."""
    return [weight.double() + problem.case.plus_one for weight in problem.weights]


def _norm_forward(problem, *x):
    return [_turn(t * _rstd(t, problem) * factor, problem, False) for t, factor in zip(x, _factors(problem))]


def _norm_backward(problem, d_q, d_k, q, k):
    """Applies the formulas of trope.h."""
    results, d_weights = [], []
    for dy, x, factor in zip((d_q, d_k), (q, k), _factors(problem)):
        u, rstd = _turn(dy, problem, True), _rstd(x, problem)
        g = u * factor
        results.append(rstd * (g - x * _mean(g * x, problem) * rstd.square()))
        d_weights.append((u * x * rstd).sum((0, 1, 2)[: 4 - factor.dim()]))
    return results + d_weights


def reference(problem, direction, tensors):
    """Returns the results in float64."""
    tensors, transposed = [t.double() for t in tensors], direction == "backward"
    if problem.case.is_normed:
        return _norm_backward(problem, *tensors) if transposed else _norm_forward(problem, *tensors)
    if problem.kind == "mla-q":
        q = tensors[0]
        return [torch.cat((q[..., :NOPE], _turn(q[..., NOPE:], problem, transposed)), -1)]
    if problem.kind != "mla-kv":
        return [_turn(t, problem, transposed) for t in tensors]
    if transposed:
        key, value = tensors
        k_pe = _turn(key[..., NOPE:].sum(1, keepdim=True), problem, True)
        return [torch.cat((key[..., :NOPE], value), -1), k_pe]
    kv, k_pe = tensors
    k_pe = _turn(k_pe, problem, False).expand(-1, kv.shape[1], -1)
    return [torch.cat((kv[..., :NOPE], k_pe), -1), kv[..., NOPE:]]


# ---- Ways ----


@dataclass(frozen=True)
class Way:
    """A way to rotate.

    kinds: the kinds of problems that it supports.
    apply: apply(problem, *tensors) returns the results as a tuple. The weights of norms come after the tensors.
    backward: backward(problem, *gradients) returns the gradients of the inputs. None: autograd of apply. With a norm, q and
        k come after the gradients, and the results are the gradients of q, k and their weights.
    autograd: autograd can differentiate apply.
    memory: the memory order of the results, and therefore of their gradients.
    traced: the forward call runs with autograd on, so that one compilation serves both directions.
    apart: bench/jax_calls.py measures it, in a process of its own.
    """

    library: str
    name: str
    kinds: Tuple[str, ...]
    apply: Optional[Callable]
    backward: Optional[Callable] = None
    autograd: bool = True
    memory: str = "bshd"
    traced: bool = False
    cuda_only: bool = True
    directions: Tuple[str, ...] = ("forward", "backward")
    apart: bool = False


# This library


def _tuple(results):
    return results if isinstance(results, tuple) else (results,)


def _trope(p, *tensors):
    return _tuple(trope.torch.rotate(*tensors, **p.options))


def _trope_backward(p, *gradients):
    return _tuple(trope.torch.rotate_backward(*gradients, **p.options))


def _trope_in_place(p, *tensors):
    return _tuple(trope.torch.rotate_(*tensors, **p.options))


def _trope_in_place_backward(p, *gradients):
    return _tuple(trope.torch.rotate_backward_(*gradients, **p.options))


def _table_options(p):
    layout = "thd" if p.kind == "thd" else "bshd"
    return {"layout": layout, "pairing": "half", "cos": p.cos, "sin": p.sin, "angle_columns": "half"}


def _trope_tables(p, *tensors):
    return trope.torch.rotate(*tensors, **_table_options(p))


def _trope_tables_backward(p, *gradients):
    return trope.torch.rotate_backward(*gradients, **_table_options(p))


def _heads_first(tensors):
    """Returns new tensors of the same shapes (bshd). Their memory order is bhsd."""
    return [torch.empty_like(t.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2) for t in tensors]


def _trope_to_bhsd(p, *tensors):
    return trope.torch.rotate(*tensors, out=_heads_first(tensors), **p.options)


def _trope_from_bhsd(p, *gradients):
    into = [torch.empty_like(g, memory_format=torch.contiguous_format) for g in gradients]
    return trope.torch.rotate_backward(*gradients, out=into, **p.options)


def _kv_options(p, heads):
    return dict(p.options, rotary_dim=(-1, ROPE, -1), shared_heads=(0, heads, 0))


def _trope_kv(p, kv, k_pe):
    tokens, heads, _ = kv.shape
    key, value = kv.new_empty(tokens, heads, NOPE + ROPE), kv.new_empty(tokens, heads, VALUE)
    into = (key[..., :NOPE], key[..., NOPE:], value)
    trope.torch.rotate(kv[..., :NOPE], k_pe, kv[..., NOPE:], out=into, **_kv_options(p, heads))
    return key, value


def _trope_kv_backward(p, d_key, d_value):
    tokens, heads, _ = d_key.shape
    d_kv, d_k_pe = d_key.new_empty(tokens, heads, NOPE + VALUE), d_key.new_empty(tokens, 1, ROPE)
    into = (d_kv[..., :NOPE], d_k_pe, d_kv[..., NOPE:])
    gradients = (d_key[..., :NOPE], d_key[..., NOPE:], d_value)
    trope.torch.rotate_backward(*gradients, out=into, **_kv_options(p, heads))
    return d_kv, d_k_pe


def _trope_kv_autograd(p, kv, k_pe):
    """The variant that supports autograd: one call rotates k_pe for all heads, and torch does the rest."""
    k_pe = trope.torch.rotate(k_pe, shared_heads=kv.shape[1], **p.options)
    return torch.cat((kv[..., :NOPE], k_pe), -1), kv[..., NOPE:].contiguous()


def _trope_norm(p, q, k, *weights):
    return tuple(norm_calls.forward((q, k), p.norms._replace(weights=weights), p.host_inv_freq))


def _trope_norm_backward(p, d_q, d_k, q, k):
    return tuple(norm_calls.backward((d_q, d_k), (q, k), p.norms, p.host_inv_freq))


def _trope_ways():
    plain, tables = ("rope", "mrope", "thd"), ("rope", "mrope", "thd")

    def way(name, kinds, apply, backward, **more):
        return Way("trope", name, kinds, apply, backward, cuda_only=False, **more)

    return [
        way("trope", plain + ("mla-q",), _trope, _trope_backward),
        way("trope", ("mla-kv",), _trope_kv, _trope_kv_backward, autograd=False),
        way("trope", ("norm", "norm-token"), _trope_norm, _trope_norm_backward, autograd=False),
        way("trope, k_pe alone, cat by torch", ("mla-kv",), _trope_kv_autograd, None),
        way("trope, in place", plain + ("mla-q",), _trope_in_place, _trope_in_place_backward, autograd=False),
        way("trope, tables a token", tables, _trope_tables, _trope_tables_backward),
        way("trope, to bhsd", ("rope", "mrope"), _trope_to_bhsd, _trope_from_bhsd, autograd=False, memory="bhsd"),
    ]


# PyTorch, as in Hugging Face transformers and Megatron-Core


def _rotate_half(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def _rotate_qk(q, k, cos, sin):
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return q * cos + _rotate_half(q) * sin, k * cos + _rotate_half(k) * sin


def _rotate_qk_to_bhsd(q, k, cos, sin):
    q, k, cos, sin = q.transpose(1, 2), k.transpose(1, 2), cos.unsqueeze(1), sin.unsqueeze(1)
    q, k = q * cos + _rotate_half(q) * sin, k * cos + _rotate_half(k) * sin
    return q.contiguous(), k.contiguous()


def _normalised(x):
    """Normalises in fp32."""
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


def _qwen3_norm(x, weight):
    return weight * _normalised(x).to(x.dtype)


def _gemma3_norm(x, weight):
    return (_normalised(x) * (1.0 + weight.float())).type_as(x)


def _olmo2_norm(x, weight):
    """Normalises over all heads of a token."""
    return (weight * _normalised(x.flatten(-2)).unflatten(-1, weight.shape)).to(x.dtype)


def _norm_of(p):
    return _olmo2_norm if p.kind == "norm-token" else _gemma3_norm if p.case.plus_one else _qwen3_norm


def _norm_qk(norm, q, k, q_weight, k_weight, cos, sin):
    """Includes the transposes of Qwen3Attention, which passes views to the attention."""
    q, k = norm(q, q_weight).transpose(1, 2), norm(k, k_weight).transpose(1, 2)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    results = q * cos + _rotate_half(q) * sin, k * cos + _rotate_half(k) * sin
    return tuple(y.to(q.dtype).transpose(1, 2) for y in results)  # fp32 tables make the products fp32


def _norm_qk_to_bhsd(*arguments):
    return tuple(y.transpose(1, 2).contiguous() for y in _norm_qk(*arguments))


def _select_axes(table, sections):
    return torch.cat([part[i % 3] for i, part in enumerate(table.split(sections * 2, -1))], -1)


def _rotate_qk_by_axes(q, k, cos, sin, sections):
    return _rotate_qk(q, k, _select_axes(cos, sections), _select_axes(sin, sections))


def _rotate_pe(x, cos, sin):
    x = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    return x * cos.unsqueeze(-2) + _rotate_half(x) * sin.unsqueeze(-2)


def _rotate_mla_q(q, cos, sin):
    return (torch.cat((q[..., :NOPE], _rotate_pe(q[..., NOPE:], cos, sin)), -1),)


def _rotate_mla_kv(kv, k_pe, cos, sin):
    k_pe = _rotate_pe(k_pe, cos, sin).expand(-1, kv.shape[1], -1)
    return torch.cat((kv[..., :NOPE], k_pe), -1), kv[..., NOPE:].contiguous()


_TORCH = {"rope": _rotate_qk, "mrope": _rotate_qk, "thd": _rotate_qk, "mla-q": _rotate_mla_q, "mla-kv": _rotate_mla_kv,
          "norm": _norm_qk, "norm-token": _norm_qk}  # fmt: skip


@functools.lru_cache(maxsize=None)
def _compiled(function):
    return torch.compile(function, dynamic=False, fullgraph=True)


def _prepare_compiler():
    """Prepares for one compilation per shape, and for compiled backwards that run repeatedly."""
    import torch._dynamo
    import torch._functorch.config

    for name in ("recompile_limit", "cache_size_limit"):
        if hasattr(torch._dynamo.config, name):
            setattr(torch._dynamo.config, name, 64)
    if hasattr(torch._functorch.config, "donated_buffer"):
        torch._functorch.config.donated_buffer = False


def _arguments(p, tensors):
    return *([_norm_of(p)] if p.case.is_normed else []), *tensors, p.cos, p.sin


def _eager(p, *tensors):
    if p.kind == "mrope":
        return _rotate_qk_by_axes(*tensors, p.axis_cos, p.axis_sin, p.sections)
    return _TORCH[p.kind](*_arguments(p, tensors))


def _compile(p, *tensors):
    return _compiled(_TORCH[p.kind])(*_arguments(p, tensors))


def _compile_to_bhsd(p, *tensors):
    function = _norm_qk_to_bhsd if p.case.is_normed else _rotate_qk_to_bhsd
    return tuple(t.transpose(1, 2) for t in _compiled(function)(*_arguments(p, tensors)))


def _torch_ways():
    _prepare_compiler()
    traced = {"traced": True, "cuda_only": False}
    return [
        Way("torch eager", "torch eager", tuple(_TORCH), _eager, cuda_only=False),
        Way("torch.compile", "torch.compile, tables a token", tuple(_TORCH), _compile, **traced),
        Way(
            "torch.compile",
            "torch.compile, to bhsd",
            ("rope", "mrope", "norm", "norm-token"),
            _compile_to_bhsd,
            memory="bhsd",
            **traced,
        ),
    ]


# Liger: in place on contiguous tensors, q and k in one launch


def _transposed(function):
    """Wraps function(q, k), which takes and returns bhsd tensors, so that it takes bshd, or thd as a batch of 1."""

    def call(q, k):
        packed = q.dim() == 3
        if packed:
            q, k = q.unsqueeze(0), k.unsqueeze(0)
        results = [t.transpose(1, 2) for t in function(q.transpose(1, 2), k.transpose(1, 2))]
        return tuple(t.squeeze(0) for t in results) if packed else tuple(results)

    return call


def _liger_function(rope):
    try:
        return importlib.import_module("liger_kernel.transformers.rope").liger_rotary_pos_emb
    except ImportError:
        return rope.LigerRopeFunction.apply


def _liger_ways():
    rope = importlib.import_module("liger_kernel.ops.rope")
    axes = importlib.import_module("liger_kernel.ops.qwen2vl_mrope")
    function = _liger_function(rope)

    def tables(p):
        cos, sin = (p.cos[None], p.sin[None]) if p.kind == "thd" else (p.cos, p.sin)
        return cos, sin

    def apply(p, q, k):
        return _transposed(lambda q, k: function(q, k, *tables(p)))(q, k)

    def backward(p, q, k):
        return _transposed(lambda q, k: rope.rope_backward(q, k, *tables(p)))(q, k)

    def apply_axes(p, q, k):
        function = axes.LigerQwen2VLMRopeFunction.apply
        return _transposed(lambda q, k: function(q, k, p.axis_cos, p.axis_sin, p.sections))(q, k)

    def backward_axes(p, q, k):
        function = axes.qwen2vl_mrope_backward
        return _transposed(lambda q, k: function(q, k, p.axis_cos, p.axis_sin, p.sections))(q, k)

    norm = importlib.import_module("liger_kernel.ops.rms_norm").LigerRMSNormFunction

    def normalise(p, x, weight):
        """Normalises as Liger does for Gemma 3 and Qwen3. For OLMo 2, it normalises all heads of a token together."""
        how = (1.0, "gemma") if p.case.plus_one else (0.0, "llama")
        return norm.apply(x.flatten(4 - weight.dim()), weight.flatten(), EPS, *how).view(x.shape)

    def apply_norm(p, q, k, *weights):
        return _trope(p, *(normalise(p, t, weight) for t, weight in zip((q, k), weights)))

    return [
        Way("liger", "liger, rotated by trope", ("norm", "norm-token"), apply_norm),
        Way("liger", "liger", ("rope",), apply, backward),
        Way("liger", "liger", ("mrope",), apply_axes, backward_axes),
        Way("liger", "liger, tables a token", ("thd",), apply, backward),
    ]


# flash-attention and quack: one launch per tensor


def _each(function):
    return lambda p, *tensors: tuple(function(p, t) for t in tensors)


def _rotary_calls(function, more=None):
    """Returns two functions that call function(x, cos, sin, **more): with tables by position, and with tables by token."""
    more = more or {}

    def by_rows(p, x):
        packed = {"cu_seqlens": p.cu_seqlens, "max_seqlen": p.max_seqlen} if p.kind == "thd" else {}
        return function(x, p.half_row_cos, p.half_row_sin, **packed, **more)

    def by_tokens(p, x):
        return function(x.reshape(1, -1, *x.shape[-2:]), p.half_cos, p.half_sin, **more).view(x.shape)

    return _each(by_rows), _each(by_tokens)


def _rotary_ways(library, kernel, function):
    """Returns the ways of a library. `kernel` is the kernel's own function, which can rotate back. `function` supports
    autograd. One of them may be None."""
    rows, tokens = _rotary_calls(function or kernel)
    rows_back, tokens_back = _rotary_calls(kernel, {"conjugate": True}) if kernel else (None, None)
    in_place, _ = _rotary_calls(kernel or function, {"inplace": True})
    in_place_back, _ = _rotary_calls(kernel, {"conjugate": True, "inplace": True}) if kernel else (None, None)
    more, both = {"autograd": function is not None}, ("forward", "backward")
    return [
        Way(library, library, ("rope", "thd"), rows, rows_back, **more),
        Way(library, library + ", tables a token", ("mrope", "thd"), tokens, tokens_back, **more),
        Way(library, library + ", in place", ("rope", "thd"), in_place, in_place_back, autograd=False,
            directions=both if kernel else both[:1]),
    ]  # fmt: skip


def load_file(path):
    """Loads the Python file at `path` as a module."""
    spec = importlib.util.spec_from_file_location("flash_rotary", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _flash_ways(path=None):
    if path:
        return _rotary_ways("flash-attention", load_file(path).apply_rotary, None)
    kernel = importlib.import_module("flash_attn.ops.triton.rotary").apply_rotary
    return _rotary_ways("flash-attention", kernel, importlib.import_module("flash_attn.layers.rotary").apply_rotary_emb)


def _quack_ways():
    return _rotary_ways("quack", None, importlib.import_module("quack.rotary").apply_rotary_emb)


# TransformerEngine and apex: f32 radians, one launch per tensor


def _transformer_engine_ways():
    try:
        function = importlib.import_module("transformer_engine.pytorch.attention.rope").apply_rotary_pos_emb
    except ImportError:
        function = importlib.import_module("transformer_engine.pytorch.attention").apply_rotary_pos_emb

    def by_rows(p, x):
        if p.kind == "thd":
            return function(x, p.row_freqs, tensor_format="thd", fused=True, cu_seqlens=p.cu_seqlens)
        return function(x, p.row_freqs, tensor_format="bshd", fused=True)

    def by_tokens(p, x):
        return function(x.reshape(-1, 1, *x.shape[-2:]), p.freqs, tensor_format="sbhd", fused=True).view(x.shape)

    name = "transformer_engine"
    return [
        Way(name, name, ("rope", "thd"), _each(by_rows)),
        Way(name, name + ", tables a token", ("mrope", "thd"), _each(by_tokens)),
    ]


def _apex_ways():
    module = importlib.import_module("fused_rotary_positional_embedding")

    def by_rows(function, function_thd):
        def call(p, x):
            if p.kind == "thd":
                return function_thd(x, p.cu_seqlens, p.row_freqs)
            return function(x.transpose(0, 1), p.row_freqs, False).transpose(0, 1)

        return _each(call)

    def by_tokens(function):
        return _each(lambda p, x: function(x.reshape(-1, 1, *x.shape[-2:]), p.freqs, False).view(x.shape))

    forward = by_rows(module.forward, module.forward_thd), by_tokens(module.forward)
    backward = by_rows(module.backward, module.backward_thd), by_tokens(module.backward)
    return [
        Way("apex", "apex", ("rope", "thd"), forward[0], backward[0], autograd=False),
        Way("apex", "apex, tables a token", ("mrope", "thd"), forward[1], backward[1], autograd=False),
    ]


# Megatron-Core's latent attention kernels, for [tokens, batch, heads, elements]; q and its gradient are rotated in place


def _megatron_ways():
    module = importlib.import_module("megatron.core.fusions.fused_mla_yarn_rope_apply")

    def tables(p):
        return p.row_cos[:, None, None], p.row_sin[:, None, None]

    def q_forward(p, q):
        return (module.fused_apply_mla_rope_for_q(q.unsqueeze(1), *tables(p), NOPE, ROPE).squeeze(1),)

    def kv_forward(p, kv, k_pe):
        key, value = module.fused_apply_mla_rope_for_kv(kv.unsqueeze(1), k_pe.unsqueeze(1), *tables(p), ROPE, NOPE, VALUE)
        return key.squeeze(1), value.squeeze(1)

    def backward(function, **of_function):
        """Calls the autograd function's own backward, because autograd does not allow an in-place function on a leaf."""

        def call(p, *gradients):
            context = types.SimpleNamespace(
                saved_tensors=tables(p), emb_dim=ROPE, cp_rank=0, cp_size=1, rotary_interleaved=False, **of_function
            )
            results = function.backward(context, *(g.unsqueeze(1) for g in gradients))
            return tuple(g.squeeze(1) for g in results if g is not None)

        return call

    q_backward = backward(module.ApplyMLARotaryEmbQ, qk_head_dim=NOPE, cu_seqlens_q=None)
    kv_backward = backward(module.ApplyMLARotaryEmbKV, k_dim=NOPE, v_dim=VALUE, cu_seqlens_kv=None)
    return [
        Way("megatron", "megatron, in place", ("mla-q",), q_forward, q_backward, autograd=False),
        Way("megatron", "megatron", ("mla-kv",), kv_forward, kv_backward, autograd=False),
    ]


# axolotl: norm and rotation of a tensor in one launch. axolotl/kernels/gemma4_fused_rope.py and gemma4_rope_autotune.py of
# its wheel need only liger_kernel, so PYTHONPATH may name a folder with these two files and liger_kernel.


def _axolotl_ways():
    function = importlib.import_module("axolotl.kernels.gemma4_fused_rope").fused_rms_norm_rope

    def apply(p, q, k, *weights):
        unit_offset = {"unit_offset": True} if p.case.plus_one else {}  # version 0.21 has this option
        return tuple(function(t, weight, p.cos, p.sin, EPS, **unit_offset) for t, weight in zip((q, k), weights))

    return [Way("axolotl", "axolotl", ("norm",), apply)]


# unsloth, in place; flashinfer, for inference


def _unsloth_ways():
    function = importlib.import_module("unsloth.kernels.rope_embedding").fast_rope_embedding

    def by_rows(p, q, k):
        return _transposed(lambda q, k: function(q, k, p.row_cos, p.row_sin))(q, k)

    def by_tokens(p, q, k):
        return _transposed(lambda q, k: function(q, k, p.cos, p.sin))(q, k)

    return [
        Way("unsloth", "unsloth", ("rope",), by_rows),
        Way("unsloth", "unsloth, tables a token", ("thd",), by_tokens),
    ]


def _flashinfer_ways():
    function = importlib.import_module("flashinfer").apply_rope_pos_ids

    def apply(p, q, k):
        results = function(q.flatten(0, -3), k.flatten(0, -3), p.flat_positions, rope_theta=p.case.base)
        return tuple(y.view(x.shape) for x, y in zip((q, k), results))

    return [Way("flashinfer", "flashinfer", ("rope", "thd"), apply, autograd=False, directions=("forward",))]


# JAX: bench/jax_calls.py measures these ways


def _jax_ways():
    more = {"autograd": False, "cuda_only": False, "apart": True}
    return [Way("jax", name, ("rope", "mrope", "thd"), None, **more) for name in ("jax, trope.jax", "jax, XLA's code")]


PEERS = {  # unsloth comes last because its import changes torch and transformers
    "transformer_engine": ("transformer_engine", _transformer_engine_ways),
    "apex": ("fused_rotary_positional_embedding", _apex_ways),
    "flash-attention": ("flash_attn", _flash_ways),
    "liger": ("liger_kernel", _liger_ways),
    "quack": ("quack", _quack_ways),
    "megatron": ("megatron", _megatron_ways),
    "axolotl": ("axolotl", _axolotl_ways),
    "jax": ("jax", _jax_ways),
    "flashinfer": ("flashinfer", _flashinfer_ways),
    "unsloth": ("unsloth", _unsloth_ways),
}
DISTRIBUTIONS = {"flash-attention": "flash-attn", "liger": "liger-kernel", "quack": "quack-kernels", "megatron": "megatron-core",
                 "transformer_engine": "transformer-engine", "flashinfer": "flashinfer-python"}  # fmt: skip


def first_line(error):
    lines = str(error).strip().splitlines()
    return "%s: %s" % (type(error).__name__, lines[0] if lines else "")


def _version(library):
    try:
        return importlib.metadata.version(DISTRIBUTIONS.get(library, library))
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def _find_peer(library, flash_rotary):
    """Returns the library's ways and a note on its origin."""
    module, make = PEERS[library]
    if library == "flash-attention" and flash_rotary:
        return make(flash_rotary), "one file"
    if importlib.util.find_spec(module) is None:
        return [], "not there"
    return make(), _version(library)


def find_ways(flash_rotary=None):
    """Returns all ways that are available here, and {library: its version, or why it is left out}."""
    ways, found = _trope_ways() + _torch_ways(), {"trope": trope.__version__, "torch": torch.__version__}
    for library in PEERS:
        try:
            more, found[library] = _find_peer(library, flash_rotary)
            ways += more
        except Exception as error:  # an extension for another CUDA version, a missing dependency, ...
            found[library] = first_line(error)
    return ways, found
