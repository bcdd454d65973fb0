"""The smallest models of each family of timm."""

from __future__ import annotations

import re

import torch

from heedful.conformance import Example
from packages.capture import Case, attentions_in
from packages.discovery import WEIGHTS

SMALL = (
    "test_", "atto", "femto", "pico", "nano", "xxs", "_n", "xs", "tiny", "_t", "m0", "_s", "small", "xcit", "base",
)  # fmt: skip
LARGE = re.compile(
    r"large|huge|giant|gigantic|so400|so150|384|448|512|768|1024|xl|_l\b|_h\b|_fl\b|b4|b5|b6|b7|b8|152|200|269|\d{3}m"
)
TRIED = 6
SIZE = 64
"""The size of an image, where a model takes one of this size; others take their own."""
ARGUMENTS: tuple[dict[str, int], ...] = (
    {"img_size": SIZE, "embed_dim": 48, "depth": 2, "num_heads": 4}, {"img_size": SIZE}, {},
)  # fmt: skip
"""The arguments that make models tiny; the last ones leave them as they are."""


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
    """Build a model as tiny as possible, and return its attentions; none if it does not run."""
    import timm

    for arguments in ARGUMENTS:
        torch.manual_seed(0)
        try:
            model = timm.create_model(name, pretrained=False, **arguments).eval()
        except (RuntimeError, TypeError, AssertionError, NotImplementedError, ValueError):
            continue
        own = model.default_cfg.get("input_size", (3, 224, 224))
        for size in ((3, SIZE, SIZE), *(() if arguments else (own,))):
            example = Example(torch.randn(2, *size, generator=torch.Generator().manual_seed(0)))
            try:
                return attentions_in(model, example, f"timm:{name}")
            except (RuntimeError, AssertionError, ValueError):
                continue
    return []
