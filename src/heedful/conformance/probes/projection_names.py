"""The roles that the names of projections stand for."""

from __future__ import annotations

import re

ROLES: dict[str, tuple[str, ...]] = {
    "query": ("query", "queries", "q", "wq", "xq", "toq"),
    "key": ("key", "keys", "k", "wk", "xk", "tok"),
    "value": ("value", "values", "v", "wv", "xv", "tov"),
    "output": ("out", "output", "o", "wo", "proj", "dense", "toout"),
}


def own_name(parameter: str) -> str:
    """Return "W_query" for "heads.0.W_query.weight"."""
    return parameter.removesuffix(".weight").rpartition(".")[2]


def parent_of(parameter: str) -> str:
    """Return the module that a projection is part of: "heads.0" for "heads.0.W_query.weight"."""
    return parameter.removesuffix(".weight").removesuffix(".bias").rpartition(".")[0]


def role_of(name: str) -> str | None:
    """Return the key of `ROLES` that a name stands for."""
    words = {word for word in re.split(r"[^a-z]+", name.lower()) if word}
    words.add(re.sub(r"[^a-z]", "", name.lower()))
    return next((role for role, names in ROLES.items() if words & set(names)), None)


def letters_of(name: str) -> str:
    """Return the letters of the parts of a packed projection: "kv" of "proj_kv", "qkv" of "to_qkv"; "" of others."""
    found = re.search(r"(?:^|[^a-z]|w|to|in)(qkv|kv|qk)(?![a-z])", name.lower())
    return "" if found is None else found.group(1)
