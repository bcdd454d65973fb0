"""The configuration of a GPT: every size and choice that its weights depend on."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from heedful.errors import ArgumentError
from heedful.textbook.checks import check_dropout, check_sizes

CHOICES: dict[str, tuple[str, ...]] = {
    "positions": ("learned", "rotary"),
    "norm": ("layer", "rms"),
    "activation": ("gelu", "gelu_tanh", "swiglu"),
}


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """The shape of a `GPT`: GPT-2's family, Llama's, or a mixture of both.

    The defaults are GPT-2's; the comments beside the fields explain them.

    Raises:
        ArgumentError: a size is below 1, the heads do not divide the features, or a choice is unknown.

    Examples:
        >>> config = GPTConfig(d_model=96, num_heads=6)
        >>> config.num_kv_heads, config.head_dim, config.d_mlp
        (6, 16, 384)
    """

    vocab_size: int = 50_257  # byte pairs and the end of a text
    context_length: int = 1024  # maximum number of tokens in training, and of learned positions
    d_model: int = 768  # features of a token between blocks
    num_layers: int = 12
    num_heads: int = 12
    num_kv_heads: int = 0  # 0: num_heads; fewer make caches smaller (grouped-query attention)
    head_dim: int = 0  # 0: d_model / num_heads
    d_mlp: int = 0  # 0: 4 d_model, or 8/3 d_model with SwiGLU, whose third matrix adds the rest
    positions: str = "learned"  # one embedding each; "rotary": queries and keys are rotated
    rotary_base: float = 10_000.0  # a longer context needs slower angles, hence a larger base
    norm: str = "layer"  # LayerNorm; "rms": RMSNorm, cheaper, without mean and bias
    norm_eps: float = 1e-5  # keeps the norm of a zero vector finite
    activation: str = "gelu_tanh"  # GPT-2's approximation; "gelu": exact; "swiglu": gated (Llama)
    bias: bool = True  # of linear layers and LayerNorm; Llama has none
    tied: bool = True  # embedding and head share a matrix, which saves a third of GPT-2's weights
    window: int | None = None  # newest tokens that each token sees (Mistral); None: all before it
    dropout: float = 0.0  # of embeddings, attention weights and residuals, for several epochs
    kernel: str = "auto"  # the attention kernel, as `heedful.attention` takes it

    @classmethod
    def gpt2(cls, **changes: Any) -> GPTConfig:
        """Return the shape of the smallest GPT-2, with 124 million parameters (Radford et al. 2019, Table 2).

        Args:
            changes: other values, by field name.

        Examples:
            >>> GPTConfig.gpt2(num_layers=2).d_model
            768
        """
        return cls(**{"dropout": 0.1, **changes})

    @classmethod
    def llama(cls, **changes: Any) -> GPTConfig:
        """Return the shape of Llama's family (Touvron et al. 2023, section 2.2) in the size of SmolLM2-135M.

        Args:
            changes: other values, by field name.

        Examples:
            >>> GPTConfig.llama(d_model=96, num_heads=6, num_kv_heads=2).head_dim
            16
        """
        smollm2: dict[str, Any] = {
            "vocab_size": 49_152,
            "context_length": 8192,
            "d_model": 576,
            "num_layers": 30,
            "num_heads": 9,
            "num_kv_heads": 3,
            "rotary_base": 100_000.0,
        }
        family = {"positions": "rotary", "norm": "rms", "activation": "swiglu", "bias": False}
        return cls(**smollm2 | family | changes)

    def __post_init__(self) -> None:
        check_sizes(d_model=self.d_model, num_heads=self.num_heads)
        self._fill_in("num_kv_heads", self.num_heads)
        self._fill_in("head_dim", self._head_dim())
        self._fill_in("d_mlp", self._d_mlp())
        self._check()

    def _fill_in(self, name: str, size: int) -> None:
        if getattr(self, name) == 0:
            object.__setattr__(self, name, size)

    def _head_dim(self) -> int:
        if self.head_dim == 0 and self.d_model % self.num_heads:
            raise ArgumentError(
                "d_model",
                expected=f"a multiple of num_heads={self.num_heads}",
                received=repr(self.d_model),
                remedy="Or pass head_dim, which makes d_model independent of the heads.",
            )
        return self.d_model // self.num_heads

    def _d_mlp(self) -> int:
        if self.activation == "swiglu":
            return -(-8 * self.d_model // (3 * 64)) * 64  # rounded up to a multiple of 64
        return 4 * self.d_model

    def _check(self) -> None:
        names = ("vocab_size", "context_length", "num_layers", "num_kv_heads", "head_dim", "d_mlp")
        check_sizes(**{name: getattr(self, name) for name in names})
        if self.window is not None:
            check_sizes(window=self.window)
        check_dropout(self.dropout)
        for name in ("rotary_base", "norm_eps"):
            object.__setattr__(self, name, _positive(name, getattr(self, name)))
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ArgumentError(
                    name,
                    expected=" or ".join(map(repr, choices)),
                    received=repr(getattr(self, name)),
                    remedy="GPTConfig.gpt2() and GPTConfig.llama() show the choices of two families.",
                )
        if self.num_heads % self.num_kv_heads:
            raise ArgumentError(
                "num_kv_heads",
                expected=f"a divisor of num_heads={self.num_heads}",
                received=repr(self.num_kv_heads),
                remedy="Each key/value head serves a group of query heads, and all groups have the same size.",
            )
        if self.positions == "rotary" and self.head_dim % 2:
            raise ArgumentError(
                "head_dim",
                expected="an even number, because rotary positions rotate pairs of features",
                received=repr(self.head_dim),
                remedy='Choose another head_dim, or positions="learned".',
            )


def _positive(name: str, number: float) -> float:
    """Return a number as a float: torch computes with no larger integer than 2**63 − 1."""
    if not isinstance(number, int | float) or not 0 < number <= sys.float_info.max:
        raise ArgumentError(
            name,
            expected="a finite number above 0",
            received=repr(number),
            remedy="The default is GPT-2's value.",
        )
    return float(number)
