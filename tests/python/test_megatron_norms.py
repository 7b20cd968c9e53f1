"""trope.megatron.patch(fuse_norm=True) on Megatron-Core's SelfAttention, compared with the same layer unpatched."""

import sys

import pytest

torch = pytest.importorskip("torch")
attention = pytest.importorskip("megatron.core.transformer.attention", reason="Megatron-Core cannot be imported")

import trope  # noqa: E402
import trope.megatron as tm  # noqa: E402
import trope.torch  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.inference.contexts import StaticInferenceContext  # noqa: E402
from megatron.core.transformer.identity_op import IdentityOp  # noqa: E402
from checks import DEVICES  # noqa: E402
from megatron_layers import (  # noqa: E402
    Model, NormOfTE, Same, make_layer, model_parallel, one_process, randomize, real_cuda, run_layer,
)  # fmt: skip
from refusals import refused  # noqa: E402
from trope.megatron import _patch  # noqa: E402

RMS = dict(qk_layernorm=True, normalization="RMSNorm")
NAMES = ["q_layernorm", "k_layernorm"]


@pytest.fixture(scope="module", autouse=True)
def parallel(tmp_path_factory):
    with one_process(tmp_path_factory.mktemp("gloo") / "store"), model_parallel():
        yield


@pytest.fixture(autouse=True)
def undone():
    torch.manual_seed(13)
    yield
    if _patch._active is not None:
        _patch._active.undo()


def make(dtype=torch.float32, **options):
    """A layer whose norms have random weights."""
    return randomize(make_layer(apply_rope_fusion=False, **options)).to(dtype)


def make_inputs(packed=False, dtype=torch.float32, columns=16, batch_of_emb=1):
    """x, the angles and the gradient of the result."""
    x, dy = torch.randn(2, 24, 1 if packed else 2, 64).to(dtype)
    return x, torch.randn(16 if packed else 24, batch_of_emb, 1, columns), dy


def run(layer, x, emb, dy, packed=False):
    return run_layer(layer, packed, x, emb, dy)


def assert_near(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


def call(layer, **options):
    x, emb, _ = make_inputs()
    return layer(x, None, **dict(dict(rotary_pos_emb=emb), **options))[0]


# ---- Results ----

LAYERS = {
    "rms": (RMS, {}),
    "packed": (RMS, dict(packed=True)),
    "l2": (dict(qk_l2_norm=True), {}),
    "gate": (dict(RMS, attention_output_gate=True), {}),
    "gate_packed": (dict(RMS, attention_output_gate=True), dict(packed=True)),
    "interleaved": (dict(RMS, rotary_interleaved=True), {}),
    "partial": (RMS, dict(columns=8)),
    "mrope": (RMS, dict(batch_of_emb=2)),
    "no_groups": (dict(RMS, num_query_groups=4), {}),
    "one_group": (dict(RMS, num_query_groups=1), {}),
    "transformer_engine": (dict(RMS, norm=NormOfTE), {}),
    "zero_centered": (dict(RMS, norm=NormOfTE, layernorm_zero_centered_gamma=True), dict(packed=True)),
}


def check_rotated(found, expected):
    """In fp32, q or k must be within 8 units in the last place of the largest element of its head. In bf16, the last bit of
    rstd may move a few elements to the next number."""
    if found.dtype == torch.float32:
        assert ((found - expected).abs() <= 2.0**-21 * expected.abs().amax(-1, keepdim=True)).all()
    else:
        assert (found != expected).float().mean() < 0.001
        assert ((found - expected).abs() <= 2.0**-6 * expected.abs().amax(-1, keepdim=True)).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, dtype, device):
    """q and k match the results of Megatron's norms and rotations. Results and gradients are compared with Megatron's in
    f64, and are about as accurate as Megatron's in this dtype."""
    with real_cuda():
        check_layer(*LAYERS[name], dtype, device)


def check_layer(options, of_inputs, dtype, device):
    x, emb, dy = (t.to(device) for t in make_inputs(dtype=dtype, **of_inputs))
    packed = of_inputs.get("packed", False)
    layer = make(dtype, **options).to(device)
    expected = run(layer, x, emb, dy, packed)
    exact = run(make(dtype, **options).to(device).double(), x.double(), emb.double(), dy.double(), packed)
    with tm.patch() as handle:
        run(layer, x, emb, dy, packed)
        rotated = layer.core_attention.seen
        assert handle.norms == {} and "norms" not in repr(handle)
    with tm.patch(fuse_norm=True) as handle:
        found = run(layer, x, emb, dy, packed)
        assert handle.norms == dict.fromkeys(NAMES, 1) and "2 norms" in repr(handle)
        assert handle.calls["apply_rotary_pos_emb"] == 2 and "SelfAttention.forward in transformer.attention" in str(handle)
    for y, right in zip(layer.core_attention.seen, rotated):
        check_rotated(y, right)
    for a, b, right in zip(found, expected, exact):
        assert a.dtype == b.dtype == dtype
        error, theirs = ((y.double() - right).norm() / right.norm().clamp(min=1e-30) for y in (a, b))
        assert error <= 1.5 * theirs + 1e-7, (error, theirs)


def test_weights_in_f32():
    """With x in bf16 and weights in f32, torch.nn.RMSNorm gives a result in bf16 and gradients of the weights in f32."""
    x, emb, dy = make_inputs(dtype=torch.bfloat16)
    layer = make(torch.bfloat16, **RMS)
    layer.q_layernorm.float(), layer.k_layernorm.float()
    torch.nn.init.normal_(layer.q_layernorm.weight)
    expected = run(layer, x, emb, dy)
    with tm.patch(fuse_norm=True) as handle:
        found = run(layer, x, emb, dy)
    assert handle.norms == dict.fromkeys(NAMES, 1)
    for a, b in zip(found, expected):
        assert a.dtype == b.dtype and (a - b).norm() <= 0.02 * b.norm()
    assert [d.dtype for d in found[-2:]] == [torch.float32] * 2


def test_eps_of_torch():
    """torch.nn.RMSNorm has its default eps. q and k are so small that eps matters."""
    layer, inputs = make(**RMS), make_inputs()
    layer.q_layernorm.eps = layer.k_layernorm.eps = None
    with torch.no_grad():
        layer.linear_qkv.weight.mul_(1e-3)
    expected = run(layer, *inputs)
    with tm.patch(fuse_norm=True):
        found = run(layer, *inputs)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * b.abs().max().item())


@pytest.mark.parametrize("frozen", [["q_layernorm"], NAMES])
def test_frozen_weights(frozen):
    layer, inputs = make(**RMS), make_inputs()
    for name in frozen:
        getattr(layer, name).requires_grad_(False)
    expected = run(layer, *inputs)
    with tm.patch(fuse_norm=True) as handle:
        assert_near(run(layer, *inputs), expected)
    assert handle.norms == dict.fromkeys(NAMES, 1)


def test_one_of_two_norms():
    layer, inputs = make(**RMS), make_inputs()
    for norm in (None, IdentityOp()):
        layer.k_layernorm = norm
        expected = run(layer, *inputs)
        with tm.patch(fuse_norm=True) as handle:
            assert_near(run(layer, *inputs), expected)
        assert handle.norms == dict(q_layernorm=1, k_layernorm=0)


def test_one_norm_module_for_q_and_k():
    layer, inputs = make(**RMS), make_inputs()
    layer.k_layernorm = layer.q_layernorm
    expected = run(layer, *inputs)
    with tm.patch(fuse_norm=True) as handle:
        assert_near(run(layer, *inputs), expected)
    assert handle.norms == dict.fromkeys(NAMES, 1)


def test_gradients_reach_the_parameters():
    """The same Parameters get .grad, and their hooks run. With such hooks, Megatron's DDP makes main_grad."""
    layer, (x, emb, dy) = make(**RMS), make_inputs()
    seen, parameters = [], {name: getattr(layer, name).weight for name in NAMES}
    for name, p in parameters.items():
        p.average_gradients_across_tp_domain = True
        p.register_post_accumulate_grad_hook(lambda p, name=name: seen.append(name))
    with tm.patch(fuse_norm=True):
        layer(x, None, rotary_pos_emb=emb)[0].backward(dy)
    assert sorted(seen) == sorted(NAMES)
    for name, p in parameters.items():
        assert getattr(layer, name).weight is p and p.grad.any() and p.average_gradients_across_tp_domain


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint_of_the_layer(use_reentrant):
    layer, (x, emb, dy) = make(**RMS), make_inputs()
    x.requires_grad_()

    def gradients(function):
        inputs = [x, *(p for name, p in layer.named_parameters() if name != "linear_proj.bias")]
        for t in inputs:
            t.grad = None
        function(x).backward(dy)
        return [t.grad.clone() for t in inputs]

    def function(x):
        return layer(x, None, rotary_pos_emb=emb)[0]

    with tm.patch(fuse_norm=True) as handle:
        expected = gradients(function)
        found = gradients(lambda x: torch.utils.checkpoint.checkpoint(function, x, use_reentrant=use_reentrant))
    assert handle.norms == dict.fromkeys(NAMES, 3) and all(map(torch.equal, found, expected))


def test_checkpoint_of_core_attention(monkeypatch):
    """Tests Megatron's selective recomputation, but replaces the part that handles CUDA's random states."""
    monkeypatch.setattr(
        attention.tensor_parallel, "checkpoint",
        lambda function, _, *words: torch.utils.checkpoint.checkpoint(function, *words, use_reentrant=False),
    )  # fmt: skip
    inputs = make_inputs()
    expected = run(make(**RMS), *inputs)
    layer = make(recompute_granularity="selective", recompute_modules=["core_attn"], **RMS)
    assert layer.checkpoint_core_attention
    with tm.patch(fuse_norm=True) as handle:
        assert_near(run(layer, *inputs), expected)
    assert handle.norms == dict.fromkeys(NAMES, 1)


def test_without_gradients():
    layer, (x, emb, _) = make(**RMS), make_inputs()
    expected = layer(x, None, rotary_pos_emb=emb)[0]
    with tm.patch(fuse_norm=True) as handle:
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                assert_near([layer(x, None, None, None, emb)[0]], [expected])
    assert handle.norms == dict.fromkeys(NAMES, 2)


def test_compile():
    """The forward of the attention stays outside the graph and runs as it does without torch.compile."""
    layer, (x, emb, _) = make(**RMS), make_inputs()
    expected = layer(x, None, rotary_pos_emb=emb)[0]
    with tm.patch(fuse_norm=True) as handle:
        compiled = torch.compile(lambda x: layer(x + 0, None, rotary_pos_emb=emb)[0] * 1, backend="aot_eager")
        assert_near([compiled(x)], [expected])
        assert handle.norms == dict.fromkeys(NAMES, 1)


# ---- Norms without a rotation after them run unfused ----


def test_layers_that_do_not_rotate():
    emb = make_inputs()[1]
    for layer, words, norms in (
        (make(**RMS), dict(rotary_pos_emb=None), []),
        (make(no_rope_freq=[1], **RMS), {}, []),
        (make(**RMS), dict(rotary_pos_emb=(emb, None)), ["q_layernorm"]),
        (make(**RMS), dict(rotary_pos_emb=(None, emb)), ["k_layernorm"]),
        (make(qk_layernorm=True), dict(rotary_pos_emb=None), []),  # a LayerNorm
        (make(), {}, []),
    ):
        torch.manual_seed(5)
        expected = call(layer, **words)
        with tm.patch(fuse_norm=True) as handle:
            torch.manual_seed(5)
            assert_near([call(layer, **words)], [expected])
        assert handle.norms == {name: int(name in norms) for name in NAMES}


def test_inference():
    """k is normalised, cached and then rotated."""
    layer = make(**RMS).eval()

    def infer(**words):
        torch.manual_seed(5)
        with torch.no_grad():
            return call(layer, **words)

    for word in ("inference_context", "inference_params"):
        expected = infer(**{word: StaticInferenceContext(2, 24)})
        with tm.patch(fuse_norm=True) as handle:
            assert_near([infer(**{word: StaticInferenceContext(2, 24)})], [expected])
        assert handle.norms == dict.fromkeys(NAMES, 0) and handle.calls["apply_rotary_pos_emb"] == 2
    attention.InferenceMode.set_active()
    try:
        expected = infer()
        with tm.patch(fuse_norm=True) as handle:
            assert_near([infer()], [expected])
    finally:
        attention.InferenceMode.unset_active()
    assert handle.norms == dict.fromkeys(NAMES, 0)


def test_mla_keeps_its_norms():
    """MLA's q_layernorm and kv_layernorm act on latents, and not on the q and k that rotate."""
    layer, (x, _, dy) = make_layer(True, apply_rope_fusion=False, **RMS), make_inputs()
    expected = run(layer, x, None, dy)
    with tm.patch(fuse_norm=True) as handle:
        assert_near(run(layer, x, None, dy), expected)
    assert handle.norms == dict.fromkeys(NAMES, 0)


# ---- Hooks ----


def test_forward_pre_hooks_run():
    """With overlap_param_gather, Megatron's DDP registers forward pre-hooks. They wait for the weights, which must not be
    read earlier."""
    layer, inputs = make(**RMS), make_inputs()
    expected = run(layer, *inputs)
    weight = layer.q_layernorm.weight.detach().clone()
    seen = []

    def gather(module, inputs):
        module.weight.data.copy_(weight)
        seen.append(inputs[0].shape)

    def look(module, args, kwargs):
        seen.append(kwargs)
        return args, kwargs

    layer.q_layernorm.register_forward_pre_hook(gather)
    layer.k_layernorm.register_forward_pre_hook(look, with_kwargs=True)
    layer.q_layernorm.weight.data.zero_()
    with tm.patch(fuse_norm=True) as handle:
        assert_near(run(layer, *inputs), expected)
    assert seen == [(24, 2, 4, 16), {}] and handle.norms == dict.fromkeys(NAMES, 1)


def test_ddp_that_overlaps_the_gather_of_weights():
    layer, inputs = make(**RMS), make_inputs()
    expected = run(layer, *inputs)
    config = DistributedDataParallelConfig(
        use_distributed_optimizer=True, overlap_param_gather=True, overlap_grad_reduce=True
    )
    model = DistributedDataParallel(layer.config, config, Model(layer))
    assert all(getattr(layer, name)._forward_pre_hooks for name in NAMES)
    with tm.patch(fuse_norm=True) as handle:
        x, emb, dy = inputs
        y = layer(x, None, rotary_pos_emb=emb)[0]
        assert_near([y], expected[:1])
        model.zero_grad_buffer()
        y.backward(dy)
    assert handle.norms == dict.fromkeys(NAMES, 1)
    assert_near([p.main_grad for p in layer.parameters()], expected[2:])


@pytest.mark.parametrize("hook", [
    lambda module, args: args[0] * 2, lambda module, args: (args[0] * 2,), lambda module, args: (args[0], 1),
])  # fmt: skip
def test_pre_hooks_that_change_the_input_are_refused(hook):
    layer = make(**RMS)
    layer.k_layernorm.register_forward_pre_hook(hook)
    with tm.patch(fuse_norm=True):
        refused("k_layernorm", call, layer, words="pre-hook that changes the input")


@pytest.mark.parametrize("register", [
    "register_forward_hook", "register_full_backward_hook", "register_full_backward_pre_hook",
])  # fmt: skip
def test_other_hooks_are_refused(register):
    layer = make(**RMS)
    getattr(layer.q_layernorm, register)(lambda *words: None)
    with tm.patch(fuse_norm=True):
        refused("q_layernorm", call, layer, words="hooks" if "pre" not in register else "backward pre-hooks")


# ---- Refusals ----


class OtherNorm(torch.nn.RMSNorm):
    def __init__(self, hidden_size, config, eps):
        super().__init__(hidden_size, eps=eps)


@pytest.mark.parametrize("options, words", [
    (dict(qk_layernorm=True), "a LayerNorm of torch.nn.*normalization='RMSNorm' in the config"),
    (dict(RMS, norm=OtherNorm), "a OtherNorm of test_megatron_norms"),
])  # fmt: skip
def test_other_norms_are_refused(options, words):
    layer = make_layer(**options)
    with tm.patch(fuse_norm=True) as handle:
        refused("q_layernorm", call, layer, words=words)
        assert trope.megatron._norms._current.forward is None and handle.norms == dict.fromkeys(NAMES, 0)
    call(layer)


def test_global_hooks_are_refused():
    layer, hook = make(**RMS), torch.nn.modules.module.register_module_forward_hook(lambda *given: None)
    try:
        with tm.patch(fuse_norm=True):
            refused("q_layernorm", call, layer, words="global module hooks")
    finally:
        hook.remove()


@pytest.mark.parametrize("options", [RMS, dict(RMS, norm=NormOfTE), dict(qk_l2_norm=True)])
def test_another_forward_is_refused(options, monkeypatch):
    """The forward of the module, and the forward of its class."""
    layer = make(**options)
    with tm.patch(fuse_norm=True):
        call(layer)
        monkeypatch.setattr(type(layer.q_layernorm), "forward", lambda norm, x: 2 * x)
        refused("q_layernorm", call, layer, words="RMSNorm|L2Norm of .* whose forward has been replaced")
        layer.q_layernorm.forward = lambda x: x
        refused("q_layernorm", call, layer, words="its own forward")


def test_weights_that_do_not_fit_are_refused():
    layer = make(**RMS)
    layer.k_layernorm.weight = torch.nn.Parameter(torch.ones(8))
    with tm.patch(fuse_norm=True):
        refused(
            "k_layernorm",
            call,
            layer,
            words=r"a norm of \[8\] elements, but fuse_norm is for norms of a head, which has 16",
        )
    layer.k_layernorm = torch.nn.RMSNorm((2, 16), elementwise_affine=False)
    call(layer)
    with tm.patch(fuse_norm=True):
        refused("k_layernorm", call, layer, words=r"a norm of \[2, 16\] elements")
    layer.k_layernorm = make(**RMS).k_layernorm
    layer.k_layernorm.weight = torch.nn.Parameter(torch.ones(16, dtype=torch.float64))
    with tm.patch(fuse_norm=True):
        error = refused("k_layernorm.weight", call, layer)
        assert "norms[0]" not in str(error)


def test_dtypes_of_transformer_engine():
    """The result of TransformerEngine's norm has the dtype of the weights or of autocast. fuse_norm refuses x of another
    dtype."""
    layer = make(torch.bfloat16, norm=NormOfTE, **RMS)
    x, emb, dy = make_inputs(dtype=torch.bfloat16)
    layer.q_layernorm.float()
    with tm.patch(fuse_norm=True):
        refused("q_layernorm", run, layer, x, emb, dy, words="torch.float32 and results in torch.float32")
        layer.q_layernorm.bfloat16()
        run(layer, x, emb, dy)
        layer.float()
        with torch.autocast("cpu", torch.bfloat16):
            refused("q_layernorm", call, layer, words="torch.bfloat16")


def test_methods_of_subclasses():
    class Changed(attention.SelfAttention):
        def get_query_key_value_tensors(self, *words, **options):
            q, k, v = super().get_query_key_value_tensors(*words, **options)
            return q * 2, k, v

    class Wrapped(attention.SelfAttention):
        def forward(self, *words, **options):
            return super().forward(*words, **options)

    layer, inputs = make(**RMS), make_inputs()
    expected = run(layer, *inputs)
    with tm.patch(fuse_norm=True) as handle:
        layer.__class__ = Wrapped
        assert_near(run(layer, *inputs), expected)
        layer.__class__ = Changed
        refused("q_layernorm", call, layer, words="Changed, whose get_query_key_value_tensors is not SelfAttention's")
    assert handle.norms == dict.fromkeys(NAMES, 1)


@pytest.mark.parametrize("change, words", [
    (lambda t, rotate: t + 0, "no rotation of trope received that tensor"),
    (lambda t, rotate: rotate(t.clone()), "no rotation of trope received that tensor"),
    (lambda t, rotate: rotate(t[:12]).repeat(2, 1, 1, 1), "no rotation of trope received that tensor"),
    (lambda t, rotate: rotate(t.reshape(24, 2, -1, 8)).reshape(t.shape), "no rotation of trope received that tensor"),
    (lambda t, rotate: rotate(t.mul_(2)), "was written to before the rotation"),
])  # fmt: skip
def test_rotations_of_other_tensors_are_refused(monkeypatch, change, words):
    layer, (x, emb, _) = make_layer(qk_l2_norm=True), make_inputs(columns=8)
    with tm.patch(fuse_norm=True):
        ours = attention.apply_rotary_pos_emb
        changed = lambda t, *more, **options: change(t, lambda t: ours(t, *more, **options))  # noqa: E731
        monkeypatch.setattr(attention, "apply_rotary_pos_emb", changed)
        with torch.no_grad():
            refused("q_layernorm", layer, x, None, rotary_pos_emb=emb, words=words)
        monkeypatch.undo()


def test_other_ways_to_the_rotation(monkeypatch):
    """The layer calls Megatron's own function, which calls trope's. It rotates a tensor twice, each time with its norm. It
    rotates a view of q, made by a Function that returns its input, as in activation offloading."""
    layer, inputs, theirs = make(**RMS), make_inputs(), attention.apply_rotary_pos_emb
    expected = run(layer, *inputs)
    with tm.patch(fuse_norm=True) as handle:
        ours = attention.apply_rotary_pos_emb
        monkeypatch.setattr(attention, "apply_rotary_pos_emb", theirs)
        assert_near(run(layer, *inputs), expected)
        twice = lambda *words, **options: (ours(*words, **options), ours(*words, **options))[1]  # noqa: E731
        monkeypatch.setattr(attention, "apply_rotary_pos_emb", twice)
        assert_near(run(layer, *inputs), expected)
        of_view = lambda t, *words, **options: ours(Same.apply(t), *words, **options)  # noqa: E731
        monkeypatch.setattr(attention, "apply_rotary_pos_emb", of_view)
        assert_near(run(layer, *inputs), expected)
        monkeypatch.undo()
    assert handle.norms == dict.fromkeys(NAMES, 4)


def test_offloading_of_core_attention():
    """Before its norm, k shares its memory with v. Offloading frees this memory."""
    layer = make(**RMS)
    layer.offload_core_attention = True
    with tm.patch(fuse_norm=True) as handle:
        refused("offload_modules", call, layer, words="the backward of q_layernorm reads them")
        call(layer.eval())
    assert handle.norms == dict.fromkeys(NAMES, 1)


def test_norms_not_called_by_apply_module_are_refused(monkeypatch):
    layer, apply_module = make(**RMS), attention.apply_module
    with tm.patch(fuse_norm=True):
        monkeypatch.setattr(attention, "apply_module", apply_module)
        refused("q_layernorm", call, layer, words="was not called by apply_module")
        monkeypatch.undo()


# ---- patch and undo ----


def test_undo():
    before = attention.apply_module, attention.SelfAttention.forward
    assert "forward" not in vars(attention.SelfAttention)
    with tm.patch(fuse_norm=True) as handle:
        assert attention.SelfAttention.forward is not before[1] and attention.apply_module is not before[0]
        assert attention.Attention.forward is before[1]
        assert handle.bindings["megatron.core.transformer.attention", "apply_module"] is before[0]
    assert (attention.apply_module, attention.SelfAttention.forward) == before
    assert "forward" not in vars(attention.SelfAttention)


def test_undo_below_another_wrapper():
    layer, inputs = make(**RMS), make_inputs()
    expected = run(layer, *inputs)
    handle = tm.patch(fuse_norm=True)
    ours = attention.SelfAttention.forward
    attention.SelfAttention.forward = lambda self, *words, **options: ours(self, *words, **options)
    try:
        assert_near(run(layer, *inputs), expected)
        handle.undo()
        assert handle.norms == dict.fromkeys(NAMES, 1)
        assert_near(run(layer, *inputs), expected)
        assert handle.norms == dict.fromkeys(NAMES, 1)
    finally:
        del attention.SelfAttention.forward


def test_patch_refuses_unknown_flags_and_versions(monkeypatch):
    for wrong in (None, 1, "yes"):
        refused("fuse_norm", tm.patch, fuse_norm=wrong)
    kept = attention.apply_rotary_pos_emb
    with monkeypatch.context() as changed:
        changed.setattr(attention.SelfAttention, "get_query_key_value_tensors", lambda self, hidden_states: None)
        refused(
            "fuse_norm", tm.patch, fuse_norm=True, words=r"get_query_key_value_tensors has the parameters \(hidden_states\)"
        )
    with monkeypatch.context() as changed:
        changed.delattr(attention, "apply_module")
        refused("fuse_norm", tm.patch, fuse_norm=True, words="has no apply_module")
    assert attention.apply_rotary_pos_emb is kept and _patch._active is None
    with monkeypatch.context() as changed:
        changed.setitem(sys.modules, "megatron.core.transformer.attention", None)
        with pytest.raises(ImportError):
            tm.patch(fuse_norm=True)
    assert _patch._active is None
