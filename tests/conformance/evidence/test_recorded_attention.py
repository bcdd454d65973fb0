"""The search finds an attention in a recorded run, however it is written, and puts it into one layout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.conformance.calling.subject import find_subject
from heedful.conformance.evidence.attention_search import find_attentions

B, T, H, D = 3, 7, 4, 6


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.transpose(-2, -1) / D**0.5).softmax(-1) @ value


def einsums(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", query, key) * D**-0.5
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), value)


def einsums_in_another_order(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bijh", query, key) / D**0.5
    return torch.einsum("bijh,bhjd->bhid", scores.softmax(2), value)


def folded(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k, v = (tensor.flatten(0, 1) for tensor in (query, key, value))
    empty = torch.empty(len(q), q.shape[1], k.shape[1], dtype=q.dtype)
    scores = torch.baddbmm(empty, q, k.transpose(1, 2), beta=0, alpha=D**-0.5)
    return torch.bmm(F.softmax(scores, dim=-1), v).view(query.shape)


def keys_first(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = (key @ query.mT * D**-0.5).softmax(-2)
    return weights.mT @ value


def softmax_written_out(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.mT / D**0.5
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    weights = exponentials / exponentials.sum(-1, keepdim=True)
    return weights @ value


def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value)


@pytest.mark.parametrize(
    "attend",
    [
        plain,
        einsums,
        einsums_in_another_order,
        folded,
        keys_first,
        softmax_written_out,
        fused,
    ],
)
def test_each_form_is_found_and_put_into_one_layout(attend: Callable[..., Tensor]) -> None:
    subject = find_subject(attend)
    observation = subject.record(subject.draw(B, T))
    (attention,) = find_attentions(observation)
    arguments = observation.inputs.arguments  # (B, T, H, D)
    query, key, value = (
        tensor.transpose(1, 2).reshape(B * H, T, D) for tensor in arguments.values()
    )
    weights = (query @ key.mT / D**0.5).softmax(-1)
    torch.testing.assert_close(attention.query, query)
    torch.testing.assert_close(attention.key, key)
    torch.testing.assert_close(attention.value, value)
    torch.testing.assert_close(attention.applied_weights, weights)
    torch.testing.assert_close(attention.context, weights @ value)
    if attention.weights is not None:  # the fused call has none of its own
        torch.testing.assert_close(attention.weights, weights)
    if attention.logits is not None:
        torch.testing.assert_close(attention.logits.softmax(-1), weights)


def test_groups_of_heads_in_an_einsum_are_heads() -> None:
    def grouped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        groups = query.unflatten(1, (2, 2))
        scores = torch.einsum("bkgid,bkjd->bkgij", groups, key[:, :2]) / D**0.5
        context = torch.einsum("bkgij,bkjd->bkgid", scores.softmax(-1), value[:, :2])
        return context.flatten(1, 2)

    subject = find_subject(grouped)
    (attention,) = find_attentions(subject.record(subject.draw(B, T)))
    assert attention.applied_weights.shape == (B * H, T, T)
    torch.testing.assert_close(attention.key[0], attention.key[1])
    assert not torch.allclose(attention.key[1], attention.key[2])


def test_products_with_parameters_are_not_attentions() -> None:
    subject = find_subject(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)))
    assert find_attentions(subject.record(subject.draw(B, T))) == []


def test_each_layer_has_an_attention() -> None:
    def twice(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.layer_norm(plain(F.layer_norm(plain(query, key, value), (D,)), key, value), (D,))

    subject = find_subject(twice)
    assert len(find_attentions(subject.record(subject.draw(B, T)))) == 2
