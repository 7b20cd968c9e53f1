"""DTensors on two processes: results and gradients are compared with one process that has all data. Also tests refusals.

python test_torch_distributed.py RANK STORE DEVICE      the command of each process
"""

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

import trope  # noqa: E402
import trope.torch  # noqa: E402
from processes import DEVICES, WORLD, process_group, run_all  # noqa: E402
from refusals import refused  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor  # noqa: E402

INV_FREQ = [1.0, 0.3, 0.1, 0.03]
PLAIN = dict(layout="sbhd", pairing="half", inv_freq=INV_FREQ)
TABLE = dict(layout="sbhd", pairing="half", angle_columns="pair")
BATCH, HEADS, TOKENS, WHOLE = Shard(1), Shard(2), Shard(0), Replicate()  # in sbhd


def random(*shape, device, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device)


def placed(t, mesh, *placements):
    return distribute_tensor(t, mesh, list(placements))


def whole(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


def tuple_of(results):
    return results if isinstance(results, tuple) else (results,)


def check(tensors, options, function=trope.torch.rotate, expected=None):
    """Checks that DTensors, also as options, give the results and gradients of their full_tensor(). Results must have the
    expected placements, or by default the inputs' placements."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    names = [name for name, t in options.items() if isinstance(t, torch.Tensor) and t.is_floating_point()]
    learned = {name: options[name].detach().requires_grad_() for name in names}
    ours = tuple_of(function(*leaves, **{**options, **learned}))
    full_leaves = [whole(t).detach().requires_grad_() for t in leaves]
    full_options = {name: whole(t) if isinstance(t, torch.Tensor) else t for name, t in options.items()}
    full_learned = {name: whole(t).detach().requires_grad_() for name, t in learned.items()}
    theirs = tuple_of(function(*full_leaves, **{**full_options, **full_learned}))
    for i, (y, wanted) in enumerate(zip(ours, theirs)):
        assert y.shape == wanted.shape and y.stride() == wanted.stride()
        assert tuple(y.placements) == tuple(expected or tensors[i].placements), (y.placements, expected)
        torch.testing.assert_close(y.full_tensor(), wanted, rtol=1e-12, atol=1e-12)
    upstream = [random(*y.shape, device=y.device.type, seed=40 + i) for i, y in enumerate(theirs)]
    losses = [(y.full_tensor() * g).sum() for y, g in zip(ours, upstream)]
    gradients = torch.autograd.grad(sum(losses), [*leaves, *learned.values()])
    wanted = torch.autograd.grad(theirs, [*full_leaves, *full_learned.values()], upstream)
    for ours_, theirs_ in zip(gradients, wanted):
        torch.testing.assert_close(whole(ours_), theirs_, rtol=1e-12, atol=1e-12)
    # An inv_freq tensor must be learned or on the CPU, so it is not frozen.
    frozen = {name: t.detach() for name, t in learned.items() if name != "inv_freq"}
    plain = function(*[t.detach() for t in tensors], **{**options, **learned, **frozen})
    for y, wanted in zip(tuple_of(plain), theirs):
        torch.testing.assert_close(y.full_tensor(), wanted, rtol=1e-12, atol=1e-12)


def check_heads_and_batch(device, mesh):
    q, k = random(5, 4, 4, 8, device=device), random(5, 4, 2, 8, device=device, seed=2)
    for of_q, of_k in ((HEADS, HEADS), (HEADS, WHOLE), (WHOLE, WHOLE), (BATCH, BATCH)):
        tensors = [placed(q, mesh, of_q), placed(k, mesh, of_k)]
        check(tensors, PLAIN)
        check(tensors, PLAIN, trope.torch.rotate_backward)
    uneven = placed(random(5, 3, 3, 8, device=device), mesh, BATCH)
    check([uneven], PLAIN)
    check([placed(random(5, 3, 3, 8, device=device), mesh, HEADS)], PLAIN)
    check([placed(random(2, 4, 5, 8, device=device), mesh, Shard(-3))], dict(PLAIN, layout="bhsd"))
    groups = placed(random(6, 2, 3, 8, device=device), mesh, Shard(1))
    ends = torch.tensor([0, 2, 6], device=device)
    check([groups], dict(PLAIN, layout="tghd", cu_seqlens=ends))
    check([groups], dict(PLAIN, layout="tghd", cu_seqlens=placed(ends, mesh, WHOLE)))


def check_tokens(device, mesh):
    ids = torch.tensor([[0, 4, 2, 3, 1], [1, 1, 3, 0, 2]], device=device)
    x = placed(random(5, 2, 2, 8, device=device), mesh, TOKENS)
    check([x], dict(PLAIN, position_ids=placed(ids, mesh, Shard(1))))
    check([x], dict(PLAIN, position_ids=placed(ids[0], mesh, Shard(0))))
    freqs = placed(random(6, 4, device=device), mesh, WHOLE)
    check([x], dict(TABLE, freqs=freqs, position_ids=placed(ids, mesh, Shard(-1))))


def check_arrays(device, mesh):
    x = random(5, 4, 2, 8, device=device)
    starts = torch.tensor([0, 7, 2, 3], dtype=torch.int32, device=device)
    ids = torch.arange(20, device=device).reshape(4, 5)
    by_batch, by_heads = placed(x, mesh, BATCH), placed(x, mesh, HEADS)
    check([by_batch], dict(PLAIN, start_positions=placed(starts, mesh, Shard(0))))
    check([by_batch], dict(PLAIN, position_ids=placed(ids, mesh, Shard(0))))
    check([by_batch], dict(PLAIN, position_ids=ids[:1]))
    check([by_heads], dict(PLAIN, start_positions=starts, position_ids=None))
    for freqs in (random(5, 4, device=device), random(4, 5, 4, device=device), random(1, 5, 4, device=device)):
        has_batch = freqs.dim() == 3 and freqs.shape[0] > 1
        check([by_batch], dict(TABLE, freqs=placed(freqs, mesh, Shard(0) if has_batch else WHOLE)))
        check([by_heads], dict(TABLE, freqs=placed(freqs, mesh, WHOLE)))
        check([placed(x, mesh, WHOLE)], dict(TABLE, freqs=placed(freqs, mesh, WHOLE)))
    inv_freq = torch.tensor(INV_FREQ, dtype=torch.float64, device=device)
    check([by_heads], dict(PLAIN, inv_freq=placed(inv_freq, mesh, WHOLE)))
    cos, sin = random(5, 4, device=device), random(5, 4, device=device, seed=3)
    with torch.no_grad():
        table = dict(TABLE, cos=placed(cos, mesh, WHOLE), sin=sin)
        assert torch.equal(whole(trope.torch.rotate(by_heads, **table)), trope.torch.rotate(x, **dict(table, cos=cos)))


def check_shared_heads(device, mesh):
    one = random(5, 2, 1, 8, device=device)
    options = dict(PLAIN, shared_heads=4)
    check([placed(one, mesh, WHOLE)], options)
    check([placed(random(5, 2, 2, 8, device=device), mesh, HEADS)], options)
    check(
        [placed(random(5, 2, 4, 8, device=device), mesh, HEADS), placed(one, mesh, WHOLE)], dict(PLAIN, shared_heads=[0, 4])
    )
    dy = random(5, 2, 4, 8, device=device)
    check([placed(dy, mesh, HEADS)], options, trope.torch.rotate_backward, expected=[Partial()])
    check([placed(dy, mesh, HEADS)], dict(PLAIN, shared_heads=2), trope.torch.rotate_backward)


def check_meshes(device):
    """Tests meshes of two dimensions. First the second dimension has both ranks, and then the first dimension."""
    x = random(5, 4, 4, 8, device=device)
    for sizes in ((1, WORLD), (WORLD, 1)):
        mesh = init_device_mesh(device, sizes, mesh_dim_names=("data", "tensor"))
        check([placed(x, mesh, BATCH, HEADS)], PLAIN)
        check([placed(x, mesh, WHOLE, HEADS)], PLAIN)
        check([placed(x, mesh, HEADS, HEADS)], dict(TABLE, freqs=placed(random(5, 4, device=device), mesh, WHOLE, WHOLE)))


def check_in_place_and_compile(device, mesh):
    x = random(5, 4, 2, 8, device=device)
    wanted = trope.torch.rotate(x, **PLAIN)
    y = placed(x.clone(), mesh, HEADS)
    assert trope.torch.rotate_(y, **PLAIN) is y and torch.equal(y.full_tensor(), wanted)
    trope.torch.rotate_backward_(y, **PLAIN)
    torch.testing.assert_close(y.full_tensor(), x)
    compiled = torch.compile(lambda x: trope.torch.rotate(x, **PLAIN), backend="eager", fullgraph=True)
    assert torch.equal(compiled(placed(x, mesh, HEADS)).full_tensor(), wanted)
    module = trope.torch.RotaryEmbedding(trope.Frequencies(INV_FREQ), layout="sbhd", pairing="half")
    assert torch.equal(module(placed(x, mesh, BATCH)).full_tensor(), wanted)


def check_second_derivatives(device, mesh):
    """A gradient penalty with losses that are DTensors keeps all second-order terms."""
    x, freqs = random(5, 4, 4, 8, device=device), random(5, 4, device=device, seed=2)
    for placement in (HEADS, BATCH, WHOLE):
        found = []
        for make in (lambda t, p: placed(t, mesh, p).requires_grad_(), lambda t, p: t.clone().requires_grad_()):
            a, b = make(x, placement), make(freqs, WHOLE)
            y = trope.torch.rotate(a, freqs=b, **TABLE)
            g, h = torch.autograd.grad((y**3).sum(), [a, b], create_graph=True)
            penalty = (g**2).sum() + (h**2).sum()
            found.append([whole(t) for t in torch.autograd.grad(penalty, [a, b])])
        for ours, wanted in zip(*found):
            torch.testing.assert_close(ours, wanted)


def check_versions_and_frozen_frequencies(device, mesh):
    w, x = (placed(random(5, 4, 4, 8, device=device, seed=i), mesh, HEADS) for i in (1, 2))
    y = w.requires_grad_() * x
    trope.torch.rotate_(x, **PLAIN)
    with pytest.raises(RuntimeError, match="inplace operation"):
        y.sum().backward()
    options = dict(layout="sbhd", pairing="half", inv_freq=torch.nn.Parameter(torch.tensor(INV_FREQ, device=device)))
    x = random(50, 2, 2, 8, device=device).float()
    wanted = trope.torch.rotate(x, **options)
    for requires_grad in (True, False):
        of_mesh = distribute_tensor(options["inv_freq"].detach(), mesh, [WHOLE])
        learned = torch.nn.Parameter(of_mesh, requires_grad=requires_grad)
        for context in (torch.no_grad, torch.enable_grad):
            with context():
                y = trope.torch.rotate(placed(x, mesh, HEADS), **dict(options, inv_freq=learned))
                assert torch.equal(y.full_tensor(), wanted)


def check_sizes_that_do_not_fit(device, mesh):
    """A size is odd, and another size is one more: the first shard fits on rank 0, but not on rank 1. Both ranks refuse."""
    x, other = random(5, 5, 2, 8, device=device), random(5, 6, 2, 8, device=device)
    by_batch, by_tokens, first = placed(x, mesh, BATCH), placed(x, mesh, TOKENS), Shard(0)
    ids, starts = torch.zeros(6, 5, dtype=torch.int64, device=device), torch.zeros(6, dtype=torch.int32, device=device)
    freqs = random(6, 5, 4, device=device)
    short = placed(freqs[:5], mesh, first)
    for argument, tensors, options in (
        ("tensors[1]", [by_batch, placed(other, mesh, BATCH)], PLAIN),
        ("tensors[1]", [by_tokens, placed(other.transpose(0, 1), mesh, TOKENS)], dict(PLAIN, position_ids=short)),
        ("tensors[1]", [placed(x, mesh, HEADS), placed(other, mesh, HEADS)], PLAIN),
        ("position_ids", [by_tokens], dict(PLAIN, position_ids=placed(ids[:, 0], mesh, first))),
        ("position_ids", [by_tokens], dict(PLAIN, position_ids=placed(ids.mT, mesh, Shard(1)))),
        ("position_ids", [by_batch], dict(PLAIN, position_ids=placed(ids, mesh, first))),
        ("start_positions", [by_batch], dict(PLAIN, start_positions=placed(starts, mesh, first))),
        ("freqs", [by_batch], dict(TABLE, freqs=placed(freqs, mesh, first))),
        ("sin", [by_batch], dict(TABLE, cos=short, sin=placed(freqs, mesh, first))),
    ):
        refused(argument, trope.torch.rotate, *tensors, **options)


def check_a_rank_outside_of_the_mesh(device, mesh):
    """It takes no part, as in PyTorch's own operations."""
    alone = DeviceMesh(device, [0])
    x = placed(random(5, 4, 2, 8, device=device), alone, HEADS).requires_grad_()
    for y in (trope.torch.rotate(x, **PLAIN), (x * 2).contiguous()):
        (gradient,) = torch.autograd.grad(y.sum(), x)
        for t in (y, gradient):
            assert t.shape == x.shape and t.to_local().shape == (x.shape if mesh.get_rank() == 0 else (0,))
    summed = trope.torch.rotate_backward(x.detach(), **dict(PLAIN, shared_heads=2))
    assert summed.shape == (5, 4, 1, 8) and summed.to_local().numel() == (160 if mesh.get_rank() == 0 else 0)
    refused("tensors[0]", trope.torch.rotate, placed(random(4, 4, 4, 8, device=device), alone, Shard(3)), **PLAIN)


def check_refusals(device, mesh):
    x = random(4, 4, 4, 8, device=device)
    split, ids = placed(x, mesh, TOKENS), torch.arange(4, device=device)
    by_heads, by_batch, all_of_it = placed(x, mesh, HEADS), placed(x, mesh, BATCH), placed(x, mesh, WHOLE)
    partial = DTensor.from_local(x, mesh, [Partial()])
    other = init_device_mesh(device, (WORLD, 1))
    freqs = random(4, 4, device=device).requires_grad_()
    learned = placed(freqs.detach(), mesh, WHOLE)
    starts = torch.zeros(4, dtype=torch.int32, device=device)
    packed = dict(PLAIN, layout="thd", position_ids=placed(ids, mesh, Shard(0)), cu_seqlens=torch.tensor([0, 2]))
    one, six = random(4, 4, 1, 8, device=device), random(4, 4, 6, 8, device=device)
    rotate, rotate_backward = trope.torch.rotate, trope.torch.rotate_backward
    refused("tensors[0]", rotate, split, **PLAIN)
    refused("position_ids", rotate, split, position_ids=ids, **PLAIN)
    refused("position_ids", rotate, split, position_ids=placed(ids, mesh, WHOLE), **PLAIN)
    refused("tensors[0]", rotate, placed(x, mesh, Shard(3)), **PLAIN)
    refused("tensors[0]", rotate, partial, **PLAIN)
    refused("tensors[1]", rotate, by_heads, x, **PLAIN)
    refused("tensors[0]", rotate, x, by_heads, **PLAIN)
    refused("tensors[1]", rotate, by_batch, all_of_it, **PLAIN)
    refused("tensors[1]", rotate, by_batch, by_heads, **PLAIN)
    refused("tensors[1]", rotate, by_heads, placed(x, other, HEADS, WHOLE), **PLAIN)
    refused("tensors[0]", rotate, placed(one, mesh, HEADS), **PLAIN)
    refused("tensors[0]", rotate, placed(x[:, :1], mesh, BATCH), **PLAIN)
    refused("tensors[0]", rotate, placed(x[:, :, :3], mesh, HEADS), shared_heads=2, **PLAIN)
    refused("tensors[0]", rotate_backward, placed(x[:, :, :3], mesh, HEADS), shared_heads=3, **PLAIN)
    refused("tensors[0]", torch.func.grad(lambda x: rotate(x, **PLAIN).sum()), by_heads)
    refused("cu_seqlens", rotate, placed(x[:, 0], mesh, Shard(0)), **packed)
    refused("start_positions", rotate, by_batch, start_positions=starts, **PLAIN)
    refused("position_ids", rotate, by_heads, position_ids=placed(ids, mesh, Shard(0)), **PLAIN)
    refused("freqs", rotate, by_heads, freqs=freqs, **TABLE)
    refused("freqs", rotate, by_heads, all_of_it, freqs=learned.detach().requires_grad_(), **TABLE)
    refused("freqs", rotate, by_heads, freqs=placed(freqs.detach(), other, WHOLE, WHOLE), **TABLE)
    refused("freqs", rotate, x, freqs=learned, **TABLE)
    refused("out", rotate, by_heads, out=by_heads, **PLAIN)
    refused("forward_src", rotate_backward, by_heads, forward_src=by_heads, **PLAIN)
    refused("tensors[0]", trope.torch.rotate_, by_heads * placed(x, mesh, HEADS).requires_grad_(), **PLAIN)
    refused("tensors[0]", rotate_backward, placed(six, mesh, HEADS), shared_heads=2, **PLAIN)
    refused("layout", rotate, by_heads, **dict(PLAIN, layout="shbd"))
    refused("tensors[0]", rotate, by_heads, **dict(PLAIN, layout="thd"))
    refused("shared_heads", rotate, by_heads, shared_heads=[0, 1], **PLAIN)


def run_rank():
    with process_group() as (_, device):
        mesh = init_device_mesh(device, (WORLD,))
        for part in (
            check_heads_and_batch, check_tokens, check_arrays, check_shared_heads, check_in_place_and_compile,
            check_second_derivatives, check_versions_and_frozen_frequencies, check_sizes_that_do_not_fit,
            check_a_rank_outside_of_the_mesh, check_refusals,
        ):  # fmt: skip
            part(device, mesh)
            print(part.__name__, "ok", flush=True)
        check_meshes(device)
        print("check_meshes ok", flush=True)


@pytest.mark.parametrize("device", DEVICES)
def test_dtensors_on_two_processes(device, tmp_path):
    run_all(__file__, tmp_path, device, 11)


if __name__ == "__main__":
    run_rank()
