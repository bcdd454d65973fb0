"""Self-attention calls, computed in one process and on many ranks, for comparison."""

from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from hypothesis import assume
from hypothesis import strategies as st

from heedful import attention
from heedful.masks import Mask
from heedful.parallel import (
    balanced_order,
    contiguous_order,
    count_traffic,
    shard,
    simulate,
    unshard,
)
from strategies import masks

SHARDED = ("query", "key", "value")


@dataclass
class SelfAttention:
    """A call whose queries and keys are the same tokens, and the gradients of its results."""

    tensors: dict[str, torch.Tensor]
    grad_output: torch.Tensor
    grad_lse: torch.Tensor
    mask: Mask | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self):
        return self.tensors["query"].shape[2]

    def rows_are_sharded(self, name):
        tensor = self.tensors[name]
        return name in SHARDED or (name == "bias" and tensor.dim() > 1 and tensor.shape[-2] > 1)

    def loss(self, result, grad_output, grad_lse):
        lse = result.lse.masked_fill(result.lse == -torch.inf, 0.0)
        return (result.output * grad_output).sum() + (lse * grad_lse).sum()

    def to(self, dtype):
        tensors = {name: tensor.to(dtype) for name, tensor in self.tensors.items()}
        return SelfAttention(
            tensors, self.grad_output.to(dtype), self.grad_lse.to(dtype), self.mask, self.options
        )


def make_call(B, Hq, Hkv, T, D, Dv, mask=None, *, bias=None, sinks=False, seed=0, **options):
    """Return a call with random numbers; `bias` is the shape of one."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    tensors = {
        "query": random(B, Hq, T, D),
        "key": random(B, Hkv, T, D),
        "value": random(B, Hkv, T, Dv),
    }
    if bias is not None:
        tensors["bias"] = random(*bias)
    if sinks:
        tensors["sinks"] = random(Hq)
    return SelfAttention(tensors, random(B, Hq, T, Dv), random(B, Hq, T), mask, options)


@st.composite
def self_attention(draw, *, max_tokens=24, dense=False):
    """Draw a call with any mask and option."""
    B, Hkv, group = (draw(st.integers(1, 3)) for _ in range(3))
    T = draw(st.integers(1, max_tokens))
    mask = draw(st.none() | masks(B, Hkv * group, T, T, dense=dense))
    if not dense:
        assume(mask is None or mask.intervals(T, batch=B) is not None)
    options = {}
    if draw(st.booleans()):
        options["dropout_p"] = draw(st.sampled_from([0.3, 0.8, 1.0]))
    if draw(st.booleans()):
        options["softcap"] = draw(st.floats(0.5, 20.0))
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([0.0, -0.4, 1.5]))
    bias = None
    if draw(st.booleans()):
        bias = draw(st.tuples(*(st.sampled_from([1, n]) for n in (B, Hkv * group, T, T))))
        bias = bias[draw(st.integers(0, 3)) :]
    sizes = B, Hkv * group, Hkv, T, draw(st.integers(1, 8)), draw(st.integers(1, 8))
    seed = draw(st.integers(0, 2**31))
    return make_call(*sizes, mask, bias=bias, sinks=draw(st.booleans()), seed=seed, **options)


def same_seed():
    """Make every process and rank draw one seed, as their generators would if they were seeded alike."""
    seed = torch.tensor(2**61 + 12345)
    return mock.patch.multiple("heedful.dropout", draw_seed=lambda: seed), mock.patch.multiple(
        "heedful.parallel.arguments", draw_seed=lambda: seed
    )


def in_one_process(call, **options):
    """Return output, log-sum-exp and gradients of `attention`."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in call.tensors.items()}
    with same_seed()[0]:
        result = attention(mask=call.mask, return_lse=True, **leaves, **call.options, **options)
    loss = call.loss(result, call.grad_output, call.grad_lse)
    gradients = torch.autograd.grad(loss, tuple(leaves.values()))
    names = (f"gradient of {name}" for name in leaves)
    found = {"output": result.output, "lse": result.lse}
    return found | dict(zip(names, gradients, strict=True))


def of_one_rank(call, function, group, order, **options):
    """Return the same of this rank's part of the call, whole again."""
    leaves = {
        name: (shard(tensor, group, order) if call.rows_are_sharded(name) else tensor.clone())
        for name, tensor in call.tensors.items()
    }
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in leaves.items()}
    result = function(
        *(leaves[name] for name in SHARDED),
        call.mask,
        **{name: leaf for name, leaf in leaves.items() if name not in SHARDED},
        group=group,
        order=order,
        return_lse=True,
        **call.options,
        **options,
    )
    loss = call.loss(
        result,
        shard(call.grad_output, group, order),
        shard(call.grad_lse, group, order, dim=-1),
    )
    gradients = torch.autograd.grad(loss, tuple(leaves.values()))
    found = {
        "output": unshard(result.output.detach(), group, order),
        "lse": unshard(result.lse.detach(), group, order, dim=-1),
    }
    for name, gradient in zip(leaves, gradients, strict=True):
        if call.rows_are_sharded(name):
            gradient = unshard(gradient, group, order)
        else:  # each rank has a share
            each = contiguous_order(order.ranks, order.ranks)
            gradient = unshard(gradient.unsqueeze(0), group, each, dim=0).sum(dim=0)
        found[f"gradient of {name}"] = gradient
    return found


def on_ranks(call, function, *sizes, order=None, **options):
    """Return the same from simulated ranks, after checking that all ranks found the same."""
    order = order or order_of(call, torch.tensor(sizes).prod().item())
    with same_seed()[1]:
        results = simulate(
            lambda group: of_one_rank(call, function, group, order, **options), *sizes
        )
    for result in results[1:]:
        for name, tensor in result.items():
            assert torch.equal(tensor, results[0][name]), name
    return results[0]


def order_of(call, ranks):
    """Return the balanced order of a call's mask, or runs of tokens if it is dense."""
    B = call.tensors["query"].shape[0]
    if call.mask is not None and call.mask.intervals(call.tokens, batch=B) is None:
        return contiguous_order(call.tokens, ranks)
    return balanced_order(call.mask, call.tokens, ranks, batch=B)


def assert_equal(found, expected, atol):
    """Compare results and gradients, each by its largest number."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        finite = tensor[tensor.isfinite()]
        size = max(1.0, finite.abs().max().item() if finite.numel() else 0.0)
        torch.testing.assert_close(
            found[name],
            tensor,
            rtol=0,
            atol=atol * size,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def bytes_sent(call, function, order, *sizes):
    """Return how many bytes every rank sends forward, and how many backward."""

    def run(group):
        mine = [shard(call.tensors[name], group, order).requires_grad_() for name in SHARDED]
        with count_traffic() as traffic:
            output = function(*mine, call.mask, group=group, order=order)
            forward = traffic.bytes
            output.sum().backward()
        return forward, traffic.bytes - forward

    return simulate(run, *sizes)
