"""The checkpoint file of a run: tensors and facts in one safetensors file with a checksum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.gpt.checkpoint import memory_size
from heedful.reading import open_file
from heedful.writing import reserved

FACTS, DIGEST = "heedful_run", "digest"


def save_state(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and facts to a file, replacing it completely or not at all.

    Args:
        path: the file.
        tensors: by name.
        facts: values that JSON can represent.

    Raises:
        ArgumentError: the file cannot be written, for example on a full disk; the old file stays.
    """
    from safetensors.torch import save

    tensors = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    facts_as_json = json.dumps(facts)
    content = save(tensors, {FACTS: facts_as_json, DIGEST: _digest(tensors, facts_as_json)})
    with reserved(path, "--out") as write:
        write(content)


def load_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and facts in a file that `save_state` wrote.

    Raises:
        ArgumentError: the file is missing, truncated, altered, or not a checkpoint of a run.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise _unusable(path, "no such file")
    try:
        open_file(path, memory_size()).close()
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    except (SafetensorError, OSError) as error:
        raise _unusable(path, f"a damaged file: {error}") from error
    except MemoryError as error:  # the process may have less than the machine
        raise _unusable(path, f"a file that is too large for the memory: {error}") from error
    if FACTS not in metadata:
        raise _unusable(path, "a safetensors file that heedful train did not write")
    if DIGEST not in metadata:
        raise _unusable(
            path, "a checkpoint of an older version, which does not vouch for the run's other files"
        )
    if metadata[DIGEST] != _digest(tensors, metadata[FACTS]):
        raise _unusable(path, "a damaged file with a wrong checksum")
    try:
        return tensors, dict(json.loads(metadata[FACTS]))
    except (ValueError, TypeError, RecursionError) as error:
        raise _unusable(path, f"facts that are not a JSON object: {error}") from error


def _digest(tensors: Mapping[str, Tensor], facts: str) -> str:
    """Return a SHA-256 digest; safetensors itself detects a truncated file, but not an altered byte."""
    digest = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _unusable(path: Path, received: str) -> ArgumentError:
    return ArgumentError(
        "--resume",
        expected="a checkpoint that heedful train wrote",
        received=f"{received} ({path})",
        remedy="Restore a copy of it, or start a new run in another folder with --out.",
    )
