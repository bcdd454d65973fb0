"""The steps of an attention that one call computes: scores, weights and all between, computed beside the call.

A fused kernel keeps none of them. The reference computes them from the same queries, keys and values, and the weights
times the values tell by how much the kernel's output differs. Nothing larger than the recording keeps is computed: of
more scores than that, only the rows of a sample of queries are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.attention_calls import reader_of
from heedful.dropout import draw_seed
from heedful.errors import HeedfulError
from heedful.functional import attention
from heedful.masks import Dense, Mask
from heedful.modes import values_known
from heedful.observation.summary import Summary, sample_strides
from heedful.problem import AttentionProblem
from heedful.scores import soft_cap, softmax_with_sinks

BESIDE = "computed beside by the reference"
VALUES_KEPT = 6  # scores, scaled, biased, masked, weights and dropped weights


@dataclass(frozen=True, eq=False)
class OpenedStep:
    """A step of an attention, computed beside the call.

    Attributes:
        name: what it is, such as "weights", or a part of the next step, such as "scores·mT".
        operation: the operation that makes it.
        arguments: the arguments of the operation, among them tensors of the call and of earlier steps.
        tensor: its value, or the sampled rows of it.
        summary: the summary of the rows, if they are a sample.
    """

    name: str
    operation: str
    arguments: tuple[Any, ...]
    tensor: Tensor
    summary: Summary | None = None


@dataclass(frozen=True, eq=False)
class OpenedAttention:
    """The steps of an attention, in order.

    Attributes:
        steps: the steps.
        product: the weights and the values whose product the output is.
        remark: by how much the kernel's output differs from it, as a sentence.
    """

    steps: tuple[OpenedStep, ...]
    product: tuple[Tensor, Tensor]
    remark: str


class FusedCall:
    """A call that computes a whole attention, seen before it runs.

    Args:
        problem: the attention.
        given: the arguments of the call by name.
    """

    def __init__(self, problem: AttentionProblem, given: Mapping[str, Any]) -> None:
        self._problem = problem
        self._given = given
        drops = problem.dropout_p > 0
        self._random_state: Tensor | None = torch.get_rng_state() if drops else None

    @classmethod
    def seen(
        cls, function: object, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> FusedCall | None:
        """Return the call of a function, or None if it is no attention whose entries can be read."""
        read = reader_of(function)
        if read is None:
            return None
        try:
            problem = read(*arguments, **keywords)
        except (HeedfulError, TypeError, RuntimeError):
            return None  # the call itself raises the error
        if problem is None or not all(
            map(_is_readable, (problem.query, problem.key, problem.value))
        ):
            return None
        names = _NAMES if function is attention else _NAMES_OF_SDPA
        return cls(problem, dict(zip(names, arguments, strict=False)) | dict(keywords))

    def opened(self, result: object, room: int) -> OpenedAttention | None:
        """Compute the steps of the call, which has run; None if they cannot be.

        Args:
            result: what the call returned.
            room: how many entries all steps together may have.
        """
        output = result[0] if isinstance(result, tuple) else result
        problem = self._problem
        if not isinstance(output, Tensor):
            return None
        with torch.autocast(output.device.type, enabled=False):
            B, Hq, _, Tq, Tk, _, _ = problem.sizes
            if VALUES_KEPT * B * Hq * Tq * Tk <= room:
                return _opened(problem, self._given, output, self._dropout_factors())
            return _sampled(problem, self._given, output)

    def _dropout_factors(self) -> tuple[Tensor, ...]:
        """Return what the weights may have been multiplied by: our generator's factors, and PyTorch's."""
        if self._random_state is None:
            return ()
        B, Hq, _, Tq, Tk, _, _ = self._problem.sizes
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random_state)
            ours = self._problem.dropout_factors(draw_seed(), 0, Tk)
            torch.set_rng_state(self._random_state)
            ones = torch.ones(B, Hq, Tq, Tk, dtype=ours.dtype, device=ours.device)
            return ours, F.dropout(ones, self._problem.dropout_p)


_NAMES = ("query", "key", "value", "mask")
_NAMES_OF_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def _is_readable(tensor: Tensor) -> bool:
    return values_known(tensor) and type(tensor) in (Tensor, torch.nn.Parameter)


class _Steps:
    """The steps of an attention, as they are computed.

    Args:
        problem: the attention, or the sampled rows of it.
        given: the arguments of the call by name. Steps refer to these, because the problem may hold copies of them.
        leading: the dimensions before queries and keys that the call's own tensors have.
    """

    def __init__(
        self, problem: AttentionProblem, given: Mapping[str, Any], leading: Sequence[int]
    ) -> None:
        self.problem = problem
        self.given = given
        self.leading = leading
        self.made: list[OpenedStep] = []

    def add(self, name: str, operation: str, arguments: tuple[Any, ...], value: Tensor) -> Tensor:
        """Add a step whose value is (B or 1, Hq or 1, …), and return it in the dimensions of the call."""
        dims = len(self.leading)
        if dims < 2:
            value = value[(0,) * (2 - dims)]
        elif dims > 2:
            batch = self.leading[:-1] if value.shape[0] > 1 else (1,) * (dims - 1)
            value = value.reshape(*batch, *value.shape[1:])
        self.made.append(OpenedStep(name, operation, arguments, value))
        return value

    def move(self, name: str, operation: str, arguments: tuple[Any, ...], value: Tensor) -> Tensor:
        """Add a step that only arranges what the call was given, and return its value."""
        self.made.append(OpenedStep(name, operation, arguments, value))
        return value

    def for_every_head(self, tensor: Tensor, name: str) -> Tensor:
        """Return the call's keys or values with a head for each query head, by a step if there are fewer."""
        _, Hq, Hkv, *_ = self.problem.sizes
        if Hq == Hkv:
            return tensor
        groups = Hq // max(Hkv, 1)
        repeated = tensor.repeat_interleave(groups, -3)
        operation = "repeat_interleave"
        return self.move(f"{name}·{operation}", operation, (tensor, groups, -3), repeated)

    def _argument(self, *names: str) -> Any:
        """Return the first argument of the call that was given by one of these names."""
        return next(it for name in names if (it := self.given.get(name)) is not None)

    def compute(self, operands: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Add the steps from scores to weights.

        Args:
            operands: the queries and the transposed keys as the steps refer to them.

        Returns:
            The weights (B, Hq, Tq, Tk), and the last step.
        """
        problem = self.problem
        _, Hq, Hkv, _, _, D, _ = problem.sizes
        dtype = torch.promote_types(problem.query.dtype, torch.float32)
        key = problem.key.to(dtype).repeat_interleave(Hq // max(Hkv, 1), dim=1)
        scores = problem.query.to(dtype) @ key.mT
        last = self.add("scores", "matmul", operands, scores)

        by = problem.factor if problem.scale is not None else math.sqrt(max(D, 1))
        scores = scores * problem.factor
        scaling = "div" if problem.scale is None else "mul"
        last = self.add("scaled_scores", scaling, (last, by), scores)
        if problem.softcap is not None:
            scores = soft_cap(scores, problem.softcap)
            last = self.add("capped_scores", "soft_cap", (last, problem.softcap), scores)
        if problem.bias is not None:
            scores = scores + problem.bias.to(dtype)
            bias = self._argument("bias", "attn_mask")
            last = self.add("biased_scores", "add", (last, bias), scores)
        if problem.mask is not None:
            assert isinstance(problem.mask, Mask)
            shown = problem.mask.dense_on(problem.grid)
            given = self.given.get("is_causal") or self._argument("mask", "attn_mask")
            kept = self.add("mask", "mask", (given,), shown)
            scores = scores.masked_fill(~shown, -math.inf)
            last = self.add("masked_scores", "where", (kept, last, -math.inf), scores)
        weights, _ = softmax_with_sinks(scores, problem.sinks)
        softmax = "softmax" if problem.sinks is None else "softmax_with_sinks"
        return weights, self.add("weights", softmax, (last, -1), weights)


def _opened(
    problem: AttentionProblem,
    given: Mapping[str, Any],
    output: Tensor,
    factors: tuple[Tensor, ...],
) -> OpenedAttention:
    query = given["query"]
    steps = _Steps(problem, given, query.shape[:-2])
    key, value = (steps.for_every_head(given[name], name) for name in ("key", "value"))
    weights, last = steps.compute((query, steps.move("scores·mT", "mT", (key,), key.mT)))

    _, _, values = problem.widened()
    output = output.reshape(*weights.shape[:3], values.shape[-1])
    candidates = [weights] if not factors else [weights * factor for factor in factors]
    differences = [_largest_difference(it @ values, output) for it in candidates]
    difference = min(differences)
    if factors:
        dropped = candidates[differences.index(difference)]
        last = steps.add("dropped_weights", "dropout", (last, problem.dropout_p, True), dropped)
    return OpenedAttention(tuple(steps.made), (last, value), _remark(difference))


def _sampled(
    problem: AttentionProblem, given: Mapping[str, Any], output: Tensor
) -> OpenedAttention | None:
    """Compute the rows of a sample of queries, of some heads."""
    B, Hq, _, Tq, Tk, _, Dv = problem.sizes
    if given["query"].dim() > 4:
        return None
    strides = sample_strides((B, Hq, Tq, Tk))
    b, h, q = (
        torch.arange(0, size, stride, device=output.device)
        for size, stride in zip((B, Hq, Tq), strides, strict=False)
    )
    sample = _rows(problem, b, h, q)
    steps = _Steps(sample, given, given["query"].shape[:-2])
    weights, last = steps.compute((given["query"], given["key"]))
    _, _, values = sample.widened()
    rows = output.reshape(B, Hq, Tq, Dv)[b][:, h][:, :, q]
    remark = f"{len(q)} of {Tq} queries were computed beside."
    if not problem.dropout_p:
        remark = f"{_remark(_largest_difference(weights @ values, rows))} {remark}"
    dims = given["query"].dim()
    made = tuple(
        replace(it, summary=_summary_of_rows(it.tensor, (B, Hq, Tq, Tk)[-dims:], strides[-dims:]))
        for it in steps.made
    )
    return OpenedAttention(made, (last, given["value"]), remark)


def _rows(problem: AttentionProblem, b: Tensor, h: Tensor, q: Tensor) -> AttentionProblem:
    """Return the attention of some sequences, heads and queries to all keys."""
    B, Hq, Hkv, Tq, Tk, _, _ = problem.sizes
    heads = h // (Hq // max(Hkv, 1))
    mask, bias = problem.mask, problem.bias
    if isinstance(mask, Mask):
        k = torch.arange(Tk, device=q.device)
        shown = mask.sees(
            b.view(-1, 1, 1, 1), h.view(-1, 1, 1), q.view(-1, 1), k.view(1, -1), problem.grid
        )
        mask = Dense(shown.expand(len(b), len(h), len(q), Tk))
    if bias is not None:
        bias = bias.expand(B, Hq, Tq, Tk)[b][:, h][:, :, q]
    return AttentionProblem(
        problem.query[b][:, h][:, :, q],
        problem.key[b][:, heads],
        problem.value[b][:, heads],
        mask,
        bias,
        problem.scale,
        problem.softcap,
        None if problem.sinks is None else problem.sinks[h],
    )


def _summary_of_rows(rows: Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> Summary:
    summary = Summary.of(rows)
    sample = rows[..., :: strides[-1]].clone()
    return replace(summary, shape=shape, sample=sample, strides=strides, of_sample=True)


def _largest_difference(expected: Tensor, received: Tensor) -> float:
    if not received.numel():
        return 0.0
    return (expected - received.to(expected.dtype)).abs().max().item()


def _remark(difference: float) -> str:
    return (
        f"The kernel's output differs from the reference's by at most {difference:.1e}."
        if difference
        else "The kernel's output is the reference's to the last bit."
    )
