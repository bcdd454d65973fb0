"""Planning for autonomous driving by diffusion: the transformer over the trajectories of ego and neighbors."""

import torch
import torch.nn as nn


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Mlp(nn.Module):
    def __init__(self, in_features, hidden_features, drop=0.0):
        super().__init__()
        self.fc1 = nn.Linear(in_features, hidden_features)
        self.act = nn.GELU(approximate="tanh")
        self.fc2 = nn.Linear(hidden_features, in_features)
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class DiTBlock(nn.Module):
    """
    A DiT block with adaptive layer norm for the condition, and cross-attention to the encoded scene.
    """

    def __init__(self, dim=192, heads=6, dropout=0.1, mlp_ratio=4.0):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, dropout, batch_first=True)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp1 = Mlp(dim, int(dim * mlp_ratio))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim, bias=True))
        self.norm3 = nn.LayerNorm(dim)
        self.cross_attn = nn.MultiheadAttention(dim, heads, dropout, batch_first=True)
        self.norm4 = nn.LayerNorm(dim)
        self.mlp2 = Mlp(dim, int(dim * mlp_ratio))

    def forward(self, x, cross_c, y, attn_mask, cross_attn_mask=None):
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = self.adaLN_modulation(
            y
        ).chunk(6, dim=1)

        modulated_x = modulate(self.norm1(x), shift_msa, scale_msa)
        x = (
            x
            + gate_msa.unsqueeze(1)
            * self.attn(modulated_x, modulated_x, modulated_x, key_padding_mask=attn_mask)[0]
        )

        modulated_x = modulate(self.norm2(x), shift_mlp, scale_mlp)
        x = x + gate_mlp.unsqueeze(1) * self.mlp1(modulated_x)

        x = (
            x
            + self.cross_attn(self.norm3(x), cross_c, cross_c, key_padding_mask=cross_attn_mask)[0]
        )
        return x + self.mlp2(self.norm4(x))


class DiT(nn.Module):
    """
    Args:
        depth: Number of blocks.
        hidden_dim: Size of a token.
        heads: Number of heads.
        dropout: Dropout of the attention weights.
        mlp_ratio: Size of the hidden layer of an MLP, in sizes of a token.
    """

    def __init__(self, depth=3, hidden_dim=192, heads=6, dropout=0.1, mlp_ratio=4.0):
        super().__init__()
        self.agent_embedding = nn.Embedding(2, hidden_dim)
        self.blocks = nn.ModuleList(
            [DiTBlock(hidden_dim, heads, dropout, mlp_ratio) for _ in range(depth)]
        )

    def forward(self, x, y, cross_c, neighbor_current_mask):
        """
        x: (B, P, D) -> Noised trajectories of ego (the first) and neighbors
        y: (B, D) -> Embedded step of the diffusion and route
        cross_c: (B, N, D) -> Encoded scene: agents, static objects and lanes; zeros where there are fewer than N
        neighbor_current_mask: (B, P - 1) -> True where there is no neighbor
        """
        B, P, _ = x.shape
        embedding = torch.cat(
            [self.agent_embedding.weight[:1], self.agent_embedding.weight[1:].expand(P - 1, -1)]
        )
        x = x + embedding

        attn_mask = torch.zeros((B, P), dtype=torch.bool, device=x.device)
        attn_mask[:, 1:] = neighbor_current_mask

        for block in self.blocks:
            # before
            x = block(x, cross_c, y, attn_mask)
            # after
            x = block(x, cross_c, y, attn_mask, cross_attn_mask=(cross_c == 0).all(dim=-1))
            # end
        return x
