"""GPT-2 and Llama-type checkpoints in our `GPT`: from a folder, or from a transformers model, proved equal to it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from heedful.conversion.certificate import largest_difference
from heedful.gpt.checkpoint import CONFIG, WEIGHTS, assemble, read_json, read_tensors, unusable
from heedful.gpt.pretrained_families import translate
from heedful.gpt.model import GPT

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # pyright: ignore[reportMissingImports] - an extra

INDEX = (
    "model.safetensors.index.json"  # which file holds which tensor, where one would be too large
)

# transformers computes RMSNorm and rotary angles in float32 whatever the dtype, which costs about 1e-7 of the
# logits' size. GELU for its approximation costs about 1e-4, an epsilon or base of another family more.
TOLERANCE = 1e-5
BATCH, LONGEST = 2, 64


@dataclass(frozen=True)
class Certificate:
    """How far the logits of our GPT are from those of the transformers model that it was made of.

    Both are compared in eval mode, on random tokens from a generator of the certificate's own, as copies: neither a
    mode nor the global random state is touched.

    Attributes:
        source: the transformers class.
        difference: the largest absolute difference of logits, both computed in float64 on the CPU; NaN if one is NaN.
        scale: the source's largest absolute logit.
        inputs: the tokens' shapes (B, T): 1 token, and as many as the context holds, 64 at most.
    """

    source: str
    difference: float
    scale: float
    inputs: tuple[tuple[int, ...], ...]

    @property
    def exact(self) -> bool:
        """Whether logits differ by rounding alone: by at most 1e-5 of the source's largest."""
        return self.difference <= TOLERANCE * self.scale

    def __str__(self) -> str:
        verdict = "the same function" if self.exact else "NOT the same function"
        return (
            f"{self.source} → GPT: {verdict}\n"
            f"  logits differ by {self.difference:.1e} (allowed: {TOLERANCE:.0e} of {self.scale:.3g}) in float64\n"
            f"  tokens {', '.join(map(str, self.inputs))}"
        )


def from_folder(folder: str | Path) -> GPT:
    """The model in a folder with config.json and model.safetensors, or its shards and their index.

    It is in eval mode on the CPU, of the files' dtype, without dropout. Needs safetensors, not transformers.

    Raises:
        ArgumentError: files are missing or damaged, or the model does what ours does not; the text says what.
        MissingExtraError: the extra "train" is not installed.
    """
    folder = Path(folder)
    return _build(read_json(folder / CONFIG), _read_shards(folder), folder)


def from_transformers(model: PreTrainedModel) -> tuple[GPT, Certificate]:
    """A transformers model as ours, of its dtype and device and with weights of its own, and the proof.

    Args:
        model: `GPT2LMHeadModel`, `LlamaForCausalLM`, `MistralForCausalLM` or `Qwen2ForCausalLM`.

    Raises:
        ArgumentError: it is of another kind, or does what ours does not; the text says what.
    """
    tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    gpt = _build(model.config.to_dict(), tensors, type(model).__name__)
    return gpt, certify(gpt, model)


@torch.no_grad()
def certify(gpt: GPT, source: PreTrainedModel) -> Certificate:
    """Compare our GPT with a transformers model."""
    tokens = _random_tokens(gpt)
    ours, theirs = _in_float64(gpt), _in_float64(source)
    expected = [theirs(it).logits.double() for it in tokens]
    return Certificate(
        source=type(source).__name__,
        difference=largest_difference(expected, [ours(it) for it in tokens]),
        scale=max(logits.abs().max().item() for logits in expected),
        inputs=tuple(tuple(it.shape) for it in tokens),
    )


def _in_float64(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).to("cpu", torch.float64).eval()


def _random_tokens(gpt: GPT) -> list[Tensor]:
    longest = min(LONGEST, gpt.config.context_length)
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(gpt.config.vocab_size, (BATCH, T), generator=generator)
        for T in sorted({1, longest})
    ]


def _build(fields: Mapping[str, Any], tensors: Mapping[str, Tensor], origin: object) -> GPT:
    config, tensors = translate(fields, tensors)
    widest = reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values()))
    return assemble(
        config, {name: tensor.to(widest).contiguous() for name, tensor in tensors.items()}, origin
    )


def _read_shards(folder: Path) -> dict[str, Tensor]:
    if (folder / WEIGHTS).exists() or not (folder / INDEX).exists():
        return read_tensors(folder / WEIGHTS)
    shards = read_json(folder / INDEX).get("weight_map")
    if not isinstance(shards, dict) or any(Path(name).name != name for name in shards.values()):
        raise unusable(folder / INDEX, "an index that names no files beside it")
    tensors = {}
    for name in sorted(set(shards.values())):
        tensors |= read_tensors(folder / name)
    return tensors
