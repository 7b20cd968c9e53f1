"""trope apply does not guess. It infers the layout and the form of tables from the data, and prints what it has inferred.
If two readings fit, it refuses the call and names the option that chooses between them."""

import numpy as np
import pytest
import reference
from apply_support import HALF, THETA, Tensor, apply, cos_sin, encode, expect, indices, random, refused, rng, tensor

INTERLEAVED = ["--pairing", "interleaved"]


def says(folder, tensors, angles, layout, *options, words=(), **how):
    """Runs the command as `expect` does, and checks that standard error contains the words."""
    result = expect(folder, layout, tensors, angles, *options, **how)
    for word in words:
        assert word in result.err, (word, result.err)


def by_index(tokens, dim=8):
    return reference.angles_of(np.arange(tokens), reference.default(dim))


def columns(angles, form):
    """A table of angles [.., pairs] with columns of this form."""
    return angles if form == "pair" else reference.to_columns(angles, form)


# ---- The layout ----


def test_the_layout_that_fits_all_tensors_is_inferred(tmp_path):
    four = {"q": random("F32", 2, 5, 3, 8), "k": random("F32", 2, 5, 3, 8)}
    refused(tmp_path, four, ["'q'", "sbhd or bshd or bhsd", "--layout"], *HALF, *THETA)

    def understood(tensors, *options):
        result = apply(tmp_path, tensors, *HALF, *options)
        assert result.status == 0, result.err
        return result.err

    ids = tensor("I64", np.tile(np.arange(5), (2, 1)))
    line = "q: bshd, batch 2, 5 tokens, 3 heads of 8; half pairs of elements 0 to 7, positions 0 to 4\n"
    assert line in understood({**four, "position_ids": ids}, *THETA)
    turned = {"q": random("F32", 2, 3, 5, 8), "k": random("F32", 2, 1, 5, 8)}
    assert all(word in understood(turned, *THETA) for word in ("q: bhsd", "3 heads", "1 heads"))
    grouped = {"q": random("F32", 2, 5, 4, 8), "k": random("F32", 2, 5, 2, 8)}
    refused(tmp_path, grouped, ["sbhd or bshd", "--layout"], *HALF, *THETA)
    either = cos_sin(np.tile(columns(by_index(5), "half"), (2, 1, 1)))
    refused(tmp_path, {**grouped, **either}, ["sbhd or bshd", "--layout"], *HALF)
    table = cos_sin(np.tile(columns(by_index(7), "half"), (2, 1, 1)))
    words = understood({**grouped, **table})
    assert (
        "q: bshd" in words
        and "cos: batch 2, a row for each of 7 positions, 8 columns, one for each element, by halves" in words
    )
    refused(tmp_path, {"q": random("F32", 2, 5, 24)}, ["thd", "hidden", "--head-dim"], *HALF, *THETA)
    ends = {"q": random("F32", 5, 3, 8), "cu_seqlens": tensor("I32", [0, 2, 5])}
    assert all(word in understood(ends, *THETA) for word in ("q: thd", "2 sequences"))
    refused(tmp_path, {**four, "position_ids": tensor("I64", [0] * 7)}, ["no layout", "--layout"], *HALF, *THETA)


def test_head_dim_splits_a_hidden_dim(tmp_path):
    hidden, common = {"q": random("F32", 2, 5, 24)}, ["--layout", "bshd", *HALF, *THETA]
    whole = {"q": Tensor("F32", hidden["q"].values.reshape(2, 5, 3, 8))}
    same = apply(tmp_path, whole, *common).tensors["q"].bytes
    assert apply(tmp_path, hidden, *common, "--head-dim", 8).tensors["q"].bytes == same
    refused(tmp_path, hidden, ["'q'", "--head-dim"], *common, "--head-dim", 7)
    refused(tmp_path, whole, ["'q'", "--head-dim (16)"], *common, "--head-dim", 16)


# ---- Tables in the forms that models use ----


@pytest.mark.parametrize(
    "form, words", [("pair", "one for each pair"), ("half", "by halves"), ("interleaved", "by neighbours")]
)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_the_form_of_columns_is_inferred(tmp_path, form, words, pairing):
    angles = by_index(5, 16)
    tables = cos_sin(np.tile(columns(angles, form), (2, 1, 1)))
    x = {"q": random("F32", 2, 5, 3, 16), **tables}
    says(tmp_path, x, angles, "bshd", "--pairing", pairing, words=[words, pairing + " pairs"], pairing=pairing)


@pytest.mark.parametrize("dims", [(5, 8, 2), (1, 5, 1, 8, 2), "C64"], ids=str)
@pytest.mark.parametrize("name", ["freqs_cis", "rope_cache"])
def test_complex_tables(tmp_path, dims, name):
    angles = by_index(5, 16)
    numbers = np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
    complex_numbers = Tensor("C64", numbers.view(np.complex64)[..., 0])
    table = complex_numbers if dims == "C64" else tensor("F32", numbers.reshape(dims))
    says(tmp_path, {"q": random("F32", 2, 5, 3, 16), name: table}, None, "bshd", *INTERLEAVED,
         coefficients=reference.of_angles(angles), pairing="interleaved")  # fmt: skip


def test_common_names_and_the_name_option(tmp_path):
    """vLLM's cos_sin_cache, the outputs of q_proj and k_proj, cos_cached and sin_cached are known. --name maps all other
    names."""
    angles = by_index(6)
    cache = tensor("F32", np.concatenate([np.cos(angles), np.sin(angles)], -1))
    q, k = random("F32", 2, 5, 3, 8), random("F32", 2, 5, 1, 8)
    tensors = {"m.q_proj": q, "m.k_proj": k, "rotary_emb.cos_sin_cache": cache}
    coefficients = reference.of_angles(angles[:5])
    expect(tmp_path, "bshd", tensors, None, coefficients=coefficients)
    same = apply(tmp_path, tensors, "--layout", "bshd", *HALF)
    cached = {"q": q, **{name + "_cached": t for name, t in cos_sin(columns(angles, "half")).items()}}
    assert apply(tmp_path, cached, "--layout", "bshd", *HALF).tensors["q"].bytes == same.tensors["m.q_proj"].bytes
    named = {"layer.0.first": q, "layer.1.first": k, "layer.1.rope": cache, "layer.0.rope": cache, "other": k}
    mapping = ["--name", "q=first", "--name", "cos_sin_cache=rope", "--name", "copy=other"]
    found = apply(tmp_path, named, "--layout", "bshd", *HALF, *mapping).tensors
    assert found["layer.0.first"].bytes == same.tensors["m.q_proj"].bytes and found["other"].bytes == k.bytes
    assert found["layer.1.first"].bytes == same.tensors["m.k_proj"].bytes
    common = ["--layout", "bshd", *HALF]
    refused(tmp_path, named, ["'layer.0.first'", "unknown name", "--name"], *common)
    for wrong, words in ((["query=first"], ["'query' is not one of"]), (["q=third"], ["no tensor", "'third'"]),
                         (["q=first", "k=layer.0.first"], ["'layer.0.first'", "q and k"]), (["first"], ["ROLE=NAME"])):  # fmt: skip
        refused(tmp_path, named, ["--name", *words], *common, *[word for name in wrong for word in ("--name", name)])
    odd = {"q": q, "cos_sin_cache": tensor("F32", np.ones((5, 7)))}
    refused(tmp_path, odd, ["'cos_sin_cache'", "as many sines"], *common)


def test_which_part_of_a_head_rotates(tmp_path):
    """DeepSeek V4 rotates the last elements of a head, with half pairing. GPT-NeoX rotates the first elements."""
    angles = by_index(5, 16)
    x = {"x": random("F32", 2, 5, 2, 40), **cos_sin(angles)}
    refused(tmp_path, x, ["'x'", "--rotary-offset 0", "--rotary-offset -16"], "--layout", "bshd", *HALF)
    says(tmp_path, x, angles, "bshd", "--rotary-offset", -16, words=["elements 24 to 39"], offset=24)
    says(tmp_path, x, angles, "bshd", "--rotary-offset", 0)
    full = {**x, **cos_sin(columns(angles, "half"))}
    says(tmp_path, full, angles, "bshd", "--rotary-offset", -16, offset=24)
    more = ["--rotary-dim", 32, "--rotary-offset", 0]
    refused(tmp_path, full, ["'cos'", "equal halves", "--columns pair"], "--layout", "bshd", *HALF, *more)


def test_columns_that_cannot_be_inferred_are_refused(tmp_path):
    q, common = {"q": random("F32", 2, 5, 3, 16)}, ["--layout", "bshd", *HALF]
    neighbours = tensor("F32", columns(reference.angles_of(np.arange(5), reference.default(16)), "interleaved"))
    any_two = rng.uniform(-2, 2, (5, 16)) * (np.arange(5) > 0)[:, None]
    for freqs, words, options in (
        (np.zeros((0, 5, 16)), ["is empty"], []),
        (any_two, ["no pair has two equal columns", "--columns"], []),
        (neighbours.values, ["neighbours", "--columns half"], ["--columns", "half"]),
        (np.tile(np.arange(5)[:, None] / 2, (1, 8)), ["all equal", "--rotary-dim"], []),
        (np.where(np.arange(40).reshape(5, 8) == 17, np.nan, 1), ["NaN", "element 17"], []),
    ):
        refused(tmp_path, {**q, "freqs": tensor("F32", freqs)}, ["'freqs'", *words], *common, *options)


@pytest.mark.parametrize("tokens, batch", [(5, 2), (3, 3)])
def test_tables_with_the_batch_after_the_tokens(tmp_path, tokens, batch):
    """Megatron's tables are [s, b, 1, d]. If s equals b, --table-layout must choose."""
    positions = rng.integers(0, 40, (tokens, batch))
    positions[0] = 0
    angles = reference.angles_of(positions, reference.default(8))
    x = {"q": random("F32", tokens, batch, 2, 8), "freqs": tensor("F32", columns(angles, "half")[:, :, None])}
    options = []
    if tokens == batch:
        refused(tmp_path, x, ["'freqs'", "bsd or sbd", "--table-layout"], "--layout", "sbhd", *HALF)
        options = ["--table-layout", "sbd"]
    expect(tmp_path, "sbhd", x, angles.swapaxes(0, 1), *options)


def test_table_rows_by_token_or_by_position(tmp_path):
    rows, ids, common = np.array([0, 2, 9, 4]), np.array([0, 3, 1, 2]), ["--layout", "bshd", *HALF]
    angles = reference.angles_of(rows, reference.default(8))
    tables = cos_sin(columns(angles, "half")[None])
    x = {"q": random("F32", 1, 4, 2, 8), "position_ids": tensor("I64", ids[None]), **tables}
    refused(tmp_path, x, ["'cos'", "--table-rows"], *common)
    words = ["each token by its own row", "position_ids: not used"]
    says(tmp_path, x, angles, "bshd", "--table-rows", "tokens", words=words)
    says(tmp_path, x, angles[ids], "bshd", "--table-rows", "positions")
    more = ["--table-rows", "tokens", "--out-of-range", "clamp"]
    refused(tmp_path, x, ["--out-of-range", "no effect"], *common, *more)
    few = {"q": x["q"], **cos_sin(columns(by_index(3), "half")[None])}
    refused(tmp_path, few, ["'cos'", "rows"], *common)


def test_a_table_for_each_axis(tmp_path):
    """Qwen2-VL has a table for each axis. Their number must match --axis-sections or --windows."""
    positions = rng.integers(1, 40, (3, 1, 4)) * (np.arange(4) > 0)
    planes = columns(reference.angles_of(positions, reference.default(8)), "half")
    common, sections = ["--layout", "bshd", *HALF], ["--axis-map", "sections", "--axis-sections"]
    q = {"q": random("F32", 1, 4, 2, 8)}
    refused(tmp_path, {**q, **cos_sin(planes)}, ["'cos'", "--axis-map"], *common)
    angles = reference.angles_of(positions, reference.default(8), [0, 0, 1, 2])
    says(tmp_path, {**q, **cos_sin(planes)}, angles, "bshd", *sections, "2,1,1", words=["3 axes"])
    more = cos_sin(np.concatenate([planes, planes[:1]]))
    refused(tmp_path, {**q, **more}, ["'cos'", "4 axes", "--axis-sections"], *common, *sections, "2,1,1")
    says(tmp_path, {**q, **more}, angles, "bshd", *sections, "2,1,1,0")
    fewer = ["'cos'", "2 axes", "--axis-sections has 3", "use 3"]
    refused(tmp_path, {**q, **cos_sin(planes[:2])}, fewer, *common, *sections, "2,1,1")
    windows = ["--windows", 2, "--columns", "half"]
    refused(tmp_path, {**q, **cos_sin(planes)}, ["'cos'", "3 axes", "--windows is 2"], *common, *windows)


# ---- Tensors that have the shape of a table but cannot come from a model ----


def changed(tables, name, index, value):
    values = tables[name].values.copy()
    values.flat[index] = value
    return {**tables, name: tensor("F32", values)}


def test_impossible_tables_are_refused(tmp_path):
    d, s = 16, 5
    q, common = {"q": random("F32", 1, s, 2, d)}, ["--layout", "bshd", *HALF]
    angles, none = columns(by_index(s, d), "half"), ["'cos'", "not a table of cosines and sines"]
    good, large = cos_sin(angles), cos_sin(angles, factor=1.25)
    shifted = cos_sin(columns(reference.angles_of(np.arange(1, s + 3), reference.default(d)), "half"))
    says(tmp_path, {**q, **large}, by_index(s, d), "bshd", mscale=1.25)
    for tables, words in (
        ({**good, "cos": large["cos"]}, none),
        (cos_sin(angles, factor=np.where(np.arange(s) == s - 1, 1.01, 1)[:, None]), none),
        (changed(good, "cos", 2 * d + 3, 0.25), none),
        (changed(good, "sin", 2 * d, good["sin"].values[2, 0] + 2e-5), none),
        (cos_sin(angles, factor=0.0), none),
        ({name: tensor("F32", angles) for name in good}, none),
        (changed(good, "cos", 3, 3e38), none),
        (changed(good, "cos", 7, np.nan), ["'cos'", "NaN", "element 7"]),
        (changed(good, "sin", 7, np.inf), ["'sin'", "infinity", "element 7"]),
        ({"cos": good["sin"], "sin": good["cos"]}, ["'cos'", "exchanged", "row 0"]),
        (cos_sin(angles, factor=-1.0), ["'cos'", "positive cos"]),
        ({name: tensor("F32", t.values[:s]) for name, t in shifted.items()}, ["'cos'", "row 0", "--table-rows tokens"]),
        (shifted, ["'cos'", "begin at another"]),
        ({"freqs": tensor("F32", angles + 1)}, ["'freqs'", "angles of 0"]),
        ({"freqs": tensor("F32", angles + 1e-9 * (np.arange(d) == 1))}, ["'freqs'", "angles of 0"]),
    ):
        refused(tmp_path, {**q, **tables}, words, *common)
    for bad, where in (([1.0, -0.5, 0.1, 0.1], 1), ([1.0, 0.0, 0.1, 0.0], 1), ([0.0] * 4, 0), ([1.0, 0.1, 0.0, -0.01], 2)):
        inv_freq = {"q": random("F32", 1, s, 2, 8), "inv_freq": tensor("F32", bad)}
        refused(tmp_path, inv_freq, ["'inv_freq'", "positive", "element %d is" % where], *common)


def test_rows_by_token_must_agree_with_the_positions_in_the_file(tmp_path):
    common, ids = ["--layout", "bshd", *HALF, "--table-rows", "tokens"], np.array([3, 4, 0, 1, 2])
    q, first = {"q": random("F32", 1, 5, 2, 8)}, {"position_ids": tensor("I64", ids)}
    angles = reference.angles_of(ids, reference.default(8))
    expect(tmp_path, "bshd", {**q, **first, **cos_sin(columns(angles, "half"))}, angles, "--table-rows", "tokens")
    shifted = reference.angles_of(np.arange(1, 6), reference.default(8))
    refused(tmp_path, {**q, **first, **cos_sin(shifted)}, ["'cos'", "row 2", "position 0"], *common)
    expect(tmp_path, "bshd", {**q, **cos_sin(shifted)}, shifted, "--table-rows", "tokens")
    packed = {"q": random("F32", 6, 2, 8), "cu_seqlens": tensor("I32", [0, 4, 6])}
    refused(tmp_path, {**packed, **cos_sin(by_index(6))}, ["'cos'", "row 4", "position 0"], *common[2:])


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_rounded_tables_are_accepted(tmp_path, dtype):
    angles = columns(by_index(400, 16), "half").astype(np.float32)
    for factor in (1.0, 1.0693, 1.3466, 0.7071):
        rounded = cos_sin(angles, dtype)
        twice = {name: tensor(dtype, factor * t.values.astype(float)) for name, t in rounded.items()}
        assert apply(tmp_path, {"q": random("F32", 1, 5, 2, 16), **twice}, "--layout", "bshd", *HALF).status == 0


# ---- Axes of position ids, several layers, other tensors ----


def test_position_ids_with_several_axes_need_sections(tmp_path):
    ids, common = indices("I64", 3, 1, 9), ["--layout", "bshd", *HALF, *THETA]
    x = {"q": random("F32", 1, 9, 2, 8), "position_ids": ids}
    refused(tmp_path, x, ["'position_ids'", "--axis-map"], *common)
    four = {**x, "position_ids": tensor("I64", np.concatenate([np.arange(9)[None, None], ids.values]))}
    sections = ["--axis-map", "sections", "--axis-sections"]
    refused(tmp_path, four, ["'position_ids'", "4 axes", "position_ids[1:]"], *common, *sections, "2,1,1")
    angles = reference.angles_of(ids.values, reference.default(8), [0, 0, 1, 2])
    expect(tmp_path, "bshd", four, angles, *sections, "0,2,1,1")


def test_inverse_needs_no_other_options_than_forward(tmp_path):
    x = {
        "q": random("F32", 5, 1, 2, 16),
        "inv_freq": tensor("F64", rng.uniform(0.01, 2, 8)),
        "position_ids": indices("I64", 5),
    }
    there = apply(tmp_path, x, "--layout", "sbhd", *HALF)
    back = apply(tmp_path, there.tensors, "--layout", "sbhd", *HALF, "--inverse")
    assert np.abs(back.tensors["q"].values - x["q"].values).max() < 1e-5


def test_each_prefix_of_names_is_one_call(tmp_path):
    names = ["model.layers.%d.self_attn.%s" % (layer, name) for layer in (0, 1) for name in "qkv"]
    layers = {name: random("F32", 5, 1, 4 if name[-1] == "q" else 2, 8) for name in names}
    shared, common = tensor("F32", rng.uniform(0.01, 2, 4)), ["--layout", "sbhd", *HALF]
    tensors = {**layers, "model.rotary_emb.inv_freq": shared}
    expect(tmp_path, "sbhd", tensors, reference.angles_of(np.arange(5), shared.values.astype(float)))
    own = {"model.layers.%d.inv_freq" % layer: tensor("F32", rng.uniform(0.01, 2, 4)) for layer in (0, 1)}
    found = apply(tmp_path, {**layers, **own}, *common).tensors
    for layer, inv_freq in enumerate(own.values()):
        alone = {name: t for name, t in layers.items() if ".%d." % layer in name}
        same = apply(tmp_path, {**alone, "inv_freq": inv_freq}, *common).tensors
        assert all(found[name].bytes == same[name].bytes for name in alone)
    refused(tmp_path, {**layers, **own, "inv_freq": shared}, ["inv_freq'", "both", "model.layers"], *common)
    refused(tmp_path, {**layers, "model.layers.7.inv_freq": shared}, ["'model.layers.7.inv_freq'", "belongs to no"], *common)
    two = {"q": layers[names[0]], "query": layers[names[0]]}
    refused(tmp_path, two, ["'query'", "'q'"], *common, *THETA)


def test_tensors_beside_q_are_copied_in_any_dtype(tmp_path):
    mask = Tensor("BOOL", rng.integers(0, 2, (5, 5), np.uint8))
    v = Tensor("F8_E4M3", rng.integers(0, 256, (9, 2, 4), np.uint8))
    x = {"q": random("BF16", 9, 2, 8), "v": v, "attention_mask": mask, "cu_seqlens": tensor("I32", [0, 3, 7])}
    found = apply(tmp_path, None, *HALF, *THETA, "--padding", "zero", source=encode(x, {"a": "\u00e9\\"})).tensors
    assert found["attention_mask"].bytes == mask.bytes and found["v"].dtype == "F8_E4M3"
    assert (found["v"].values[:7] == v.values[:7]).all() and not found["v"].values[7:].any()
