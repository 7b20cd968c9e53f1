"""What training frameworks call for RoPE, as they come and with trope in its place: times on one GPU.

    PYTHONPATH=python python3 bench/frameworks.py --json bench/results/frameworks-h100.json

Megatron-Core and transformers must be importable, or their cases are left out by name; their own functions are called, first
as they are, then between patch() and undo(). torchtitan's formula stands here. Each call is eager, q and k of a layer. Times are the
GPU's: calls are queued behind a kernel that sleeps, so that the host is ahead, as it is in a step whose matrix products take
longer (but for what waits for the GPU itself, which is in the time). "host" is what the host alone takes. Each is the median
of rounds in which "as it comes", "with trope" and a copy of the same bytes take turns.
"""

import argparse
import contextlib
import importlib
import json
import statistics
import sys
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Callable, List

import torch

import trope.torch

MB = 1 << 20


class Group:
    """What Megatron-Core asks of a context parallel group."""

    def __init__(self, size=1, rank=0):
        self.size, self.rank = lambda: size, lambda: rank


@dataclass
class Case:
    """call(*inputs) gives the rotated tensors; patch() is a context in which it does so by trope."""

    name: str
    framework: str
    shapes: List[tuple]
    call: Callable
    patch: Callable


def radians(positions, dim, device, interleaved=False):
    """[positions, dim] of the usual rule: each angle twice."""
    inv_freq = 10000.0 ** -(torch.arange(0, dim, 2, device=device, dtype=torch.float64) / dim)
    angles = (torch.arange(positions, device=device, dtype=torch.float64)[:, None] * inv_freq).float()
    return angles.repeat_interleave(2, -1) if interleaved else torch.cat((angles, angles), -1)


# ---- Megatron-Core ----


def megatron_cases(device):
    """Its functions are looked up in their modules at each call, where patch() puts trope's."""
    rope = importlib.import_module("megatron.core.models.common.embeddings.rope_utils")
    mla = importlib.import_module("megatron.core.fusions.fused_mla_yarn_rope_apply")
    megatron = importlib.import_module("trope.megatron")
    config = SimpleNamespace(
        apply_rope_fusion=False, rotary_interleaved=False, multi_latent_attention=False, mrope_section=None
    )
    alone = Group()
    freqs = radians(8192, 128, device)[:, None, None]
    ends = torch.arange(0, 65537, 1024, device=device, dtype=torch.int32)
    rows = 2048
    axes = torch.stack([radians(rows, 128, device).roll(7 * b, 0) for b in range(4)], 1)[:, :, None]
    pe_freqs = radians(4096, 64, device)[:, None, None]
    cos, sin = (f(pe_freqs).to(torch.bfloat16) for f in (torch.cos, torch.sin))

    def each(freqs, cu_seqlens=None, cp_group=alone, **words):
        def call(*tensors):
            return [rope.apply_rotary_pos_emb(t, freqs, config, cu_seqlens, cp_group=cp_group, **words) for t in tensors]

        return call

    def mla_q(q):
        return [mla.fused_apply_mla_rope_for_q(q, cos, sin, 128, 64)]

    def mla_kv(kv, k_pe):
        return list(mla.fused_apply_mla_rope_for_kv(kv, k_pe, cos, sin, 64, 128, 128))

    def case(name, shapes, call):
        return Case(name, "Megatron-Core", shapes, call, megatron.patch)

    interleave = dict(mla_rotary_interleaved=True)
    return [
        case("Llama 8B, sbhd", [(8192, 1, 32, 128), (8192, 1, 8, 128)], each(freqs)),
        case("mscale 1.2", [(8192, 1, 32, 128), (8192, 1, 8, 128)], each(freqs, mscale=1.2)),
        case("M-RoPE, batch 4", [(rows, 4, 28, 128), (rows, 4, 4, 128)], each(axes)),
        case("64 packed sequences", [(65536, 4, 128), (65536, 1, 128)], each(freqs, ends)),
        case("the same, rank 1 of cp 4", [(16384, 16, 128), (16384, 4, 128)], each(freqs, ends, Group(4, 1))),
        case("MLA q_pe, interleaved", [(4096, 1, 128, 64)], each(pe_freqs, **interleave)),
        case("MLA q, in place", [(4096, 1, 128, 192)], mla_q),
        case("MLA kv", [(4096, 1, 128, 256), (4096, 1, 1, 64)], mla_kv),
    ]


# ---- transformers ----


def transformers_cases(device):
    """Functions of modeling files, which patch() replaces for a model of theirs; it has no weights, and is never called."""
    transformers = importlib.import_module("transformers")
    patch = importlib.import_module("trope.transformers").patch
    half = [f(radians(4096, 128, device))[None].to(torch.bfloat16) for f in (torch.cos, torch.sin)]
    narrow = [table[..., :64] for table in half]

    def case(model_type, shapes, tables, name="apply_rotary_pos_emb"):
        with torch.device("meta"):
            config = transformers.AutoConfig.for_model(model_type, num_hidden_layers=1)
            model = transformers.AutoModel.from_config(config)
        module = sys.modules[type(model).__module__]

        def call(q, k):
            return list(getattr(module, name)(q.transpose(1, 2), k.transpose(1, 2), *tables))

        return Case(model_type, "transformers", shapes, call, lambda: patch(model))

    wide = [(2, 4096, 32, 128), (2, 4096, 8, 128)]
    return [
        case("llama", wide, half),
        case("olmo2", wide, half),
        case("phi3", wide, narrow),
        case("glm4", wide, narrow),
        case("gpt_oss", [(2, 4096, 64, 64), (2, 4096, 8, 64)], [table[..., :32] for table in half]),
        case("deepseek_v3", [(2, 4096, 128, 64), (2, 4096, 1, 64)], narrow, "apply_rotary_pos_emb_interleave"),
    ]


# ---- torchtitan ----


def torchtitan_cases(device):
    """ComplexRoPE of torchtitan/models/common/rope.py: a complex table, and rows of it by position."""
    table = torch.polar(torch.ones(8192, 64, device=device), radians(8192, 128, device)[:, :64].contiguous())
    positions = torch.arange(4096, device=device).expand(2, -1).contiguous()
    ours = [False]

    def eager(x, rows):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * rows).flatten(3).type_as(x)

    def call(q, k):
        if ours[0]:
            real = torch.view_as_real(table)
            return list(trope.torch.rotate(
                q, k, layout="bshd", pairing="interleaved", cos=real[..., 0], sin=real[..., 1], angle_columns="pair",
                position_ids=positions, rounding="native_f32"))  # fmt: skip
        rows = table[positions][:, :, None]
        return [eager(q, rows), eager(k, rows)]

    @contextlib.contextmanager
    def patch():
        ours[0] = True
        yield
        ours[0] = False

    return [Case("Llama 8B, positions", "torchtitan", [(2, 4096, 32, 128), (2, 4096, 8, 128)], call, patch)]


SOURCES = {"Megatron-Core": megatron_cases, "transformers": transformers_cases, "torchtitan": torchtitan_cases}


# ---- Measuring ----


SLEEP = 40_000_000  # cycles: 20 ms or more, in which the host queues the calls of a round


def elapsed(function, count):
    """us of a call on the GPU, and on the host, `count` of them in a row."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP)
    begin.record()
    start = time.perf_counter()
    for _ in range(count):
        function()
    host = time.perf_counter() - start
    end.record()
    end.synchronize()
    return 1000 * begin.elapsed_time(end) / count, 1e6 * host / count


def find_difference(results, others):
    """The largest difference of two lists of tensors, relative to the largest element."""
    return max(
        float((a.double() - b.double()).abs().max() / b.double().abs().max()) for a, b in zip(results, others, strict=True)
    )


def measure(case, device, rounds, count):
    """{direction: {who: [us on the GPU, us on the host]}}, who are "plain", "trope", "copy"; and how far results are apart."""
    generator = torch.Generator(device).manual_seed(1)

    def draw(shapes):
        return [torch.randn(s, device=device, generator=generator).to(torch.bfloat16) for s in shapes]

    inputs = draw(case.shapes)
    leaves = [x.clone().requires_grad_() for x in inputs]
    with torch.no_grad():
        plain = case.call(*[x.clone() for x in inputs])  # clones: some calls write into theirs
        with case.patch():
            fused = case.call(*[x.clone() for x in inputs])
    gradients = draw([y.shape for y in plain])
    row = {"case": case.name, "framework": case.framework, "difference": find_difference(fused, plain)}
    row["bytes"] = sum(2 * x.numel() for x in (*inputs, *plain))
    row["equal"] = sum(int((a == b).sum()) for a, b in zip(plain, fused)) / sum(y.numel() for y in plain)
    half = row["bytes"] // 2
    source, target = (torch.empty(half, dtype=torch.uint8, device=device) for _ in range(2))
    del plain, fused

    def forward():
        with torch.no_grad():
            case.call(*inputs)

    def both():  # views, because a leaf may not be written into
        torch.autograd.grad(case.call(*[x.view_as(x) for x in leaves]), leaves, gradients)

    times = {}
    for _ in range(rounds):
        for name, function in (("forward", forward), ("forward and backward", both)):
            times.setdefault((name, "plain"), []).append(elapsed(function, count))
            with case.patch():
                function()
                times.setdefault((name, "trope"), []).append(elapsed(function, count))
        times.setdefault(("forward", "copy"), []).append(elapsed(lambda: target.copy_(source), count))
    for (name, who), us in times.items():
        # The first round compiles and warms up.
        row.setdefault(name, {})[who] = [statistics.median(each) for each in zip(*us[1:])]
    return row


def line(row):
    forward, both = row["forward"], row["forward and backward"]
    (plain, _), (trope_, _), (copy, _) = forward["plain"], forward["trope"], forward["copy"]
    (plain_both, host_plain), (trope_both, host_trope) = both["plain"], both["trope"]
    return "| %s | %s | %d | %.0f | %.0f | %.1f | %.2f | %.0f | %.0f | %.1f | %.0f, %.0f | %.4f |" % (
        row["framework"], row["case"], row["bytes"] // MB, plain, trope_, plain / trope_, copy / trope_,
        plain_both, trope_both, plain_both / trope_both, host_plain, host_trope, row["equal"])  # fmt: skip


HEAD = """| framework | call | MB | us as it comes | us with trope | times faster | of a copy | with backward | with trope | times faster | host | equal elements |
|---|---|---|---|---|---|---|---|---|---|---|---|"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=SOURCES, action="append", help="one framework; may be repeated")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--count", type=int, default=30, help="calls in a row of each round")
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench/frameworks.py measures on a GPU, and there is none")
    rows, absent = [], []
    print("%s; torch %s\n\n%s" % (torch.cuda.get_device_name(), torch.__version__, HEAD))
    for name in options.only or SOURCES:
        try:
            cases = SOURCES[name]("cuda")
        except ImportError as error:
            absent.append("%s: %s" % (name, error))
            continue
        for case in cases:
            rows.append(measure(case, "cuda", options.rounds, options.count))
            print(line(rows[-1]), flush=True)
            torch.cuda.empty_cache()
    print("".join("\nnot there: " + each for each in absent))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, file, indent=1)
    sys.exit(bool(absent and options.only))


if __name__ == "__main__":
    main()
