"""See attention: pages of a module's steps beside its code, of a model's heads, and of a small attention to change.

page = heedful.show(CausalAttention(3, 2, context_length=6), x, labels=words)
page = heedful.show(attention_of(model, ids, **statistics_of_page(len(tokens))), labels=tokens)
page                      # in a notebook, or
page.save("page.html")    # one file; .svg and .png are pictures of its maps
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from heedful.conformance.reporting.report import Report
from heedful.errors import ArgumentError
from heedful.model_attention import AttentionOfModel
from heedful.observation import Trace
from heedful.summaries import Summary
from heedful.viewer.heads.heads import check_same_heads, heads_of, statistics_of_page
from heedful.viewer.heads.kinds import heads_by_kind
from heedful.viewer.page import HeadsView, Page, View
from heedful.viewer.steps.recording import Recording, labels_of_trace, recording_of

__all__ = ["Page", "show", "statistics_of_page", "what_if"]


def show(
    subject: Trace
    | Report
    | AttentionOfModel
    | Mapping[str, Summary]
    | Summary
    | nn.Module
    | Callable[..., Any],
    *inputs: Any,
    beside: Trace
    | AttentionOfModel
    | Mapping[str, Summary]
    | Summary
    | nn.Module
    | Callable[..., Any]
    | None = None,
    labels: Sequence[str] | None = None,
    target_labels: Sequence[str] | None = None,
    title: str | None = None,
    **keywords: Any,
) -> Page:
    """Return a page that shows what a module or function computes, or the attention of a model's heads.

    A callable runs once and is recorded. Its code is shown beside the value of every step, each step with its formula,
    and each number with those that it was made from. A trace shows its steps alone, because it does not keep the
    weights and inputs of its call. A report of `check` is shown as it is.

    Summaries are shown as a grid of heads, which can be sorted by each of their statistics, and one head's map, with
    the tokens at both sides. The page has a cell for each weight where the summaries hold all of them, and blocks where
    they hold a pooled map: `statistics_of_page` asks for what fits the length. Those of an encoder-decoder are shown
    in three parts: the encoder's self-attention, the decoder's, and cross-attention, whose queries are the decoder's
    tokens and whose keys are the encoder's.

    Args:
        subject: A module, a function, a `Trace`, a report of `check`, what `attention_of` or `summarize` returns, or
            summaries by the names of their layers.
        inputs: The arguments of the call. Without any, the call of a module is found out, as `check` does, and
            random tokens are drawn.
        beside: Another module, function or trace, which runs on the same inputs, or the attention of another model
            for the same tokens. The two are shown side by side.
        labels: A text for each token; of an encoder-decoder, for each that its encoder reads.
        target_labels: A text for each token that the decoder of an encoder-decoder reads. The kind of each attention
            follows from its name, which has "encoder" or "decoder" in it, and in cross-attention, as transformers and
            PyTorch have it, "cross", "encoder_attn", "EncDecAttention" or "multihead_attn".
        title: The heading of the page.
        keywords: Further arguments of the call. If one of them is called `beside`, `labels`, `target_labels` or
            `title`, wrap the callable in a lambda.

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
    if isinstance(subject, (AttentionOfModel, Summary, Mapping)):
        if target_labels is not None:
            return _page_of_kinds(subject, beside, labels, target_labels, title)
        return _page_of_heads(subject, beside, labels, title)
    if target_labels is not None:
        raise ArgumentError(
            "target_labels",
            expected="no such argument, except with the attention of an encoder-decoder",
            received="it",
            remedy="Pass what attention_of() returns for the model.",
        )
    if isinstance(subject, Report):
        return Page(title or f"The check of {subject.target}", body=subject._repr_html_())
    first = _recorded(subject, inputs, keywords, labels)
    recordings = (first,)
    # Without inputs, both calls are found out, and the same tokens are drawn.
    if beside is not None:
        recordings = (first, _recorded(beside, inputs, keywords, first.labels))
    names = " beside ".join(it.title for it in recordings)
    return Page(title or names, (View(recordings),))


def _page_of_heads(
    subject: AttentionOfModel | Mapping[str, Summary] | Summary,
    beside: object,
    labels: Sequence[str] | None,
    title: str | None,
) -> Page:
    one = heads_of(
        _layers(subject), labels, "the first" if beside is not None else title or "Attention"
    )
    name = title or "Attention"
    if beside is None:
        return Page(name, (HeadsView((one,)),))
    if not isinstance(beside, (AttentionOfModel, Summary, Mapping)):
        raise ArgumentError(
            "beside",
            expected="the attention of another model, as attention_of() returns it",
            received=type(beside).__name__,
            remedy="Call attention_of() with the other model and the same tokens.",
        )
    other = replace(heads_of(_layers(beside), None, "the second"), labels=one.labels)
    check_same_heads(one, other)
    return Page(name, (HeadsView((one, other)),))


def _page_of_kinds(
    subject: AttentionOfModel | Mapping[str, Summary] | Summary,
    beside: object,
    labels: Sequence[str] | None,
    target_labels: Sequence[str],
    title: str | None,
) -> Page:
    layers = _layers(subject)
    if isinstance(layers, Summary) or labels is None or beside is not None:
        raise ArgumentError(
            "target_labels",
            expected="the attention of one encoder-decoder by the names of its layers, and labels of both texts",
            received="one summary"
            if isinstance(layers, Summary)
            else "no labels"
            if labels is None
            else "beside, too",
            remedy="Pass what attention_of() returns, and the texts of both.",
        )
    kinds = heads_by_kind(layers, labels, target_labels)
    views = tuple(HeadsView((heads,), heading=kind) for kind, heads in kinds.items())
    return Page(title or "Attention", views)


def _layers(
    attention: AttentionOfModel | Mapping[str, Summary] | Summary,
) -> Mapping[str, Summary] | Summary:
    return attention.layers if isinstance(attention, AttentionOfModel) else attention


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
        from heedful.viewer.steps.discovery import recording_of_target

        return recording_of_target(subject, labels)
    name = getattr(subject, "__name__", type(subject).__name__)
    return recording_of(name, subject, inputs, keywords, labels)
