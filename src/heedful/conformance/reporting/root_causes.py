"""One bug, one finding: which findings are nothing but consequences of another."""

from __future__ import annotations

import re
from collections.abc import Iterable

from heedful.conformance.reporting.finding import Finding

_LEAKS = ("future-leak", "padding-leak", "batch-mixed")
_LATER = (
    *("cache-mismatch", "causal-alignment", "length-dependent", "left-padding-positions"),
    *("nan-on-masked-rows", "rotary-offset", "rotary-mismatch"),
)
_MASKS = (
    *("mask-unused", "mask-inverted", "mask-fill-too-small", "mask-broadcast", "self-hidden"),
    *("mask-after-softmax", "window-off-by-one", "window-missing"),
)
_SUMS = ("rows-not-normalised",)

# What a cause brings about besides itself. Where two explain each other, the one further up is the cause.
EXPLAINS: dict[str, tuple[str, ...]] = {
    "undefined-or-global-name": (*_LEAKS, *_LATER, *_SUMS, "projection-unused", "crashes"),
    "stale-state": (
        *(*_LEAKS, *_MASKS[-2:], *_LATER, *_SUMS),
        *("heads-mixed-split", "gradient-wrong", "crashes"),
    ),
    "heads-mixed-split": (*_LEAKS, *_MASKS, *_LATER, "heads-mixed-merge", "group-order"),
    "softmax-wrong-dim": (*_LEAKS, *_MASKS[1:], *_LATER, *_SUMS),
    "batch-mixed": (*_LEAKS, *_MASKS, *_LATER, "heads-mixed-merge"),
    "heads-mixed-merge": (*_LEAKS, *_LATER, "mask-fill-too-small", "mask-broadcast"),
    "dropout-in-eval": (*_LEAKS, *_LATER, *_SUMS, *_MASKS[3:], "dropout-misplaced"),
    "keys-values-swapped": ("projection-unused", *_LATER),
    "mask-after-softmax": (*_LEAKS, *_LATER, *_SUMS, "dropout-rescale"),
    "mask-unused": (*_LEAKS, *_LATER, "mask-fill-too-small", "window-missing"),
    "mask-inverted": (*_LEAKS, *_LATER, "self-hidden", "window-missing", "mask-broadcast"),
    "mask-fill-too-small": (*_LEAKS, *_LATER, "window-missing"),
    "mask-broadcast": ("padding-leak", *_LATER),
    "self-hidden": (
        *("future-leak", "padding-leak", "mask-fill-too-small"),
        *("nan-on-masked-rows", "window-off-by-one", "window-missing"),
    ),
    "window-missing": ("cache-mismatch",),
    "rows-not-normalised": (
        "scale-missing",
        "scale-wrong",
        "dropout-rescale",
        *_LEAKS[1:2],
        *_LATER,
    ),
    "future-leak": (*_LATER, "window-off-by-one", "window-missing"),
    "scale-wrong": ("length-dependent",),
    "projection-unused": ("cache-mismatch",),
    "stride-dependent": ("length-dependent", "crashes"),
    "length-dependent": ("cache-mismatch", "crashes"),
    "causal-alignment": ("cache-mismatch",),
    "cache-garbage-read": ("cache-mismatch", "length-dependent"),
    "rotary-offset": ("cache-mismatch",),
    "rotary-mismatch": (
        "cache-mismatch",
        "rotary-layout",
        "left-padding-positions",
        "padding-leak",
    ),
    "padding-leak": ("left-padding-positions",),
    "gradient-not-deterministic": ("gradient-wrong", "stride-dependent"),
}
ORDER = list(EXPLAINS)


def root_causes(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that no other one explains, each name once, in order of cause."""
    found: dict[str, Finding] = {}
    for finding in findings:
        known = found.get(finding.name)
        if known is None or (known.level != "bug" and finding.level == "bug"):
            found[finding.name] = finding
    bugs = [name for name, finding in found.items() if finding.level == "bug"]
    explained = {name for name in found for cause in bugs if _explains(cause, name)}
    if "undefined-or-global-name" in bugs and _has_a_name(found.get("mask-unused")):
        explained.add("mask-unused")
    rest = [finding for name, finding in found.items() if name not in explained]
    return sorted(rest, key=lambda it: ORDER.index(it.name) if it.name in ORDER else len(ORDER))


def _explains(cause: str, name: str) -> bool:
    if name == cause or name not in EXPLAINS.get(cause, ()):
        return False
    mutual = cause in EXPLAINS.get(name, ())
    return not mutual or ORDER.index(cause) < ORDER.index(name)


def _has_a_name(unused: Finding | None) -> bool:
    """Whether a masked result is assigned, so that it is unused for want of that name further on."""
    place = None if unused is None else unused.place
    return place is not None and re.match(r"\w+ = ", place.source) is not None
