"""Trains a small GPT in JAX on packed documents, twice from one seed: trope or jax.numpy rotates q and k.

    PYTHONPATH=python TROPE_LIBRARY=build/libtrope.so .venv-jax/bin/python examples/jax_train_packed.py
    python3 examples/jax_train_packed.py --dtype bfloat16        after `pip install .`

It shows how to use trope.jax.rotate in your own model. A training step is one jitted function. Each batch is filled up to
BATCH_TOKENS tokens, so that the step is compiled once. cu_seqlens is an argument of the step, and tells where each sequence
begins. The rotation in jax.numpy computes cos and sin for the position of each token. Both models start from the same
weights and see the same documents.

The program prints the losses of both models. They differ only by rounding, which training amplifies. Exit status: 1 if the
loss of any step differs by more than BOUNDS allows for the dtype, 2 for bad usage.
"""

import argparse
import os
import random
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import trope
import trope.jax

LAYERS, WIDTH, HIDDEN = 2, 128, 384
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
VOCABULARY, MAX_SEQUENCE, BATCH_TOKENS, MAX_SEQUENCES = 256, 256, 768, 64  # a token is a byte
LEARNING_RATE, BETAS, THETA = 2e-3, (0.9, 0.95), 10000.0
FREQUENCIES = trope.frequencies(rope_type="default", rope_theta=THETA, head_dim=HEAD_DIM)
# Nats per byte. In bfloat16, jax.numpy rounds cos, sin, both products and the sum; trope rounds only the sum.
BOUNDS = {"float32": 5e-4, "bfloat16": 0.1}
CORPUS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus.txt")

# ---- Documents ----


def read_sequences(path):
    """Reads documents that are separated by "%" lines. Adds a zero before and after each document, and cuts it into
    sequences of at most MAX_SEQUENCE tokens. A sequence also has the byte that comes next: [length + 1] bytes."""
    with open(path, "rb") as file:
        documents = [b"\0" + document.strip(b"\n") + b"\0" for document in file.read().split(b"\n%\n") if document]
    return [document[i : i + MAX_SEQUENCE + 1] for document in documents for i in range(0, len(document) - 1, MAX_SEQUENCE)]


def pack(sequences):
    """Returns input and target [BATCH_TOKENS] and cu_seqlens [MAX_SEQUENCES + 1]. The tokens after the last document are a
    sequence of their own, without targets (-1). Further sequences are empty."""
    tokens = [byte for sequence in sequences for byte in sequence[:-1]]
    targets = [byte for sequence in sequences for byte in sequence[1:]]
    rest = BATCH_TOKENS - len(tokens)
    ends = np.cumsum([len(sequence) - 1 for sequence in sequences])
    cu_seqlens = np.full(MAX_SEQUENCES + 1, BATCH_TOKENS, "int32")
    cu_seqlens[0], cu_seqlens[1 : len(ends) + 1] = 0, ends
    return np.array(tokens + [0] * rest, "int32"), np.array(targets + [-1] * rest, "int32"), cu_seqlens


def batches(sequences, seed):
    """Yields batches without end. Each has as many whole sequences, in random order, as fit into it."""
    order, picked, tokens = random.Random(seed), [], 0
    while True:
        for sequence in order.sample(sequences, len(sequences)):
            if tokens + len(sequence) - 1 > BATCH_TOKENS or len(picked) == MAX_SEQUENCES - 1:
                yield pack(picked)
                picked, tokens = [], 0
            picked.append(sequence)
            tokens += len(sequence) - 1


def documents_of(cu_seqlens):
    """Returns the document of each token."""
    return jnp.searchsorted(cu_seqlens, jnp.arange(BATCH_TOKENS), side="right") - 1


# ---- RoPE, both ways: q [tokens, heads, head_dim] and k [tokens, kv_heads, head_dim] ----


def rotate_by_trope(q, k, cu_seqlens):
    return trope.jax.rotate(q, k, layout="thd", pairing="half", inv_freq=FREQUENCIES, cu_seqlens=cu_seqlens)


def rotate_by_numpy(q, k, cu_seqlens):
    positions = jnp.arange(BATCH_TOKENS) - cu_seqlens[documents_of(cu_seqlens)]
    angles = positions[:, None, None] * jnp.array(FREQUENCIES.inv_freq * 2)
    cos, sin = jnp.cos(angles).astype(q.dtype), jnp.sin(angles).astype(q.dtype)
    return tuple(x * cos + rotate_half(x) * sin for x in (q, k))


def rotate_half(x):
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate((-second, first), -1)


# ---- The model ----


def make_weights(seed):
    keys = iter(jax.random.split(jax.random.key(seed), 2 + 4 * LAYERS))

    def linear(inputs, outputs):
        return jax.random.normal(next(keys), (inputs, outputs)) * inputs**-0.5

    def block():
        return {
            "attention_norm": jnp.ones(WIDTH), "qkv": linear(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD_DIM),
            "project": linear(HEADS * HEAD_DIM, WIDTH), "mlp_norm": jnp.ones(WIDTH), "up": linear(WIDTH, HIDDEN),
            "down": linear(HIDDEN, WIDTH),
        }  # fmt: skip

    blocks = [block() for _ in range(LAYERS)]
    return {
        "embed": linear(VOCABULARY, WIDTH),
        "blocks": blocks,
        "norm": jnp.ones(WIDTH),
        "head": linear(WIDTH, VOCABULARY),
    }


def normalise(x, weight):
    return (x * jax.lax.rsqrt((x.astype("float32") ** 2).mean(-1, keepdims=True) + 1e-6) * weight).astype(x.dtype)


def attend(q, k, v, mask):
    """Attends [tokens, heads, head_dim]. Each head of k and v serves HEADS / KV_HEADS heads of q."""
    k, v = (jnp.repeat(x, HEADS // KV_HEADS, 1) for x in (k, v))
    scores = jnp.einsum("qhd,khd->hqk", q, k).astype("float32") * HEAD_DIM**-0.5
    return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(jnp.where(mask, scores, -jnp.inf)).astype(v.dtype), v)


def loss_of(weights, tokens, targets, cu_seqlens, rotate, dtype):
    weights = jax.tree.map(lambda w: w.astype(dtype), weights)
    document = documents_of(cu_seqlens)
    mask = (document[:, None] == document) & jnp.tri(BATCH_TOKENS, dtype=bool)
    x = weights["embed"][tokens]
    for block in weights["blocks"]:
        qkv = (normalise(x, block["attention_norm"]) @ block["qkv"]).reshape(BATCH_TOKENS, -1, HEAD_DIM)
        q, k, v = jnp.split(qkv, (HEADS, HEADS + KV_HEADS), 1)
        q, k = rotate(q, k, cu_seqlens)
        x = x + attend(q, k, v, mask).reshape(BATCH_TOKENS, -1) @ block["project"]
        x = x + jax.nn.gelu(normalise(x, block["mlp_norm"]) @ block["up"]) @ block["down"]
    logits = jax.nn.log_softmax((normalise(x, weights["norm"]) @ weights["head"]).astype("float32"))
    losses = -jnp.take_along_axis(logits, jnp.maximum(targets, 0)[:, None], 1)[:, 0]
    return jnp.where(targets >= 0, losses, 0).sum() / (targets >= 0).sum()


# ---- Training ----


def make_step(rotate, dtype):
    """Returns the jitted step of Adam: (weights, moments, count, batch) -> (weights, moments, loss)."""

    def step(weights, moments, count, batch):
        loss, grads = jax.value_and_grad(loss_of)(weights, *batch, rotate, dtype)
        first = jax.tree.map(lambda m, g: BETAS[0] * m + (1 - BETAS[0]) * g, moments[0], grads)
        second = jax.tree.map(lambda m, g: BETAS[1] * m + (1 - BETAS[1]) * g * g, moments[1], grads)
        rate = LEARNING_RATE * jnp.sqrt(1 - BETAS[1] ** count) / (1 - BETAS[0] ** count)
        weights = jax.tree.map(lambda w, m, n: w - rate * m / (jnp.sqrt(n) + 1e-8), weights, first, second)
        return weights, (first, second), loss

    return jax.jit(step, donate_argnums=(0, 1))


def train(options):
    """Returns the losses of all steps: with trope, and with jax.numpy."""
    states, losses = [], ([], [])
    for rotate in (rotate_by_trope, rotate_by_numpy):
        weights = make_weights(options.seed)
        zeros = [jax.tree.map(jnp.zeros_like, weights) for _ in range(2)]
        states.append([make_step(rotate, options.dtype), weights, tuple(zeros)])
    print("%6s %12s %12s %12s" % ("step", "loss: trope", "jax.numpy", "difference"))
    for count, batch in zip(range(1, options.steps + 1), batches(read_sequences(CORPUS), options.seed)):
        for state, given in zip(states, losses):
            step, weights, moments = state
            *state[1:], loss = step(weights, moments, float(count), batch)
            given.append(float(loss))
        if count % max(options.steps // 10, 1) == 0:
            ours, theirs = losses[0][-1], losses[1][-1]
            print("%6d %12.6f %12.6f %12.1e" % (count, ours, theirs, ours - theirs))
    return losses


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--dtype", choices=tuple(BOUNDS), default="float32", help="of activations; weights are float32")
    parser.add_argument("--seed", type=int, default=1, help="of the weights and the order of the documents")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    return options


def main():
    options = parse()
    if options.dtype == "float32":  # on GPUs the default is TF32, whose rounding training amplifies
        jax.config.update("jax_default_matmul_precision", "highest")
    start = time.perf_counter()
    losses = train(options)
    bound, differences = BOUNDS[options.dtype], [abs(ours - theirs) for ours, theirs in zip(*losses)]
    print("%.1f s; largest difference of a step %.1e, bound %.1e" % (time.perf_counter() - start, max(differences), bound))
    if not all(difference <= bound for difference in differences):  # false for NaN, too
        sys.exit("the losses differ by more than the bound")


if __name__ == "__main__":
    main()
