"""See attention: pages of a module's steps beside its code, and of a small attention whose parts the reader changes.

page = heedful.show(CausalAttention(3, 2, context_length=6), x, labels=words)
page                      # in a notebook, or
page.save("page.html")    # one file; .svg and .png are pictures of its maps
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from heedful.conformance.reporting.report import Report
from heedful.errors import ArgumentError
from heedful.observation import Trace
from heedful.viewer.page import Page, View
from heedful.viewer.recording import Recording, labels_of_trace, recording_of

__all__ = ["Page", "show", "what_if"]


def show(
    subject: Trace | Report | nn.Module | Callable[..., Any],
    *inputs: Any,
    beside: Trace | nn.Module | Callable[..., Any] | None = None,
    labels: Sequence[str] | None = None,
    title: str | None = None,
    **keywords: Any,
) -> Page:
    """Return a page that shows what a module or function computes: its code beside the value of every step.

    The callable runs once and is recorded. Each step is shown with its formula, and each number with those that it was
    made from. A trace shows its steps alone, because it does not keep the weights and inputs of its call. A report of
    `check` is shown as it is.

    Args:
        subject: A module, a function, a `Trace`, or a report of `check`.
        inputs: The arguments of the call. Without any, the call of a module is found out, as `check` does, and
            random tokens are drawn.
        beside: Another module, function or trace, which runs on the same inputs and is shown side by side.
        labels: A text for each token.
        title: The heading of the page.
        keywords: Further arguments of the call. If one of them is called `beside`, `labels` or `title`, wrap the
            callable in a lambda.

    Returns:
        The page. A notebook shows it; `page.save("page.html")` writes it.

    Raises:
        ArgumentError: The subject cannot be shown, or its call cannot be found out.

    Examples:
        >>> import torch, heedful
        >>> from heedful.textbook import SelfAttentionV1
        >>> heedful.show(SelfAttentionV1(3, 2), torch.rand(6, 3))
        Page('SelfAttentionV1', 1 view)
    """
    if isinstance(subject, Report):
        return Page(title or f"The check of {subject.target}", body=subject._repr_html_())
    first = _recorded(subject, inputs, keywords, labels)
    recordings = (first,)
    if (
        beside is not None
    ):  # without inputs, both calls are found out, and the same tokens are drawn
        recordings = (first, _recorded(beside, inputs, keywords, first.labels))
    names = " beside ".join(it.title for it in recordings)
    return Page(title or names, (View(recordings),))


def what_if() -> Page:
    """Return a page with a small attention whose tokens, scale, mask, softmax, dropout and split the reader changes.

    Every step and its symptoms are computed again at once, in the page.

    Examples:
        >>> from heedful.viewer import what_if
        >>> what_if()
        Page('What if?', 1 view)
    """
    return Page("What if?", (View(),))


def _recorded(
    subject: object, inputs: Sequence[Any], keywords: dict[str, Any], labels: Sequence[str] | None
) -> Recording:
    if isinstance(subject, Trace):
        return Recording("Recorded steps", subject, {}, labels_of_trace(subject, labels))
    if isinstance(subject, type) or not callable(subject):
        raise ArgumentError(
            "subject",
            expected="a module, a function, a trace or a report",
            received=f"the class {subject.__name__}"
            if isinstance(subject, type)
            else type(subject).__name__,
            remedy="Build the module first, or let `heedful show my.py:Class --out page.html` build it.",
        )
    if not inputs and not keywords and isinstance(subject, nn.Module):
        from heedful.viewer.discovery import recording_of_target

        return recording_of_target(subject, labels)
    name = getattr(subject, "__name__", type(subject).__name__)
    return recording_of(name, subject, inputs, keywords, labels)
