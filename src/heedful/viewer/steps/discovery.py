"""A recorded run of a target whose call is found out, as `check` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from heedful.conformance.calling.capture import captured_from_model
from heedful.conformance.calling.construction import instantiate
from heedful.conformance.calling.isolation import undisturbed
from heedful.conformance.calling.subject import find_subject
from heedful.conformance.calling.target import TargetError
from heedful.errors import ArgumentError
from heedful.viewer.steps.recording import Recording

TOKENS = 6


def recording_of_target(
    target: Any,
    labels: Sequence[str] | None = None,
    *,
    arguments: Mapping[str, Any] = {},
    example: Any = None,
    causal: bool | None = None,
    module: str | None = None,
) -> Recording:
    """Build and call a target on random tokens, in evaluation mode, and record it.

    Args:
        target: A module, the class of one, or a function.
        labels: A text for each token, which also says how many there are.
        arguments: The constructor's, if the target is a class.
        example: The arguments of a call; None to find them out.
        causal: Whether the call should be causal, if an argument decides that.
        module: The name of a module within the target that is recorded instead, on inputs like those that it gets.

    Raises:
        ArgumentError: It cannot be built or called, or takes another number of tokens than there are labels.
    """
    with undisturbed():
        try:
            if module is not None:
                captured = captured_from_model(instantiate(target, arguments), module, example)
                target, example, arguments = captured.module, captured.example, {}
            subject = find_subject(target, example=example, causal=causal, arguments=arguments)
        except TargetError as error:
            raise ArgumentError(
                "TARGET",
                expected="an attention that can be called",
                received=f"one whose call fails: {error.__cause__ or error}",
                remedy="`heedful check` says where.",
            ) from error
        B, T = subject.fixed_sizes or (1, TOKENS if labels is None else len(labels))
        if subject.max_length is not None:
            T = min(T, subject.max_length)
        if labels is not None and len(labels) != T:
            raise ArgumentError(
                "labels",
                expected=f"{'a label' if T == 1 else 'labels'} for {T} token{'s' * (T != 1)}, which the target takes",
                received=f"{len(labels)}",
                remedy="Pass one for each token, or leave them out.",
            )
        observation = subject.record(subject.draw(B, T), open_attention=True)
    shown = tuple(f"t{i}" for i in range(T)) if labels is None else tuple(map(str, labels))
    return Recording(subject.name, observation.trace, observation.values, shown)
