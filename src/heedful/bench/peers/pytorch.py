"""Attention functions on torch tensors: ours, PyTorch's, and those of x-transformers and zentorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from heedful.bench.peers.contender import Contender
from heedful.bench.workload import WorkloadInputs
from heedful.functional import attention
from heedful.kernels.torch_sdpa import pytorch_sdpa
from heedful.summaries import summarize


def heedful(inputs: WorkloadInputs) -> Contender:
    """Prepare `heedful.attention`."""
    workload = inputs.workload

    def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = attention(query, key, value, inputs.mask, dropout_p=workload.dropout_p)
        assert isinstance(output, Tensor)  # the log-sum-exp is not requested
        return output

    return _with_gradients(ours, inputs)


def summary(inputs: WorkloadInputs) -> Contender:
    """Prepare `heedful.summarize` with a map, the top keys and all that it computes unasked."""
    return Contender(
        lambda: summarize(inputs.query, inputs.key, inputs.mask, top_k=8, pool=512),
        lambda raw: (raw.received_mass, raw.entropy),
    )


def received(inputs: WorkloadInputs) -> Contender:
    """Prepare `heedful.summarize` for the received mass alone."""
    return Contender(
        lambda: summarize(inputs.query, inputs.key, inputs.mask, for_each_query=False),
        lambda raw: (raw.received_mass,),
    )


def sdpa(inputs: WorkloadInputs) -> Contender:
    """Prepare PyTorch's `scaled_dot_product_attention`."""
    workload, mask = inputs.workload, inputs.sdpa_arguments

    def pytorch(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return pytorch_sdpa(
            query,
            key,
            value,
            dropout_p=workload.dropout_p,
            enable_gqa=workload.key_heads != workload.Hq,
            **mask,  # pyright: ignore[reportArgumentType]  # is_causal or attn_mask
        )

    return _with_gradients(pytorch, inputs)


def textbook(inputs: WorkloadInputs) -> Contender:
    """Prepare attention with scores, weights and output as separate tensors."""
    workload = inputs.workload
    visible = None
    if inputs.mask is not None:
        visible = inputs.mask.dense(workload.Tq, workload.keys, batch=workload.B)

    def eager(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT / workload.D**0.5
        if visible is not None:
            scores = scores.masked_fill(~visible, -torch.inf)
        return scores.softmax(dim=-1) @ value

    return _with_gradients(eager, inputs)


def flex(inputs: WorkloadInputs) -> Contender:
    """Prepare compiled FlexAttention. Its block mask is built here, so that building it is not timed."""
    from torch.nn.attention.flex_attention import flex_attention

    workload, compiled = inputs.workload, torch.compile(flex_attention, dynamic=False)
    block_mask = None
    if inputs.mask is not None:
        block_mask = inputs.mask.block_mask(workload.Tq, workload.keys, batch=workload.B)

    def run_compiled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        gqa = workload.key_heads != workload.Hq
        return compiled(query, key, value, block_mask=block_mask, enable_gqa=gqa)

    return _with_gradients(run_compiled, inputs)


def x_transformers(inputs: WorkloadInputs) -> Contender:
    """Prepare the attention of x-transformers."""
    from x_transformers.attend import Attend  # pyright: ignore[reportMissingImports] - an extra

    attend = Attend(causal=inputs.workload.mask == "causal", flash=True).eval()
    return _with_gradients(lambda query, key, value: attend(query, key, value)[0], inputs)


def zentorch(inputs: WorkloadInputs) -> Contender:
    """Prepare the attention operator of AMD's zentorch, which runs on any x86-64 processor."""
    import zentorch  # noqa: F401  # pyright: ignore[reportMissingImports] - an extra, which registers the operator

    attend, causal = torch.ops.zentorch.zentorch_sdpa, inputs.workload.mask == "causal"
    return _with_gradients(
        lambda query, key, value: attend(query, key, value, is_causal=causal)[0], inputs
    )


def _with_gradients(function: Callable[..., Tensor], inputs: WorkloadInputs) -> Contender:
    """Return a contender that computes the output, and the gradients if the workload has a backward pass."""
    tensors = inputs.query, inputs.key, inputs.value

    def forward() -> tuple[Tensor, ...]:
        return (function(*tensors),)

    def forward_and_backward() -> tuple[Tensor, ...]:
        output = function(*tensors)
        return output, *torch.autograd.grad(output, tensors, inputs.grad_output)

    return Contender(forward_and_backward if inputs.workload.backward else forward)
