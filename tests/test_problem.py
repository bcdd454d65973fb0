"""Arguments that do not fit raise an error that states expected, received and remedy."""

import re
import warnings

import numpy as np
import pytest
import torch

from heedful import ArgumentError, Causal, Dense, KernelError, Padding, attention, summarize

Q, K, V = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 4)
with warnings.catch_warnings(action="ignore"):  # PyTorch calls nested tensors a prototype
    NESTED = torch.nested.nested_tensor([Q[0], Q[1]])
BAD_CALLS = {
    "query of three dimensions": ((Q[0], K, V), {}, ("query", "(B, Hq, Tq, D)", "(6, 5, 8)", "unflatten")),
    "key of another head size": ((Q, K[..., :7], V), {}, ("key", "D=8", "(2, 3, 7, 7)", "head size")),
    "key of another batch": ((Q, K[:1], V), {}, ("key", "B=2", "(1, 3, 7, 8)", "batch")),
    "value of other tokens": ((Q, K, V[:, :, 1:]), {}, ("value", "Tk=7", "(2, 3, 6, 4)", "tokens")),
    "value of other heads": ((Q, K, V[:, :1]), {}, ("value", "Hkv=3", "(2, 1, 7, 4)", "heads")),
    "heads that do not divide": ((Q[:, :5], K, V), {}, ("key", "divides the query's 5", "3 heads", "Hq // Hkv")),
    "integers": ((Q.long(), K.long(), V.long()), {}, ("query", "float32", "int64", ".to(")),
    "two dtypes": ((Q, K.double(), V), {}, ("one dtype", "torch.float64", ".to(")),
    "two devices": ((Q, K.to("meta"), V), {}, ("one device", "meta", ".to(")),
    "no tensor": (([1.0], K, V), {}, ("query", "a tensor", "list")),
    "NaN scale": ((Q, K, V), {"scale": float("nan")}, ("scale", "finite", "nan", "1/√D")),
    "infinite scale": ((Q, K, V), {"scale": float("inf")}, ("scale", "finite", "inf")),
    "NaN cap": ((Q, K, V), {"softcap": float("nan")}, ("softcap", "above 0", "nan")),
    "cap of zero": ((Q, K, V), {"softcap": 0.0}, ("softcap", "above 0", "0.0")),
    "dropout above one": ((Q, K, V), {"dropout_p": 1.1}, ("dropout_p", "from 0 to 1", "1.1")),
    "dropout below zero": ((Q, K, V), {"dropout_p": -0.1}, ("dropout_p", "from 0 to 1", "-0.1")),
    "NaN dropout": ((Q, K, V), {"dropout_p": float("nan")}, ("dropout_p", "from 0 to 1", "nan")),
    "Boolean bias": ((Q, K, V), {"bias": torch.ones(5, 7).bool()}, ("bias", "floating", "bool", "mask=")),
    "bias of other sizes": ((Q, K, V), {"bias": torch.ones(3, 5, 7)}, ("bias", "Hq=6", "(3, 5, 7)")),
    "bias elsewhere": ((Q, K, V), {"bias": torch.ones(5, 7, device="meta")}, ("bias", "cpu", "meta")),
    "sinks of key heads": ((Q, K, V), {"sinks": torch.ones(3)}, ("sinks", "Hq=6", "(3,)", "Sinks(4)")),
    "float mask": ((Q, K, V, torch.zeros(5, 7)), {}, ("Boolean", "float32", "bias=")),
    "mask of key heads": (
        (Q, K, V, torch.ones(1, 3, 5, 7).bool()), {}, ("mask", "6 query heads", "3"),
    ),
    "mask of other sizes": ((Q, K, V, torch.ones(5, 5).bool()), {}, ("mask", "5, 7", "(5, 5)", "Slice")),
    "mask of another batch": ((Q, K, V, Padding([1, 2, 3])), {}, ("mask", "2 batch", "Padding for 3")),
    "lengths beyond the keys": ((Q, K, V, Padding([1, 8])), {}, ("mask", "at most 7", "length of 8")),
    "no alignment": ((Q, K, V, Causal()), {}, ("mask", "5 queries meet 7 keys", 'align="end"')),
    "mask of a string": ((Q, K, V, "causal"), {}, ("mask", "Causal()", "str")),
    "class of a mask": ((Q, K, V, Causal), {}, ("mask", "the class Causal", "Causal(…)")),
    "query of NumPy": ((Q.numpy(), K, V), {}, ("query", "a NumPy array", "torch.as_tensor")),
    "key of lists": ((Q, K.tolist(), V), {}, ("key", "a list", "torch.as_tensor")),
    "mask of NumPy": ((Q, K, V, np.ones((5, 7), bool)), {}, ("mask", "a NumPy array", "torch.as_tensor")),
    "mask of lists": ((Q, K, V, [[True] * 7] * 5), {}, ("mask", "a list", "torch.as_tensor")),
    "bias of NumPy": ((Q, K, V), {"bias": np.ones((5, 7))}, ("bias", "a NumPy array", "torch.as_tensor")),
    "sinks of a list": ((Q, K, V), {"sinks": [1.0] * 6}, ("sinks", "a list", "torch.as_tensor")),
    "mask of tokens": (
        (Q, K, V, torch.ones(2, 7).bool()), {}, ("mask", "one entry for each token", "Padding(mask.sum(-1))"),
    ),
    "mask of a tokenizer": (
        (Q, K, V, torch.ones(2, 7).long()), {}, ("mask", "one entry for each token", "Padding(mask.sum(-1))"),
    ),
    "one length for two": ((Q, K, V, Padding([3])), {}, ("mask", "2 batch", "Padding for 1")),
    "sparse query": ((Q.to_sparse(), K, V), {}, ("query", "sparse_coo", ".to_dense()")),
    "sparse mask": ((Q, K, V, torch.ones(5, 7).bool().to_sparse()), {}, ("tensor", "sparse_coo", ".to_dense()")),
    "sparse bias": ((Q, K, V), {"bias": torch.ones(5, 7).to_sparse()}, ("bias", "sparse_coo", ".to_dense()")),
    "nested query": (
        (NESTED, K, V), {}, ("query", "nested", "Padding(lengths)"),
    ),
    "jagged value": (
        (Q, K, torch.nested.nested_tensor([V[0], V[1]], layout=torch.jagged)), {}, ("value", "nested", "Documents"),
    ),
    "is_causal": ((Q, K, V), {"is_causal": True}, ("is_causal", "True", "mask=Causal()")),
    "attn_mask": ((Q, K, V), {"attn_mask": torch.ones(5, 7)}, ("attn_mask", "a tensor", "mask=…")),
    "kernel unknown": ((Q, K, V), {"kernel": "fast"}, ("kernel", "'torch_sdpa'", "'fast'")),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_arguments_raise_an_error(name):
    arguments, options, parts = BAD_CALLS[name]
    with pytest.raises(ArgumentError) as caught:
        attention(*arguments, **options)
    message = str(caught.value)
    for part in ("expected", "received", *parts):
        assert part in message


def test_an_argument_of_no_attention_is_a_type_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'causl'"):
        attention(Q, K, V, causl=True)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    "mask", [torch.ones(5, 7).bool(), torch.ones(1, 7).bool(), Padding(7), Padding([7, 7])]
)
def test_masks_that_look_like_those_of_tokens_stay_masks(mask):
    assert torch.equal(attention(Q, K, V, mask), attention(Q, K, V))


@pytest.mark.parametrize("kernel", ["native", "torch_sdpa", "flex"])
@pytest.mark.parametrize("transform", [torch.func.hessian, torch.func.jacfwd])
def test_transforms_that_a_kernel_lacks_are_our_error(kernel, transform):
    query = torch.randn(1, 1, 3, 4)
    with pytest.raises(KernelError, match="reference"):
        transform(lambda x: attention(x, x, x, kernel=kernel).sum())(query)


def test_statistics_refuse_vmap():
    query = torch.randn(2, 1, 1, 3, 4)
    with pytest.raises(ArgumentError, match=re.escape("flatten(0, 1)")):
        torch.vmap(lambda x: summarize(x, x).entropy)(query)


def test_an_argument_error_is_a_value_error_with_its_parts():
    with pytest.raises(ValueError, match="dropout_p") as caught:
        attention(Q, K, V, dropout_p=2.0)
    assert (caught.value.argument, caught.value.received) == ("dropout_p", "2.0")
    assert caught.value.remedy


@pytest.mark.parametrize("p", [0, 1, 0.0, 1.0])
def test_dropout_probabilities_of_zero_and_one_are_allowed(p):
    output = attention(Q, K, V, dropout_p=p, kernel="reference")
    assert output.isfinite().all()
    assert bool((output == 0).all()) == (p == 1)


def test_a_boolean_tensor_is_a_dense_mask():
    shown = torch.rand(2, 1, 5, 7) > 0.5
    assert torch.equal(attention(Q, K, V, shown), attention(Q, K, V, Dense(shown)))
