"""The smallest models of each family of timm."""

from __future__ import annotations

import re

import torch
from torch import nn

from heedful.conformance import Example
from packages.capture import Case, attentions_in
from packages.discovery import WEIGHTS

SMALL = (
    "test_", "atto", "femto", "pico", "nano", "xxs", "_n", "xs", "tiny", "_t", "m0", "_s", "small", "xcit", "base",
)  # fmt: skip
LARGE = re.compile(
    r"large|huge|giant|gigantic|so400|so150|384|448|512|768|1024|xl|_l\b|_h\b|_fl\b|b4|b5|b6|b7|b8|152|200|269"
)
TRIED = 6
TINY = {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 4}
"""The arguments that make most vision transformers tiny; other models keep the sizes of their smallest version."""


def families() -> list[str]:
    """Return the files of timm's models that mention attention weights."""
    import inspect
    import sys

    import timm

    return [
        name
        for name in timm.list_modules()
        if (
            (module := sys.modules.get(f"timm.models.{name}"))
            and WEIGHTS.search(inspect.getsource(module))
        )
        or name
        in (
            "beit",
            "eva",
            "naflexvit",
            "vision_transformer_hybrid",
            "byobnet",
            "botnet",
            "resnet",
            "cspnet",
            "sequencer",
        )
    ]


def _size(name: str) -> tuple[int, int, int]:
    rank = next((i for i, word in enumerate(SMALL) if word in name), len(SMALL))
    return (bool(LARGE.search(name)), rank, len(name))


def cases_of_family(family: str) -> list[Case]:
    """Return the attention modules of a family of timm's models, captured from its smallest models."""
    import timm

    cases: dict[str, Case] = {}
    smallest, *others = sorted(timm.list_models(module=family), key=_size)[:TRIED]
    for name in (smallest, *(it for it in others if not LARGE.search(it))):
        torch.manual_seed(0)
        for case in _cases_of_model(name):
            cases.setdefault(case.name, case)
    return list(cases.values())


def _cases_of_model(name: str) -> list[Case]:
    """Build a tiny model, or one of its own sizes if that fails, and return its attentions; none if it does not run."""
    import timm

    for arguments in (TINY, {}):
        torch.manual_seed(0)
        try:
            model = timm.create_model(name, pretrained=False, **arguments).eval()
            size = (3, TINY["img_size"], TINY["img_size"]) if arguments else None
            return attentions_in(model, _image(model, size), f"timm:{name}")
        except (RuntimeError, TypeError, AssertionError, NotImplementedError, ValueError):
            continue
    return []


def _image(model: nn.Module, size: tuple[int, ...] | None) -> Example:
    size = size or getattr(model, "default_cfg", {}).get("input_size", (3, 224, 224))
    return Example(torch.randn(2, *size, generator=torch.Generator().manual_seed(0)))
