"""Pretrained models of transformers as a `GPT`, from a folder or from a model in memory, with a proof of equality."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from heedful.conversion.certificate import Certificate, largest_difference, largest_magnitude
from heedful.gpt.checkpoint import CONFIG, WEIGHTS, assemble, read_json, read_tensors, unusable
from heedful.gpt.model import GPT
from heedful.gpt.pretrained_families import translate

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # pyright: ignore[reportMissingImports] - an extra

INDEX = "model.safetensors.index.json"  # of weights that are split into several files

# Relative to the largest logit. transformers computes RMSNorm and rotary angles in float32 whatever the dtype, which
# causes a difference of about 1e-7. Exact GELU instead of its approximation causes about 1e-4, and another family's
# epsilon or rotary base causes more.
TOLERANCE = 1e-5
BATCH, MAX_TOKENS = 2, 64


def from_folder(folder: str | Path) -> GPT:
    """Load a model that transformers saved; transformers itself is not needed.

    Args:
        folder: has config.json and model.safetensors, or the parts of these weights and their index. The model is
            GPT-2, Llama, Mistral or Qwen 2.

    Returns:
        The model in eval mode, on the CPU, with weights of the saved dtype and without dropout.

    Raises:
        ArgumentError: files are missing or damaged, or the model computes something that `GPT` does not.
        MissingExtraError: the extra "train" is not installed.

    Examples:
        >>> import tempfile
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> source = GPT2LMHeadModel(GPT2Config(vocab_size=99, n_embd=32, n_head=2, n_layer=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     source.save_pretrained(folder)
        ...     gpt = from_folder(folder)
        >>> gpt.config.d_model
        32
    """
    folder = Path(folder)
    return _build(read_json(folder / CONFIG), _read_weights(folder), folder)


def from_transformers(model: PreTrainedModel) -> tuple[GPT, Certificate]:
    """Convert a transformers model, and compare the two.

    Args:
        model: a `GPT2LMHeadModel`, `LlamaForCausalLM`, `MistralForCausalLM` or `Qwen2ForCausalLM`.

    Returns:
        The model in eval mode, of the same dtype and device, with a copy of the weights; and the certificate that both
        compute the same logits.

    Raises:
        ArgumentError: the model is of another class, or computes something that `GPT` does not.

    Examples:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> source = GPT2LMHeadModel(GPT2Config(vocab_size=99, n_embd=32, n_head=2, n_layer=1))
        >>> gpt, certificate = from_transformers(source)
        >>> certificate.exact
        True
    """
    tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    gpt = _build(model.config.to_dict(), tensors, type(model).__name__)
    return gpt, certify(gpt, model)


@torch.no_grad()
def certify(gpt: GPT, source: PreTrainedModel) -> Certificate:
    """Compare the logits of a GPT with those of a transformers model.

    Args:
        gpt: the GPT.
        source: the transformers model.

    Returns:
        The certificate, whether the logits agree or not.
    """
    tokens = _random_tokens(gpt)
    ours, theirs = _in_float64(gpt), _in_float64(source)
    expected = [theirs(batch).logits.double() for batch in tokens]
    return Certificate(
        source=type(source).__name__,
        target="GPT",
        difference=largest_difference(expected, [ours(batch) for batch in tokens]),
        scale=largest_magnitude(expected),
        tolerance=TOLERANCE,
        inputs=tuple(tuple(batch.shape) for batch in tokens),
        quantity="logits",
    )


def _in_float64(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).to("cpu", torch.float64).eval()


def _random_tokens(gpt: GPT) -> list[Tensor]:
    max_tokens = min(MAX_TOKENS, gpt.config.context_length)
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(gpt.config.vocab_size, (BATCH, T), generator=generator)
        for T in sorted({1, max_tokens})
    ]


def _build(fields: Mapping[str, Any], tensors: Mapping[str, Tensor], origin: object) -> GPT:
    try:
        config, tensors = translate(fields, tensors)
    except (TypeError, AttributeError) as error:  # for example, a list where a number is expected
        raise unusable(origin, f"a configuration with a value of a wrong type: {error}") from error
    if not tensors:
        raise unusable(origin, "no weights")
    widest = reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values()))
    return assemble(
        config, {name: tensor.to(widest).contiguous() for name, tensor in tensors.items()}, origin
    )


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Read the weights from one file, or from the files that an index names."""
    if (folder / WEIGHTS).exists() or not (folder / INDEX).exists():
        return read_tensors(folder / WEIGHTS)
    files = read_json(folder / INDEX).get("weight_map")
    if not isinstance(files, dict) or not all(map(_is_name, files.values())):
        raise unusable(folder / INDEX, "an index that names files outside its folder, or none")
    return read_tensors(*(folder / name for name in sorted(set(files.values()))))


def _is_name(name: object) -> bool:
    """Return whether this is the name of a file, without a folder."""
    return isinstance(name, str) and Path(name).name == name
