"""One safetensors file with all that a run goes on from: whole and ours, or an error."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from heedful.errors import ArgumentError
from heedful.writing import reserved

FACTS, DIGEST = "heedful_run", "sha256"


def save(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and facts (what JSON can say) in the place of what was there, all or nothing.

    Raises:
        ArgumentError: it cannot be written, as on a full disk; the old file stays.
    """
    from safetensors.torch import save

    tensors = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    written = json.dumps(facts)
    content = save(tensors, {FACTS: written, DIGEST: _digest(tensors, written)})
    with reserved(path, "--out") as write:
        write(content)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and facts of a file that `save` wrote.

    Raises:
        ArgumentError: it is cut short, changed since, or no file of ours.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    except (SafetensorError, OSError) as error:
        raise _unusable(path, f"a damaged file: {error}") from error
    if FACTS not in metadata:
        raise _unusable(path, "a safetensors file that no run of heedful wrote")
    if metadata.get(DIGEST) != _digest(tensors, metadata[FACTS]):
        raise _unusable(path, "a damaged file: its checksum does not fit")
    return tensors, json.loads(metadata[FACTS])


def _digest(tensors: Mapping[str, Tensor], facts: str) -> str:
    """The format itself notices a file cut short, but no byte changed."""
    digest = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].numpy().data)
    return digest.hexdigest()


def _unusable(path: Path, received: str) -> ArgumentError:
    return ArgumentError(
        "--resume",
        expected="a checkpoint that heedful train wrote",
        received=f"{received} ({path})",
        remedy="Put back a copy of it, or start anew in another folder with --out.",
    )
