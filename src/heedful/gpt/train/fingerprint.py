"""The fingerprint of a file: its size and its SHA-256 digest, by which a checkpoint vouches for other files."""

from __future__ import annotations

import hashlib
from pathlib import Path


def fingerprint(path: Path) -> str:
    """Return the size and the SHA-256 digest of a file."""
    with path.open("rb") as file:
        return f"{path.stat().st_size} bytes {hashlib.file_digest(file, 'sha256').hexdigest()}"


def is_unchanged(path: Path, saved: str | None) -> bool:
    """Check whether a file has this fingerprint, or is missing without one. A file of another size is not read."""
    if saved is None:
        return not path.exists()
    same_size = path.is_file() and saved.startswith(f"{path.stat().st_size} bytes ")
    return same_size and fingerprint(path) == saved
