"""Small calls that are made again: the sizes and options are taken from the call before, everything else is not."""

import itertools
import warnings

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import heedful
from heedful import Band, Causal, Dense, Padding, Sinks, Window, attention

DROP_IN = heedful.scaled_dot_product_attention
MASKS = {
    "none": None,
    "causal": Causal(align="end"),
    "window": Causal(align="end") & Window(3, align="end"),
    "sinks": Sinks(1) | Window(2, align="end"),
    "band": Band(2, 1, align="start"),
}


def draw(Tq=2, Tk=6, *, Hkv=2, dtype=torch.float32):
    """Return a query, key and value."""
    return torch.randn(3, 4, Tq, 8).to(dtype), *torch.randn(2, 3, Hkv, Tk, 8).to(dtype)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("Tq", [1, 8])
def test_each_repetition_computes_with_its_own_tensors(mask, dtype, Tq):
    for _ in range(4):
        tensors = draw(Tq, 9, dtype=dtype)
        expected = attention(*(tensor.double() for tensor in tensors), mask, kernel="reference")
        torch.testing.assert_close(
            attention(*tensors, mask).double(), expected, rtol=2e-2, atol=2e-2
        )


def test_calls_that_differ_in_anything_are_told_apart():
    tensors = draw(Hkv=4)
    transposed = [tensor.mT.contiguous().mT for tensor in tensors]
    query, key, value = (tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in tensors)
    large = [1e30 * tensors[0], 1e30 * tensors[1], tensors[2]]
    lengths = torch.tensor([6, 1, 6])
    padding = Padding(lengths)

    def pad(length, **options):
        lengths[0] = length
        return attention(*tensors, padding, **options)

    calls = {
        "plain": lambda **options: attention(*tensors, **options),
        "mask": lambda **options: attention(*tensors, Causal(align="end"), **options),
        "start": lambda **options: attention(*tensors, Causal(align="start"), **options),
        "dense": lambda **options: attention(*tensors, Dense(torch.eye(2, 6).bool()), **options),
        "scale": lambda **options: attention(*tensors, scale=0.7, **options),
        "scale 0": lambda **options: attention(*tensors, scale=0.0, **options),
        "softcap": lambda **options: attention(*tensors, softcap=0.3, **options),
        "bias": lambda **options: attention(*tensors, bias=torch.arange(6.0), **options),
        "sinks": lambda **options: attention(*tensors, sinks=torch.ones(4), **options),
        "transposed": lambda **options: attention(*transposed, **options),
        "query by token": lambda **options: attention(query, *tensors[1:], **options),
        "key by token": lambda **options: attention(tensors[0], key, tensors[2], **options),
        "value by token": lambda **options: attention(*tensors[:2], value, **options),
        "large": lambda **options: attention(*large, scale=0.0, **options),
        "6 tokens": lambda **options: pad(6, **options),
        "2 tokens": lambda **options: pad(2, **options),
    }
    expected = {name: call(kernel="reference") for name, call in calls.items()}
    for first, second in itertools.product(calls, calls):
        for name in (first, first, first, second):
            torch.testing.assert_close(
                calls[name](), expected[name], msg=lambda text, name=name: f"{name}: {text}"
            )


def test_a_repetition_has_gradients_if_they_are_wanted():
    tensors = draw()
    for _ in range(3):
        attention(*tensors)
    for tensor in tensors:
        gradient = tensor.clone().requires_grad_()
        others = [gradient if other is tensor else other for other in tensors]
        attention(*others).sum().backward()
        assert gradient.grad is not None
    with torch.no_grad():
        assert not attention(gradient, *tensors[1:]).requires_grad


class Calls(TorchDispatchMode):
    """Collects the names of the operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_modes_and_transforms_see_a_repetition():
    tensors = draw()
    for _ in range(3):
        attention(*tensors)
    with Calls() as calls:
        attention(*tensors)
    assert "heedful.attention_forward.default" in calls.names
    stacked = [torch.stack([tensor, -tensor]) for tensor in tensors]
    expected = attention(*(tensor[1] for tensor in stacked), kernel="reference")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch's kernel has no batching rule
        torch.testing.assert_close(torch.vmap(attention)(*stacked)[1], expected)


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_drop_in_repeats_with_pytorchs_alignment(is_causal):
    for _ in range(4):
        tensors = draw(Hkv=4)
        expected = F.scaled_dot_product_attention(*tensors, is_causal=is_causal)
        torch.testing.assert_close(DROP_IN(*tensors, is_causal=is_causal), expected)


def test_the_drop_in_raises_pytorchs_errors_after_calls_of_attention():
    tensors = draw()
    for _ in range(3):
        attention(*tensors)
        DROP_IN(*tensors, enable_gqa=True)
    with pytest.raises(RuntimeError):
        DROP_IN(*tensors)
    for options in ({"dropout_p": None}, {"is_causal": 1.0}, {"scale": "1"}):
        with pytest.raises(TypeError):
            DROP_IN(*tensors, enable_gqa=True, **options)
