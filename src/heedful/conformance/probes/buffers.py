"""Check that masks and tables move with the module to another device."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.triangular import is_triangular
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.state import RESET
from heedful.conformance.recording.dataflow import VIEWS
from heedful.conformance.recording.definitions import attribute_definition, attribute_mutation
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step
from heedful.shapes import times

RANDOM: re.Pattern[str] = re.compile(r"\brandn?\(|\brandn?_like\(|(normal|uniform)_?\(")
"""What draws the numbers of a tensor, in source code."""
OF_SIZES: re.Pattern[str] = re.compile(r"(shape|sizes?|dims?)$")


@probe("mask-not-a-buffer", "table-not-a-buffer")
def buffers(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Move a copy to the meta device. A tensor in use that stays behind is not registered as a buffer.

    A random one that is in use and not registered is lost when the module is saved, even if each call moves it.
    """
    module = evidence.subject.fresh().module
    if module is None:
        return
    steps = evidence.baseline.trace.steps
    in_use = {
        name: tensor
        for name, tensor in _tensor_attributes(module)
        if tensor.dim() > 0 and not _is_size(name, tensor) and _is_read_in_place(steps, name)
    }
    moved = dict(_tensor_attributes(module.to("meta")))
    for name, tensor in in_use.items():
        if moved[name].is_meta:
            continue
        yield Finding(
            "mask-not-a-buffer" if _is_mask(tensor) else "table-not-a-buffer",
            "bug",
            f"After .to('meta') {name!r} ({times(tensor.shape)}) is still on {tensor.device}.",
            "",
            attribute_definition(module, name, follow_locals=False),
        )
    if all(tensor.is_meta for name, tensor in moved.items() if name in in_use):
        yield from _lost_when_saved(evidence)
        yield from _kept_from_a_call(evidence)


def _kept_from_a_call(evidence: Evidence) -> Iterator[Finding]:
    """Report tensors that one call makes, that the next ones read, and that stay behind when the module is moved."""
    used = evidence.subject.fresh(keep_state=True)
    assert used.module is not None
    held = {name for name, _ in _tensor_attributes(used.module)}
    used.run(evidence.inputs)
    made = {name: it for name, it in _tensor_attributes(used.module) if name not in held}
    if not made:
        return
    forgotten = _forgotten_on_request(evidence)
    steps = used.record(evidence.inputs).trace.steps
    kept = dict(_tensor_attributes(used.module))
    read = {
        name: tensor
        for name, tensor in made.items()
        if kept.get(name) is tensor and name not in forgotten
        if tensor.dim() > 0 and _is_read_in_place(steps, name)
    }
    if not read:
        return  # a call on the meta device may import PyTorch's compiler, which takes seconds
    fails = _fails_elsewhere(used, evidence.inputs)
    fails = fails and not _fails_elsewhere(evidence.subject.fresh(), evidence.inputs)
    moved = dict(_tensor_attributes(used.module))  # the code may look at the device of its tokens
    for name, tensor in read.items():
        if moved.get(name) is not tensor:
            continue
        yield Finding(
            "mask-not-a-buffer" if _is_mask(tensor) else "table-not-a-buffer",
            "bug" if fails else "suspicious",  # only a module that is moved after a call meets it
            f"A call makes {name!r} ({times(tensor.shape)}), and later ones read it. After .to('meta') it is still on "
            f"{tensor.device}" + (", and the next call fails." if fails else "."),
            "",
            attribute_definition(used.module, name, follow_locals=False),
        )


def _forgotten_on_request(evidence: Evidence) -> set[str]:
    """Return the tensors that a call makes and that a method such as reset() removes: they belong to one sequence."""
    used = evidence.subject.fresh(keep_state=True)
    assert used.module is not None
    used.run(evidence.inputs)
    made = {name for name, _ in _tensor_attributes(used.module)}
    for method in filter(RESET.fullmatch, dir(type(used.module))):
        attempt(getattr(used.module, method))
    return made - {name for name, _ in _tensor_attributes(used.module)}


def _fails_elsewhere(subject: Subject, inputs: Inputs) -> bool:
    """Move a module and its arguments to the meta device, and check whether a call fails there.

    What only the meta device cannot do, such as giving its numbers to another one, proves nothing.
    """
    assert subject.module is not None
    subject.module.to("meta")
    arguments = pytree.tree_map_only(Tensor, lambda it: it.to("meta"), subject.arguments(inputs))
    args, keywords = subject.target.bound(arguments)
    outcome = attempt(lambda: subject.callee(*args, **keywords))
    return isinstance(outcome, Exception) and not isinstance(outcome, NotImplementedError)


def _lost_when_saved(evidence: Evidence) -> Iterator[Finding]:
    """Report random tensors that a run reads and that the module's state dict lacks."""
    module, steps = evidence.subject.module, evidence.baseline.trace.steps
    for name, tensor in () if module is None else _tensor_attributes(module):
        assert module is not None
        owner, _, attribute = name.rpartition(".")
        drawn_again = attribute_mutation(module.get_submodule(owner), attribute) is not None
        is_read = any(_is_attribute(it, name) for step in steps for it in step.inputs)
        place = attribute_definition(module, name, follow_locals=False)
        if place is not None and is_read and not drawn_again and RANDOM.search(place.source):
            yield Finding(
                "table-not-a-buffer",
                "bug",
                f"{name!r} ({times(tensor.shape)}) is drawn at random, and state_dict() lacks it: a module that is "
                "loaded has another one.",
                "",
                place,
            )


def _tensor_attributes(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the unregistered tensors of a module and its submodules, with their dotted names."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor):
                yield f"{path}.{name}" if path else name, value


def _is_size(name: str, tensor: Tensor) -> bool:
    """Check whether an attribute is a shape, as `input_shape`, whose numbers may be read on any device."""
    return not tensor.is_floating_point() and OF_SIZES.search(name) is not None


def _is_read_in_place(steps: tuple[Step, ...], name: str) -> bool:
    """Return True if a step computes with an attribute without moving it, and no step writes into it.

    A tensor that is written into, such as a cache, may be allocated on the right device later.
    """
    readers = [step for step in steps if any(_is_attribute(source, name) for source in step.inputs)]
    while readers:
        if any(step.in_place for step in readers):
            return False
        if any(step.operation not in VIEWS for step in readers):
            return True
        views = {step.index for step in readers if not _moves(step)}
        readers = [step for step in steps if any(source.step in views for source in step.inputs)]
    return False


def _is_attribute(source: Source, name: str) -> bool:
    return source.kind == "attribute" and source.name == name


def _moves(step: Step) -> bool:
    """Return True if a step moves a tensor to the device of another tensor, or to a device given by name."""
    destinations = (*step.arguments[1:], *step.keywords.values())
    return step.operation in ("to", "type_as") and any(
        isinstance(destination, Source | torch.device | str) for destination in destinations
    )


def _is_mask(tensor: Tensor) -> bool:
    has_infinities = tensor.is_floating_point() and bool((tensor == -torch.inf).any())
    return tensor.dtype == torch.bool or has_infinities or is_triangular(tensor)
