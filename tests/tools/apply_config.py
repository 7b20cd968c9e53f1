"""trope apply --config: a Hugging Face config.json is options, and gives what the formulas of its model give."""

import json
import math
import os
import random

import harness
import rope
import safetensors
from harness import check, run
from rope import Rotation
from safetensors import Tensor

TOKENS = 40
LLAMA = {"model_type": "llama", "rope_theta": 500000.0, "hidden_size": 64, "num_attention_heads": 2}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1}
DEEPSEEK = {"model_type": "deepseek_v3", "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "rope_theta": 10000,
            "rope_scaling": {"type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0, **YARN}}
GEMMA = {"model_type": "gemma3", "text_config": {
    "model_type": "gemma3_text", "head_dim": 32, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0}}}
GEMMA_BARE = {"model_type": "gemma3", "text_config": {
    "model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}}}  # as gemma-3-4b-it's
OLMO3 = {"model_type": "olmo3", "rope_theta": 500000, "rope_scaling": {"rope_type": "yarn", **YARN}}
MODERNBERT = {"model_type": "modernbert", "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
BY_LAYER = {"model_type": "gemma3_text", "head_dim": 32, "rope_parameters": {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}
PHI3 = {"model_type": "phi3", "rope_theta": 10000.0, "max_position_embeddings": 128, "original_max_position_embeddings": 32,
        "rope_scaling": {"type": "su", "short_factor": [1.0 + i / 8 for i in range(16)],
                         "long_factor": [2.0 + i for i in range(16)]}}
YARN_BY_LAYER = {"model_type": "olmo3", "rope_parameters": {
    "full_attention": {"rope_type": "yarn", "rope_theta": 500000, **YARN},
    "sliding_attention": {"rope_type": "default", "rope_theta": 500000}}}
BARE = {"rope_theta": 10000.0}
DYNAMIC = {**LLAMA, "max_position_embeddings": 32, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
HYBRID = {"model_type": "granitemoehybrid", **BARE}
SAID = ["--pairing", "half", "--rotary-dim", 32]  # of models that are not known


def beside(config, **keys):
    """The config with keys beside its dicts of layer types."""
    return {**config, "rope_parameters": {**config["rope_parameters"], **keys}}


def inside(config, **keys):
    """The config with keys in the dict of its full layers."""
    return beside(config, full_attention={**config["rope_parameters"]["full_attention"], **keys})


FULL, SLIDING = ["--layer-type", "full_attention"], ["--layer-type", "sliding_attention"]


def by_index(frequencies):
    def angles(b, t, i):
        a = t * frequencies[i]
        return math.cos(a), math.sin(a), math.cos(a), math.sin(a)

    return angles


def linear(dim, theta, factor):
    return [f / factor for f in rope.default(dim, theta)]


def phi3(factors):
    return [f / factor for f, factor in zip(rope.default(32), factors)]


FACTOR = math.sqrt(1 + math.log(4) / math.log(32))  # of LongRoPE
# What it is, the config, options, the rotation of heads of 32.
RIGHT = [
    ("llama", LLAMA, [], Rotation(by_index(rope.default(32, 500000.0)), 32)),
    ("llama 3.1", {**LLAMA, "rope_scaling": LLAMA3}, [],
     Rotation(by_index(rope.llama3(32, 500000.0, 8.0, 1.0, 4.0, 64.0)), 32)),
    ("llama 3.1 of transformers 5", {"model_type": "llama", "rope_parameters": {**LLAMA3, "rope_theta": 500000.0}}, [],
     Rotation(by_index(rope.llama3(32, 500000.0, 8.0, 1.0, 4.0, 64.0)), 32)),
    ("yarn", {**LLAMA, "rope_scaling": {"rope_type": "yarn", **YARN}}, [],
     Rotation(by_index(rope.yarn(32, 500000.0, 4.0, 64.0)[0]), 32, mscale=rope.yarn(32, 500000.0, 4.0, 64.0)[1])),
    ("deepseek", DEEPSEEK, [], Rotation(by_index(rope.yarn(16, 10000.0, 4.0, 64.0)[0]), 16, 16, "interleaved", "half")),
    ("deepseek by halves", {**DEEPSEEK, "rope_interleave": False}, [],
     Rotation(by_index(rope.yarn(16, 10000.0, 4.0, 64.0)[0]), 16, 16)),
    ("gpt-neox", {"model_type": "gpt_neox", "rotary_pct": 0.25, "rotary_emb_base": 10000}, [],
     Rotation(by_index(rope.default(8)), 8)),
    ("stablelm, with what its class has", {"model_type": "stablelm", "rope_theta": 10000}, [],
     Rotation(by_index(rope.default(8)), 8)),
    ("glm-4", {"model_type": "glm4", "rope_theta": 10000, "head_dim": 32, "partial_rotary_factor": 0.5}, [],
     Rotation(by_index(rope.default(16)), 16, pairing="interleaved")),
    ("gpt-j", {"model_type": "gptj", "rotary_dim": 8, "rope_theta": 10000}, [],
     Rotation(by_index(rope.default(8)), 8, pairing="interleaved")),
    ("gemma 3, full", GEMMA, FULL, Rotation(by_index(linear(32, 1000000.0, 8)), 32)),
    ("gemma 3, sliding", GEMMA, SLIDING, Rotation(by_index(rope.default(32)), 32)),
    ("gemma 3 without bases, full", GEMMA_BARE, FULL, Rotation(by_index(linear(32, 1000000.0, 8)), 32)),
    ("gemma 3 without bases, sliding", GEMMA_BARE, SLIDING, Rotation(by_index(rope.default(32)), 32)),
    ("olmo 3, full", OLMO3, FULL,
     Rotation(by_index(rope.yarn(32, 500000.0, 4.0, 64.0)[0]), 32, mscale=rope.yarn(32, 500000.0, 4.0, 64.0)[1])),
    ("olmo 3, sliding", OLMO3, SLIDING, Rotation(by_index(rope.default(32, 500000.0)), 32)),
    ("modernbert, full", MODERNBERT, FULL, Rotation(by_index(rope.default(32, 160000.0)), 32)),
    ("modernbert, sliding", MODERNBERT, SLIDING, Rotation(by_index(rope.default(32)), 32)),
    ("a base that only the command line has", {"model_type": "llama"}, ["--rope-theta", 500000],
     Rotation(by_index(rope.default(32, 500000.0)), 32)),
    ("deepseek, the way back", DEEPSEEK, ["--backward"],
     Rotation(by_index(rope.yarn(16, 10000.0, 4.0, 64.0)[0]), 16, 16, "interleaved", "half", backward=True)),
    ("by layer, full", BY_LAYER, FULL, Rotation(by_index(linear(32, 1000000.0, 8)), 32)),
    ("by layer, sliding", BY_LAYER, SLIDING, Rotation(by_index(rope.default(32)), 32)),
    ("phi 3, long", PHI3, ["--seq-len", 40], Rotation(by_index(phi3([2.0 + i for i in range(16)])), 32, mscale=FACTOR)),
    ("dynamic", DYNAMIC, ["--seq-len", 50], Rotation(by_index(rope.dynamic(32, 500000.0, 2.0, 50.0, 32.0)), 32)),
    ("proportional", {"model_type": "gemma4_text", "rope_theta": 10000,
                      "rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 0.5}}, [],
     Rotation(by_index(rope.proportional(32, 10000.0, 1.0, 0.5)), 32)),
    ("a model that is not known", {"model_type": "mine", "rope_theta": 10000}, ["--pairing", "half", "--rotary-dim", 32],
     Rotation(by_index(rope.default(32)), 32)),
    ("yarn by layer", YARN_BY_LAYER, FULL,
     Rotation(by_index(rope.yarn(32, 500000.0, 4.0, 64.0)[0]), 32, mscale=rope.yarn(32, 500000.0, 4.0, 64.0)[1])),
    ("truncate beside the dicts of layers", beside(YARN_BY_LAYER, truncate=False), FULL,
     Rotation(by_index(rope.yarn(32, 500000.0, 4.0, 64.0, truncate=False)[0]), 32,
              mscale=rope.yarn(32, 500000.0, 4.0, 64.0)[1])),
    ("truncate in one dict", {**LLAMA, "rope_scaling": {"rope_type": "yarn", **YARN, "truncate": False}}, [],
     Rotation(by_index(rope.yarn(32, 500000.0, 4.0, 64.0, truncate=False)[0]), 32,
              mscale=rope.yarn(32, 500000.0, 4.0, 64.0)[1])),
    ("truncate that is the default", inside(YARN_BY_LAYER, truncate=True), FULL,
     Rotation(by_index(rope.yarn(32, 500000.0, 4.0, 64.0)[0]), 32, mscale=rope.yarn(32, 500000.0, 4.0, 64.0)[1])),
    ("one base in two places", {**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}, [],
     Rotation(by_index(rope.default(32, 500000.0)), 32)),
    ("falcon without alibi", {"model_type": "falcon", "alibi": False, **BARE}, [],
     Rotation(by_index(rope.default(32)), 32)),
    ("granite's hybrid with rope", {**HYBRID, "position_embedding_type": "rope"}, [],
     Rotation(by_index(rope.default(32)), 32)),
    ("esm with rotary", {"model_type": "esm", "position_embedding_type": "rotary", **BARE}, SAID,
     Rotation(by_index(rope.default(32)), 32)),
    ("some layers that do not rotate", {"model_type": "smollm3", "no_rope_layers": [1, 0], **BARE}, [],
     Rotation(by_index(rope.default(32)), 32)),
    ("the same said twice", LLAMA, ["--pairing", "half", "--rope-theta", 500000],
     Rotation(by_index(rope.default(32, 500000.0)), 32)),
]

# What is wrong, the config, options, words that the line must hold.
WRONG = [
    ("no layer type", GEMMA, [], ["--layer-type", "full_attention", "sliding_attention"]),
    ("no layer type of transformers 5", BY_LAYER, [], ["--layer-type", "full_attention", "sliding_attention"]),
    ("an unknown layer type", BY_LAYER, ["--layer-type", "full"], ["--layer-type", "full_attention"]),
    ("a layer type where there is one", LLAMA, FULL, ["--layer-type", "leave it out"]),
    ("a model that is not known", {"model_type": "mine", "rope_theta": 10000}, [], ["--pairing", "'mine'"]),
    ("how much of its head", {"model_type": "mine", "rope_theta": 10000}, ["--pairing", "half"],
     ["--rotary-dim", "'mine'"]),
    ("another pairing", LLAMA, ["--pairing", "interleaved"], ["--pairing", "model_type", "half"]),
    ("another base", LLAMA, ["--rope-theta", 10000], ["--rope-theta", "rope_theta", "500000"]),
    ("another rule", {**LLAMA, "rope_scaling": LLAMA3}, ["--scaling", "default"], ["--scaling", "rope_scaling", "llama3"]),
    ("other heads", {**LLAMA, "head_dim": 64}, [], ["'q'", "--head-dim (64)"]),
    ("no base", {"model_type": "llama"}, [], ["--rope-theta", "missing", "config.json"]),
    ("no layer type of olmo 3", OLMO3, [], ["--layer-type", "full_attention", "sliding_attention"]),
    ("no layer type without a second base", {"model_type": "gemma3_text", "rope_theta": 1000000.0}, [], ["--layer-type"]),
    ("one dict for two layer types", {"model_type": "gemma3_text", "rope_parameters": {"rope_type": "default"}}, FULL,
     ["rope_parameters", "by layer type"]),
    ("another base inside", {**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}, [],
     ["rope_theta", "contradicts"]),
    ("another name's base", {"model_type": "gpt_neox", "rotary_emb_base": 10000, "rope_theta": 500000}, [],
     ["rotary_emb_base", "contradicts rope_theta"]),
    ("another name's share", {"model_type": "gpt_neox", "rotary_emb_base": 10000, "rotary_pct": 0.25,
                              "partial_rotary_factor": 0.5}, [], ["rotary_pct", "contradicts partial_rotary_factor"]),
    ("another base of the text model", {**LLAMA, "text_config": {"model_type": "llama", "rope_theta": 10000.0}}, [],
     ["rope_theta", "contradicts that of text_config"]),
    ("two rules", {**LLAMA, "rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2.0}}, [],
     ["type", "contradicts rope_type"]),
    ("a rule that is no text", {**LLAMA, "rope_scaling": {"rope_type": 3}}, [], ["rope_type", "string"]),
    ("a list for a number", {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": [2.0]}}, [], ["factor", "number"]),
    ("factors that are no numbers", {**PHI3, "rope_scaling": {**PHI3["rope_scaling"], "long_factor": ["2"] * 16}}, [],
     ["long_factor", "list of numbers"]),
    ("a model that turns the other way", {"model_type": "nanochat", "rope_theta": 10000.0}, [], ["nanochat", "--inverse"]),
    ("a way back that is none", DEEPSEEK, ["--inverse"], ["--inverse", "--backward"]),
    ("a base that is text", {**LLAMA, "rope_theta": "10000"}, [], ["rope_theta", "number"]),
    ("a key that the rule lacks", {**LLAMA, "rope_scaling": {**LLAMA3, "beta_fast": 32}}, [], ["--scaling", "beta_fast"]),
    ("a key that is missing", {**LLAMA, "rope_scaling": {"rope_type": "linear"}}, [], ["--scaling", "factor"]),
    ("HunYuan's alpha", {**DYNAMIC, "rope_scaling": {"type": "dynamic", "alpha": 1000.0}}, [], ["alpha"]),
    ("an unknown rule", {**LLAMA, "rope_scaling": {"rope_type": "ntk"}}, [], ["ntk", "llama3"]),
    ("the length of now", PHI3, [], ["--seq-len", "up to 39"]),
    ("a length that nothing reads", LLAMA, ["--seq-len", 50], ["--seq-len", "no effect"]),
    ("bases by layer", {**LLAMA, "swa_rope_theta": 1000.0}, [], ["swa_rope_theta"]),
    ("a base around the text model", {"rope_theta": 500000.0, "text_config": {
        "model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}}, [],
     ["rope_theta", "contradicts that of text_config"]),
    ("another base of full layers", {**OLMO3, "rope_scaling": {**OLMO3["rope_scaling"], "rope_theta": 10000}}, FULL,
     ["rope_theta", "contradicts the rope_theta of rope_scaling"]),
    ("alibi", {"model_type": "falcon", "alibi": True, **BARE}, [], ["alibi", "does not rotate"]),
    ("a hybrid that says nope", {**HYBRID, "position_embedding_type": "nope"}, [],
     ["position_embedding_type", "does not rotate"]),
    ("a hybrid that says null", {**HYBRID, "position_embedding_type": None}, [],
     ["position_embedding_type", "does not rotate without it"]),
    ("a hybrid that says nothing", HYBRID, [], ["position_embedding_type", "does not rotate without it"]),
    ("a hybrid in another's words", {**HYBRID, "position_embedding_type": "rotary"}, [], ["position_embedding_type"]),
    ("esm with a table of positions", {"model_type": "esm", "position_embedding_type": "absolute", **BARE}, SAID,
     ["position_embedding_type", "does not rotate"]),
    ("esm that says nothing", {"model_type": "esm", **BARE}, SAID, ["position_embedding_type"]),
    ("a llama with a table of positions", {**LLAMA, "position_embedding_type": "learned"}, [], ["position_embedding_type"]),
    ("speech by distances", {"model_type": "wav2vec2-bert", "position_embeddings_type": "relative_key", **BARE}, SAID,
     ["position_embeddings_type"]),
    ("zamba 2 as it is", {"model_type": "zamba2", **BARE}, SAID, ["use_mem_rope"]),
    ("zamba 2 without", {"model_type": "zamba2", "use_mem_rope": False, **BARE}, SAID, ["use_mem_rope"]),
    ("clvp without", {"model_type": "clvp_encoder", "use_rotary_embedding": False, **BARE}, SAID, ["use_rotary_embedding"]),
    ("use_rope", {**LLAMA, "use_rope": False}, [], ["use_rope", "does not rotate"]),
    ("a model without", {"model_type": "nemotron_h", **BARE}, SAID, ["model_type", "without a rotary embedding"]),
    ("pairs against the class", {**LLAMA, "rope_interleave": True}, [], ["rope_interleave", "contradicts"]),
    ("halves against the class", {"model_type": "gptj", "rotary_dim": 8, "rope_interleave": False, **BARE}, [],
     ["rope_interleave", "contradicts"]),
    ("pairs by a number", {**DEEPSEEK, "rope_interleave": 0}, [], ["rope_interleave"]),
    ("no layer that rotates", {"model_type": "smollm3", "no_rope_layers": [0, 0], **BARE}, [], ["no_rope_layers"]),
    ("every layer without", {"model_type": "smollm3", "no_rope_layer_interval": 1, **BARE}, [], ["no_rope_layer_interval"]),
    ("truncate in the dict of a layer", inside(YARN_BY_LAYER, truncate=False), FULL, ["truncate", "does not read it"]),
    ("truncate in both", beside(inside(YARN_BY_LAYER, truncate=True), truncate=False), FULL, ["truncate", "contradicts"]),
    ("truncate of null", {**LLAMA, "rope_scaling": {"rope_type": "yarn", **YARN, "truncate": None}}, [],
     ["truncate", "true or false"]),
    ("truncate of null beside layers", beside(YARN_BY_LAYER, truncate=None), FULL, ["truncate", "true or false"]),
    ("a key beside the dicts of layers", beside(YARN_BY_LAYER, partial_rotary_factor=0.5), FULL,
     ["partial_rotary_factor", "beside the dicts of layer types"]),
    ("two dicts that differ", {**LLAMA, "rope_scaling": LLAMA3, "rope_parameters": {"rope_type": "default"}}, [],
     ["rope_scaling", "contradicts"]),
]


def write_config(directory, config):
    with open(os.path.join(directory, "config.json"), "w") as file:
        json.dump(config, file)


def numbers(*shape):
    return Tensor("F64", list(shape), [random.uniform(-2, 2) for _ in range(math.prod(shape))])


def apply(directory, config, tensors, *options):
    """The process, and what it wrote."""
    source, target = os.path.join(directory, "in.safetensors"), os.path.join(directory, "out.safetensors")
    write_config(directory, config)
    safetensors.write(source, tensors)
    result = run("apply", source, "-o", target, "--layout", "bshd", "--config", directory, *options)
    return result, safetensors.read(target)[0] if result.returncode == 0 else {}


def close(name, got, rotation, source):
    want, size = rotation.apply("bshd", source.shape, source.values)
    worst = max(abs(g - w) - 1e-11 * s for g, w, s in zip(got.values, want, size))
    check(worst <= 0, name, "is off by", worst)


def right():
    q = numbers(1, TOKENS, 2, 32)
    for name, config, options, rotation in RIGHT:
        with harness.folder() as directory:
            result, found = apply(directory, config, {"q": q}, *options)
            if check(result.returncode == 0, name, result.stderr):
                close(name, found["q"], rotation, q)


def wrong():
    for name, config, options, words in WRONG:
        with harness.folder() as directory:
            result, _ = apply(directory, config, {"q": numbers(1, TOKENS, 2, 32)}, *options)
            check(result.returncode == 2 and result.stderr.count("\n") == 1, name, "is refused in one line", result.stderr)
            for word in words:
                check(word in result.stderr, name, "has no", repr(word), "in", result.stderr)
    with harness.folder() as directory:
        path = os.path.join(directory, "in.safetensors")
        safetensors.write(path, {"q": numbers(1, TOKENS, 2, 32)})
        twice = '{"model_type": "llama", "rope_theta": 10000, "rope_theta": 500000}'
        for content, word in (("{", "JSON"), ("[]", "JSON"), ("{}\0", "zero byte"), (twice, "'rope_theta' must occur only"),
                              (None, "No such file")):
            config = os.path.join(directory, "config.json")
            if content is None:
                os.remove(config)
            else:
                with open(config, "w") as file:
                    file.write(content)
            result = run("apply", path, "-o", path, "--config", config)
            check(result.returncode == 2 and word in result.stderr, "a config of", content, result.stderr)
        result = run("apply", path, "-o", path, "--layout", "bshd", *FULL)
        check(result.returncode == 2 and "--layer-type" in result.stderr, "a layer type alone", result.stderr)


SECTIONS = {"type": "mrope", "mrope_section": [6, 5, 5]}
IN_SECTIONS, MIXED = (lambda i: 0 if i < 6 else 1 if i < 11 else 2), (lambda i: i % 3 if i < 3 * (6, 5, 5)[i % 3] else 0)


def axes():
    """mrope_section is read where there are positions of several axes, and has nothing to say where there are none. Which
    pairs an axis has follows from the class; where that is not known, mrope_interleaved must say it."""
    ids = Tensor("I64", [3, 1, TOKENS], [random.randrange(90) for _ in range(3 * TOKENS)])
    q, frequencies = numbers(1, TOKENS, 2, 32), rope.default(32, 500000.0)
    four = {"q": q, "position_ids": Tensor("I64", [4, 1, TOKENS], list(range(TOKENS)) + ids.values)}

    def of_axis(axis):
        def angles(b, t, i):
            a = ids.values[axis(i) * TOKENS + t] * frequencies[i]
            return math.cos(a), math.sin(a), math.cos(a), math.sin(a)

        return angles

    def refused(name, config, tensors, words, *options):
        with harness.folder() as directory:
            result, _ = apply(directory, config, tensors, *options)
            check(result.returncode == 2 and result.stderr.count("\n") == 1, name, "is refused in one line", result.stderr)
            for word in words:
                check(word in result.stderr, name, "has no", repr(word), "in", result.stderr)

    whole = {"partial_rotary_factor": 1.0}  # the classes of Qwen3.5 have another one
    for name, keys, axis, contradiction in (
            ("qwen2_vl", {}, IN_SECTIONS, True), ("qwen2_vl_text", {}, IN_SECTIONS, True),
            ("qwen2_5_vl", {"mrope_interleaved": False}, IN_SECTIONS, True), ("qwen3_vl", {}, MIXED, False),
            ("qwen3_vl_text", {"mrope_interleaved": True}, MIXED, False), ("qwen3_vl_moe", {}, MIXED, False),
            ("qwen3_5", {}, MIXED, False), ("qwen3_5_text", {"mrope_interleaved": True}, MIXED, False),
            ("qwen3_5_moe", {}, MIXED, False), ("qwen3_5_moe_text", {}, MIXED, False),
            ("llama", {"mrope_interleaved": False}, IN_SECTIONS, None),
            ("llama", {"mrope_interleaved": True}, MIXED, None)):
        config = {**LLAMA, **whole, "model_type": name, "rope_scaling": {**SECTIONS, **keys}}
        with harness.folder() as directory:
            result, found = apply(directory, config, {"q": q, "position_ids": ids})
            if check(result.returncode == 0, name, result.stderr):
                close(name, found["q"], Rotation(of_axis(axis), 32), q)
            result, found = apply(directory, config, {"q": q})
            if check(result.returncode == 0, name, result.stderr):
                close("no axes", found["q"], Rotation(by_index(frequencies), 32), q)
        refused(name + " of four axes", config, four, ["'position_ids'", "4 axes", "drop it", "position_ids[1:]"])
        if contradiction is not None:
            against = {**config, "rope_scaling": {**SECTIONS, "mrope_interleaved": contradiction}}
            refused(name + " against its class", against, {"q": q, "position_ids": ids}, ["mrope_interleaved", "class"])
    unknown = {**LLAMA, "rope_scaling": SECTIONS}
    refused("an order that is not known", unknown, {"q": q, "position_ids": ids}, ["--axis-map", "'llama'"])
    refused("an order that is no truth", {**LLAMA, "rope_scaling": {**SECTIONS, "mrope_interleaved": 1}},
            {"q": q, "position_ids": ids}, ["mrope_interleaved", "true or false"])
    with harness.folder() as directory:
        result, found = apply(directory, unknown, {"q": q, "position_ids": ids}, "--axis-map", "interleaved")
        if check(result.returncode == 0, "an order that the command line has", result.stderr):
            close("an order that the command line has", found["q"], Rotation(of_axis(MIXED), 32), q)


def tables():
    """Angles of the file are those that are used; the config still says how they are paired, and must fit them."""
    q = numbers(1, TOKENS, 2, 32)
    angles = [t * f for t in range(TOKENS) for f in 2 * rope.default(16)]
    freqs = {"freqs": Tensor("F64", [TOKENS, 16], angles)}
    config = {"model_type": "glm4", "rope_theta": 10000, "head_dim": 32, "partial_rotary_factor": 0.5}
    with harness.folder() as directory:
        result, found = apply(directory, config, {"q": q, **freqs})
        expected = Rotation(by_index(rope.default(16)), 16, pairing="interleaved")
        if check(result.returncode == 0, "a table", result.stderr):
            close("a table", found["q"], expected, q)
        result, _ = apply(directory, {**config, "partial_rotary_factor": 1.0}, {"q": q, **freqs})
        check(result.returncode == 2 and "'freqs'" in result.stderr, "a table of another width", result.stderr)


harness.require_apply()
random.seed(20261127)
right()
wrong()
axes()
tables()
harness.finish()
