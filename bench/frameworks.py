"""Times the RoPE calls of training frameworks on one GPU, first unpatched and then with trope in their place.

    PYTHONPATH=python python3 bench/frameworks.py --json bench/results/frameworks-h200.json
    PYTHONPATH=python python3 bench/frameworks.py --only layers
    PYTHONPATH=python python3 bench/frameworks.py --only layers --device cpu

If Megatron-Core or transformers cannot be imported, the script leaves out their cases and names them. It calls the
functions of these packages, first unpatched and then between patch() and undo(). torchtitan's formula is copied here. Each
call is eager and rotates q and k of a layer. Times are measured on the GPU. Calls are queued behind a kernel that sleeps,
so that the host is ahead of the GPU, as it is in a training step with long matrix products. If a call itself waits for the
GPU, its time includes the wait. "host" is the time that the host alone takes. Each time is the median of rounds in which
"as it comes", "with trope" and a copy of the same bytes alternate. A row ends after --seconds, and is printed and written
to the file at once. bench/tables.py makes the table of docs/performance.md from the file.

"layers" are whole decoder layers of transformers with autograd, eager and with torch.compile. They alternate with the same
layer without the norms of q and k and without the rotation. The time that this saves is the share of norm and rotation. If
a way raises an exception, the script leaves it out and names it. Below each layer are the times of trope's kernels inside
it, beside those of the same calls alone and of a copy of their bytes, which `trope bench --call` takes in the same run. On
the CPU the layers are small and the times mean nothing.
"""

import argparse
import contextlib
import functools
import importlib
import itertools
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Callable, List

import torch

import trope
import trope.torch

MB = 1 << 20


class Group:
    """The methods of a context parallel group that Megatron-Core needs."""

    def __init__(self, size=1, rank=0):
        self.size, self.rank = lambda: size, lambda: rank


@dataclass
class Case:
    """A case. call(*inputs) returns the rotated tensors. patch() is a context in which trope rotates them."""

    name: str
    framework: str
    shapes: List[tuple]
    call: Callable
    patch: Callable


def radians(positions, dim, device, interleaved=False):
    """Returns the angles [positions, dim] of the default rule with base 10000. Each angle occurs twice."""
    inv_freq = 10000.0 ** -(torch.arange(0, dim, 2, device=device, dtype=torch.float64) / dim)
    angles = (torch.arange(positions, device=device, dtype=torch.float64)[:, None] * inv_freq).float()
    return angles.repeat_interleave(2, -1) if interleaved else torch.cat((angles, angles), -1)


# ---- Megatron-Core ----


def megatron_cases(device):
    """Each call looks up the functions in their modules, where patch() puts trope's."""
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
    """Returns cases that call functions of modeling files. patch() replaces them for a model of that type. The model has
    no weights and is never called."""
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
    """ComplexRoPE of torchtitan/models/common/rope.py: a complex table. A position selects its row."""
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


# ---- Decoder layers of transformers ----


LLAMA3_8B = dict(hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, head_dim=128)
QWEN3_4B = dict(hidden_size=2560, intermediate_size=9728, num_attention_heads=32, num_key_value_heads=8, head_dim=128)
QWEN3_30B_A3B = dict(
    hidden_size=2048, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8, num_attention_heads=32,
    num_key_value_heads=4, head_dim=128,
)  # fmt: skip
NORMS = ("q_norm", "k_norm")
CODE = ("eager", "torch.compile")
SMALL = dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=32)
SIZES = {  # the model, its type, and the sizes of the layer on a GPU and on the CPU
    "Llama-3-8B": ("llama", LLAMA3_8B, dict(SMALL, intermediate_size=128)),
    "Qwen3-4B": ("qwen3", QWEN3_4B, dict(SMALL, intermediate_size=128)),
    "Qwen3-30B-A3B": (
        "qwen3_moe",
        QWEN3_30B_A3B,
        dict(SMALL, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2),
    ),
}


@dataclass
class Layer:
    """The decoder layer of a model with only this layer.

    call: runs the layer and returns its output, a tensor with a gradient.
    inputs: the tensors whose gradients are taken: the layer's input, the weights of both norms, and all other parameters.
    norms: the number of norms of q and k
    """

    name: str
    tokens: int
    model: torch.nn.Module
    call: Callable
    inputs: List[torch.Tensor]
    norms: int


def make_layer(name, tokens, device):
    """Makes a layer with random bf16 weights, batch 1, and the attention and experts that transformers chooses."""
    transformers = importlib.import_module("transformers")
    model_type, *sizes = SIZES[name]
    config = transformers.AutoConfig.for_model(
        model_type, **sizes[device == "cpu"], num_hidden_layers=1, vocab_size=256, max_position_embeddings=32768,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}, norm_topk_prob=True,
    )  # fmt: skip
    torch.manual_seed(1)
    with torch.device(device):
        model = transformers.AutoModel.from_config(config, dtype=torch.bfloat16).train()
        hidden = torch.randn(1, tokens, config.hidden_size, dtype=torch.bfloat16).requires_grad_()
        positions = model.rotary_emb(hidden, torch.arange(tokens)[None])
    layer = model.layers[0]
    weights = [getattr(layer.self_attn, name).weight for name in NORMS if hasattr(layer.self_attn, name)]
    for weight in weights:
        torch.nn.init.uniform_(weight, 0.5, 1.5)

    def call():
        return layer(hidden, position_embeddings=positions, attention_mask=None)

    return Layer(name, tokens, model, call, list(dict.fromkeys([hidden, *weights, *layer.parameters()])), len(weights))


@contextlib.contextmanager
def without_norm_and_rotation(model):
    """Passes q and k unchanged from their projections to the attention."""
    attention = model.layers[0].self_attn
    module = sys.modules[type(attention).__module__]
    norms = {name: getattr(attention, name) for name in NORMS if hasattr(attention, name)}
    rotation = module.apply_rotary_pos_emb
    for name in norms:
        setattr(attention, name, torch.nn.Identity())
    module.apply_rotary_pos_emb = lambda q, k, cos, sin: (q, k)
    try:
        yield
    finally:
        for name, norm in norms.items():
            setattr(attention, name, norm)
        module.apply_rotary_pos_emb = rotation


def find_layer_ways():
    """Returns {way: function}. function(model) returns a context in which the model works that way."""
    patch = importlib.import_module("trope.transformers").patch
    return {
        "plain": lambda model: contextlib.nullcontext(),
        "trope": patch,
        "fused": lambda model: patch(model, fuse_norm=True),
        "without": without_norm_and_rotation,
    }


class Compiled:
    """A function without arguments, compiled by torch.compile. Calls bypass Dynamo, which would compile again after the
    patches of the first call are undone."""

    def __init__(self, function):
        torch.compiler.reset()
        torch.compile(function, backend=self._compile, fullgraph=True, dynamic=False)()

    def _compile(self, graph, examples):
        code = importlib.import_module("torch._inductor.compile_fx").compile_fx(graph, examples)

        def run(*tensors):
            self._code, self._tensors = code, tensors
            return code(*tensors)

        return run

    def __call__(self):
        return self._code(*self._tensors)[0]


# ---- Measuring ----


SLEEP = 40_000_000  # GPU cycles, at least 20 ms: the time in which the host queues the calls of a round


def elapsed(function, count, device="cuda"):
    """Returns the time of a call in us on the device and on the host, for `count` calls in a row."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(count):
            function()
        return (1e6 * (time.perf_counter() - start) / count,) * 2
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
    """Returns the largest difference of two lists of tensors, relative to the largest element."""
    return max(
        float((a.double() - b.double()).abs().max() / b.double().abs().max()) for a, b in zip(results, others, strict=True)
    )


def find_equal(results, others):
    """Returns the fraction of equal elements in two lists of tensors."""
    return sum(int((a == b).sum()) for a, b in zip(results, others, strict=True)) / sum(y.numel() for y in others)


@dataclass
class Limits:
    """Limits of a row: its rounds, the calls in a row of each way, and its seconds."""

    rounds: int
    count: int
    seconds: float


def take_turns(ways, device, limits):
    """Returns {direction: {who: [us on the device, us on the host]}}: the medians of rounds in which all ways alternate.

    ways: {(direction, who): (a function that returns a context, a function to time in it)}

    The first round does not count. It warms up, and its times decide how many calls in a row the others make.
    """
    times, counts = {way: [] for way in ways}, dict.fromkeys(ways, 1)
    for number in range(limits.rounds):
        for way, (context, function) in ways.items():
            with context():
                function()
                times[way].append(elapsed(function, counts[way], device))
        if number == 0:
            end = time.monotonic() + limits.seconds
            share = 1e6 * limits.seconds / limits.rounds / len(ways)
            counts = {way: max(1, min(limits.count, int(share / max(us[0])))) for way, us in times.items()}
        elif time.monotonic() > end:
            break
    found = {}
    for (direction, who), us in times.items():
        found.setdefault(direction, {})[who] = [statistics.median(each) for each in zip(*us[1:])]
    return found


def measure(case, device, limits):
    """Returns {direction: {who: [us on the GPU, us on the host]}}, where who is "plain", "trope" or "copy", and the
    difference of the results."""
    generator = torch.Generator(device).manual_seed(1)

    def draw(shapes):
        return [torch.randn(s, device=device, generator=generator).to(torch.bfloat16) for s in shapes]

    inputs = draw(case.shapes)
    leaves = [x.clone().requires_grad_() for x in inputs]
    with torch.no_grad():
        plain = case.call(*[x.clone() for x in inputs])  # clones, because some calls write into their inputs
        with case.patch():
            fused = case.call(*[x.clone() for x in inputs])
    gradients = draw([y.shape for y in plain])
    row = {"case": case.name, "framework": case.framework, "difference": find_difference(fused, plain)}
    row["bytes"] = sum(2 * x.numel() for x in (*inputs, *plain))
    row["equal"] = find_equal(fused, plain)
    half = row["bytes"] // 2
    source, target = (torch.empty(half, dtype=torch.uint8, device=device) for _ in range(2))
    del plain, fused

    def forward():
        with torch.no_grad():
            case.call(*inputs)

    def both():  # views, because writing into a leaf is not allowed
        torch.autograd.grad(case.call(*[x.view_as(x) for x in leaves]), leaves, gradients)

    ways = {}
    for direction, function in (("forward", forward), ("forward and backward", both)):
        ways[direction, "plain"] = contextlib.nullcontext, function
        ways[direction, "trope"] = case.patch, function
    ways["forward", "copy"] = contextlib.nullcontext, lambda: target.copy_(source)
    return dict(row, **take_turns(ways, device, limits))


# ---- trope's calls inside a layer ----


OURS = re.compile(r"(?:void )?((?:(?:rotate|norm|token_gradient|sum_heads|add_weights)(?:_\w+)?|trope)_kernel)(?:[<(]|$)")
PROFILED = 5  # calls; a time is their median


@functools.lru_cache(maxsize=None)
def time_call(text, device):
    """Times a call alone, and a copy of its bytes, by `trope bench`. Returns the row of its JSON, or None if the program is
    neither beside the library nor in PATH."""
    folder = pathlib.Path(trope._abi.lib._name).resolve().parent
    program = shutil.which("trope", path=os.pathsep.join([str(folder / "tools"), os.environ.get("PATH", "")]))
    if not program:
        return None
    command = [program, "bench", "--device", device, "--call", text, "--json"]
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))
    same_library = dict(os.environ, LD_LIBRARY_PATH=paths)
    done = subprocess.run(command, capture_output=True, text=True, env=same_library)
    if done.returncode:
        print("trope bench --call '%s': status %d\n%s" % (text, done.returncode, done.stderr[-500:]), file=sys.stderr)
    return json.loads(done.stdout)["cases"][0] if done.returncode < 2 else None


def find_kernels(function, device):
    """Returns the name and the us of each of trope's kernels that the function runs, in their order."""
    if device == "cpu":
        return []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(PROFILED):
            function()
        torch.cuda.synchronize()
    on_device = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    on_device.sort(key=lambda event: event.time_range.start)
    found = [(OURS.match(event.name), event.time_range.elapsed_us()) for event in on_device]
    found = [(match[1], us) for match, us in found if match]
    count = len(found) // PROFILED
    return [[found[i][0], statistics.median(us for _, us in found[i::count])] for i in range(count)]


def find_calls(functions, device):
    """Returns for each direction: trope's kernels inside the layer, the bytes of trope's calls, the us of these calls
    alone, and the us of a copy of these bytes."""
    with trope.log_calls() as log:
        functions["forward and backward"]()
    forward, both = (find_kernels(function, device) for function in functions.values())
    found = {}
    for direction, kernels in (("forward", forward), ("backward", both[len(forward) :])):
        calls = [call for call in log if call.text.startswith(direction)]
        timed = [(call.count, time_call(call.text, device)) for call in calls]
        if timed:
            sums = {
                name: sum(count * row[name] for count, row in timed) if all(row for _, row in timed) else None
                for name in ("bytes", "time_us", "copy_us")
            }
            found[direction] = {"kernels": kernels, **sums}
    return found


def make_both(call, layer, gradient, way):
    """Returns a function that calls the layer and returns the gradients."""
    return lambda: torch.autograd.grad(call(), layer.inputs, gradient, allow_unused=way == "without")


def prepare_layer(layer, ways, is_compiled, gradient):
    """Returns {way: {direction: function}}, {way: the result, and the gradients of the layer's input and the norms}, and
    {way: its error}."""
    calls, results, failed = {}, {}, {}
    for way, patch in ways.items():
        try:
            with patch(layer.model) as handle:
                call = Compiled(layer.call) if is_compiled else layer.call
                both = make_both(call, layer, gradient, way)
                results[way] = [call().detach(), *both()[: 1 + layer.norms]]
                if handle and not (handle.traced if is_compiled else handle.calls):
                    raise RuntimeError("the layer does not call what was patched")
            calls[way] = {"forward": call, "forward and backward": both}
        except Exception as error:
            if way == "plain":
                raise
            failed[way] = "%s: %s" % (type(error).__name__, (str(error).strip().splitlines() or [""])[0])
    return calls, results, failed


def measure_layer(layer, ways, is_compiled, device, limits):
    """Returns the times of each way, in the form of measure(), and trope's calls. For each patched way it adds the largest
    difference from the plain way, in all results, and the fraction of equal elements, in the layer's output alone."""
    generator = torch.Generator(device).manual_seed(1)
    gradient = torch.randn(layer.inputs[0].shape, device=device, generator=generator).to(torch.bfloat16)
    ways = {way: patch for way, patch in ways.items() if layer.norms or way != "fused"}
    calls, results, failed = prepare_layer(layer, ways, is_compiled, gradient)
    contexts = {
        way: contextlib.nullcontext if is_compiled else functools.partial(patch, layer.model) for way, patch in ways.items()
    }
    row = {
        "case": "%s, %s" % (layer.name, CODE[is_compiled]),
        "framework": "layers",
        "tokens": layer.tokens,
        "failed": failed,
    }
    plain = results["plain"]
    patched = {way: results[way] for way in calls if way not in ("plain", "without")}
    row["difference"] = {way: find_difference(found, plain) for way, found in patched.items()}
    row["equal"] = {way: find_equal(found[:1], plain[:1]) for way, found in patched.items()}
    timed = {
        (direction, way): (contexts[way], function)
        for way, functions in calls.items()
        for direction, function in functions.items()
    }
    row.update(take_turns(timed, device, limits))
    row["calls"] = {}
    for way in patched:
        with contexts[way]():
            row["calls"][way] = find_calls(calls[way], device)
    return row


def run_layers(options, record):
    """Times all layers, first the eager ones, which need no compilation. Fewer tokens come first, because the log of calls
    keeps the largest call of each kind."""
    ways = find_layer_ways()
    limits = Limits(options.rounds, max(1, options.count // 6), options.seconds)
    print(LAYER_HEAD)
    for tokens, code, name in itertools.product(sorted(options.tokens), options.code, SIZES):
        layer = make_layer(name, tokens, options.device)
        row = measure_layer(layer, ways, code == CODE[True], options.device, limits)
        record.add(row, [*layer_lines(row), *call_lines(row)])
        record.absent += ["%s, %s: %s" % (row["case"], *each) for each in row["failed"].items()]
        del layer
        if options.device == "cuda":
            torch.cuda.empty_cache()


def line(row):
    forward, both = row["forward"], row["forward and backward"]
    (plain, _), (trope_, _), (copy, _) = forward["plain"], forward["trope"], forward["copy"]
    (plain_both, host_plain), (trope_both, host_trope) = both["plain"], both["trope"]
    return "| %s | %s | %d | %.0f | %.0f | %.1f | %.2f | %.0f | %.0f | %.1f | %.0f, %.0f | %.4f |" % (
        row["framework"], row["case"], row["bytes"] // MB, plain, trope_, plain / trope_, copy / trope_,
        plain_both, trope_both, plain_both / trope_both, host_plain, host_trope, row["equal"])  # fmt: skip


def call_lines(row):
    """Formats trope's calls inside a layer: the time of its kernels, of the calls alone, and of a copy of their bytes."""
    for way, directions in row["calls"].items():
        for direction, found in directions.items():
            parts = ["%s %.1f us" % tuple(kernel) for kernel in found["kernels"]]
            if found["bytes"] is not None:
                parts.append("alone %.1f us, copy of %.1f MB %.1f us" % tuple(
                    found[name] / unit for name, unit in (("time_us", 1), ("bytes", 1e6), ("copy_us", 1))))  # fmt: skip
            yield "    %s, %s: %s" % (way, direction, "; ".join(parts) or "not timed")


def layer_lines(row):
    """Formats for each direction: tokens per second, the gain, and the share of norm and rotation in the time."""
    for direction in ("forward", "forward and backward"):
        us = {way: of_device for way, (of_device, _) in row[direction].items()}
        cells = [row["case"], row["tokens"], direction]
        for way in ("plain", "trope", "fused"):
            there = way in us
            cells.append("%.0f" % (1e6 * row["tokens"] / us[way]) if there else "-")
            if way != "plain":
                cells.append("%+.1f" % (100 * (us["plain"] / us[way] - 1)) if there else "-")
            cells.append("%.1f" % (100 * (1 - us["without"] / us[way])) if there and "without" in us else "-")
        cells += ["%.4f" % row["equal"][way] if way in row["equal"] else "-" for way in ("trope", "fused")]
        yield "| %s |" % " | ".join(str(cell) for cell in cells)


LAYER_HEAD = """| layer | tokens | direction | tokens a second as it comes | share, % | with trope | gain, % | share, % | norms fused | gain, % | share, % | equal elements | norms fused |
|---|---|---|---|---|---|---|---|---|---|---|---|---|"""
HEAD = """| framework | call | MB | us as it comes | us with trope | times faster | of a copy | with backward | with trope | times faster | host | equal elements |
|---|---|---|---|---|---|---|---|---|---|---|---|"""


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=[*SOURCES, "layers"], action="append", help="one framework; may be repeated")
    parser.add_argument("--rounds", type=int, default=12, help="at most so many rounds")
    parser.add_argument(
        "--count", type=int, default=30, help="at most so many consecutive calls in each round (layers: a sixth)"
    )
    parser.add_argument("--seconds", type=float, default=5, help="time after which a row's rounds end, default 5")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: small layers, requires --only layers"
    )
    parser.add_argument("--tokens", type=int, nargs="+", help="tokens of layers, default 4096 (CPU: 32)")
    parser.add_argument("--code", choices=CODE, nargs="+", default=CODE, help="code of layers, default both")
    parser.add_argument("--json", help="write the results to this file, after each row")
    options = parser.parse_args(arguments)
    if options.device == "cpu" and options.only != ["layers"]:
        parser.error("--device cpu is for --only layers: other cases measure on a GPU")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("bench/frameworks.py needs a GPU, and there is none")
    if options.rounds < 2:
        parser.error("--rounds must be at least 2: the first one is not counted")
    options.tokens = options.tokens or [32 if options.device == "cpu" else 4096]
    return options


class Record:
    """The rows so far, and what is left out. Each row is printed and written to the file at once, so that a run that is
    killed leaves its rows."""

    def __init__(self, machine, path):
        self.rows, self.absent = [], []
        self._machine, self._path = machine, path

    def add(self, row, lines):
        print("\n".join(lines), flush=True)
        self.rows.append(row)
        if self._path:
            with open(self._path + ".part", "w") as file:
                json.dump({"gpu": self._machine, "torch": torch.__version__, "rows": self.rows}, file, indent=1)
            os.replace(self._path + ".part", self._path)


def run_calls(names, options, record):
    """Times calls of frameworks."""
    limits = Limits(options.rounds, options.count, options.seconds)
    print("\n" + HEAD)
    for name in names:
        try:
            cases = SOURCES[name]("cuda")
        except ImportError as error:
            record.absent.append("%s: %s" % (name, error))
            continue
        for case in cases:
            row = measure(case, "cuda", limits)
            record.add(row, [line(row)])
            torch.cuda.empty_cache()


def main(arguments):
    options = parse(arguments)
    machine = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    chosen = options.only or ["layers", *SOURCES]
    record = Record(machine, options.json)
    print("%s; torch %s\n" % (machine, torch.__version__))
    if "layers" in chosen:
        try:
            run_layers(options, record)
        except ImportError as error:
            record.absent.append("layers: %s" % error)
    names = [name for name in chosen if name != "layers"]
    if names:
        run_calls(names, options, record)
    print("".join("\nnot there: " + each for each in record.absent))
    return bool(record.absent and options.only)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
