"""The behaviour that is expected of a target, stated by the caller or declared by the target itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.conformance.calling import names
from heedful.conformance.calling.declared import declared_number
from heedful.conformance.calling.options import option
from heedful.conformance.calling.subject import Subject
from heedful.conformance.calling.target import Target, is_from_torch, is_from_transformers
from heedful.conformance.evidence.fused import FUSED, MULTI_HEAD, fused_arguments
from heedful.conformance.evidence.triangular import is_triangular
from heedful.conformance.recording.conditions import is_switched_off
from heedful.conformance.recording.dataflow import (
    SOFTMAXES,
    ancestors,
    steps_from_tokens,
    steps_of_places,
    unused_steps,
)
from heedful.conformance.recording.observation import Observation, tensor_of, value_of
from heedful.conformance.recording.source import names_in, parsed, parsed_file
from heedful.conformance.recording.target_source import methods_of, prose_about
from heedful.errors import ArgumentError
from heedful.observation import Step

# "NonCausalAttention" and "acausal_mixer" say the opposite.
CAUSAL_NAME: re.Pattern[str] = re.compile(
    r"(?<!non)(?<!non_)(?<!not)(?<!not_)(?<!un)(?<!\ba)causal", re.IGNORECASE
)
PREFIX: re.Pattern[str] = re.compile(r"\bprefix|bidirectional attention")
"""Words that announce that some tokens see all others, in lower case."""

LABELS: re.Pattern[str] = re.compile(r"(labels?|targets?)$")
CAUSAL_MASK: re.Pattern[str] = re.compile(
    r"(future|(?<!non_)causal|subsequent|look_?ahead)\w*_mask"
)
"""What methods are called that make masks of later tokens."""

UNIONS: tuple[str, ...] = ("or", "ior", "logical_or", "logical_or_", "bitwise_or")

CALLED: re.Pattern[str] = re.compile(r"\bself\.(\w+)\(")


@dataclass(frozen=True)
class Expected:
    """The statements of the caller of a check; None where the caller leaves it open.

    Attributes:
        causal: Whether no query may see a later key.
        window: The number of keys that each query sees, including its own.
        num_heads: The number of heads.

    Raises:
        ArgumentError: The window or the number of heads is less than 1.
    """

    causal: bool | None = None
    window: int | None = None
    num_heads: int | None = None

    def __post_init__(self) -> None:
        for name, number in (("window", self.window), ("num_heads", self.num_heads)):
            if number is not None and number < 1:
                raise ArgumentError(
                    option(name),
                    expected="a number of at least 1",
                    received=str(number),
                    remedy=f"Leave {option(name)} out if the target declares it.",
                )

    def window_of(self, module: nn.Module | None) -> int | None:
        """Return the window that the caller states, or else the one that a module declares."""
        return self.window if self.window is not None else declared_number(module, names.WINDOWS)


@dataclass(frozen=True)
class Expectations:
    """The behaviour that the probes require of a target.

    Attributes:
        causal: Whether no query may see a later key; None if nothing decides it.
        why_causal: What decides it, as the end of a sentence; "" if nothing does.
        window: The number of keys that each query sees, including its own; None if unknown.
        num_heads: The number of heads; None if unknown.
    """

    causal: bool | None
    why_causal: str
    window: int | None
    num_heads: int | None


def expectations_of(subject: Subject, expected: Expected, baseline: Observation) -> Expectations:
    """Return what a subject is expected to do, from the caller's statement and the subject's own declarations.

    Args:
        subject: The subject.
        expected: What the caller states.
        baseline: A recorded run of the subject.
    """
    causal, why_causal = _causal(subject, expected, baseline)
    num_heads = expected.num_heads or declared_number(subject.module, names.HEADS)
    return Expectations(causal, why_causal, expected.window_of(subject.module), num_heads)


def _causal(subject: Subject, expected: Expected, baseline: Observation) -> tuple[bool | None, str]:
    """Decide whether a subject should be causal, and say why."""
    if expected.causal is not None:
        return expected.causal, "the caller states so"
    if subject.convention.pooled:
        return None, ""  # its one row comes from all tokens
    for name in names.CAUSAL:
        if subject.convention.constants.get(name) is True:
            return True, f"the call has {name}=True"
    for module in () if subject.module is None else subject.module.modules():
        # In transformers, is_causal only tells SDPA what the mask argument tells the other implementations.
        if is_from_transformers(module):
            continue
        for name in names.CAUSAL:
            if isinstance(declared := getattr(module, name, None), bool):
                return declared or None, f"its attribute {name} is {declared}"
    if any(
        step.operation == FUSED and fused_arguments(step)["is_causal"] for step in baseline.trace
    ):
        return True, "it calls PyTorch's attention with is_causal=True"
    mask_is_an_argument = is_from_transformers(subject.module)
    has_triangle = any(map(is_triangular, _possible_masks(subject.module, baseline)))
    if not mask_is_an_argument and has_triangle and not _adds_later_keys(baseline):
        return True, "it builds a triangular mask"
    if CAUSAL_NAME.search(subject.name) and not is_after_prefix(subject.target):
        return True, "its name says that it is"
    if (idle := _idle_causal_mask(subject)) is not None:
        return True, f"its method {idle} makes a mask of later tokens, and nothing calls it"
    if _keeps_tokens(subject):
        return True, "it takes token ids and a cache of the tokens before them, and no mask"
    if _shifts_labels(subject):
        return True, "its loss compares each row with the label of the next token"
    return None, ""


def _idle_causal_mask(subject: Subject) -> str | None:
    """Return the method of a module that makes a causal mask by its name, if no code in its file names it again.

    If calls take a mask, it may be for those who call it.
    """
    by_caller = any("mask" in name for name in subject.target.parameters)
    methods = () if subject.module is None or by_caller else methods_of(subject.module)
    for method in (it for it in methods if CAUSAL_MASK.search(it.__name__.lower())):
        source = parsed_file(method.__code__.co_filename)
        named = (it.attr for it in source.nodes if isinstance(it, ast.Attribute)) if source else ()
        if source is not None and method.__name__ not in named:
            return method.__name__
    return None


def _keeps_tokens(subject: Subject) -> bool:
    """Check whether a subject takes ids and a cache, but no mask by which a caller hides later tokens."""
    parameters = subject.target.parameters
    by_caller = any(it in parameters for it in names.MASKS) or is_from_transformers(subject.module)
    takes_cache = any(it in parameters for it in names.CACHES)
    of_ids = bool(subject.convention.vocabulary) and len(subject.convention.names) == 1
    return of_ids and takes_cache and not by_caller and not is_after_prefix(subject.target)


def _shifts_labels(subject: Subject) -> bool:
    """Check whether a loss compares all rows but the last with all labels but the first, and no call gives a mask."""
    by_caller = subject.attention_mask is not None or is_from_transformers(subject.module)
    source = None if by_caller else parsed(subject.target.forward)
    code = "" if source is None else ast.unparse(source.tree)
    labels = next((it for it in subject.target.parameters if LABELS.match(it)), None)
    return labels is not None and bool(
        re.search(rf"\b{labels}\[(\.\.\.|:), 1:\]", code) and re.search(r"\[(\.\.\.|:), :-1", code)
    )


def _adds_later_keys(baseline: Observation) -> bool:
    """Check whether a run joins to another mask one that is made from positions and lets queries see later keys.

    It has later keys alone, as for frames ahead, or the tokens of an image, which all see each other.
    """
    steps = baseline.trace.steps
    from_tokens = steps_from_tokens(steps)
    for step in (step for step in steps if step.operation in UNIONS):
        for source in (it for it in step.inputs if it.step is not None):
            mask = value_of(baseline, source)
            if mask is None or mask.dim() < 2 or source.step in from_tokens:
                continue
            if mask.any() and (not mask.tril().any() or _is_of_one_image(mask)):
                return True
    return False


def _is_of_one_image(mask: Tensor) -> bool:
    """Check whether a mask lets some neighboring tokens see each other, and no others anything."""
    rows, columns = mask.shape[-2:]
    if rows != columns or mask.dtype != torch.bool or mask.all():
        return False
    inside = mask.diagonal(dim1=-2, dim2=-1)
    return bool(mask.triu(1).any()) and torch.equal(mask, inside[..., None] & inside[..., None, :])


def is_after_prefix(target: Target) -> bool:
    """Check whether a target's code says in words that tokens before a certain one see each other, in any order."""
    return PREFIX.search(prose_about(target.callee)) is not None


def _possible_masks(module: nn.Module | None, baseline: Observation) -> Iterator[Tensor]:
    """Yield the tensors of a run that can be masks.

    PyTorch's own layers within a module make a causal mask to compare a given one with.
    """
    for (kind, name), tensor in baseline.values.items():
        off = kind == "buffer" and module is not None and is_switched_off(module, name)
        if kind not in ("input", "parameter") and not off:
            yield tensor
    steps = baseline.trace.steps
    left = _left_by_choice(steps) | _of_other_results(baseline) | steps_of_places(steps)
    for step in (it for it in baseline.trace if it.index not in left):
        if (tensor := tensor_of(step)) is not None and not _is_within_layer(module, step):
            yield tensor


def _left_by_choice(steps: Sequence[Step]) -> set[int]:
    """Return the steps behind masks that nothing uses, because a conditional expression chose other ones."""
    unused, left = unused_steps(steps), set[int]()
    for step in (steps[index] for index in unused):
        source = None if step.file is None else parsed_file(step.file)
        nodes = () if source is None else source.nodes
        choices = (it for it in nodes if isinstance(it, ast.IfExp))
        chosen = names_in(branch for it in choices for branch in (it.body, it.orelse))
        if step.name.partition("·")[0] in chosen:
            left |= {step.index, *(ancestors(steps, step) & unused)}
    return left


def _of_other_results(baseline: Observation) -> set[int]:
    """Return the steps behind attentions of other results than the output, as of a decoder beside its encoder."""
    steps, output = baseline.trace.steps, baseline.output
    ending = next((it for it in reversed(steps) if _is_same(tensor_of(it), output)), None)
    if ending is None:
        return set()
    own, unused = {ending.index, *ancestors(steps, ending)}, unused_steps(steps)
    others = (
        it
        for it in steps
        if it.operation in (*SOFTMAXES, FUSED, MULTI_HEAD) and it.index not in own | unused
    )
    return {index for it in others for index in ancestors(steps, it)} - own


def _is_same(tensor: Tensor | None, output: Tensor) -> bool:
    return tensor is not None and tensor.shape == output.shape and torch.equal(tensor, output)


def _is_within_layer(module: nn.Module | None, step: Step) -> bool:
    """Check whether a step was made by one of PyTorch's own layers, which the step's line calls."""
    if module is None or re.search(rf"\b{step.operation}\b", step.source):
        return False
    owner = module.get_submodule(step.module or "")
    called = (getattr(owner, name, None) for name in CALLED.findall(step.source))
    return any(isinstance(it, nn.Module) and is_from_torch(it) for it in called)
