"""Rules: how each entry of a recorded step follows from entries of other tensors, proved on the recorded values.

A rule is a dictionary that a page reads, in which the parts that are tensors are `Source`s. `rule_of` finds it by the
operation, computes the step again by it, and returns it only if the result is the recorded one.
"""

from __future__ import annotations

import operator
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.observation import Source, Step

Rule = dict[str, Any]
Values = Callable[[Source], Tensor | None]

MOVES: frozenset[str] = frozenset(
    {
        "mT", "T", "t", "transpose", "permute", "view", "reshape", "unflatten", "flatten", "contiguous", "getitem",
        "__getitem__", "squeeze", "unsqueeze", "expand", "chunk", "split", "unbind", "movedim", "moveaxis",
        "swapaxes", "swapdims", "narrow", "select", "clone", "repeat_interleave", "repeat", "roll", "flip",
        "tril", "triu", "to", "float", "double", "type_as",
    }
)  # fmt: skip
CASTS: frozenset[str] = frozenset({"to", "float", "double", "type_as"})
"""Operations whose results hold entries of their argument, in another order. `tril` and `triu` also have zeros,
which the proof refuses."""


@dataclass(frozen=True)
class Part:
    """A tensor that a step reads.

    Attributes:
        source: Where it came from.
        value: Its entries.
    """

    source: Source
    value: Tensor


def rule_of(step: Step, values: Values, steps: tuple[Step, ...]) -> Rule | None:
    """Return the rule of a step, or None if there is none that reproduces its value.

    Args:
        step: The step.
        values: A function that returns the tensor of a source, or None if it is not known.
        steps: All steps, to see through transposes that have no name of their own.
    """
    if not isinstance(step.value, Tensor) or step.value.is_complex():
        return None
    call = _Call(step, values, steps)
    find = _FINDERS.get(step.operation.strip("_"), _move if step.operation in MOVES else None)
    try:
        found = None if find is None else find(call)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
        return None  # the call has arguments that the rule does not know
    if found is None:
        return None
    rule, value = found
    return rule if _equal(value, step.value) else None


def is_transpose(step: Step) -> bool:
    """Return whether a step exchanges the last two axes."""
    rank = len(step.shape)
    if step.operation in ("mT", "t") or (step.operation == "T" and rank == 2):
        return True
    axes = [it for it in step.arguments[1:] if isinstance(it, int)]
    return step.operation in ("transpose", "swapaxes", "swapdims") and sorted(
        axis % rank for axis in axes
    ) == [rank - 2, rank - 1]


class _Call:
    """The arguments of a step."""

    def __init__(self, step: Step, values: Values, steps: tuple[Step, ...]) -> None:
        self.step = step
        self._values = values
        self._steps = steps

    def part(self, argument: object) -> Part | None:
        value = self._values(argument) if isinstance(argument, Source) else None
        return None if value is None else Part(argument, value)  # pyright: ignore[reportArgumentType]

    def at(self, position: int, name: str, default: object = None) -> Any:
        """Return an argument by position or name."""
        arguments = self.step.arguments
        if position < len(arguments):
            return arguments[position]
        return self.step.keywords.get(name, default)

    def operand(self, argument: object, letters: str) -> tuple[Part, str] | None:
        """Return an operand of a product and the letters of its axes, seen through a transpose without a name."""
        part = self.part(argument)
        if part is None or part.source.step is None:
            return None if part is None else (part, letters)
        made_by = self._steps[part.source.step]
        if "·" not in made_by.name or not is_transpose(made_by):
            return part, letters
        behind = self.part(made_by.arguments[0])
        if behind is None or behind.value.shape != part.value.mT.shape:
            return part, letters
        return behind, letters[:-2] + letters[-1] + letters[-2]


_Found = tuple[Rule, Tensor] | None


def _matmul(call: _Call) -> _Found:
    left, right = call.part(call.at(0, "input")), call.part(call.at(1, "other"))
    if left is None or right is None:
        return None
    ranks = left.value.dim(), right.value.dim()
    if min(ranks) == 0:
        return None
    leading = string.ascii_uppercase[: max(*ranks, 2) - 2]
    of_left = _last(leading, ranks[0] - 2) + ("ik" if ranks[0] > 1 else "k")
    of_right = _last(leading, ranks[1] - 2) + ("kj" if ranks[1] > 1 else "k")
    result = leading + ("i" if ranks[0] > 1 else "") + ("j" if ranks[1] > 1 else "")
    value = left.value.double() @ right.value.double()
    return _product(
        call, (call.at(0, "input"), of_left), (call.at(1, "other"), of_right), result
    ), value


def _whole_attention(call: _Call) -> _Found:
    """Return the rule of a call that computes a whole attention: the weights beside it, times the values."""
    if not call.step.product:
        return None
    weights, values = (call.part(source) for source in call.step.product)
    if weights is None or values is None:
        return None
    leading = string.ascii_uppercase[: weights.value.dim() - 2]
    letters = {"left": f"{leading}ik", "right": f"{leading}kj", "result": f"{leading}ij"}
    rule = {"kind": "product", "left": weights.source, "right": values.source, "bias": None}
    return {**rule, "letters": letters}, weights.value.double() @ values.value.double()


def _last(text: str, count: int) -> str:
    return text[len(text) - count :] if count > 0 else ""


def _product(call: _Call, left: tuple[Any, str], right: tuple[Any, str], result: str) -> Rule:
    one, other = call.operand(*left), call.operand(*right)
    assert one is not None
    assert other is not None
    letters = {"left": one[1], "right": other[1], "result": result}
    return {
        "kind": "product",
        "left": one[0].source,
        "right": other[0].source,
        "bias": None,
        "letters": letters,
    }


def _linear(call: _Call) -> _Found:
    x, weight = call.part(call.at(0, "input")), call.part(call.at(1, "weight"))
    if x is None or weight is None:
        return None
    bias = call.part(call.at(2, "bias"))
    if bias is None and call.at(2, "bias") is not None:
        return None
    value = x.value.double() @ weight.value.double().mT
    leading = string.ascii_uppercase[: max(x.value.dim() - 2, 0)]
    rows = "i" if x.value.dim() > 1 else ""
    rule = {
        "kind": "product",
        "left": x.source,
        "right": weight.source,
        "bias": None if bias is None else bias.source,
        "letters": {"left": f"{leading}{rows}k", "right": "jk", "result": f"{leading}{rows}j"},
    }
    return rule, value if bias is None else value + bias.value.double()


def _einsum(call: _Call) -> _Found:
    equation, *operands = call.step.arguments
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    if not isinstance(equation, str) or len(operands) != 2:
        return None
    left, right = map(call.part, operands)
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    if left is None or right is None or not arrow:
        return None
    named = [text.replace("...", "") for text in (*inputs.split(","), result)]
    ranks = left.value.dim(), right.value.dim(), len(call.step.shape)
    letters = [
        _last(string.ascii_uppercase[: max(ranks)], rank - len(text)) + text
        for rank, text in zip(ranks, named, strict=True)
    ]
    inner = set(letters[0]) - set(letters[2])
    if len(inner) != 1 or inner != set(letters[1]) - set(letters[2]):
        return None
    if any(len(set(text)) < len(text) for text in letters):
        return None
    rule = {"kind": "product", "left": left.source, "right": right.source, "bias": None}
    rule["letters"] = dict(zip(("left", "right", "result"), letters, strict=True))
    return rule, torch.einsum(equation, left.value.double(), right.value.double())


def _scale(call: _Call) -> _Found:
    combined = _combine(call)
    if combined is not None:
        return combined
    divides = "div" in call.step.operation
    one, other = call.at(0, "input"), call.at(1, "other")
    if not divides and isinstance(one, int | float):
        one, other = other, one
    of = call.part(one)
    if isinstance(other, Source):
        number = call.part(other)
        other = number.value.item() if number is not None and number.value.numel() == 1 else None
    if of is None or not isinstance(other, int | float) or isinstance(other, bool):
        return None
    value = of.value.double() / other if divides else of.value.double() * other
    return {"kind": "scale", "of": of.source, "by": float(other), "divides": divides}, value


def _softmax(call: _Call) -> _Found:
    of, axis = call.part(call.at(0, "input")), call.at(1, "dim")
    if of is None or not isinstance(axis, int):
        return None
    rule = {"kind": "softmax", "of": of.source, "axis": axis % max(of.value.dim(), 1)}
    return rule, of.value.double().softmax(axis)


def _where(call: _Call) -> _Found:
    mask, one, other = (call.at(i, name) for i, name in enumerate(("condition", "input", "other")))
    keeps = isinstance(one, Source) and not _is_number(call, one)
    of, fill = (one, other) if keeps else (other, one)
    return _masked(call, of, mask, fill, keeps=keeps)


def _masked_fill(call: _Call) -> _Found:
    of, mask, fill = (call.at(i, name) for i, name in enumerate(("input", "mask", "value")))
    return _masked(call, of, mask, fill, keeps=False)


def _is_number(call: _Call, argument: object) -> bool:
    part = call.part(argument)
    return part is not None and part.value.dim() == 0


def _masked(call: _Call, of: object, mask: object, fill: object, *, keeps: bool) -> _Found:
    if isinstance(fill, Source):
        part = call.part(fill)
        fill = part.value.item() if part is not None and part.value.numel() == 1 else None
    scores, kept = call.part(of), call.part(mask)
    if scores is None or kept is None or not isinstance(fill, int | float):
        return None
    hidden = kept.value.bool().logical_not() if keeps else kept.value.bool()
    value = scores.value.double().masked_fill(hidden, fill)
    rule = {"kind": "mask", "of": scores.source, "mask": kept.source, "fill": float(fill)}
    return {**rule, "keeps": keeps}, value


def _dropout(call: _Call) -> _Found:
    of, p = call.part(call.at(0, "input")), call.at(1, "p", 0.5)
    training = call.at(2, "training", default=True)
    if of is None or not isinstance(p, int | float) or not isinstance(call.step.value, Tensor):
        return None
    p = float(p) if training else 0.0
    recorded = call.step.value
    # What was dropped is random, and known from the value; what was kept must have grown.
    grown = (
        of.value.double() / (1 - p) if p < 1 else torch.zeros_like(of.value, dtype=torch.float64)
    )
    kept = grown if p == 0 else torch.where(recorded == 0, 0.0, grown)
    return {"kind": "dropout", "of": of.source, "p": p}, kept


def _combine(call: _Call) -> _Found:
    """Return the rule of two tensors that are combined entry by entry."""
    symbol, compute = _COMBINATIONS[call.step.operation.strip("_")]
    terms = [call.part(call.at(i, name)) for i, name in enumerate(("input", "other"))]
    if (
        any(term is None or term.value.dim() == 0 for term in terms)
        or "alpha" in call.step.keywords
    ):
        return None
    one, other = (term for term in terms if term is not None)
    rule = {"kind": "combine", "terms": [one.source, other.source], "operator": symbol}
    return rule, compute(one.value.double(), other.value.double())


def _apply(call: _Call) -> _Found:
    of = call.part(call.at(0, "input"))
    return None if of is None else ({"kind": "exp", "of": of.source}, of.value.double().exp())


def _reduce(call: _Call) -> _Found:
    of, axis, keep = (call.at(i, name) for i, name in enumerate(("input", "dim", "keepdim")))
    part = call.part(of)
    if isinstance(axis, tuple | list) and len(axis) == 1:
        axis = axis[0]
    if part is None or not isinstance(axis, int) or part.value.dim() == 0:
        return None
    adds = call.step.operation == "sum"
    numbers = part.value.double()
    value = (
        numbers.sum(axis, keepdim=bool(keep)) if adds else numbers.amax(axis, keepdim=bool(keep))
    )
    rule = {"kind": "reduce", "of": part.source, "axis": axis % part.value.dim()}
    return {**rule, "operator": "sum" if adds else "max"}, value


def _move(call: _Call) -> _Found:
    of = call.part(call.at(0, "input"))
    if of is None or (len(call.step.inputs) != 1 and call.step.operation not in CASTS):
        return None
    positions = torch.arange(of.value.numel()).reshape(of.value.shape)
    if of.value.dim() > 1 and not of.value.is_contiguous():
        # `view` needs the strides of the recorded value, on which a clone depends as the original did.
        positions = torch.empty_like(of.value, dtype=torch.int64).copy_(positions)
    origin = _applied(call.step, positions)
    if isinstance(origin, tuple | list):
        origin = origin[call.step.index - call.step.call]
    origin = origin.long()
    value = of.value.flatten()[origin.flatten()].reshape(origin.shape)
    return {"kind": "move", "of": of.source, "origin": origin}, value


def _applied(step: Step, positions: Tensor) -> Any:
    """Return what a step's operation makes of other entries."""
    name = step.operation
    if name in ("getitem", "__getitem__"):
        place: Any = step.arguments[1]
        return positions[place]
    if name in CASTS:
        return positions
    found = getattr(positions, name)
    rest = step.arguments[1:]
    return found(*rest, **step.keywords) if callable(found) else found


_COMBINATIONS: Mapping[str, tuple[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "add": ("+", operator.add),
    "sub": ("−", operator.sub),
    "mul": ("·", operator.mul),
    "multiply": ("·", operator.mul),
    "div": ("/", operator.truediv),
    "truediv": ("/", operator.truediv),
    "true_divide": ("/", operator.truediv),
}
"""The operations entry by entry, by name, each with its sign."""

_FINDERS: Mapping[str, Callable[[_Call], _Found]] = {
    "matmul": _matmul,
    "bmm": _matmul,
    "mm": _matmul,
    "mv": _matmul,
    "linear": _linear,
    "einsum": _einsum,
    "div": _scale,
    "truediv": _scale,
    "true_divide": _scale,
    "mul": _scale,
    "multiply": _scale,
    "softmax": _softmax,
    "where": _where,
    "masked_fill": _masked_fill,
    "dropout": _dropout,
    "add": _combine,
    "sub": _combine,
    "attention": _whole_attention,
    "scaled_dot_product_attention": _whole_attention,
    "exp": _apply,
    "sum": _reduce,
    "amax": _reduce,
    "max": _reduce,
}
"""The functions that find a rule, by the operation's name without underscores."""

TOLERANCES: Mapping[torch.dtype, float] = {
    torch.bfloat16: 2e-2,
    torch.float16: 3e-3,
    torch.float64: 1e-9,
}


def _equal(computed: Tensor, recorded: Tensor) -> bool:
    if computed.shape != recorded.shape:
        return False
    tolerance = TOLERANCES.get(recorded.dtype, 1e-4)
    expected = recorded.double()
    finite = expected[expected.isfinite()].abs()
    size = finite.max().item() if finite.numel() else 0.0
    return torch.allclose(
        computed.double(), expected, rtol=tolerance, atol=tolerance * size, equal_nan=True
    )
