"""Two processes share the heads of a token, and one of them makes another call, or refuses it. Both must raise the same
error: no rank may go on or wait.

python test_torch_ranks.py RANK STORE DEVICE      the command of each process
"""

import datetime

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

import trope  # noqa: E402
import trope.torch  # noqa: E402
from processes import DEVICES, WORLD, process_group, run_all  # noqa: E402
from refusals import refused  # noqa: E402
from trope.torch import _ranks  # noqa: E402

PLAIN = dict(layout="bshd", pairing="half", inv_freq=[1.0, 0.3, 0.1, 0.03])
NAME = "norms[0].process_group"


def make_group():
    """On CUDA, only the first calls of a group are compared, so each case needs a group of its own."""
    return torch.distributed.new_group(list(range(WORLD)))


def call(device, group, x=(), norm=(), shape=(2, 3, 2, 8), count=1, **options):
    """Rotates `count` tensors with norms over the ranks. x, norm and options replace defaults."""
    xs = [torch.randn(*shape, **dict(x)).to(device) for _ in range(count)]
    settings = dict(weight=torch.ones(8, device=device), eps=1e-3, scope="token", process_group=group)
    settings.update(norm)
    return trope.torch.rotate(*xs, norms=[trope.Norm(**settings)] * count, **{**PLAIN, **options})


NATIVE = dict(rounding="native", norm=dict(rounding="product"))
# The argument that both ranks must name, how the last rank's call differs, and the call of the others.
CASES = [
    ("tensors[0]", dict(shape=(2, 3, 3, 8)), {}),  # uneven heads
    ("tensors[0]", dict(shape=(2, 4, 2, 8)), {}),
    ("tensors[0]", dict(shape=(3, 2, 2, 8)), {}),  # as many elements
    ("tensors[0]", dict(shape=(2, 3, 16)), {}),
    ("tensors[0]", dict(x=dict(dtype=torch.bfloat16)), {}),
    ("tensors[0]", dict(x=dict(dtype=torch.float64)), {}),
    ("norms[0].eps", dict(norm=dict(eps=2e-3)), {}),
    ("norms[0].plus_one", dict(norm=dict(plus_one=True)), {}),
    ("norms[0].order", dict(norm=dict(order="after")), {}),
    ("norms[0].weight", dict(norm=dict(weight=None)), {}),
    ("norms[0].weight", dict(norm=dict(weight=torch.ones(7, dtype=torch.float64))), {}),
    ("norms[0].rounding", dict(rounding="native", norm=dict(rounding="twice")), NATIVE),
    ("norms[0].rounding", dict(rounding="native"), NATIVE),
    ("rounding", dict(NATIVE, rounding="native_f32"), NATIVE),
    ("norms[1]", {}, dict(count=2)),
    ("norms[0]", dict(x=dict(requires_grad=True)), {}),
    ("pairing", dict(pairing="halves"), {}),
    ("position_ids", dict(position_ids=torch.arange(4)), {}),
    ("rotary_dim", dict(rotary_dim=7), {}),
    ("norms[0]", dict(shared_heads=2), {}),
]


def check_calls_that_differ(device, rank):
    for argument, last, others in CASES:
        is_last, group = rank == WORLD - 1, make_group()
        error = refused(argument, call, device, group, **(last if is_last else others))
        assert is_last or NAME in str(error), error
        call(device, group)  # the ranks are still in step


def check_backwards_that_differ(device, rank):
    group = make_group()
    x = [torch.randn(2, 3, 2, 8).to(device).requires_grad_() for _ in range(2)]
    norm = trope.Norm(eps=1e-3, scope="token", process_group=group)
    for _ in range(2):
        ys = trope.torch.rotate(*x, norms=[norm] * 2, **PLAIN)
        refused("norms[0]", torch.autograd.grad, ys[rank % 2].sum(), x[rank % 2])


def check_two_groups(device, rank):
    """The ranks have the groups in another order. A third tensor comes first, which has no norm."""
    groups = [make_group(), make_group()]
    xs = [torch.randn(2, 3, 2, 8).to(device) for _ in range(3)]
    norms = [None, *[trope.Norm(eps=1e-3, scope="token", process_group=groups[i ^ (rank % 2)]) for i in range(2)]]
    refused("norms[1]", trope.torch.rotate, *xs, norms=norms, **PLAIN)
    norms = [None, *[trope.Norm(torch.ones(7 + rank % 2), eps=1e-3, scope="token", process_group=each) for each in groups]]
    refused("norms[1].weight", trope.torch.rotate, *xs, norms=norms, **PLAIN)


def check_compiled(device, rank):
    group = make_group()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def run(x, eps):
        norm = trope.Norm(eps=eps, scope="token", process_group=group)
        return trope.torch.rotate(x, norms=norm, **PLAIN)

    x = torch.randn(2, 3, 2, 8).to(device)
    refused("norms[0].eps", run, x, 1e-3 + rank)
    run(x, 1e-3)
    if device == "cpu":
        refused("tensors[0]", run, torch.randn(2, 3 + rank, 2, 8), 1e-3)


def check_every_call_on_the_cpu(device, rank):
    """The ranks have agreed on both calls before, but not on who makes which."""
    if device == "cpu":
        group = make_group()
        for eps in (1e-3, 2e-3):
            call(device, group, norm=dict(eps=eps))
        refused("norms[0].eps", call, device, group, norm=dict(eps=1e-3 * (1 + rank)))


def check_the_store(device, rank):
    """What CUDA uses instead of a collective. Each exchange deletes the text of the one before it."""
    group = make_group()
    store = torch.distributed.distributed_c10d._get_process_group_store(group)

    def agree(rounding, refusal=None):
        _ranks._agree_in(group.group_name, NAME, (False, "bshd", rounding), True, refusal)

    agree("once")
    refused("rounding", agree, ("native", "native_f32")[rank])
    refused("x", agree, "native", trope.Error("x is wrong", "x") if rank == 0 else None, words="x is wrong")
    agree("native")
    torch.distributed.barrier(group)
    assert [store.check(["trope/%d/%d" % (i, rank)]) for i in range(4)] == [False, False, False, True]
    if rank == 0:  # the other rank has agreed, and does not come again
        agree("once")
        _ranks.refuse([trope.Norm(eps=1e-3, scope="token", process_group=group)], True, trope.Error("not told"))
        usual = store.timeout
        store.set_timeout(datetime.timedelta(seconds=1))
        refused(NAME, agree, "native_f32", words="a rank does not make this call")
        store.set_timeout(usual)
    torch.distributed.barrier(group)


def check_a_rank_that_has_left(device, rank):
    """It is the last part: the other rank has ended, or ends while this rank waits."""
    if device == "cpu" and rank == 0:
        refused(NAME, call, device, torch.distributed.group.WORLD, words="a rank does not make this call, or has failed")


PARTS = (
    check_calls_that_differ, check_backwards_that_differ, check_two_groups, check_compiled, check_every_call_on_the_cpu,
    check_the_store, check_a_rank_that_has_left,
)  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
def test_ranks_that_differ(device, tmp_path):
    run_all(__file__, tmp_path, device, len(PARTS))


def test_an_error_lists_the_ranks():
    ranks = [{"norms[0].eps": value} for value in ("1", "2", "1", "1")]
    refused("norms[0].eps", _ranks._compare, ranks, NAME, words="1 on ranks 0, 2, 3, but 2 on rank 1$")
    refused("norms[0].eps", _ranks._compare, [*ranks[:1], {}], NAME, words="1 on rank 0, but missing on rank 1$")


if __name__ == "__main__":
    with process_group() as (rank, device):
        for part in PARTS:
            part(device, rank)
            print(part.__name__, "ok", flush=True)
