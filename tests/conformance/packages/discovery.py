"""Find the attention modules of a package: every class that computes attention weights itself."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from torch import nn

WEIGHTS = re.compile(
    r"softmax\(|scaled_dot_product|multi_head_attention_forward|attention_interface|attention_function"
    r"|attn_fn|dispatch_attention|\bsdpa|processor\(|attend\(|linear_att|shifted_window_attention",
    re.IGNORECASE,
)
"""What the source of a class says where it computes attention weights, or has them computed."""

ATTENTION = re.compile(r"attention|attn|mha", re.IGNORECASE)
WRAPPERS = re.compile(
    r"^\w*Model\b|^\w+For[A-Z]|=\s*\w*(Attention|Attn|MHA)\w*\(|_init_weights|post_init"
)
QUERIES_AND_KEYS = re.compile(r"\b(q|qs|queries|query\w*|to_q\w*|qkv\w*|q_proj)\b")


@dataclass(frozen=True)
class Found:
    """The attention modules of a package.

    Attributes:
        classes: The classes that compute attention, by their full names.
        left_out: The classes that only look like it, by their full names, with the reasons.
        not_imported: The modules of the package that cannot be imported, with the reasons.
    """

    classes: Mapping[str, type[nn.Module]]
    left_out: Mapping[str, str]
    not_imported: Mapping[str, str]


def find_attentions(package: str, skip: str = "") -> Found:
    """Return the attention modules of a package.

    Args:
        package: The name under which it is imported.
        skip: A regular expression; modules whose full names contain it are not imported.
    """
    classes: dict[str, type[nn.Module]] = {}
    left_out: dict[str, str] = {}
    not_imported: dict[str, str] = {}
    for module in _modules(package, skip, not_imported):
        for cls in list(vars(module).values()):
            if not inspect.isclass(cls) or cls.__module__ != module.__name__:
                continue
            if not issubclass(cls, nn.Module):
                continue
            reason = why_not(cls)
            if reason is None:
                classes[full_name(cls)] = cls
            elif ATTENTION.search(cls.__name__):
                left_out[full_name(cls)] = reason
    return Found(classes, left_out, not_imported)


def full_name(cls: type) -> str:
    """Return the name of a class with that of its module."""
    return f"{cls.__module__}.{cls.__qualname__}"


@cache
def why_not(cls: type[nn.Module]) -> str | None:
    """Return why a class is no attention module; None if it is one."""
    if cls.forward is nn.Module.forward:
        return "it has no forward"
    source = own_source(cls)
    if not WEIGHTS.search(source):
        return "it computes no attention weights: a wrapper, or a gate without keys"
    named = ATTENTION.search(cls.__name__) is not None
    if not named and not QUERIES_AND_KEYS.search(source):
        return "it has no queries and keys"
    if not named and WRAPPERS.search(cls.__name__ + source):
        return "it is a block or model around an attention"
    return None


def own_source(cls: type) -> str:
    """Return the source of a class and of the classes that it inherits from, without those of torch."""
    parts = []
    for base in cls.__mro__:
        if base.__module__.split(".")[0] not in ("torch", "builtins", "abc", "typing"):
            try:
                parts.append(inspect.getsource(base))
            except (OSError, TypeError):  # made without a file
                continue
        if base is not cls and not ATTENTION.search(base.__name__):
            break
    return "\n".join(parts)


def _modules(package: str, skip: str, not_imported: dict[str, str]) -> Iterator[ModuleType]:
    """Import all modules of a package, and note those that cannot be imported."""
    try:
        root = importlib.import_module(package)
    except ImportError as error:  # a part of it that it needs is not installed
        not_imported[package] = f"{type(error).__name__}: {error}".partition("\n")[0]
        return
    yield root
    for info in pkgutil.walk_packages(root.__path__, f"{package}.", onerror=lambda name: None):
        if skip and re.search(skip, info.name):
            continue
        try:
            yield importlib.import_module(info.name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code may raise anything
            not_imported[info.name] = f"{type(error).__name__}: {error}".partition("\n")[0]
