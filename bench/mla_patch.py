"""Times Megatron-Core's fused RoPE of latent attention (DeepSeek V3: 4096 tokens, 128 heads, bf16) as it comes and with
trope.megatron.patch(), called as in a model: q, kv and k_pe are views of what projections return, and backward receives
gradients that attention has just made.

    python3 bench/mla_patch.py                  about 30 s on a GPU
    python3 bench/mla_patch.py --device cpu     few tokens, only with the patch (Megatron's kernels need a GPU), no times

"graph" is the time of a call in a CUDA graph. "eager" is the time on the GPU of calls that the host has queued before, and
"host" the time in which it queues them, all in us. Megatron rotates q and its gradient in place. A line tells whether trope
did so too.
"""

import argparse
import contextlib

import compare
import frameworks
import torch
from megatron.core.fusions import fused_mla_yarn_rope_apply as megatron

import trope.megatron

HEADS, NOPE, ROPE, VALUE = 128, 128, 64, 128
LIMIT = 2.0**-6  # Megatron's kernels round once, trope rounds as its unfused code does


class Attention(torch.autograd.Function):
    """Stands for attention. It computes nothing. Backward makes new gradients of any values, and keeps their addresses."""

    addresses = ()

    @staticmethod
    def forward(ctx, *tensors):
        ctx.sizes = [t.shape for t in tensors]
        return tensors[0].new_empty(())

    @staticmethod
    def backward(ctx, grad):
        gradients = [grad.new_empty(size) for size in ctx.sizes]
        Attention.addresses = [t.data_ptr() for t in gradients]
        return tuple(gradients)


def make_calls(device, tokens):
    """Returns {name: (function of the projections' results, these results)}."""
    angles = frameworks.radians(tokens, ROPE, device)[:, None, None]
    cos, sin = (f(angles).to(torch.bfloat16) for f in (torch.cos, torch.sin))

    def draw(width):
        return torch.randn(tokens, 1, width, device=device, dtype=torch.bfloat16).requires_grad_()

    def q(flat):  # the function looks up its name at each call, because patch() replaces it
        t = flat.view(tokens, 1, HEADS, NOPE + ROPE)
        return [megatron.fused_apply_mla_rope_for_q(t, cos, sin, NOPE, ROPE)]

    def kv(flat, k_pe):
        t = flat.view(tokens, 1, HEADS, NOPE + VALUE)
        return list(megatron.fused_apply_mla_rope_for_kv(t, k_pe.view(tokens, 1, 1, ROPE), cos, sin, ROPE, NOPE, VALUE))

    return {"q": (q, [draw(HEADS * (NOPE + ROPE))]), "kv": (kv, [draw(HEADS * (NOPE + VALUE)), draw(ROPE)])}


def make_directions(call, leaves):
    """Returns {direction: function without arguments}."""
    one = torch.ones((), dtype=torch.bfloat16, device=leaves[0].device)

    def forward():
        with torch.no_grad():
            return call(*leaves)

    def both():
        return torch.autograd.grad(Attention.apply(*call(*leaves)), leaves, one)

    return {"forward": forward, "forward and backward": both}


def find_results(call, leaves):
    """Returns the results of one call, and its gradients for the same random numbers each time. The call can only change
    copies: x * 1 of the leaves, and the upstream gradients that the backward of y * 1 makes, which nothing else has."""
    results = call(*[x * 1 for x in leaves])
    generator = torch.Generator(leaves[0].device).manual_seed(1)
    drawn = [torch.randn(y.shape, generator=generator, device=y.device).to(y.dtype) for y in results]
    return [y.detach().clone() for y in results] + list(torch.autograd.grad([y * 1 for y in results], leaves, drawn))


def measure(function, gpu):
    """Returns (graph, eager, host) in us, the smallest of three."""
    with torch.cuda.stream(gpu.stream):
        graph, _, is_graph = gpu.time([function], 400 * compare.MB)
    assert is_graph
    function()
    device, host = (min(times) for times in zip(*[frameworks.elapsed(function, 20) for _ in range(3)]))
    gpu.release()
    return graph, device, host


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    has_times = options.device == "cuda"
    calls = make_calls(options.device, 4096 if has_times else 4)
    ways = {"megatron": contextlib.nullcontext} if has_times else {}
    ways["trope"] = trope.megatron.patch
    gpu = compare.Gpu(10) if has_times else None
    for name, (call, leaves) in calls.items():
        found = []
        for way, patch in ways.items():
            with patch():
                find_results(call, leaves)  # Triton tunes its kernels in their first call
                found.append(find_results(call, leaves))
        print("# %s: difference %.2g" % (name, frameworks.find_difference(found[0], found[-1])))
        assert frameworks.find_difference(found[0], found[-1]) < LIMIT
        del found
        for way, patch in ways.items():  # the measured calls of q rotate the leaves in place, again and again
            with patch():
                for direction, function in make_directions(call, leaves).items():
                    times = measure(function, gpu) if has_times else (function(), ())[1]
                    print("%-2s %-8s %-20s" % (name, way, direction), *("%8.1f" % us for us in times))
                in_place = function()[0].data_ptr() == Attention.addresses[0]
        if name == "q":
            print("# trope rotated the gradient of q in place: %s" % in_place)


if __name__ == "__main__":
    main()
