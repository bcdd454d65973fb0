"""Probe: weights that a docstring writes as a softmax, as in eq. 8 of a paper, are made by one."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import SourceLine, parsed_file
from heedful.conformance.recording.target_source import own_functions_of
from heedful.conformance.reporting.finding import ANY_CALL, Finding

FORMULA: re.Pattern[str] = re.compile(r"softmax\s?[(_{\[]", re.IGNORECASE)
"""How a formula begins, unlike a sentence that may say what takes the place of a softmax."""
NORMALISING: re.Pattern[str] = re.compile(
    r"softmax|sparsemax|entmax|(^|_)exp2?(_|$)|attention|mha|sum|norm", re.IGNORECASE
)
"""What names contain that may make weights which sum to 1."""
ACTIVATIONS = ("sigmoid", "relu", "leaky_relu", "tanh")


@probe("rows-not-normalised")
def documented_softmax(evidence: Evidence) -> Iterator[Finding]:
    """Search for an activation in place of the softmax of a docstring, in a file that normalises nothing."""
    module = evidence.subject.module
    said = "" if module is None else type(module).__doc__ or ""
    activations = [it for it in evidence.baseline.trace if it.operation in ACTIVATIONS]
    if evidence.attentions or not activations or not FORMULA.search(said) or _normalises(evidence):
        return
    yield Finding(
        "rows-not-normalised",
        "bug",
        f"The docstring makes the weights by a softmax, and the code by {activations[-1].operation}: those of a query "
        "need not sum to 1.",
        ANY_CALL,
        SourceLine.of(activations[-1]),
    )


def _normalises(evidence: Evidence) -> bool:
    """Check whether a name in the files of the target's functions tells of weights that sum to 1."""
    files = {inspect.getsourcefile(it) or "" for it in own_functions_of(evidence.subject.callee)}
    sources = [parsed_file(file) for file in files]
    nodes = [node for source in sources if source is not None for node in source.nodes]
    called = (it.func for it in nodes if isinstance(it, ast.Call))
    return any(NORMALISING.search(ast.unparse(it).rpartition(".")[2]) for it in called)
