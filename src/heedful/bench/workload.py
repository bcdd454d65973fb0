"""One attention as data: sizes, mask, what is computed; and the tensors to compute it on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from heedful.masks import Causal, Mask, Padding, Window
from heedful.problem import AttentionProblem

WINDOW = 256
SHORTEST = 64  # of the padded batch's lengths
QUICK = 128  # tokens, at most, where only the machinery is tried
SEED = 0

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Setting:
    """What every contender of a case computes.

    Attributes:
        B, Hq, Tq, D: batch entries, query heads, queries, head size.
        Hkv, Tk: key/value heads and keys; 0: as many as query heads and queries.
        mask: "full", "causal", "window" (causal, the `WINDOW` newest keys) or "padding" (lengths from
            `SHORTEST` to Tk).
        dropout_p: the probability of dropping a weight.
        backward: whether the gradients of query, key and value are computed too.
        dtype: a key of `DTYPES`.
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
        return self.Hkv or self.Hq

    @property
    def keys(self) -> int:
        return self.Tk or self.Tq

    def quick(self) -> Setting:
        """The same, small."""
        return replace(
            self, B=min(self.B, 2), Tq=min(self.Tq, QUICK), Tk=self.Tk and min(self.Tk, QUICK)
        )

    def build_mask(self) -> Mask | None:
        """The mask as a value; None: every query sees every key."""
        if self.mask == "padding":
            shortest = min(SHORTEST, self.keys)
            return Padding(torch.linspace(shortest, self.keys, self.B).long())
        return {"full": None, "causal": Causal(), "window": Causal() & Window(WINDOW)}[self.mask]

    def __str__(self) -> str:
        heads = f"{self.Hq}" if self.Hq == self.key_heads else f"{self.Hq} on {self.key_heads}"
        tokens = f"{self.Tq}" if self.Tq == self.keys else f"{self.Tq} on {self.keys}"
        shape = f"batch {self.B}, heads {heads}, tokens {tokens}, head size {self.D}"
        dropout = f", dropout {self.dropout_p}" if self.dropout_p else ""
        return f"{self.mask} {shape}{dropout}{', with gradients' if self.backward else ''}"


@dataclass(frozen=True, eq=False)
class Inputs:
    """A setting's tensors, the same in every process.

    Attributes:
        setting: what they are for.
        query, key, value: (B, Hq, Tq, D), (B, Hkv, Tk, D) twice; they require gradients where those are wanted.
        grad_output: (B, Hq, Tq, D), what the backward pass starts from.
        mask: the mask as a value.
    """

    setting: Setting
    query: Tensor
    key: Tensor
    value: Tensor
    grad_output: Tensor
    mask: Mask | None

    @property
    def sdpa_arguments(self) -> dict[str, Tensor | bool]:
        """The mask as PyTorch's SDPA takes it."""
        if self.mask is None:
            return {}
        setting = self.setting
        arguments = self.mask.sdpa_arguments(setting.Tq, setting.keys, batch=setting.B)
        return {
            name: it.clone() if isinstance(it, Tensor) else it for name, it in arguments.items()
        }

    @property
    def flops(self) -> int:
        """Floating-point operations that the pairs of queries and keys that see each other need, forward."""
        return (
            4 * self.setting.D * AttentionProblem(self.query, self.key, self.value, self.mask).pairs
        )

    @property
    def bytes_read(self) -> int:
        """Key and value: what must be read once, if nothing is read twice."""
        return (self.key.numel() + self.value.numel()) * self.key.element_size()


def make(setting: Setting) -> Inputs:
    """Normal random tensors, drawn from a seed; torch's own random state stays as it is."""
    dtype = DTYPES[setting.dtype]
    draws = torch.Generator().manual_seed(SEED)

    def normal(heads: int, tokens: int) -> Tensor:
        return torch.randn(setting.B, heads, tokens, setting.D, generator=draws).to(dtype)

    query, grad_output = (normal(setting.Hq, setting.Tq) for _ in range(2))
    key, value = (normal(setting.key_heads, setting.keys) for _ in range(2))
    for tensor in (query, key, value):
        tensor.requires_grad_(setting.backward)
    return Inputs(setting, query, key, value, grad_output, setting.build_mask())
