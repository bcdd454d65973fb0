"""Probe: the module registers every parameter that its output depends on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torch import nn
from torch.utils import _pytree as pytree

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.gradient_lines import leaves_of
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.definitions import attribute_definition
from heedful.conformance.recording.source import SourceLine, parsed
from heedful.conformance.recording.target_source import own_functions_of
from heedful.conformance.reporting.finding import Finding
from heedful.shapes import times

REGISTERED = ("_parameters", "_modules", "_buffers")
"""The dicts of a module that hold what it registers."""
MADE: re.Pattern[str] = re.compile(
    r"\bnn\.(Parameter|Linear|Bilinear|Embedding|LayerNorm|MultiheadAttention|GRU|LSTM|\w*Conv[123]d|\w*BatchNorm\w*)\("
)
"""What makes parameters, in source code."""


@probe("parameter-not-registered")
def unregistered_parameters(evidence: Evidence) -> Iterator[Finding]:
    """Follow the output of a second call back to its parameters. The first call must leave all of them registered.

    Those of layers in a plain list are not, and neither are those that each call makes.
    """
    subject = evidence.subject.fresh(keep_state=True)
    module = subject.module
    if module is None:
        return
    subject.run(evidence.inputs)
    before = [*module.parameters()]  # kept, so that no new one gets an id of these
    registered = {id(it) for it in before}
    output = subject.run(evidence.inputs)
    used = [it for it in leaves_of(output) if id(it) not in registered]
    for holder, attribute, parameters, layers in _unregistered(module):
        count = sum(id(it) in parameters for it in used)
        # A list of one layer may be there so that it is not registered.
        if count and (layers != 1 or _collects(holder, attribute)):
            yield _finding(
                f"{count} parameters that the output depends on are in {attribute!r}, which is no module and no "
                "parameter: parameters() and state_dict() lack them.",
                attribute_definition(holder, attribute, follow_locals=False),
            )
            return
        registered |= parameters
    held = {id(it) for it in module.parameters()}
    made = [it for it in used if isinstance(it, nn.Parameter) and id(it) not in registered]
    given = pytree.tree_leaves(subject.arguments(evidence.inputs))
    if made and not any(isinstance(it, nn.Module) for it in given):  # whose own parameters they are
        again = " and registers it" if id(made[0]) in held else ""
        yield _finding(
            f"Each call makes a parameter ({times(made[0].shape)}){again}: no optimizer can train it, and no call has "
            "the one of the call before.",
            _line_making_parameters(evidence),
        )


def unregistered_lists_in(module: nn.Module | None) -> Iterator[Finding]:
    """Yield the finding on the first plain list in which a constructor collects layers that nothing else registers."""
    registered = set() if module is None else {id(it) for it in module.parameters()}
    for holder, attribute, _, _ in () if module is None else _unregistered(module):
        leaves = pytree.tree_leaves(vars(holder)[attribute])
        layers = [it for it in leaves if isinstance(it, nn.Module)]
        parameters = {id(parameter) for layer in layers for parameter in layer.parameters()}
        if parameters - registered and _collects(holder, attribute):
            yield _finding(
                f"The layers in {attribute!r} are in a plain list: parameters() and state_dict() lack theirs.",
                attribute_definition(holder, attribute, follow_locals=False),
            )
            return


def _finding(proof: str, place: SourceLine | None) -> Finding:
    return Finding("parameter-not-registered", "bug", proof, "", place)


def _unregistered(module: nn.Module) -> Iterator[tuple[nn.Module, str, set[int], int]]:
    """Yield each attribute that keeps tensors or layers without registering them.

    It comes with the part of the module that has it, the ids of its tensors and parameters, and its number of layers.
    """
    for part in module.modules():
        for attribute, value in vars(part).items():
            if attribute in REGISTERED:
                continue
            items = pytree.tree_leaves(value)
            layers = [it for it in items if isinstance(it, nn.Module)]
            parameters = {id(it) for layer in layers for it in layer.parameters()}
            yield part, attribute, parameters | {id(it) for it in items}, len(layers)


def _collects(module: nn.Module, attribute: str) -> bool:
    """Check whether a constructor collects layers, of which there may be one alone, in a list."""
    source = parsed(type(module).__init__)
    for node in () if source is None else source.statements():
        match node:
            case ast.Assign(
                targets=[ast.Attribute(attr=str(assigned))], value=ast.ListComp() | ast.DictComp()
            ) if assigned == attribute:
                return True
    return False


def _line_making_parameters(evidence: Evidence) -> SourceLine | None:
    """Return the first line of a function that ran, beside constructors, that makes a parameter or a layer."""
    ran = {step.function for step in evidence.baseline.trace}
    for function in own_functions_of(evidence.subject.callee):
        source = parsed(function)
        if source is None or function.__code__.co_qualname not in ran:
            continue
        for node in source.statements():
            simple = isinstance(node, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr)
            if simple and MADE.search(ast.unparse(node)):
                return source.line_of(node)
    return None
