"""The arguments of classes that are built alone, where their names do not suggest them."""

from __future__ import annotations

from typing import Any

ARGUMENTS: dict[str, dict[str, Any]] = {}
