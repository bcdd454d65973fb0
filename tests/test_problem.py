"""Arguments that do not fit raise an error that states expected, received and remedy."""

import pytest
import torch

from heedful import ArgumentError, Causal, Dense, Padding, attention

Q, K, V = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 4)
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
