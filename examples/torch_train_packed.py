"""Trains a small GPT on packed documents twice from one seed: once trope rotates q and k, once eager PyTorch does.

    PYTHONPATH=python TROPE_LIBRARY=build/libtrope.so python3 examples/torch_train_packed.py --plot loss.svg
    python3 examples/torch_train_packed.py --device cuda --dtype bfloat16        after `pip install .`

It shows how to use trope.torch.rotate in your own model: q and k are views of the packed projection and are
not copied. cu_seqlens alone tells where each document begins: the model makes no position ids and no tables. The eager way
gathers rows of cos and sin by the position of each token, as most code does. Both models start from the same weights and
see the same documents, cut and packed as in train_packed.c. Attention stays within a document.

The losses of the two are printed and, with --plot, drawn. They differ only by rounding, which training amplifies. Exit
status: 1 if the loss of any step differs by more than BOUNDS has for the dtype, 2 for bad usage.
"""

import argparse
import copy
import importlib.util
import os
import random
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS gives repeatable bits only with this

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import trope  # noqa: E402
import trope.torch  # noqa: E402

LAYERS, WIDTH, HIDDEN = 4, 128, 384
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
VOCABULARY, MAX_SEQUENCE, BATCH_TOKENS = 256, 256, 768  # a token is a byte
ROWS = 12  # number of lines to print, approximately
LEARNING_RATE, THETA = 2e-3, 10000.0
FREQUENCIES = trope.frequencies(rope_type="default", rope_theta=THETA, head_dim=HEAD_DIM)
# Nats per byte, after 300 steps. Training amplifies the first difference in rounding to 7e-5 in float32. In bfloat16, eager
# PyTorch rounds cos, sin, both products and the sum; trope rounds only the sum. Their losses differ by up to 3e-2.
BOUNDS = {torch.float32: 5e-4, torch.bfloat16: 0.1}
CORPUS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus.txt")

# ---- Documents ----


def read_sequences(path):
    """Reads documents that are separated by "%" lines. Each document gets a zero before and after it and is cut into
    sequences of at most MAX_SEQUENCE tokens. Each sequence also has the byte that follows it: [length + 1] bytes."""
    with open(path, "rb") as file:
        documents = [b"\0" + document.strip(b"\n") + b"\0" for document in file.read().split(b"\n%\n") if document]
    return [document[i : i + MAX_SEQUENCE + 1] for document in documents for i in range(0, len(document) - 1, MAX_SEQUENCE)]


class Batch:
    """Packed sequences: input and target [tokens], cu_seqlens [sequences + 1], the attention mask [tokens, tokens] and,
    for the eager way, the rows of the tables: cos and sin [tokens, 1, head_dim]."""

    def __init__(self, sequences, tables, device):
        lengths = torch.tensor([len(sequence) - 1 for sequence in sequences])
        self.input = torch.tensor([byte for sequence in sequences for byte in sequence[:-1]], device=device)
        self.target = torch.tensor([byte for sequence in sequences for byte in sequence[1:]], device=device)
        self.cu_seqlens = F.pad(lengths.cumsum(0), (1, 0)).int().to(device)
        position = torch.cat([torch.arange(length) for length in lengths]).to(device)
        self.cos, self.sin = (table[position] for table in tables)
        document = torch.arange(len(sequences)).repeat_interleave(lengths)
        self.mask = (document[:, None] == document).tril().to(device)  # block-diagonal and causal


def make_tables(device):
    """Returns cos and sin of all positions: [MAX_SEQUENCE, 1, head_dim]."""
    inv_freq = THETA ** (-torch.arange(0, HEAD_DIM, 2, device=device) / HEAD_DIM)
    angles = torch.arange(MAX_SEQUENCE, device=device)[:, None, None] * torch.cat((inv_freq, inv_freq))
    return angles.cos(), angles.sin()


def batches(sequences, seed, device):
    """Yields batches without end. Each has as many whole sequences, in random order, as fit into BATCH_TOKENS."""
    order, tables, picked, tokens = random.Random(seed), make_tables(device), [], 0
    while True:
        for sequence in order.sample(sequences, len(sequences)):
            if tokens + len(sequence) - 1 > BATCH_TOKENS:
                yield Batch(picked, tables, device)
                picked, tokens = [], 0
            picked.append(sequence)
            tokens += len(sequence) - 1


# ---- RoPE, both ways: q [tokens, heads, head_dim] and k [tokens, kv_heads, head_dim] ----


def rotate_by_trope(q, k, batch):
    return trope.torch.rotate(q, k, layout="thd", pairing="half", inv_freq=FREQUENCIES, cu_seqlens=batch.cu_seqlens)


def rotate_eagerly(q, k, batch):
    cos, sin = batch.cos.to(q.dtype), batch.sin.to(q.dtype)
    return tuple(x * cos + rotate_half(x) * sin for x in (q, k))


def rotate_half(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


# ---- The model ----


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.project = nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x, batch, rotate):
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (-1, HEAD_DIM))
        q, k, v = qkv.split((HEADS, KV_HEADS, KV_HEADS), 1)
        q, k = rotate(q, k, batch)
        x = x + self.project(attend(q, k, v, batch.mask).flatten(1))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


def attend(q, k, v, mask):
    """Attends [tokens, heads, head_dim]. Each head of k and v serves HEADS / KV_HEADS heads of q."""
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, mask)[0].transpose(0, 1)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.RMSNorm(WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, batch, rotate):
        x = self.embed(batch.input)
        for block in self.blocks:
            x = block(x, batch, rotate)
        return F.cross_entropy(self.head(self.norm(x)).float(), batch.target)


# ---- Training ----


class Trainer:
    """A copy of a model with its way to rotate, and its losses so far."""

    def __init__(self, model, rotate, dtype):
        self.model, self.rotate, self.dtype, self.losses = copy.deepcopy(model), rotate, dtype, []
        self.adam = torch.optim.AdamW(self.model.parameters(), LEARNING_RATE, betas=(0.9, 0.95))

    def step(self, batch):
        with torch.autocast(batch.input.device.type, self.dtype, enabled=self.dtype != torch.float32):
            loss = self.model(batch, self.rotate)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        self.losses.append(loss.item())


def train(options):
    """Trains both models. Returns the losses of all steps with trope, and with eager PyTorch."""
    torch.manual_seed(options.seed)
    model = GPT().to(options.device)
    trainers = [Trainer(model, rotate, options.dtype) for rotate in (rotate_by_trope, rotate_eagerly)]
    stream = batches(read_sequences(CORPUS), options.seed, options.device)
    print("%6s %12s %12s %12s" % ("step", "loss: trope", "eager", "difference"))
    for step, batch in zip(range(1, options.steps + 1), stream):
        for trainer in trainers:
            trainer.step(batch)
        if step % max(options.steps // ROWS, 1) == 0:
            ours, eager = (trainer.losses[-1] for trainer in trainers)
            print("%6d %12.6f %12.6f %12.1e" % (step, ours, eager, ours - eager))
    return [trainer.losses for trainer in trainers]


def plot(losses, path):
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, sharex=True, figsize=(7, 5), height_ratios=(3, 1), layout="constrained")
    steps = range(1, len(losses[0]) + 1)
    above.plot(steps, losses[1], label="eager PyTorch", linewidth=3, alpha=0.4)
    above.plot(steps, losses[0], label="trope", linewidth=1)
    above.set_ylabel("loss, nats per byte")
    above.legend()
    below.semilogy(steps, [abs(a - b) or float("nan") for a, b in zip(*losses)], linewidth=1)
    below.set(xlabel="step", ylabel="|difference|")
    figure.savefig(path)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="bfloat16 uses autocast")
    parser.add_argument("--seed", type=int, default=1, help="seed of the weights and the order of the documents")
    parser.add_argument("--plot", metavar="FILE", help="draw the losses: SVG, PNG, ...")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib")
    options.dtype = getattr(torch, options.dtype)
    return options


def main():
    options = parse()
    torch.use_deterministic_algorithms(True)
    start = time.perf_counter()
    losses = train(options)
    bound, differences = BOUNDS[options.dtype], [abs(ours - eager) for ours, eager in zip(*losses)]
    print("%.1f s; largest difference of a step %.1e, bound %.1e" % (time.perf_counter() - start, max(differences), bound))
    if options.plot:
        plot(losses, options.plot)
    if not all(difference <= bound for difference in differences):  # false for NaN, too
        sys.exit("the losses differ by more than the bound")


if __name__ == "__main__":
    main()
