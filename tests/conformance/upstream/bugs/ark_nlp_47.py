"""Self-attention with rotary embeddings taken from a table of sines and cosines."""

import math

import torch
from torch import nn


class SinusoidalPositionEmbedding(nn.Module):
    """The table of (sin, cos) pairs of each position, in the layout [sin 0, cos 0, sin 1, cos 1, ...]."""

    def __init__(self, output_dim):
        super().__init__()
        self.output_dim = output_dim

    def forward(self, inputs):
        position_ids = torch.arange(inputs.size(1), dtype=torch.float32, device=inputs.device)
        indices = torch.arange(self.output_dim // 2, dtype=torch.float32, device=inputs.device)
        indices = torch.pow(10000.0, -2 * indices / self.output_dim)
        embeddings = torch.einsum("n,d->nd", position_ids, indices)
        embeddings = torch.stack([torch.sin(embeddings), torch.cos(embeddings)], dim=-1)
        return embeddings.reshape(1, inputs.size(1), self.output_dim).to(inputs.dtype)


class RoPEAttention(nn.Module):
    def __init__(self, hidden_size, head_num):
        super().__init__()
        self.head_num = head_num
        self.head_size = hidden_size // head_num
        self.q_dense = nn.Linear(hidden_size, hidden_size)
        self.k_dense = nn.Linear(hidden_size, hidden_size)
        self.v_dense = nn.Linear(hidden_size, hidden_size)
        self.o_dense = nn.Linear(hidden_size, hidden_size)
        self.position = SinusoidalPositionEmbedding(self.head_size)

    def rotate(self, w, cos_pos, sin_pos):
        w2 = torch.stack([-w[..., 1::2], w[..., ::2]], dim=4)
        w2 = torch.reshape(w2, w.shape)
        return w * cos_pos + w2 * sin_pos

    def forward(self, inputs):
        batch, length, hidden = inputs.shape
        qw = self.q_dense(inputs).view(batch, length, self.head_num, self.head_size)
        kw = self.k_dense(inputs).view(batch, length, self.head_num, self.head_size)
        vw = self.v_dense(inputs).view(batch, length, self.head_num, self.head_size)
        pos = self.position(inputs)
        # before
        cos_pos = pos[..., None, 1::2].repeat(1, 1, 1, 2)
        sin_pos = pos[..., None, ::2].repeat(1, 1, 1, 2)
        # after
        cos_pos = pos[..., None, 1::2].repeat_interleave(2, dim=-1)
        sin_pos = pos[..., None, ::2].repeat_interleave(2, dim=-1)
        # end
        qw = self.rotate(qw, cos_pos, sin_pos)
        kw = self.rotate(kw, cos_pos, sin_pos)
        logits = torch.einsum("bmhd,bnhd->bhmn", qw, kw) / math.sqrt(self.head_size)
        weights = torch.softmax(logits, dim=-1)
        outputs = torch.einsum("bhmn,bnhd->bmhd", weights, vw)
        return self.o_dense(outputs.reshape(batch, length, hidden))
