"""Properties that the functions of all drop-in modules share, tested with the table of dropins.py. Their results do not
depend on the strides of tensors. They can be compiled and differentiated twice. They refuse transforms and kinds of tensors
for which PyTorch could give wrong results."""

import re

import pytest

torch = pytest.importorskip("torch")

import trope  # noqa: E402
from checks import as_list, rearranged, upstreams  # noqa: E402
from dropins import (  # noqa: E402
    OF_TENSORS, ROWS, B, D, H, R, S, call, caller, find_parameters, first_tensor, has_autograd, ints, randn,
    refused_row, results_of,
)  # fmt: skip
from trope import flash_attn  # noqa: E402

pytestmark = pytest.mark.usefixtures("default_device")
DIFFERENTIABLE = [name for name in OF_TENSORS if has_autograd(name)]
IN_PLACE = re.compile(
    "flash_attn.*(QKV|KV|qkv|kv)_|flash_attn.RotaryEmbedding|megatron.fused_(mla_rope_in|apply_mla_rope_for_q)"
)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(3)


def strides_of_result(name, x):
    """The strides that each library gives its result: the input's strides, the strides of eager code, or contiguous
    strides."""
    if IN_PLACE.match(name):
        return x.stride()
    as_eager = name.startswith(("flash_attn", "liger"))
    return (torch.empty_like(x) if as_eager else torch.empty(x.shape)).stride()


@pytest.mark.parametrize("name", OF_TENSORS)
def test_strides_change_no_bits(name):
    """Tensors and upstream gradients with other strides give the same bits. Results have the strides of the replaced
    library's results."""
    function, given, x = first_tensor(name)
    found = []
    for how in (None, "first", "last", "slice"):
        leaf = given[x].clone().requires_grad_()
        tensor = leaf * 1 if how is None else rearranged(leaf, how)
        strides = strides_of_result(name, tensor)
        results = results_of(function, {**given, x: tensor})
        if results[0].shape == tensor.shape and not given.get("transpose_output"):
            assert results[0].stride() == strides
        found.append([results, []])
        learned = [y for y in results if y.requires_grad]
        if learned:
            torch.manual_seed(4)
            for upstream in upstreams(learned):
                before = [dy.clone() for dy in upstream]
                found[-1][1] += torch.autograd.grad(learned, leaf, upstream, retain_graph=True)
                assert all(map(torch.equal, upstream, before))
    assert found[0][1] or not has_autograd(name)
    for results, gradients in found:
        assert all(map(torch.equal, results, found[0][0])) and all(map(torch.equal, gradients, found[0][1]))
        if gradients:
            assert torch.equal(gradients[0], gradients[1])  # the same upstream gradient with other strides


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_second_derivatives(name):
    function, given, x = first_tensor(name)
    given = {name: t.double() if torch.is_tensor(t) and t.is_floating_point() else t for name, t in given.items()}
    leaf = given[x].requires_grad_()

    def squares(t):
        return [y * y for y in results_of(function, {**given, x: t * 1}) if y.requires_grad]

    assert torch.autograd.gradgradcheck(squares, leaf, fast_mode=True)


COMPILED = """
    apex.fused_apply_rotary_pos_emb apex.fused_apply_rotary_pos_emb_cached apex.fused_apply_rotary_pos_emb_thd
    apex.fused_apply_rotary_pos_emb_2d flash_attn.apply_rotary_emb flash_attn.apply_rotary_emb_qkv_
    flash_attn.apply_rotary_emb_kv_ flash_attn.RotaryEmbedding.forward liger.liger_rotary_pos_emb
    liger.liger_rotary_pos_emb_vision liger.liger_multimodal_rotary_pos_emb liger.liger_llama4_text_rotary_pos_emb
    transformer_engine.apply_rotary_pos_emb transformer_engine.apply_fused_qkv_rotary_pos_emb transformer_engine.FusedRoPEFunc
    transformer_engine.FusedQKVRoPEFunc
    megatron.apply_rotary_pos_emb megatron.fused_apply_rotary_pos_emb_thd megatron.fused_mla_rope_inplace
    megatron.fused_mla_rope_kv_split megatron.fused_mla_rope_concat
"""


@pytest.mark.parametrize(
    "name", [*COMPILED.split(), "flash_attn.apply_rotary_emb packed", "megatron.fused_mla_rope_kv_split thd"]
)
@pytest.mark.filterwarnings("ignore")
def test_compiled_functions_have_the_bits_of_eager_ones(name):
    """Each function, except FusedQKVRoPEFunc, is compiled in one graph. The graph also changes the strides of the
    function's input. Results have the strides of eager results."""
    torch._dynamo.reset()
    function, given, x = first_tensor(name)
    torch.set_default_device(None)  # Dynamo cannot trace Tensor.unflatten with a default device
    run_given = caller(function)

    def run(t):
        return as_list(run_given({**given, x: rearranged(t * 2, "last")}))

    leaf, found = given[x].clone().requires_grad_(), []
    for f in (run, torch.compile(run, backend="aot_eager", fullgraph="FusedQKVRoPEFunc" not in name)):
        results = f(leaf)
        torch.manual_seed(4)
        learned = [y for y in results if y.requires_grad]
        found.append([results, *torch.autograd.grad(learned, leaf, [torch.randn_like(y) for y in learned])])
    for eager, compiled in zip(*(results for results, _ in found)):
        assert torch.equal(eager, compiled) and eager.stride() == compiled.stride()
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("name", OF_TENSORS)
def test_transforms_are_refused(name):
    function, given, x = first_tensor(name)
    value = given[x]
    names = re.compile("|".join(re.escape(p) for p in find_parameters(function)))

    def run(t):
        return results_of(function, {**given, x: t})[0]

    def dual():
        with torch.autograd.forward_ad.dual_level():
            run(torch.autograd.forward_ad.make_dual(value, value))

    for attempt in (
        lambda: torch.vmap(run)(value[None]),
        lambda: torch.func.grad(lambda t: run(t).sum())(value),
        lambda: torch.func.jvp(run, (value,), (value,)),
        dual,
        lambda: torch.jit.trace(run, (value,)),
    ):
        with pytest.raises(trope.Error) as caught:
            attempt()
        assert names.fullmatch(caught.value.argument), caught.value.argument


@pytest.fixture(scope="module")
def mesh():
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    distributed.destroy_process_group()


@pytest.mark.parametrize("name", OF_TENSORS)
def test_dtensors_and_jagged_tensors_are_refused(name, mesh):
    from torch.distributed.tensor import DTensor, Replicate

    for parameter, value in ROWS[name][0]().items():
        if torch.is_tensor(value):
            distributed = DTensor.from_local(value, mesh, [Replicate()])
            assert "to_local()" in str(refused_row(name, parameter, lambda t, d=distributed: d))
            jagged = torch.nested.nested_tensor([randn(2, H, D), randn(4, H, D)], layout=torch.jagged)
            assert "values()" in str(refused_row(name, parameter, lambda t, j=jagged: j))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_sparse_and_batched_gradients(name):
    """Sparse gradients are refused. Batched gradients are refused, or right."""
    function, given, x = first_tensor(name)
    leaf = given[x].clone().requires_grad_()
    given[x] = leaf * 1
    y = next(y for y in results_of(function, given) if y.requires_grad)
    composed = name == "megatron.apply_fused_qkv_rotary_pos_emb"  # its last step is a PyTorch operation
    with pytest.raises(RuntimeError if composed else trope.Error):
        torch.autograd.grad(y, leaf, torch.ones_like(y).to_sparse(), retain_graph=True)
    upstream = torch.stack([torch.randn_like(y), torch.randn_like(y)])
    alone = [torch.autograd.grad(y, leaf, g, retain_graph=True)[0] for g in upstream]
    assert all(dx.isfinite().all() for dx in alone)
    try:
        (batch,) = torch.autograd.grad(y, leaf, upstream, is_grads_batched=True)
    except trope.Error as error:
        assert "is_grads_batched" in str(error)
    else:
        assert torch.equal(batch, torch.stack(alone))


@pytest.mark.parametrize("name", ["transformer_engine.apply_rotary_pos_emb", "flash_attn.apply_rotary_emb",
                                  "megatron.fused_mla_rope_inplace", "megatron.apply_rotary_pos_emb"])  # fmt: skip
def test_inference_tensors_that_backward_needs_are_refused(name):
    function, given, x = first_tensor(name)
    table = "cos" if "cos" in given else "freqs"
    with torch.inference_mode():
        given[table] = given[table].clone()
    call(function, given)
    with pytest.raises(trope.Error) as caught:
        call(function, {**given, x: given[x].clone().requires_grad_() * 1})
    assert caught.value.argument == table and "inference tensor" in str(caught.value)


def test_a_refused_call_writes_nothing():
    """Each call writes several tensors or uses several tables. Only on the CPU are offsets read before the call."""
    with torch.device("cpu"):
        check_refused_calls()


def check_refused_calls():
    module, q, kv = flash_attn.RotaryEmbedding(R), randn(B, 2, H, D), randn(B, S, 2, H, D)
    qkv, long, short = randn(B, S, 3, H, D), randn(2 * S, R // 2), randn(S, R // 2)
    late = ints(0, 1)  # the offset 1 is too large for the short table, and for kv with max_seqlen
    expanded = randn(B, S, 2, 1, D).expand(-1, -1, -1, H, -1)
    rotate_qkv = flash_attn.apply_rotary_emb_qkv_
    for argument, attempt in (
        ("seqlen_offset", lambda: module(q, kv, seqlen_offset=late, max_seqlen=S)),
        ("kv", lambda: module(q, kv[:, :, :1])),
        ("kv", lambda: module(q, expanded)),
        ("seqlen_offsets", lambda: rotate_qkv(qkv, long, long, short, short, seqlen_offsets=late)),
        ("seqlen_offsets", lambda: rotate_qkv(qkv, short, short, long, long, seqlen_offsets=late)),
    ):
        kept = [x.clone() for x in (q, kv, qkv)]
        with pytest.raises(trope.Error) as caught:
            attempt()
        assert caught.value.argument.partition("[")[0] == argument
        assert all(map(torch.equal, kept, (q, kv, qkv)))


@pytest.mark.parametrize("name", ["flash_attn.apply_rotary_emb", "flash_attn.apply_rotary_emb_qkv_",
                                  "flash_attn.apply_rotary_emb_kv_", "megatron.fused_mla_rope_inplace"])  # fmt: skip
def test_expanded_tensors_are_not_rotated_in_place(name):
    function, given, x = first_tensor(name)
    if "inplace" in given:
        given["inplace"] = True
    with pytest.raises(trope.Error) as caught:
        call(function, {**given, x: given[x][..., :1, :].expand_as(given[x])})
    assert caught.value.argument == x
