"""Attention and its gradients in float64 numpy, one query at a time; it shares no code with heedful."""

import math
from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass
class Inputs:
    """A problem in float64 numpy. What is None is absent."""

    query: Array  # (B, Hq, Tq, D)
    key: Array  # (B, Hkv, Tk, D)
    value: Array  # (B, Hkv, Tk, Dv)
    shown: Array  # Boolean, broadcasts to (B, Hq, Tq, Tk)
    bias: Array | None  # broadcasts likewise
    sinks: Array | None  # (Hq,)
    scale: float
    softcap: float | None
    dropout_p: float
    seed: int  # of dropout


def forward(inputs: Inputs) -> dict[str, Array]:
    """Return the output and the log-sum-exp."""
    B, Hq, Tq, _ = inputs.query.shape
    output = np.zeros((B, Hq, Tq, inputs.value.shape[3]))
    lse = np.full((B, Hq, Tq), -math.inf)
    for at in np.ndindex(B, Hq, Tq):
        row = Row(inputs, at)
        output[at] = (row.weights * row.kept) @ row.value
        lse[at] = row.lse
    return {"output": output, "lse": lse}


def dense_weights(inputs: Inputs) -> tuple[Array, Array]:
    """Return the weights (B, Hq, Tq, Tk), before dropout, and the log-sum-exp."""
    B, Hq, Tq, _ = inputs.query.shape
    weights = np.zeros((B, Hq, Tq, inputs.key.shape[2]))
    lse = np.full((B, Hq, Tq), -math.inf)
    for at in np.ndindex(B, Hq, Tq):
        row = Row(inputs, at)
        weights[at][row.keys] = row.weights
        lse[at] = row.lse
    return weights, lse


def backward(inputs: Inputs, grad_output: Array, grad_lse: Array | None) -> dict[str, Array]:
    """Return the gradients of all tensors."""
    B, Hq, Tq, _ = inputs.query.shape
    tensors = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
    grads = {name: np.zeros(tensor.shape) for name, tensor in tensors.items()}
    grads["bias"] = np.zeros((B, Hq, Tq, inputs.key.shape[2]))
    grads["sinks"] = np.zeros(Hq)
    for at in np.ndindex(B, Hq, Tq):
        row = Row(inputs, at)
        if row.lse == -math.inf:
            continue
        b, h, _ = at
        keys = (b, row.head, row.keys)
        grad_weights = (row.value @ grad_output[at]) * row.kept
        shift = (0.0 if grad_lse is None else grad_lse[at]) - row.weights @ grad_weights
        grad_scores = row.weights * (grad_weights + shift)
        grad_products = grad_scores * row.slope * inputs.scale
        grads["value"][keys] += np.outer(row.weights * row.kept, grad_output[at])
        grads["query"][at] = grad_products @ row.key
        grads["key"][keys] += np.outer(grad_products, inputs.query[at])
        grads["bias"][at][row.keys] = grad_scores
        grads["sinks"][h] += row.sink_weight * shift
    if inputs.bias is not None:
        grads["bias"] = _summed_to(grads["bias"], inputs.bias.shape)
    return grads


def _summed_to(array: Array, shape: tuple[int, ...]) -> Array:
    """Return the sum over the dimensions along which `shape` was broadcast."""
    array = array.sum(axis=tuple(range(array.ndim - len(shape))))
    shared = tuple(axis for axis, n in enumerate(shape) if n == 1)
    return array.sum(axis=shared, keepdims=True)


class Row:
    """One query: the keys that it sees, and its weights for them."""

    def __init__(self, inputs: Inputs, at: tuple[int, int, int]) -> None:
        b, h, _ = at
        B, Hq, Tq, _ = inputs.query.shape
        _, Hkv, Tk, _ = inputs.key.shape
        self.head = h // (Hq // Hkv)
        self.keys = np.flatnonzero(np.broadcast_to(inputs.shown, (B, Hq, Tq, Tk))[at])
        self.key = inputs.key[b, self.head, self.keys]
        self.value = inputs.value[b, self.head, self.keys]

        scores = inputs.scale * (self.key @ inputs.query[at])
        self.slope = np.ones(len(scores))  # the derivative of the soft-cap
        if inputs.softcap is not None:
            capped = np.tanh(scores / inputs.softcap)
            scores, self.slope = inputs.softcap * capped, 1 - capped**2
        if inputs.bias is not None:
            scores = scores + np.broadcast_to(inputs.bias, (B, Hq, Tq, Tk))[at][self.keys]

        sink = -math.inf if inputs.sinks is None else inputs.sinks[h]
        highest = max([sink, *scores])
        if highest == -math.inf:  # nothing is seen
            self.lse, self.sink_weight = -math.inf, 0.0
            self.weights = np.zeros(len(scores))
        else:
            total = math.exp(sink - highest) + np.exp(scores - highest).sum()
            self.lse = highest + math.log(total)
            self.weights = np.exp(scores - highest) / total
            self.sink_weight = math.exp(sink - highest) / total

        self.kept = np.ones(len(scores))  # what dropout multiplies the weights by
        if inputs.dropout_p > 0:
            kept = _survives(inputs.seed, inputs.dropout_p, at, self.keys)
            self.kept = kept / (1 - inputs.dropout_p) if inputs.dropout_p < 1 else kept * 0.0


def _survives(seed: int, p: float, at: tuple[int, int, int], keys: Array) -> Array:
    """Return which weights dropout keeps: two words of the row, mixed with the key in 32-bit arithmetic."""
    first, second = seed % 2**32, seed >> 32
    for index in at:
        first, second = (_mix(index + word + 0x9E3779B9) for word in (first, second))
    word = (keys.astype(np.uint64) * 0x9E3779B9 + first) % 2**32
    word = (word ^ word >> 16) * 0x7FEB352D % 2**32 ^ second
    word = (word ^ word >> 15) * 0x846CA68B % 2**32
    return (word ^ word >> 16) >= round(p * 2**32)


def _mix(word: int) -> int:
    word %= 2**32
    word = (word ^ word >> 16) * 0x7FEB352D % 2**32
    word = (word ^ word >> 15) * 0x846CA68B % 2**32
    return word ^ word >> 16
