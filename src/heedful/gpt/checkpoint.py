"""Checkpoints of a GPT: a folder with its configuration as JSON and its weights as safetensors."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful import reading
from heedful.errors import ArgumentError, MissingExtraError
from heedful.gpt.config import GPTConfig
from heedful.gpt.model import GPT
from heedful.problem import DTYPES
from heedful.writing import reserved

CONFIG, WEIGHTS = "config.json", "model.safetensors"  # transformers' names
MODEL_TYPE = "heedful_gpt"


def save(model: GPT, folder: str | Path) -> None:
    """Write a model's configuration and weights into a folder, each file completely or not at all.

    Existing weights are replaced only if they belong to a model of the same configuration. So the two files fit
    together at any time.

    Args:
        model: the model.
        folder: an existing folder.

    Raises:
        ArgumentError: the folder holds another model or cannot be written; its files stay as they are.
        MissingExtraError: the extra "train" is not installed.

    Examples:
        >>> import tempfile
        >>> model = GPT(GPTConfig.gpt2(vocab_size=50, d_model=16, num_layers=1, num_heads=2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(model, folder)
        ...     same = load(folder).config == model.config
        >>> same
        True
    """
    safetensors = _safetensors()
    folder = Path(folder)
    check_free(model, folder)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tied:
        del tensors["head.weight"]
    for name, content in (
        (CONFIG, _config_text(model)),
        (WEIGHTS, safetensors.torch.save(tensors)),
    ):
        with reserved(folder / name, "folder") as write:
            write(content)


def load(folder: str | Path) -> GPT:
    """Load a model that `save` wrote.

    Args:
        folder: the folder.

    Returns:
        The model in eval mode, on the CPU, with weights of the saved dtype.

    Raises:
        ArgumentError: there is no model, or its files are damaged or come from another program.
        MissingExtraError: the extra "train" is not installed.
    """
    folder = Path(folder)
    fields = read_json(folder / CONFIG)
    if fields.pop("model_type", None) != MODEL_TYPE:
        raise unusable(folder / CONFIG, "a configuration that heedful did not write")
    try:
        config = GPTConfig(**fields)
    except TypeError as error:  # an unknown field, or a string where a number is expected
        raise unusable(folder / CONFIG, str(error)) from error
    return assemble(config, read_tensors(folder / WEIGHTS), folder / WEIGHTS)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        ArgumentError: the file is missing or does not contain a JSON object.
    """
    try:
        return reading.read_json(path)
    except OSError as error:
        raise unusable(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise unusable(path, str(error)) from error


def read_tensors(*paths: Path) -> dict[str, Tensor]:
    """Return the tensors in safetensors files, by name.

    Raises:
        ArgumentError: a file is missing or damaged, or all of them are larger than this machine's memory.
        MissingExtraError: the extra "train" is not installed.
    """
    free = memory_size()
    for path in paths:
        try:
            with reading.open_file(path, free) as file:
                free -= os.fstat(file.fileno()).st_size
        except OSError as error:
            raise unusable(path, error.strerror or str(error)) from error
    return {name: tensor for path in paths for name, tensor in _read_tensors(path).items()}


def _read_tensors(path: Path) -> dict[str, Tensor]:
    safetensors = _safetensors()
    try:
        # The sizes in the header are compared with the file's before any tensor is read. The tensors are copied,
        # because a mapped file that is truncated later would end the process.
        with safetensors.safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise unusable(path, error.strerror or str(error)) from error
    except MemoryError as error:  # the process may have less than the machine
        raise unusable(path, f"a file that is too large for the memory: {error}") from error
    except safetensors.SafetensorError as error:
        raise unusable(path, f"a damaged file: {error}") from error


def assemble(config: GPTConfig, tensors: Mapping[str, Tensor], origin: object) -> GPT:
    """Build a model from these tensors, without copying them.

    Args:
        config: the configuration.
        tensors: the weights by their names in the model's `state_dict`, without a tied head.
        origin: where they come from, for the error.

    Returns:
        The model in eval mode.

    Raises:
        ArgumentError: a tensor is missing, superfluous or of a wrong shape or dtype.
    """
    _check_sizes(config, tensors, origin)
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES):
        raise unusable(origin, f"weights of {sorted(map(str, dtypes))}, not of one real dtype")
    with torch.device("meta"):  # no memory and no random numbers for weights that are replaced
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


def _check_sizes(config: GPTConfig, tensors: Mapping[str, Tensor], origin: object) -> None:
    """Raise `ArgumentError` if the tensors are too few or too small, before a model of huge sizes is built."""
    largest = max((tensor.numel() for tensor in tensors.values()), default=0)
    sizes = {
        "vocab_size": config.vocab_size,
        "d_model": config.d_model,
        "d_mlp": config.d_mlp,
        "num_heads * head_dim": config.num_heads * config.head_dim,
        "context_length": config.context_length if config.positions == "learned" else 1,
    }
    for name, size in sizes.items():
        if size > largest:
            raise unusable(origin, f"{name}={size}, but at most {largest} numbers in a tensor")
    if config.num_layers > len(tensors):
        raise unusable(origin, f"num_layers={config.num_layers}, but {len(tensors)} tensors")


def memory_size() -> int:
    """Return the number of bytes of this machine's memory, or a size that no file exceeds if it is unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return sys.maxsize


def unusable(origin: object, received: str) -> ArgumentError:
    """Build the error for files that are not a checkpoint."""
    return ArgumentError(
        "checkpoint",
        expected=f"a folder with a {CONFIG} and {WEIGHTS} that fit together",
        received=f"{received} ({origin})",
        remedy="Name a folder that heedful train wrote, or a transformers model of GPT-2's or Llama's family.",
    )


def check_free(model: GPT, folder: Path) -> None:
    """Check that `save` would not overwrite another model.

    Args:
        model: the model to save.
        folder: the folder to save it into.

    Raises:
        ArgumentError: the folder does not exist, or holds a model of another configuration or a damaged one.
    """
    if not folder.is_dir():
        raise ArgumentError(
            "folder",
            expected="a folder that exists",
            received=str(folder),
            remedy="Create it first.",
        )
    existing = [name for name in (CONFIG, WEIGHTS) if (folder / name).exists()]
    config = folder / CONFIG
    if existing and not _has_content(config, _config_text(model).encode()):
        raise ArgumentError(
            "folder",
            expected=f"a folder without a model, or with one whose {CONFIG} is the same",
            received=f"{folder} with another or a damaged model's {' and '.join(existing)}",
            remedy="Name another folder; nothing was overwritten.",
        )


def _has_content(path: Path, content: bytes) -> bool:
    try:
        return reading.read_file(path, len(content)) == content
    except OSError:  # missing, larger, or not a regular file
        return False


def _config_text(model: GPT) -> str:
    return json.dumps({"model_type": MODEL_TYPE} | asdict(model.config), indent=2) + "\n"


def _safetensors() -> Any:
    try:
        import safetensors.torch  # pyright: ignore[reportMissingImports] - an extra
    except ImportError as error:
        raise MissingExtraError("Reading and writing a model", "train") from error
    return safetensors
