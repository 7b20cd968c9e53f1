"""Measures the training speed of Hugging Face models before and after trope.transformers.patch(model), and compares logits.

    PYTHONPATH=python TROPE_LIBRARY=build/libtrope.so python3 examples/transformers_patch.py
    python3 examples/transformers_patch.py --device cuda --dtype bfloat16 --size small --compile    after `pip install .`

A Llama and a Qwen2 are made from a config, with random weights; nothing is downloaded. For each:

 1. The logits of the original model, the patched model, and the model after undo() have the same bits. (The model is not
    compiled: torch.compile fuses eager's operations, and rounds less often.)
 2. Training steps (forward, backward and AdamW) run in this order: half of the unpatched steps, all patched steps, the
    other half of the unpatched ones. So a machine that becomes slower or faster meanwhile favours neither. Each block
    begins with WARMUP steps that are not timed. The time of a step is the median.

Exit status: 0, 1 if the logits differ or the patch was not called, 2 bad usage.
"""

import argparse
import statistics
import sys
import time

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

import trope.transformers

WARMUP = 3
TINY = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, vocab_size=256)
SMALL = dict(hidden_size=2048, intermediate_size=5632, num_hidden_layers=8, vocab_size=32000)
SIZES = {  # the sizes in the config, and [batch, tokens]
    "tiny": (dict(TINY, num_attention_heads=4, num_key_value_heads=2), (2, 64)),
    "small": (dict(SMALL, num_attention_heads=16, num_key_value_heads=4), (1, 4096)),
}


def make_model(config_class, options):
    sizes, (_, tokens) = SIZES[options.size]
    torch.manual_seed(1)
    config = config_class(**sizes, max_position_embeddings=tokens, use_cache=False)
    return AutoModelForCausalLM.from_config(config, dtype=options.dtype).to(options.device)


@torch.no_grad()
def have_same_logits(model, ids):
    """Returns whether the logits of the unpatched model, of the patched model, and after undo() are bit-identical. Exits
    if the patch is not called once per layer."""
    before = model(ids).logits
    with trope.transformers.patch(model) as handle:
        patched = model(ids).logits
    print("  %s" % handle)
    after = model(ids).logits
    if handle.calls != model.config.num_hidden_layers:
        sys.exit("the patch was called %d times, by %d layers" % (handle.calls, model.config.num_hidden_layers))
    return torch.equal(before, patched) and torch.equal(before, after)


def make_step(model, ids, compiles):
    """Returns a function that trains the model by one step and returns the seconds that it took."""
    torch.compiler.reset()  # drops the code of the previous model
    forward = torch.compile(model) if compiles else model
    adam = torch.optim.AdamW(model.parameters(), 1e-4)

    def wait():
        if ids.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def step():
        start = wait()
        forward(ids, labels=ids).loss.backward()
        adam.step()
        adam.zero_grad()
        return wait() - start

    return step


def run_block(step, count):
    """Returns the seconds of `count` steps, after a warm-up."""
    return [step() for _ in range(WARMUP + count)][WARMUP:]


def measure(model, ids, options):
    """Returns the median seconds of a step: unpatched, patched."""
    step, half = make_step(model, ids, options.compile), (options.steps + 1) // 2
    unpatched = run_block(step, half)
    with trope.transformers.patch(model, compiled=True):  # by default, compiled code keeps the model's own rotations
        patched = run_block(step, 2 * half)
    unpatched += run_block(step, half)
    return statistics.median(unpatched), statistics.median(patched)


def run(config_class, options):
    """Prints the results of one model, and returns whether the logits are equal."""
    model = make_model(config_class, options)
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    print("%s: %.1f M parameters, %s tokens" % (type(model).__name__, parameters, "%d x %d" % SIZES[options.size][1]))
    ids = torch.randint(model.config.vocab_size, SIZES[options.size][1], device=options.device)
    equal = have_same_logits(model, ids)
    print("  logits, bit for bit: %s" % ("equal" if equal else "NOT equal"))
    before, after = measure(model, ids, options)
    words = ids.numel() / before, ids.numel() / after, 100 * (before / after - 1)
    print("  tokens a second: %.0f before, %.0f patched (%+.1f %%)" % words)
    return equal


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--size", choices=tuple(SIZES), default="tiny")
    parser.add_argument("--steps", type=int, default=20, help="number of timed steps of each way")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model, both ways")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    options.dtype = getattr(torch, options.dtype)
    if not all([run(config_class, options) for config_class in (LlamaConfig, Qwen2Config)]):
        sys.exit("the patched logits differ")


if __name__ == "__main__":
    main()
