"""The checkpoint of a run on many ranks: a folder to which each rank writes its part, whole or not there at all.

training-000000000012/            after step 12; until it is whole, its name begins with a dot
    facts.json                    the facts, and the sizes and SHA-256 digests of the other files
    shard-00001-….safetensors     the tensors of a rank, as `torch.distributed.checkpoint` writes them

Any other ranks, or one process, can read it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from heedful.errors import ArgumentError, RankError
from heedful.gpt.train.fingerprint import fingerprint, is_unchanged
from heedful.gpt.train.ranks import OneRank
from heedful.reading import read_json
from heedful.writing import new_folder, reserved

WHOLE = re.compile(r"training-\d{12}")
LEFT = re.compile(
    r"\.training-\d{12}\..*"
)  # of a process that was killed while it wrote or removed one
FACTS = "facts.json"


def save_shards(
    folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], ranks: OneRank
) -> None:
    """Write a checkpoint into the folder of a run, in place of those before. All ranks call it.

    Args:
        folder: the folder.
        tensors: the tensors of this rank, by name: distributed ones, or whole ones that all ranks have.
        facts: values that JSON can represent, with the number of the step; those of the first rank are written.
        ranks: the ranks.

    Raises:
        ArgumentError: a file cannot be written; the checkpoint before stays.
        RankError: another rank could not write its part.
    """
    from torch.distributed.checkpoint.api import CheckpointException  # takes a second
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    target = folder / f"training-{facts['step']:012d}"
    if ranks.any(ranks.first and target.exists()):
        return  # a resumed run that has taken no step
    with new_folder(target, "--out") if ranks.first else nullcontext() as created:
        path = ranks.told(str(created))
        try:
            writer = HuggingFaceStorageWriter(path, save_distributed=True)
            save(dict(tensors), storage_writer=writer)
        except CheckpointException as error:
            _raise_cause(error.failures, ranks)
        ranks.first_does(lambda: _write_facts(Path(path), facts))
    ranks.first_does(lambda: remove_shards(folder, target))


def _write_facts(path: Path, facts: Mapping[str, Any]) -> None:
    content = {
        "facts": facts,
        "files": {shard.name: fingerprint(shard) for shard in sorted(path.iterdir())},
    }
    with reserved(path / FACTS, "--out") as write:
        write(json.dumps(content | {"digest": _digest(content)}, indent=1) + "\n")


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _raise_cause(failures: Mapping[int, Any], ranks: OneRank) -> NoReturn:
    """Raise the failure of the first rank that failed: there as an error about the folder, elsewhere as that rank's."""
    rank = min(failures)
    cause, _ = failures[rank]
    if rank != ranks.rank:
        raise RankError(rank, f"it could not write its part of a checkpoint: {cause}") from cause
    raise ArgumentError(
        "--out",
        expected="a folder in which a checkpoint can be written",
        received=str(cause),
        remedy="The checkpoint before it is intact; make room, and continue with --resume.",
    ) from cause


def newest_shards(folder: Path) -> Path | None:
    """Return the newest checkpoint of many ranks in the folder of a run, if there is one."""
    return max((path for path in folder.iterdir() if WHOLE.fullmatch(path.name)), default=None)


def remove_shards(folder: Path, but: Path | None = None) -> None:
    """Remove checkpoints of many ranks, but one, from the folder of a run, and what is left of unfinished ones."""
    for path in folder.iterdir():
        if WHOLE.fullmatch(path.name) and path != but:
            shutil.rmtree(path.rename(path.with_name(f".{path.name}.old")), ignore_errors=True)
        elif LEFT.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def load_facts(path: Path) -> dict[str, Any]:
    """Return the facts of a checkpoint.

    Raises:
        ArgumentError: they are missing or damaged.
    """
    return _read(path)["facts"]


def check_shards(path: Path) -> None:
    """Raise `ArgumentError` unless the files of a checkpoint are those that were written."""
    files = _read(path)["files"]
    names = {*files, *(file.name for file in path.iterdir())} - {FACTS}
    changed = [name for name in sorted(names) if not is_unchanged(path / name, files.get(name))]
    if changed:
        raise _unusable(path, f"changed or missing files: {', '.join(changed)}")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path / FACTS)
        digest = content.pop("digest", None)
    except (OSError, ValueError) as error:
        raise _unusable(path, str(error)) from error
    if digest != _digest(content) or content.keys() != {"facts", "files"}:
        raise _unusable(path, f"a damaged {FACTS}")
    return content


def load_shards(path: Path, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint, or the parts of them that this rank needs. All ranks call it.

    Args:
        path: the checkpoint.
        weights: the weights of a model, by name: what belongs to one of them is distributed as it is.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(path))
    tensors: dict[str, Tensor] = {}
    for name, facts in reader.read_metadata().state_dict_metadata.items():
        like = weights.get(name.partition(".")[2])
        assert isinstance(facts, TensorStorageMetadata)
        if like is not None and like.shape == facts.size:
            tensors[name] = torch.zeros_like(like, dtype=facts.properties.dtype)
        else:
            tensors[name] = torch.zeros(facts.size, dtype=facts.properties.dtype)
    with warnings.catch_warnings():  # torch's own, of a load in one process
        warnings.simplefilter("ignore", UserWarning)
        load(tensors, storage_reader=reader, no_dist=not dist.is_initialized())
    return tensors


def _unusable(path: Path, received: str) -> ArgumentError:
    return ArgumentError(
        "--resume",
        expected="a checkpoint that heedful train wrote",
        received=f"{received} ({path})",
        remedy="Restore a copy of it, or start a new run in another folder with --out.",
    )
