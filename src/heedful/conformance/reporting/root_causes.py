"""The findings that are root causes, without those that are only consequences of another finding."""

from __future__ import annotations

import re
from collections.abc import Iterable

from heedful.conformance.reporting.finding import Finding

_LEAKS = ("future-leak", "padding-leak", "batch-mixed")
_MASKS = (
    *("mask-unused", "mask-inverted", "mask-fill-too-small", "mask-broadcast", "self-hidden"),
    *("mask-after-softmax", "window-off-by-one", "window-missing"),
)
_OTHER_RUNS = (
    *("cache-mismatch", "causal-alignment", "length-dependent", "left-padding-positions"),
    *("nan-on-masked-rows", "rotary-offset", "rotary-mismatch"),
)
"""Findings that compare runs of different tokens. Most bugs make such runs differ."""

EXPLAINS: dict[str, tuple[str, ...]] = {
    "parameter-not-registered": (  # the numbers of a new parameter differ in each call
        *("dropout-in-eval", "stale-state", "gradient-wrong", "gradient-not-deterministic"),
        "cache-mismatch",
    ),
    "undefined-or-global-name": (
        *(*_LEAKS, *_OTHER_RUNS),
        *("rows-not-normalised", "projection-unused", "crashes", "output-not-finite"),
    ),
    "stale-state": (
        *(*_LEAKS, "window-off-by-one", "window-missing", *_OTHER_RUNS),
        *("rows-not-normalised", "heads-mixed-split", "gradient-wrong", "crashes"),
        *("output-not-finite", "mask-not-a-buffer", "table-not-a-buffer"),
    ),
    "attention-ignored": ("projection-unused", "gradient-wrong", "mask-unused"),
    "softmax-twice": (
        *_LEAKS,
        *_OTHER_RUNS,
        "mask-fill-too-small",
        "dropout-rescale",
        "weights-wrong",
    ),
    "heads-mixed-split": (  # but not what a single run shows, whichever tokens are mixed in it
        *(*_LEAKS, *({*_MASKS} - {"mask-unused", "mask-fill-too-small"})),
        *(*_OTHER_RUNS, "group-order"),
    ),
    "softmax-wrong-dim": (
        *(*_LEAKS, *({*_MASKS} - {"mask-unused", "mask-broadcast"}), *_OTHER_RUNS),
        *("rows-not-normalised", "output-not-finite"),
    ),
    "batch-mixed": (*_LEAKS, *_MASKS, *_OTHER_RUNS, "heads-mixed-merge", "attention-ignored"),
    "heads-mixed-merge": (*_LEAKS, *_OTHER_RUNS),
    "dropout-in-eval": (
        *(*_LEAKS, *_OTHER_RUNS, *_MASKS[3:]),
        *("rows-not-normalised", "dropout-misplaced", "output-not-finite"),
    ),
    "dropout-misplaced": ("output-not-finite",),
    "keys-values-swapped": ("projection-unused", *_OTHER_RUNS),
    "mask-after-softmax": (*_LEAKS, *_OTHER_RUNS, "rows-not-normalised", "dropout-rescale"),
    "mask-unused": (*_LEAKS, *_OTHER_RUNS, "mask-fill-too-small", "window-missing"),
    "mask-inverted": (
        *(*_LEAKS, *_OTHER_RUNS),
        *("self-hidden", "window-missing", "mask-broadcast", "output-not-finite"),
        *(
            "attention-ignored",
            "gradient-wrong",
        ),  # filled with the lowest number, all scores are equal
    ),
    "mask-fill-too-small": (*_LEAKS, *_OTHER_RUNS, "window-missing"),
    "mask-fill-positive": (
        *(*_LEAKS, *_OTHER_RUNS, *_MASKS),
        *("rows-not-normalised", "output-not-finite", "gradient-wrong", "dropout-in-eval"),
    ),
    "mask-broadcast": ("padding-leak", *_OTHER_RUNS, "output-not-finite"),
    "self-hidden": (
        *("mask-unused", "gradient-wrong"),  # a row without keys weights hidden ones
        *("future-leak", "padding-leak", "mask-fill-too-small"),
        *("nan-on-masked-rows", "window-off-by-one", "window-missing", "output-not-finite"),
    ),
    "window-missing": ("cache-mismatch", "output-not-finite"),
    "window-off-by-one": ("output-not-finite",),
    "rows-not-normalised": (
        *("scale-missing", "scale-wrong", "dropout-rescale", "padding-leak"),
        *_OTHER_RUNS,
    ),
    "future-leak": (*_OTHER_RUNS, "window-off-by-one", "window-missing"),
    "weights-wrong": ("scale-wrong",),  # a function of the scores has a slope of its own
    "scale-wrong": ("length-dependent",),
    "projection-unused": ("cache-mismatch",),
    "stride-dependent": ("length-dependent", "crashes"),
    "length-dependent": ("cache-mismatch", "crashes"),
    "causal-alignment": ("cache-mismatch",),
    "cache-garbage-read": ("cache-mismatch", "length-dependent"),
    "rotary-offset": ("cache-mismatch", "length-dependent"),
    "rotary-mismatch": (
        *("cache-mismatch", "rotary-layout", "left-padding-positions", "padding-leak"),
        "length-dependent",
    ),
    "relative-shift-wrong": ("padding-leak", *_OTHER_RUNS),  # scores of later keys depend on T
    "positions-wrong": ("length-dependent", "cache-mismatch", "left-padding-positions"),
    "padding-leak": ("left-padding-positions",),
    "output-not-finite": (*_OTHER_RUNS, "gradient-wrong", "stride-dependent"),
    "gradient-not-deterministic": ("gradient-wrong", "stride-dependent"),
}
"""The consequences of each cause. If two findings explain each other, the one listed first is the cause."""

MIXING: tuple[str, ...] = ("heads-mixed-split", "heads-mixed-merge", "batch-mixed")
"""The findings on views that mix what does not belong together."""
TEARS = "A view of"
"""How the proof begins that a view alone is, whatever it mixes."""
HIDING: tuple[str, ...] = ("heads-mixed-split", "softmax-wrong-dim", "softmax-twice")
"""Bugs that change so much that others do not show beside them, and that a small edit mends for sure."""

_LEFT_TO_CALLERS = ("relative-shift-wrong",)
"""Findings that explain others even as suspicions: a mask that the caller has to give hides all of it."""

_RECOMPUTED = ("weights-wrong", "context-wrong")
"""Findings that only say where an attention departs from its definition. Any more precise one explains them."""

NOTHING_READS = "Nothing reads"
"""How the proof of a finding begins that says so of a sequence. What should be hidden is then compared by mistake."""

_ATTENTION = (
    *({*_MASKS} - {"mask-fill-too-small"}),  # the same logits for all tokens are left out
    *("length-dependent", "rotary-mismatch"),  # others of these need a cache or padding
    *("stale-state", "undefined-or-global-name", "heads-mixed-split"),
    *("batch-mixed", "softmax-wrong-dim", "rows-not-normalised", "softmax-twice", "future-leak"),
    *("dropout-in-eval", "dropout-misplaced", "output-not-finite"),
    *("padding-leak", "keys-values-swapped", "heads-mixed-merge"),
)
"""Findings about what happens between queries and context."""

_ORDER: dict[str, int] = {name: index for index, name in enumerate(EXPLAINS)}


def root_causes(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that no other finding explains, one for each name, in order of cause."""
    by_name: dict[str, Finding] = {}
    for finding in findings:
        earlier = by_name.get(finding.name)
        if earlier is None or (earlier.level != "bug" and finding.level == "bug"):
            by_name[finding.name] = finding
    bugs = [name for name, finding in by_name.items() if finding.level == "bug"]
    suspicions = (name for name, finding in by_name.items() if finding.level == "suspicious")
    explaining = [*bugs, *(name for name in suspicions if name in _LEFT_TO_CALLERS)]
    explained = {name for name in by_name if any(_explains(it, name) for it in explaining)}
    if "undefined-or-global-name" in bugs and _is_assigned(by_name.get("mask-unused")):
        # The masked scores have a name, but the code after them reads the wrong one.
        explained.add("mask-unused")
    merged, mixed = by_name.get("heads-mixed-merge"), by_name.get("batch-mixed")
    if merged is not None and mixed is not None and merged.place == mixed.place is not None:
        explained = explained - {"heads-mixed-merge"} | {"batch-mixed"}
    mixing = [by_name[it] for it in MIXING if it in by_name]
    torn = next((it for it in mixing if it.proof.startswith(TEARS)), None)
    if torn is not None and len(mixing) > 1:  # the other one shows what the view mixes
        explained = explained | {torn.name}
    wrong = by_name.get("context-wrong")
    if wrong is not None and wrong.proof.startswith(NOTHING_READS):
        explained = explained - {"context-wrong"} | {*_LEAKS}
    causes = [finding for name, finding in by_name.items() if name not in explained]
    return sorted(causes, key=lambda finding: _ORDER.get(finding.name, len(_ORDER)))


def _explains(cause: str, name: str) -> bool:
    if name in _RECOMPUTED:
        return cause not in _RECOMPUTED and cause in _ATTENTION
    if name == cause or name not in EXPLAINS.get(cause, ()):
        return False
    mutual = cause in EXPLAINS.get(name, ())
    return not mutual or _ORDER[cause] < _ORDER[name]


def _is_assigned(finding: Finding | None) -> bool:
    """Check whether the line of a finding assigns its result to a name."""
    place = None if finding is None else finding.place
    return place is not None and re.match(r"\w+ = ", place.source) is not None
