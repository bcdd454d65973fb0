"""Calls of a target by its calling convention: tokens in, one row per token out, whatever its own layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from heedful.conformance.calling.convention import CallingConvention
from heedful.conformance.calling.exceptions import exits_as_errors
from heedful.conformance.calling.isolation import as_default, restored, seeded, uninitialised_as_nan
from heedful.conformance.calling.mask_forms import LENGTHS, MaskArgument, Masks, combined_with
from heedful.conformance.calling.target import Target, TargetError
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.line_tracer import watched
from heedful.conformance.recording.observation import Observation
from heedful.observation import ReachableTensors, Trace, record
from heedful.observation.leaves import leaf_named


@dataclass(frozen=True, eq=False)
class Caller:
    """A copy of a target, and how to call it; a call leaves the copy as it was, unless `keep_state` is set.

    Attributes:
        target: The target as it was given.
        convention: How it takes tokens and returns rows.
        dtype: The dtype of its vectors.
        callee: The copy that is run.
        padding: The argument that tells real tokens from padding; None if there is none.
        attention_mask: The argument that tells which key each query may see; None if there is none.
        positions: The argument that takes the position of each token, (B, T) int64; None if there is none.
        weak: Further arguments that tell real tokens from padding, but do not hide it.
        seed: The seed of the random numbers in every run.
        keep_state: Whether the state that a run leaves behind is kept for the next one.
    """

    target: Target
    convention: CallingConvention
    dtype: torch.dtype
    callee: Callable[..., Any]
    padding: MaskArgument | None = None
    attention_mask: MaskArgument | None = None
    positions: str | None = None
    weak: tuple[MaskArgument, ...] = ()
    seed: int = 0
    keep_state: bool = False

    @property
    def name(self) -> str:
        """The name of the target's class or function."""
        return self.target.name

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the arguments of a call, and of the leaves within those of an example."""
        return *self.target.parameters, *self.convention.leaves

    @property
    def module(self) -> nn.Module | None:
        """The copy that is run, if it is a module."""
        return self.callee if isinstance(self.callee, nn.Module) else None

    @property
    def function(self) -> Callable[..., Any] | None:
        """The function that is run, if it is not a module."""
        return None if isinstance(self.callee, nn.Module) else self.callee

    @property
    def layout(self) -> str:
        """The layout in which the target takes tokens, such as "(B, T, C)"."""
        return self.convention.layout

    @property
    def batched(self) -> bool:
        """True if a call takes more than one sequence."""
        return self.convention.batched

    @property
    def fixed_sizes(self) -> tuple[int, int] | None:
        """The only B and T that work, if a tensor at module level requires them."""
        return self.convention.fixed_sizes

    @property
    def masks(self) -> Masks:
        """The arguments by which the target takes masks."""
        return Masks(self.padding, self.attention_mask, self.positions, self.weak)

    def with_masks(self, masks: Masks) -> Self:
        """Return the same caller with other arguments for masks."""
        return replace(
            self,
            padding=masks.padding,
            attention_mask=masks.attention_mask,
            positions=masks.positions,
            weak=masks.weak,
        )

    def draw(self, B: int, T: int, *, seed: int = 0, dtype: torch.dtype | None = None) -> Inputs:
        """Draw random tokens: standard normal vectors, or ids."""
        return self.convention.draw(B, T, dtype or self.dtype, seed)

    def arguments(
        self, inputs: Inputs, keep: Tensor | None = None, attend: Tensor | None = None
    ) -> dict[str, Any]:
        """Return the arguments of a call, by name.

        Args:
            inputs: The tokens.
            keep: (B, T) Boolean, which tokens are real; None if all are.
            attend: (T, T) Boolean, which key each query may see; None for the mask of the convention, if it has one.

        Raises:
            ArgumentError: The target has no argument for one of the masks.
        """
        (B, T), padding = inputs.sizes, self.padding
        visible_keys, constants = self.convention.visible_keys, self.convention.constants
        if attend is None and visible_keys is not None and self.attention_mask is not None:
            attend = visible_keys(T, T)
        given = self.convention.arguments(inputs, self.dtype)
        from_example = self.convention.from_example
        required = () if from_example else constants.keys()
        if from_example and padding is not None and padding.form == LENGTHS:
            required = (padding.name,)  # the example's own are those of its own sequences
        masks = self.masks.arguments(
            (B, T), self.dtype, keep=keep, attend=attend, required=required
        )
        if from_example and keep is not None and padding is not None and attend is None:
            own = leaf_named(padding.name, given)
            masks[padding.name] = combined_with(own, padding, masks[padding.name])
        return given | masks

    def run(
        self, inputs: Inputs, *, keep: Tensor | None = None, attend: Tensor | None = None
    ) -> Tensor:
        """Return the output (B, T, …), with gradients; the arguments are those of `arguments`.

        Raises:
            ArgumentError: The target has no argument for one of the masks.
            TargetError: The result has no row for each token.
        """
        return self.call(self.arguments(inputs, keep, attend), inputs)

    def call(self, arguments: Mapping[str, Any], inputs: Inputs) -> Tensor:
        """Return the output (B, T, …) of a call with named arguments."""
        with self.isolated():
            result = self.result(arguments)
        return self.rows(result, inputs)

    def result(self, arguments: Mapping[str, Any]) -> object:
        """Return the whole result of a call with named arguments; the state that it leaves behind is kept."""
        args, keywords = self.target.bound(arguments)
        with watched(self.callee, arguments):
            return self.callee(*args, **keywords)

    def record(
        self,
        inputs: Inputs,
        *,
        keep: Tensor | None = None,
        attend: Tensor | None = None,
        open_attention: bool = False,
    ) -> Observation:
        """Run the target as `run` does, and record each step; `open_attention` is that of `heedful.record`."""
        arguments = self.arguments(inputs, keep, attend)
        return self.record_call(arguments, inputs, open_attention=open_attention)

    def record_call(
        self, arguments: Mapping[str, Any], inputs: Inputs, *, open_attention: bool = False
    ) -> Observation:
        """Run the target as `call` does, and record each step."""
        with self.isolated():
            trace = self.trace(arguments, open_attention=open_attention)
        return self.observation(inputs, arguments, trace)

    def trace(self, arguments: Mapping[str, Any], *, open_attention: bool = False) -> Trace:
        """Record a call with named arguments; the state that it leaves behind is kept."""
        args, keywords = self.target.bound(arguments)
        with watched(self.callee, arguments):
            return record(self.callee, *args, open_attention=open_attention, **keywords)

    def backward(self, loss: Tensor) -> None:
        """Run a backward pass; parts that are checkpointed run again, and make tensors of the same dtype as before."""
        with as_default(self.dtype):
            loss.backward()

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Seed the random numbers, forbid exits, and restore the state of the copy unless it is to be kept.

        Memory that the target does not initialise holds NaN.
        """
        kept = nullcontext() if self.keep_state else restored(self.module)
        seed, dtype = seeded(self.seed), as_default(self.dtype)
        with exits_as_errors(), seed, dtype, uninitialised_as_nan(), kept:
            yield

    def rows(self, result: object, inputs: Inputs) -> Tensor:
        """Return the output (B, T, …) within a result.

        Raises:
            TargetError: The result has no row for each token.
        """
        rows = self.convention.rows(result, *inputs.sizes)
        if rows is None:
            each = "sequence" if self.convention.pooled else f"of {inputs.sizes[1]} tokens"
            raise TargetError(f"the result has no row for each {each}")
        return rows

    def observation(
        self, inputs: Inputs, arguments: Mapping[str, Any], trace: Trace, before: int = 0
    ) -> Observation:
        """Return the observation of a recorded call; `before` is the number of tokens already in its cache."""
        output = self.rows(trace.result, inputs).detach()
        args, keywords = self.target.bound(arguments)
        tensors = reversed(ReachableTensors(self.callee, args, keywords).tensors)
        values = {(source.kind, source.name): tensor.detach() for tensor, source in tensors}
        return Observation(inputs, output, trace, values, before)
