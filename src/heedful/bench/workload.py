"""Workloads: the attention or model that all contenders of a case compute, and its input tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from heedful.dispatch import explain
from heedful.masks import Causal, Mask, Padding, Window
from heedful.problem import AttentionProblem

SEED: int = 0
DTYPES: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}

WINDOW: int = 256
MIN_LENGTH: int = 64  # of the sequences in a padded batch
MAX_QUICK_TOKENS: int = 128

GPT2: str = "GPT-2 small"
SMOLLM2: str = "SmolLM2-135M"
MINILM: str = "MiniLM-L6"
BERT: str = "BERT-base"
T5: str = "T5-small"
ENCODER: str = "nn.TransformerEncoder"
TINY_LLAMA: str = "a tiny Llama"
MAX_QUICK_MODEL_TOKENS: int = 32


@dataclass(frozen=True)
class AttentionWorkload:
    """One attention.

    Attributes:
        B: The batch size.
        Hq: The number of query heads.
        Tq: The number of queries.
        D: The head size.
        Hkv: The number of key/value heads. 0: the same as `Hq`.
        Tk: The number of keys. 0: the same as `Tq`.
        mask: "full", "causal", "window" (causal, limited to the newest `WINDOW` keys) or "padding" (lengths from
            `MIN_LENGTH` to `Tk`).
        dropout_p: The dropout probability.
        backward: Whether the gradients of query, key and value are computed too.
        dtype: A key of `DTYPES`.
    """

    B: int
    Hq: int
    Tq: int
    D: int
    Hkv: int = 0
    Tk: int = 0
    mask: Literal["full", "causal", "window", "padding"] = "full"
    dropout_p: float = 0.0
    backward: bool = False
    dtype: str = "fp32"

    @property
    def key_heads(self) -> int:
        """The number of key/value heads."""
        return self.Hkv or self.Hq

    @property
    def keys(self) -> int:
        """The number of keys."""
        return self.Tk or self.Tq

    def quick(self) -> AttentionWorkload:
        """Return a small workload of the same kind."""
        return replace(
            self,
            B=min(self.B, 2),
            Tq=min(self.Tq, MAX_QUICK_TOKENS),
            Tk=self.Tk and min(self.Tk, MAX_QUICK_TOKENS),
        )

    def build_mask(self) -> Mask | None:
        """Return the mask, or None if every query sees every key."""
        if self.mask == "padding":
            shortest = min(MIN_LENGTH, self.keys)
            return Padding(torch.linspace(shortest, self.keys, self.B).long())
        return {"full": None, "causal": Causal(), "window": Causal() & Window(WINDOW)}[self.mask]

    def __str__(self) -> str:
        heads = f"{self.Hq}" if self.Hq == self.key_heads else f"{self.Hq} on {self.key_heads}"
        tokens = f"{self.Tq}" if self.Tq == self.keys else f"{self.Tq} on {self.keys}"
        shape = f"batch {self.B}, heads {heads}, tokens {tokens}, head size {self.D}"
        dropout = f", dropout {self.dropout_p}" if self.dropout_p else ""
        return f"{self.mask} {shape}{dropout}{', with gradients' if self.backward else ''}"


@dataclass(frozen=True)
class ModelWorkload:
    """A task of a whole model.

    Attributes:
        model: The model's name. All but `SMOLLM2` and `MINILM` have random weights.
        work: "forward" (language models compute the last token's logits only), "generate" or "train".
        B: The number of sequences.
        T: The number of tokens in each sequence.
        generated: The number of tokens to generate.
        padded: Whether the sequences contain T/4 to T real tokens. Language models are padded on the left.
        dropout: Whether the model drops what its own settings say. Without it, nothing is dropped.
        dtype: A key of `DTYPES`.
        tiny: Whether a model with random weights is small.
    """

    model: str
    work: Literal["forward", "generate", "train"]
    B: int
    T: int
    generated: int = 0
    padded: bool = False
    dropout: bool = False
    dtype: str = "fp32"
    tiny: bool = False

    def quick(self) -> ModelWorkload:
        """Return the same task of a tiny model on a few tokens."""
        return replace(
            self,
            model=self.model if self.model in (BERT, T5, ENCODER) else TINY_LLAMA,
            tiny=True,
            T=min(self.T, MAX_QUICK_MODEL_TOKENS),
            generated=min(self.generated, 3),
            B=2,
        )

    def __str__(self) -> str:
        work = {
            "forward": "forward pass",
            "generate": f"{self.generated} tokens generated after a forward pass",
            "train": "forward and backward pass",
        }[self.work]
        padded = f", {self.T // 4} to {self.T} of them real" if self.padded else ""
        dropout = ", dropout" if self.dropout else ""
        return f"{self.model}, {work}: batch {self.B}, tokens {self.T}{padded}{dropout}"


@dataclass(frozen=True, eq=False)
class WorkloadInputs:
    """The input tensors of an attention workload.

    Attributes:
        workload: The workload.
        query: (B, Hq, Tq, D). Query, key and value require gradients if the workload has a backward pass.
        key: (B, Hkv, Tk, D).
        value: (B, Hkv, Tk, D).
        grad_output: (B, Hq, Tq, D), the gradient that the backward pass starts from.
        mask: The mask, or None.
    """

    workload: AttentionWorkload
    query: Tensor
    key: Tensor
    value: Tensor
    grad_output: Tensor
    mask: Mask | None

    @property
    def sdpa_arguments(self) -> dict[str, Tensor | bool]:
        """The mask as arguments of PyTorch's `scaled_dot_product_attention`."""
        if self.mask is None:
            return {}
        workload = self.workload
        arguments = self.mask.sdpa_arguments(workload.Tq, workload.keys, batch=workload.B)
        return {
            name: argument.clone() if isinstance(argument, Tensor) else argument
            for name, argument in arguments.items()
        }

    @property
    def kernel(self) -> str:
        """The name of the kernel that `heedful.attention` chooses."""
        tensors = self.query, self.key, self.value
        return explain(*tensors, self.mask, dropout_p=self.workload.dropout_p).kernel

    @property
    def flops(self) -> int:
        """The floating-point operations that the forward pass needs for the visible pairs of query and key."""
        problem = AttentionProblem(self.query, self.key, self.value, self.mask)
        assert problem.pairs is not None  # the mask has values
        return 4 * self.workload.D * problem.pairs

    @property
    def bytes_read(self) -> int:
        """The bytes of key and value, which must be read at least once."""
        return (self.key.numel() + self.value.numel()) * self.key.element_size()


def make_inputs(workload: AttentionWorkload) -> WorkloadInputs:
    """Draw normally distributed inputs from a fixed seed, so that they are the same in every process."""
    dtype = DTYPES[workload.dtype]
    generator = torch.Generator().manual_seed(SEED)

    def normal(heads: int, tokens: int) -> Tensor:
        shape = workload.B, heads, tokens, workload.D
        return torch.randn(shape, generator=generator).to(dtype)

    query, grad_output = (normal(workload.Hq, workload.Tq) for _ in range(2))
    key, value = (normal(workload.key_heads, workload.keys) for _ in range(2))
    for tensor in (query, key, value):
        tensor.requires_grad_(workload.backward)
    return WorkloadInputs(workload, query, key, value, grad_output, workload.build_mask())
