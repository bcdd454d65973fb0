"""Our own checkpoints: a folder with the model's configuration as JSON and its weights as safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.errors import ArgumentError, MissingExtraError
from heedful.gpt.config import GPTConfig
from heedful.gpt.model import GPT
from heedful.writing import reserved

CONFIG, WEIGHTS = "config.json", "model.safetensors"  # transformers' names
KIND = "heedful_gpt"  # what its config.json says of the model's type


def save(model: GPT, folder: str | Path) -> None:
    """Write a model's configuration and weights into a folder, each file whole or not at all.

    Weights that were there before are replaced if they are a model's of the same configuration, so the two files fit
    together whenever writing stops.

    Raises:
        ArgumentError: something else is there, or it cannot be written, as on a full disk; what was there stays.
        MissingExtraError: the extra "train" is not installed.
    """
    safetensors = _safetensors()
    folder = Path(folder)
    config = json.dumps({"model_type": KIND} | asdict(model.config), indent=2) + "\n"
    _check_free(folder, config)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tied:
        del tensors["head.weight"]
    for name, content in ((CONFIG, config), (WEIGHTS, safetensors.torch.save(tensors))):
        with reserved(folder / name, "folder") as write:
            write(content)


def load(folder: str | Path) -> GPT:
    """The model that `save` wrote, in eval mode, its weights of the saved dtype and on the CPU.

    Raises:
        ArgumentError: there is none, or its files are damaged or another program's.
        MissingExtraError: the extra "train" is not installed.
    """
    folder = Path(folder)
    fields = read_json(folder / CONFIG)
    if fields.pop("model_type", None) != KIND:
        raise unusable(folder / CONFIG, "a configuration that heedful did not write")
    try:
        config = GPTConfig(**fields)
    except TypeError as error:  # fields that there are not, or numbers that are none
        raise unusable(folder / CONFIG, str(error)) from error
    return assemble(config, read_tensors(folder / WEIGHTS), folder / WEIGHTS)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ArgumentError: it is missing, or no JSON object.
    """
    try:
        fields = json.loads(path.read_bytes())
    except OSError as error:
        raise unusable(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise unusable(path, f"text that is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise unusable(path, f"a JSON {type(fields).__name__}")
    return fields


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, on the CPU.

    Raises:
        ArgumentError: it is missing or damaged.
        MissingExtraError: the extra "train" is not installed.
    """
    safetensors = _safetensors()
    try:
        return safetensors.torch.load(path.read_bytes())
    except OSError as error:
        raise unusable(path, error.strerror or str(error)) from error
    except safetensors.SafetensorError as error:
        raise unusable(path, f"a damaged file: {error}") from error


def assemble(config: GPTConfig, tensors: Mapping[str, Tensor], origin: object) -> GPT:
    """A model of these very tensors, named as in its `state_dict`; a tied head needs none of its own.

    Raises:
        ArgumentError: a tensor is missing, left over, or of another shape; `origin` says whose they are.
    """
    with torch.device("meta"):  # no memory, and no numbers drawn, for weights that are replaced
        model = GPT(config)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if config.tied:
        del expected["head.weight"]
    received = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if expected != received:
        names = sorted(expected.items() ^ received.items())
        raise unusable(origin, f"{len(names)} tensors that differ, the first {names[0]}")
    model.load_state_dict(dict(tensors), strict=False, assign=True)
    if config.tied:
        model.head.weight = model.token_embedding.weight
    return model.requires_grad_().eval()


def unusable(origin: object, received: str) -> ArgumentError:
    """The error for a file that holds no checkpoint."""
    return ArgumentError(
        "checkpoint",
        expected=f"a folder with {CONFIG} and {WEIGHTS} that fit together",
        received=f"{received} ({origin})",
        remedy="Name the folder that heedful train wrote, or a transformers model of GPT-2's or Llama's kind.",
    )


def _check_free(folder: Path, config: str) -> None:
    """Raise unless the folder holds no model, or one of this configuration."""
    if not folder.is_dir():
        raise ArgumentError(
            "folder",
            expected="a folder that exists",
            received=str(folder),
            remedy="Make it first.",
        )
    there = [name for name in (CONFIG, WEIGHTS) if (folder / name).exists()]
    if there and (CONFIG not in there or (folder / CONFIG).read_bytes() != config.encode()):
        raise ArgumentError(
            "folder",
            expected="a folder without a model, or with one of the same configuration",
            received=f"{folder} with another model's {' and '.join(there)}",
            remedy="Name another folder; nothing was overwritten.",
        )


def _safetensors():
    try:
        import safetensors.torch  # pyright: ignore[reportMissingImports] - an extra
    except ImportError as error:
        raise MissingExtraError("Reading and writing a model", "train") from error
    return safetensors
