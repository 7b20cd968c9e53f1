"""trope.megatron.patch on modules with Megatron's names and, if megatron.core can be imported, on Megatron-Core itself. Its
layers and functions are then compared with and without the patch."""

import importlib
import logging
import sys
import types

import pytest

torch = pytest.importorskip("torch")

from checks import DEVICE, check_results, random  # noqa: E402
from dropins import Group  # noqa: E402
from megatron_layers import make_layer, model_parallel, one_process, real_cuda, run_layer  # noqa: E402
from refusals import refused  # noqa: E402
from test_megatron import (  # noqa: E402
    BATCH, DIM, HEADS, LENGTHS, OPTIONS, TOKENS, TOTAL, find_cos_sin, find_rows, formula_of_freqs, make_config, make_cu_seqlens,
    make_freqs, make_sbhd, make_thd,
)  # fmt: skip

import trope.megatron as tm  # noqa: E402
from trope.megatron import _patch  # noqa: E402

# ---- patch on modules with Megatron's names ----

MAIN = {
    "models.common.embeddings.rope_utils": """
fused_apply_rotary_pos_emb = fused_apply_rotary_pos_emb_thd = fused_apply_mrope = None
def apply_rotary_pos_emb(t, freqs, config, cu_seqlens=None, mscale=1.0, cp_group=None, mla_rotary_interleaved=False,
    inverse=False, mla_output_remove_interleaving=False, max_seqlen=None): pass
def apply_rotary_pos_emb_with_cos_sin(t, cos, sin, rotary_interleaved=False): pass
def get_pos_emb_on_this_cp_rank(pos_emb, seq_dim, cp_group): pass
def _apply_rotary_pos_emb_bshd(t, freqs, rotary_interleaved=False, mla_rotary_interleaved=False, mscale=1.0, inverse=False,
    mla_output_remove_interleaving=False, multi_latent_attention=None): pass
def _apply_rotary_pos_emb_thd(t, cu_seqlens, freqs, rotary_interleaved=False, mla_rotary_interleaved=False, mscale=1.0,
    inverse=False, mla_output_remove_interleaving=False, cp_group=None, multi_latent_attention=None, max_seqlen=None): pass
""",
    "extensions.transformer_engine": "HAVE_TE = False",
    "transformer.attention": "HAVE_FUSED_QKV_ROPE = False",
    "transformer.multi_latent_attention": "",
    "fusions.fused_mla_yarn_rope_apply": """
def fused_mla_rope_inplace(t, cos, sin, nope_dim, emb_dim, cu_seqlens_q=None, cp_rank=0, cp_size=1,
    rotary_interleaved=False, inverse=False, remove_interleaving=False, position_ids=None): pass
def fused_mla_rope_out_of_place(t, cos, sin, nope_dim, emb_dim, cu_seqlens_q=None, cp_rank=0, cp_size=1,
    rotary_interleaved=False, inverse=False, remove_interleaving=False, position_ids=None): pass
def fused_mla_rope_kv_split(kv, k_pos_emb, cos, sin, emb_dim, k_dim, v_dim, cu_seqlens_kv=None, cp_rank=0, cp_size=1,
    rotary_interleaved=False, remove_interleaving=False): pass
def fused_mla_rope_concat(nope, rope, cos, sin, cu_seqlens=None, cp_rank=0, cp_size=1): pass
def fused_apply_mla_rope_for_q(t, cos, sin, qk_head_dim, emb_dim, cu_seqlens_q=None, cp_rank=0, cp_size=1,
    rotary_interleaved=False): pass
def fused_apply_mla_rope_for_kv(kv, k_pos_emb, cos, sin, emb_dim, k_dim, v_dim, cu_seqlens_kv=None, cp_rank=0, cp_size=1,
    rotary_interleaved=False): pass
""",
    "fusions.fused_mrope": """
def fused_apply_mrope(t, freqs, mrope_section, interleaved_mrope=False, rotary_interleaved=False): pass
def fused_apply_mrope_thd(t, cu_seqlens, freqs, mrope_section, interleaved_mrope=False, rotary_interleaved=False,
    cp_size=1, cp_rank=0, fp32_compute=False): pass
""",
}
OF_0_19_2 = """
fused_apply_rotary_pos_emb = fused_apply_rotary_pos_emb_thd = None
def apply_rotary_pos_emb(t, freqs, config, cu_seqlens=None, mscale=1.0, cp_group=None, mla_rotary_interleaved=False): pass
def apply_rotary_pos_emb_with_cos_sin(t, cos, sin, rotary_interleaved=False): pass
def _apply_rotary_pos_emb_bshd(t, freqs, rotary_interleaved=False, mla_rotary_interleaved=False, mscale=1.0,
    multi_latent_attention=None): pass
def _apply_rotary_pos_emb_thd(t, cu_seqlens, freqs, rotary_interleaved=False, mla_rotary_interleaved=False, mscale=1.0,
    cp_group=None, multi_latent_attention=None): pass
"""
UTILS, SHIMS, ATTENTION = "models.common.embeddings.rope_utils", "extensions.transformer_engine", "transformer.attention"
FUSED_MLA, FUSED_MROPE = "fusions.fused_mla_yarn_rope_apply", "fusions.fused_mrope"
MLA_MODULE, STATE = "transformer.multi_latent_attention", "parallel_state"


@pytest.fixture
def build(monkeypatch):
    """build.all(sources) makes modules megatron.core.X, and build.one makes a single module. Megatron's own modules are
    hidden. A patch is undone at the end."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("megatron", "transformer_engine"):
            monkeypatch.delitem(sys.modules, name)

    def build_module(name, source):
        module = types.ModuleType(name)
        exec(source, vars(module))
        monkeypatch.setitem(sys.modules, name, module)
        return module

    def build_all(sources):
        for parent in ("megatron", "megatron.core", *("megatron.core." + n.partition(".")[0] for n in sources)):
            build_module(parent, "")
        modules = {name: build_module("megatron.core." + name, source) for name, source in sources.items()}
        for module in modules.values():
            for name, value in list(vars(module).items()):
                if callable(value) and not name.startswith("__"):
                    value.__module__ = module.__name__
        return modules

    yield types.SimpleNamespace(all=build_all, one=build_module)
    if _patch._active is not None:
        _patch._active.undo()


def snapshot(modules):
    """The globals of each module, without the names that exec and warnings add."""
    others = "__builtins__", "__warningregistry__"
    return {name: {k: v for k, v in vars(module).items() if k not in others} for name, module in modules.items()}


def test_patch_of_main(build, caplog):
    modules = build.all(MAIN)
    vars(modules[MLA_MODULE]).update(
        apply_rotary_pos_emb=modules[UTILS].apply_rotary_pos_emb,
        by_another_name=modules[FUSED_MLA].fused_mla_rope_kv_split,
        fused_apply_mla_rope_for_q=None,
    )
    elsewhere = build.one("somebody.elses", "fused_mla_rope_inplace = apply_rotary_pos_emb = None")
    elsewhere.rope = modules[UTILS]._apply_rotary_pos_emb_thd
    before = snapshot(modules)
    with caplog.at_level(logging.INFO, "trope.megatron"):
        handle = tm.patch()
    assert len(caplog.records) == 1 and "apply_rotary_pos_emb in models.common.embeddings.rope_utils" in caplog.text
    for name, functions in (
        (UTILS, [n for n in before[UTILS] if "rotary" in n or "mrope" in n]),
        (FUSED_MLA, list(before[FUSED_MLA])), (FUSED_MROPE, list(before[FUSED_MROPE])),
        (SHIMS, ["fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd"]),
        (ATTENTION, ["apply_fused_qkv_rotary_pos_emb"]),
        (MLA_MODULE, ["apply_rotary_pos_emb", "by_another_name", "fused_apply_mla_rope_for_q"]),
    ):  # fmt: skip
        for function in functions:
            if not function.startswith("__"):
                assert vars(modules[name])[function] in handle._ours, (name, function)
                assert ("megatron.core." + name, function) in handle.bindings
    assert modules[ATTENTION].HAVE_FUSED_QKV_ROPE is True
    assert modules[UTILS].get_pos_emb_on_this_cp_rank is before[UTILS]["get_pos_emb_on_this_cp_rank"]
    assert modules[MLA_MODULE].by_another_name is modules[FUSED_MLA].fused_mla_rope_kv_split
    assert elsewhere.rope in handle._ours
    assert elsewhere.fused_mla_rope_inplace is None and elsewhere.apply_rotary_pos_emb is None  # not Megatron's module
    assert "active" in repr(handle) and "multi_latent_attention" in str(handle)
    later = build.one("somebody.later", "")
    later.apply_rotary_pos_emb = modules[UTILS].apply_rotary_pos_emb
    later.fused_apply_rotary_pos_emb = modules[SHIMS].fused_apply_rotary_pos_emb
    refused("patch", tm.patch)
    with caplog.at_level(logging.INFO, "trope.megatron"):
        handle.undo()
    assert snapshot(modules) == before and len(caplog.records) == 2 and "undone, after 0 calls: none" in caplog.text
    assert later.apply_rotary_pos_emb is before[UTILS]["apply_rotary_pos_emb"] and later.fused_apply_rotary_pos_emb is None
    assert elsewhere.rope is before[UTILS]["_apply_rotary_pos_emb_thd"] and "undone" in repr(handle)
    handle.undo()
    tm.patch().undo()
    assert snapshot(modules) == before


@pytest.mark.parametrize("name, line", [
    (UTILS, "def apply_rotary_pos_emb(t, freqs, config, cu_seqlens=None, mscale=1.0, cp_group=None): pass"),
    (UTILS, "def _apply_rotary_pos_emb_bshd(t, freqs, interleaved): pass"),
    (FUSED_MLA, "def fused_mla_rope_concat(nope, rope, cos, sin, cu_seqlens, cp_rank, cp_size, rope_first): pass"),
    (FUSED_MROPE, "def fused_apply_mrope(*args): pass"),
    (SHIMS, "def fused_apply_rotary_pos_emb(t, freqs): pass"),
])  # fmt: skip
def test_unknown_signatures_are_refused(build, name, line):
    modules = build.all(dict(MAIN, **{name: MAIN[name] + "\n" + line}))
    before = snapshot(modules)
    refused(line.split()[1].partition("(")[0], tm.patch)
    assert snapshot(modules) == before and _patch._active is None


def test_patch_without_megatron_raises_import_error(build):
    with pytest.raises(ImportError, match="rope_utils"):
        build.all({ATTENTION: ""})
        tm.patch()
    assert _patch._active is None


def test_arguments_follow_the_installed_signature(build):
    """The order of arguments, and the meaning of freqs without max_seqlen, are as in the installed Megatron-Core."""
    t, freqs = make_thd(DEVICE, torch.bfloat16, 1, TOTAL)
    words = t, make_cu_seqlens(DEVICE), freqs
    sbhd, table = make_sbhd(DEVICE), make_freqs(DEVICE)
    for source, is_old, thd in (
        (OF_0_19_2, True, (False, True, 1.3, Group())),
        (MAIN[UTILS], False, (False, True, 1.3, True, True, Group())),
    ):
        options = OPTIONS["mla"] if is_old else dict(OPTIONS["remove"], inverse=True)
        utils = build.all(dict(MAIN, **{UTILS: source}))[UTILS]
        with tm.patch() as handle:
            found = utils._apply_rotary_pos_emb_thd(*words, *thd)
            assert torch.equal(found, formula_of_freqs(freqs, find_rows(in_stream=True), **options)(t))
            found = utils.apply_rotary_pos_emb(t, freqs, make_config(), words[1], 1.3, cp_group=thd[-1])
            assert torch.equal(found, formula_of_freqs(freqs, find_rows(in_stream=True), mscale=1.3)(t))
            if is_old:  # the sixth argument is multi_latent_attention
                found = utils._apply_rotary_pos_emb_bshd(sbhd, table, False, False, 1.3, True)
                assert torch.equal(found, formula_of_freqs(table, **OPTIONS["mla"])(sbhd))
                with pytest.raises(TypeError):
                    utils.apply_rotary_pos_emb(sbhd, table, make_config(), None, 1.0, None, False, True)
            else:
                found = utils.apply_rotary_pos_emb(*words[::2], make_config(), words[1], cp_group=Group(), max_seqlen=TOTAL)
                assert torch.equal(found, formula_of_freqs(freqs, find_rows())(t))
            with pytest.raises(TypeError):
                utils.apply_rotary_pos_emb(sbhd, table, make_config(), t=sbhd)
        assert handle.calls["apply_rotary_pos_emb"] >= 3 and handle.calls["_apply_rotary_pos_emb_thd"] == 1


def test_default_cp_group_is_megatrons(build):
    build.all({STATE: ""})[STATE].get_context_parallel_group = lambda: Group(2, 1)
    t, freqs = make_thd(DEVICE, torch.bfloat16, 2, max(LENGTHS))
    found = tm.apply_rotary_pos_emb(t, freqs, make_config(), make_cu_seqlens(DEVICE))
    assert torch.equal(found, formula_of_freqs(freqs, find_rows(2, 1))(t))


def test_compile_of_a_patched_function(build):
    utils, config, freqs = build.all(MAIN)[UTILS], make_config(), make_freqs(DEVICE)
    t = make_sbhd(DEVICE)
    with tm.patch() as handle:
        call = torch.compile(lambda t: utils.apply_rotary_pos_emb(t, freqs, config), backend="aot_eager", fullgraph=True)
        assert torch.equal(call(t), formula_of_freqs(freqs)(t))
        assert torch.equal(call(t), formula_of_freqs(freqs)(t))
        assert handle.traced["apply_rotary_pos_emb"] == 1 and "1 traced" in repr(handle)
        with pytest.warns(UserWarning, match="torch.compile has traced 1 calls"):
            assert handle.calls["apply_rotary_pos_emb"] == 0


# ---- Megatron-Core itself ----


@pytest.fixture(scope="module")
def megatron():
    """{name: module} of Megatron-Core, with all modules that import RoPE functions by value (from ... import)."""
    pytest.importorskip("megatron.core", reason="Megatron-Core cannot be imported")
    names = (
        "transformer.experimental_attention_variant.absorbed_mla transformer.experimental_attention_variant.dsa"
        " inference.contexts.dynamic_context models.common.embeddings models.common.embeddings.rotary_pos_embedding"
        " transformer.transformer_config"
    )
    names = (UTILS, SHIMS, ATTENTION, MLA_MODULE, FUSED_MLA, STATE, *names.split())
    try:
        return {name: importlib.import_module("megatron.core." + name) for name in names}
    except ImportError as error:
        pytest.skip("Megatron-Core cannot be imported: %s" % error)


def test_every_importer_of_megatron_is_rebound(megatron, monkeypatch):
    late = "transformer.experimental_attention_variant.dsa"
    before = snapshot(megatron)
    monkeypatch.delitem(sys.modules, "megatron.core." + late)  # so that it is imported after the patch
    with tm.patch() as handle:
        importers = {name: module for name, module in megatron.items() if name not in (late, STATE)}
        for name, module in importers.items():
            for function in handle.calls:
                if function in vars(module):
                    assert vars(module)[function] in handle._ours, (name, function)
        assert "fused_apply_rotary_pos_emb" in vars(megatron[SHIMS]) and megatron[ATTENTION].HAVE_FUSED_QKV_ROPE
        bound = {name.removeprefix("megatron.core.") for name, _ in handle.bindings}
        assert bound >= importers.keys() - {"transformer.transformer_config"}  # it imports RoPE only to check a config
        config = megatron["transformer.transformer_config"].TransformerConfig
        config(num_layers=1, hidden_size=8, num_attention_heads=1, apply_rope_fusion=True)
        again = importlib.import_module("megatron.core." + late)
        names = [name for name in handle.calls if name in vars(again)]
        assert "apply_rotary_pos_emb" in names and all(vars(again)[name] in handle._ours for name in names)
    assert snapshot(megatron) == before and again is not megatron[late]
    assert all(vars(again)[name] is before[late][name] for name in names)


@pytest.mark.parametrize("options", [k for k in OPTIONS if "inverse" not in k and "remove" not in k])
@pytest.mark.parametrize("cp_size, in_stream", [(0, False), (1, False), (1, True), (2, False), (2, True), (4, True)])
def test_bits_of_megatron(megatron, options, cp_size, in_stream):
    """cp_size 0 stands for sbhd, with a batch of freqs as in M-RoPE. Angles are chosen so that torch's and trope's cosines
    round to the same bf16."""
    torch.manual_seed(12)
    options, utils = dict(OPTIONS[options]), megatron[UTILS]
    interleaved = options.pop("rotary_interleaved", False)
    rows = TOKENS if cp_size == 0 else TOTAL if in_stream else max(LENGTHS)
    freqs = find_common_angles(rows, BATCH if cp_size == 0 else 1, options.get("mscale", 1.0))
    words = dict(options, cp_group=Group(max(cp_size, 1), cp_size // 2))
    shape = (TOTAL // cp_size,) if cp_size else (TOKENS, BATCH)
    t = random(*shape, HEADS, DIM, device=DEVICE, dtype=torch.bfloat16, grad=True)
    lengths = [n for n in LENGTHS if n]  # Megatron's interleaved formula fails for empty sequences
    words.update(cu_seqlens=make_cu_seqlens(DEVICE, lengths) if cp_size else None)
    plain = make_config(apply_rope_fusion=False, rotary_interleaved=interleaved)
    expected = utils.apply_rotary_pos_emb(t, freqs, plain, **words)
    with tm.patch() as handle:
        fused = make_config(rotary_interleaved=interleaved, mrope_section=[4, 2, 2])
        check_results(utils.apply_rotary_pos_emb(t, freqs, fused, **words), t, expected, t, bits=True)
        assert handle.calls["apply_rotary_pos_emb"] == 1


def find_common_angles(rows, batch, mscale):
    """Random freqs, set to 0 where the cosine or sine, times mscale, rounds to different bf16 values in torch and in
    trope."""
    freqs = make_freqs(DEVICE, rows, batch)
    cos, sin = find_cos_sin(freqs)
    same = [((x * mscale).bfloat16() == (y * mscale).bfloat16()) for x, y in ((cos, freqs.cos()), (sin, freqs.sin()))]
    return torch.where(same[0] & same[1], freqs, 0.0)


@pytest.fixture(scope="module")
def parallel(megatron, tmp_path_factory):
    with one_process(tmp_path_factory.mktemp("gloo") / "store"), model_parallel():
        yield


LAYERS = [
    ("gqa", {}, False), ("gqa", {}, True), ("gqa", dict(rotary_interleaved=True), False),
    ("qkv", dict(fused_single_qkv_rope=True), False), ("mla", {}, False), ("mla", {}, True),
]  # fmt: skip


@pytest.mark.parametrize("kind, options, packed", LAYERS)
def test_layers_of_megatron(parallel, kind, options, packed):
    """A whole attention layer in f32, forward and backward: Megatron's unfused layer compared with the patched, fused
    one."""
    torch.manual_seed(13)
    x, dy = torch.randn(2, 24, 1 if packed else 2, 64).to(DEVICE)
    emb = None if kind == "mla" else torch.randn(16 if packed else 24, 1, 1, 16).to(DEVICE)
    plain = {k: v for k, v in options.items() if k != "fused_single_qkv_rope"}
    layer = make_layer(kind == "mla", apply_rope_fusion=False, **plain).to(DEVICE)
    with real_cuda():
        expected = run_layer(layer, packed, x, emb, dy)
    with tm.patch() as handle:
        fused = dict(options, apply_rope_fusion="rotary_interleaved" not in options)  # interleaved needs TransformerEngine
        layer = make_layer(kind == "mla", **fused).to(DEVICE)
        with real_cuda():
            found = run_layer(layer, packed, x, emb, dy)
    called = {name for name, count in handle.calls.items() if count}
    assert called == {
        "gqa": {"apply_rotary_pos_emb"}, "qkv": {"apply_fused_qkv_rotary_pos_emb"},
        "mla": {"fused_apply_mla_rope_for_q", "fused_apply_mla_rope_for_kv"},
    }[kind]  # fmt: skip
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)
