"""Hints for an exercise: from what goes wrong to the line that causes it."""

from __future__ import annotations

import ast

from heedful.conformance.practising.exercise import Exercise
from heedful.conformance.practising.judging import check_source
from heedful.conformance.reporting.catalogue import remedy_of
from heedful.conformance.reporting.finding import Finding
from heedful.errors import HeedfulError

STEPS: dict[str, str] = {
    "mask-unused": "how the mask comes into the scores",
    "mask-inverted": "what True means in the mask, where it is made and where it is used",
    "mask-after-softmax": "the order of the mask and the softmax",
    "mask-fill-too-small": "the number that hidden scores are set to",
    "mask-fill-positive": "the number that hidden scores are set to",
    "mask-fill-overflow": "the number that hidden scores are set to",
    "mask-not-a-buffer": "the tensors that the constructor makes, and how the module keeps them",
    "mask-broadcast": "the shape of the mask where it meets the scores",
    "future-leak": "which keys the causal mask hides",
    "self-hidden": "which keys the causal mask hides, for the first token above all",
    "window-off-by-one": "the bounds of the window",
    "window-missing": "the bounds of the window",
    "padding-leak": "how the mask of padding is combined with the other one",
    "nan-on-masked-rows": "the softmax of a query that sees no key",
    "left-padding-positions": "how positions are counted",
    "softmax-wrong-dim": "the softmax",
    "rows-not-normalised": "what makes weights of the scores",
    "softmax-twice": "what happens to the weights between the scores and the values",
    "weights-wrong": "what makes weights of the scores",
    "context-wrong": "the values, until the weights multiply them",
    "attention-ignored": "what the output is computed from",
    "scale-missing": "the scores, until the mask or the softmax",
    "scale-wrong": "the factor of the scores",
    "keys-values-swapped": "what meets what in the two products of attention",
    "heads-mixed-split": "how projected vectors are split into heads",
    "heads-mixed-merge": "how the heads' contexts are put together",
    "batch-mixed": "the dimension of the batch, in every product",
    "group-order": "how heads of keys and values are shared by query heads",
    "projection-unused": "which parameters make the queries, keys and values",
    "dropout-in-eval": "when dropout is on",
    "dropout-misplaced": "what dropout is applied to",
    "dropout-rescale": "what dropout does to the weights that it keeps",
    "dropout-unused": "where dropout is applied",
    "cache-mismatch": "how new keys and values are joined with the cached ones",
    "causal-alignment": "the causal mask of a call that has a cache",
    "cache-garbage-read": "which slots of the cache are hidden",
    "positions-wrong": "which rows of the table of positions are added to the tokens",
    "relative-shift-wrong": "the rows of the scores by distance, before and after the shift",
    "rotary-offset": "the positions in a call that has a cache",
    "rotary-mismatch": "which features belong together in the angles and in the rotation",
    "rotary-precision": "the dtype in which the angles are computed",
    "stale-state": "what a call leaves behind in the module",
    "undefined-or-global-name": "the names that are read",
    "table-not-a-buffer": "the tensors that the constructor makes, and how the module keeps them",
    "parameter-not-registered": "what module.named_parameters() has, and what it lacks",
    "output-not-finite": "products with infinity",
    "gradient-wrong": "the backward pass",
    "gradient-not-deterministic": "the backward pass",
    "stride-dependent": "what is assumed about the memory of a tensor",
    "length-dependent": "constants that should be the number of tokens",
    "crashes": "the memory layout that a view needs",
}
"""For each finding with an exercise, the step to look at: "Look at …"."""

MOST: int = 4
"""The number of hints of an exercise."""


def hints_for(exercise: Exercise) -> tuple[str, str, str, str]:
    """Return the hints for an exercise: the symptom, the step, the function and the line.

    Raises:
        HeedfulError: The check does not find the bug, as it does wherever heedful's tests pass.
    """
    report = check_source(exercise, exercise.source)
    finding = next((it for it in report.bugs if it.name == exercise.finding), None)
    if finding is None or finding.place is None:
        raise HeedfulError(f"{exercise.name}: the check does not find this bug on this machine.")
    line = finding.place.line
    return (
        f"What goes wrong: {_symptom(finding)}",
        f"Look at {STEPS[exercise.finding]}.",
        f"The bug is in {function_at(exercise.source, line)}.",
        f"It is line {line}, as the file was written, or a line beside it:\n"
        f"    {finding.place.source}\n{remedy_of(finding)}",
    )


def _symptom(finding: Finding) -> str:
    return f"{finding.proof} ({finding.case})" if finding.case else finding.proof


def function_at(source: str, line: int) -> str:
    """Return the name of the function that a line belongs to, with its class; "the file" outside of functions."""
    names = [
        node.name
        for node in ast.walk(ast.parse(source))  # outer ones come first
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return ".".join(names) or "the file"
