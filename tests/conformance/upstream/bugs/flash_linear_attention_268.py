"""Linear attention with a normalized output, and with a state for generation."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


def normalize_output(
    q: torch.Tensor, k: torch.Tensor, o: torch.Tensor, cum_k: Optional[torch.Tensor] = None
) -> torch.Tensor:
    """
    Divide the output by the sum of the weights.

    Args:
        q: queries of shape `[B, T, H, K]`
        k: keys of shape `[B, T, H, K]`
        o: outputs of shape `[B, T, H, V]`
        cum_k: sum of the keys before the first of `k`, of shape `[B, H, K]`
    """
    k = k.cumsum(1)
    if cum_k is not None:
        k = k + cum_k[:, None]
    z = (q * k).sum(-1, keepdim=True)
    return o / (z + 1e-10)


def fused_recurrent_linear_attn(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: Optional[float] = None,
    initial_state: Optional[tuple[torch.Tensor, torch.Tensor]] = None,
    normalize: bool = False,
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """
    Args:
        q: queries of shape `[B, T, H, K]`
        k: keys of shape `[B, T, H, K]`
        v: values of shape `[B, T, H, V]`
        scale: factor of the queries; `1 / sqrt(K)` by default
        initial_state: the sums over the tokens before: of the products of keys and values, and of the keys
        normalize: whether to divide by the sum of the weights
    """
    if scale is None:
        scale = k.shape[-1] ** -0.5
    B, T, H, K = k.shape
    if initial_state is None:
        initial_state = (v.new_zeros(B, H, K, v.shape[-1]), k.new_zeros(B, H, K))
    h, cum_k = initial_state
    o = []
    for t in range(T):
        h = h + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        o.append(torch.einsum("bhk,bhkv->bhv", q[:, t] * scale, h))
    o = torch.stack(o, dim=1)
    if normalize:
        # before
        o = normalize_output(q * scale, k, o)
        # after
        o = normalize_output(q * scale, k, o, cum_k)
        # end
    return o, (h, cum_k + k.sum(1))


class LinearAttention(nn.Module):
    """
    Args:
        hidden_size: size of a token
        num_heads: number of heads
        expand_k: size of all keys of a token, in sizes of a token
        expand_v: size of all values of a token, in sizes of a token
        output_norm: `identity` or `rmsnorm`, before the output projection
        do_feature_map_norm: whether the output is divided by the sum of the weights
    """

    def __init__(
        self,
        hidden_size: int = 1024,
        num_heads: int = 8,
        expand_k: float = 1.0,
        expand_v: float = 1.0,
        output_norm: str = "identity",
        do_feature_map_norm: bool = True,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.do_feature_map_norm = do_feature_map_norm
        key_dim = int(hidden_size * expand_k)
        value_dim = int(hidden_size * expand_v)
        assert key_dim % num_heads == 0, f"key dim must be divisible by num_heads of {num_heads}"
        assert value_dim % num_heads == 0, (
            f"value dim must be divisible by num_heads of {num_heads}"
        )

        self.q_proj = nn.Linear(hidden_size, key_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, key_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, value_dim, bias=False)
        if output_norm == "rmsnorm":
            self.norm = nn.RMSNorm(value_dim // num_heads)
        elif output_norm == "identity":
            self.norm = nn.Identity()
        else:
            raise NotImplementedError(f"Not supported output norm `{output_norm}`.")
        self.o_proj = nn.Linear(value_dim, hidden_size, bias=False)

    def feature_map(self, x: torch.Tensor) -> torch.Tensor:
        return F.elu(x) + 1

    def forward(
        self,
        hidden_states: torch.Tensor,
        past_key_values: Optional[tuple[torch.Tensor, torch.Tensor]] = None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        q = self.feature_map(self.q_proj(hidden_states).unflatten(-1, (self.num_heads, -1)))
        k = self.feature_map(self.k_proj(hidden_states).unflatten(-1, (self.num_heads, -1)))
        v = self.v_proj(hidden_states).unflatten(-1, (self.num_heads, -1))
        o, past_key_values = fused_recurrent_linear_attn(
            q, k, v, initial_state=past_key_values, normalize=self.do_feature_map_norm
        )
        o = self.norm(o).flatten(-2)
        return self.o_proj(o), past_key_values
