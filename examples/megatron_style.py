"""Rotates packed QKV with tensor and context parallelism, as Megatron does: the ranks compute the bits of one process.

    PYTHONPATH=python TROPE_LIBRARY=build/libtrope.so python3 examples/megatron_style.py               4 processes, CPU
    torchrun --nproc-per-node 8 examples/megatron_style.py --device cuda --tp 4 --cp 2                 after `pip install .`

A tensor parallel rank has some groups of heads of the packed tensor [tokens.., groups, (q_per_group + 2) * head_dim]. A
context parallel rank has two chunks of each sequence: chunks r and 2 cp - 1 - r (zigzag). All ranks make the same random
tensors. Each rank takes its share, rotates it with the function that Megatron-Core calls, and runs backward with random
upstream gradients. The results and gradients of all ranks are then gathered, put in order, and compared with those of the
whole tensors, which each rank also computes alone:

    q, k, v and the gradient of QKV   bit for bit
    the gradient of learned angles    within a bound, because the sum over ranks has another order

There are three cases: packed sequences (thd), padded to multiples of 2 cp; sequences of one length (sbhd) with the table of
all positions; and sbhd with only this rank's rows of the table, as Megatron-Core's models pass it.

Exit status: 0 if all is equal, 1 if something differs or a rank failed, 2 for bad usage. A rank gives up waiting for a
rank that died.
"""

import argparse
import datetime
import os
import sys
import tempfile

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # NVLink multicast gains nothing here, and some containers lack it
os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread per rank, as with torchrun

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing  # noqa: E402

from trope.transformer_engine import apply_fused_qkv_rotary_pos_emb  # noqa: E402

Q_PER_GROUP, HEAD_DIM, BATCH = 4, 64, 3
SPLIT = [Q_PER_GROUP * HEAD_DIM, HEAD_DIM, HEAD_DIM]
LENGTHS = [701, 1, 0, 333, 96, 1024, 17]  # of the packed sequences, before padding
CASES = ("thd", "sbhd", "sbhd, table cut")
WAIT = datetime.timedelta(seconds=60)  # how long a rank waits for another

# ---- The whole, and a rank's share of it ----


class Whole:
    """The tensors of all ranks. One seed makes them the same on every rank, so nothing needs to be sent."""

    def __init__(self, case, dtype, tp, cp, device):
        self.tensor_format, self.cuts_table = case[:4].strip(","), "cut" in case
        lengths = [-(-length // (2 * cp)) * 2 * cp for length in LENGTHS]  # rounded up
        packed = self.tensor_format == "thd"
        self.lengths, groups = lengths if packed else lengths[:1], 2 * tp
        tokens = (sum(self.lengths),) if packed else (self.lengths[0], BATCH)
        random = torch.Generator().manual_seed(1)

        def draw(*shape):
            return torch.randn(shape, generator=random).to(device, dtype)

        self.qkv = draw(*tokens, groups, sum(SPLIT))
        self.upstream = [draw(*tokens, groups * heads, HEAD_DIM) for heads in (Q_PER_GROUP, 1, 1)]  # of q, k and v
        self.freqs = 3 * draw(max(self.lengths), 1, 1, HEAD_DIM).float()  # halves differ: this detects a wrong transpose
        self.cu_seqlens = torch.tensor([0, *self.lengths], device=device).cumsum(0).int() if packed else None


def zigzag(length, cp, cp_rank):
    """Returns the positions of a rank's tokens in a sequence, in order."""
    chunks = torch.arange(length).view(2 * cp, length // (2 * cp))
    return torch.cat((chunks[cp_rank], chunks[2 * cp - 1 - cp_rank]))


def find_tokens(whole, cp, cp_rank):
    """Returns the places of a rank's tokens in the first dimension of the whole."""
    starts = torch.tensor([0, *whole.lengths]).cumsum(0)
    return torch.cat([start + zigzag(n, cp, cp_rank) for start, n in zip(starts, whole.lengths)]).to(whole.qkv.device)


def rotate(whole, qkv, upstream, learned, cp=1, cp_rank=0):
    """Runs forward and backward. Returns [q, k, v, gradient of qkv], and the gradient of the angles if they are learned."""
    qkv, freqs = qkv.detach().requires_grad_(), whole.freqs.clone().requires_grad_(learned)
    if whole.cuts_table:
        table, split = freqs[find_tokens(whole, cp, cp_rank)], {}
    else:
        table, split = freqs, dict(cp_size=cp, cp_rank=cp_rank)
    results = apply_fused_qkv_rotary_pos_emb(
        qkv, table, table, SPLIT, whole.tensor_format, cu_seqlens=whole.cu_seqlens, **split
    )
    d_qkv, *d_freqs = torch.autograd.grad(results, [qkv, freqs] if learned else [qkv], upstream)
    return [*results, d_qkv], d_freqs[0] if learned else None


# ---- Ranks ----


def make_groups(tp, cp):
    """Makes this rank's tensor and context parallel groups. As in Megatron, tensor parallel ranks are neighbours."""
    ranks = torch.arange(cp * tp).view(cp, tp)
    return tuple(dist.new_subgroups_by_enumeration(r.tolist(), timeout=WAIT)[0] for r in (ranks, ranks.T))


def gather(x, dim, group):
    """Concatenates the tensors of a group's ranks along dim."""
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim)


def rotate_split(whole, learned, tp_group, cp_group):
    """Splits the whole over the ranks, rotates the shares, and returns the same as rotate returns for the whole."""
    tp, cp = tp_group.size(), cp_group.size()
    tokens = [find_tokens(whole, cp, cp_rank) for cp_rank in range(cp)]

    def cut(x):
        return x[tokens[cp_group.rank()]].chunk(tp, -2)[tp_group.rank()]  # groups, or heads in the order of groups

    def join(x):
        stream = gather(gather(x, -2, tp_group), 0, cp_group)
        return torch.empty_like(stream).index_copy_(0, torch.cat(tokens), stream)

    upstream = [cut(dy) for dy in whole.upstream]
    results, d_freqs = rotate(whole, cut(whole.qkv), upstream, learned, cp, cp_group.rank())
    if learned:
        dist.all_reduce(d_freqs)  # over both groups: a rank has some tokens and heads, but d_freqs has all positions
    return [join(x) for x in results], d_freqs


# ---- Comparing ----


def count_unequal(a, b):
    """Counts the elements of which any bit differs."""
    bits = torch.int16 if a.element_size() == 2 else torch.int32
    return int((a.view(bits) != b.view(bits)).sum())


def find_bound(whole, ranks):
    """Returns the bound for the gradient of the angles, in the shape of freqs. docs/multigpu.md has the derivation. An
    angle's gradient is a sum of dy * (partner cos - x sin) over the heads and the tokens that use its row. `sizes` is
    an upper bound of the sum of the terms' magnitudes."""
    sizes = torch.zeros(whole.freqs.shape, dtype=torch.float64, device=whole.qkv.device)
    positions = torch.cat([torch.arange(length) for length in whole.lengths]).to(whole.qkv.device)
    for x, dy in zip(whole.qkv.double().abs().split(SPLIT, -1)[:2], whole.upstream):
        x = x.unflatten(-1, (-1, HEAD_DIM)).flatten(-3, -2)
        terms = (x + x.roll(HEAD_DIM // 2, -1)) * dy.double().abs()
        sizes[:, 0, 0].index_add_(0, positions, terms.flatten(1, -2).sum(1))
    count = 2 * max(len(whole.lengths), BATCH) * whole.qkv.shape[-2] * (Q_PER_GROUP + 1)
    return (count * 2.0**-52 + (ranks + 2) * 2.0**-24) * sizes


def check(case, dtype, learned, groups, device):
    """Prints a line, and returns on every rank whether all is equal."""
    tp, cp = (group.size() for group in groups)
    whole = Whole(case, dtype, tp, cp, device)
    alone, d_freqs_alone = rotate(whole, whole.qkv, whole.upstream, learned)
    split, d_freqs = rotate_split(whole, learned, *groups)
    unequal = sum(map(count_unequal, split, alone))
    line = "q, k, v, d_qkv: %d elements, %d unequal" % (sum(x.numel() for x in alone), unequal)
    if learned:
        parts = (d_freqs.double() - d_freqs_alone.double()).abs() / find_bound(whole, tp * cp)
        unequal += int((~(parts <= 1)).sum())
        line += "; d_freqs: %d elements, error %.2f of its bound" % (parts.numel(), parts.max())
    name = str(dtype).removeprefix("torch.")
    if dist.get_rank() == 0:
        print("%-16s %-9s %-8s %s" % (case, name, "learned" if learned else "fixed", line), flush=True)
    total = torch.tensor(unequal, device=device)
    dist.all_reduce(total)
    return not total


def run(rank, options, ranks, meeting):
    """Runs a rank. `meeting` is the address where the ranks find each other."""
    device = torch.device("cpu")
    if options.device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
        torch.cuda.set_device(device)
    backend = "nccl" if options.device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=ranks, timeout=WAIT)
    groups = make_groups(options.tp, options.cp)
    cases = [(c, d, learned) for c in CASES for d in (torch.float32, torch.bfloat16) for learned in (False, True)]
    verdicts = [check(*case, groups, device) for case in cases]
    if rank == 0:
        print("all equal" if all(verdicts) else "NOT equal: %d of %d cases" % (verdicts.count(False), len(verdicts)))
    dist.barrier()
    dist.destroy_process_group()
    if not all(verdicts):
        sys.exit(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tp", type=int, default=2, help="tensor parallel ranks")
    parser.add_argument("--cp", type=int, default=2, help="context parallel ranks")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    ranks = options.tp * options.cp
    if min(options.tp, options.cp) < 1:
        parser.error("--tp and --cp must be at least 1")
    if "WORLD_SIZE" in os.environ:  # torchrun
        if int(os.environ["WORLD_SIZE"]) != ranks:
            parser.error(
                "tp %d x cp %d must be the number of ranks, which is %s"
                % (options.tp, options.cp, os.environ["WORLD_SIZE"])
            )
        return run(int(os.environ["RANK"]), options, ranks, "env://")
    if options.device == "cuda" and torch.cuda.device_count() < ranks:
        parser.error("%d ranks need as many GPUs, and there are %d" % (ranks, torch.cuda.device_count()))
    with tempfile.TemporaryDirectory() as folder:
        meeting = "file://%s/meeting" % folder
        try:
            torch.multiprocessing.spawn(run, (options, ranks, meeting), nprocs=ranks)
        except torch.multiprocessing.ProcessExitedException as error:
            sys.exit("a rank failed: %s" % error)


if __name__ == "__main__":
    main()
