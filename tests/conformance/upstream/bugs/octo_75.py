"""The transformer of a robot policy: groups of tokens, with rules which group looks at which other."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

# A group may look at these groups of its own and of earlier timesteps. No other group looks at the readout.
ATTENTION_RULES = {
    "task": ("task",),
    "obs": ("task", "obs"),
    "readout": ("task", "obs", "readout"),
}


class Attention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(embed_dim, embed_dim)
        self.key = nn.Linear(embed_dim, embed_dim)
        self.value = nn.Linear(embed_dim, embed_dim)
        self.out = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, attention_mask):
        q, k, v = (
            project(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)
        return self.out(x.transpose(1, 2).flatten(2))


class BlockTransformer(nn.Module):
    """One layer of attention between the tokens of a task, of observations and of readouts.

    Args:
        token_embedding_size (int): Size of a token.
        num_heads (int): Number of heads.
    """

    def __init__(self, token_embedding_size, num_heads):
        super().__init__()
        self.norm = nn.LayerNorm(token_embedding_size)
        self.attention = Attention(token_embedding_size, num_heads)

    def generate_attention_mask(self, n_task, n_obs, n_readout, horizon):
        """Return a boolean mask of shape (total_tokens, total_tokens), True where a token may look."""
        timestep_groups, tokens_per_timestep_group = ("obs", "readout"), (n_obs, n_readout)
        tokens_per_time_step = sum(tokens_per_timestep_group)
        total_tokens = n_task + tokens_per_time_step * horizon

        def get_token_metadata(i):
            if i < n_task:
                return "task", -1
            timestep, i = divmod(i - n_task, tokens_per_time_step)
            # before
            position = np.searchsorted(np.cumsum(tokens_per_timestep_group), i)
            # after
            position = np.searchsorted(np.cumsum(tokens_per_timestep_group), i, side="right")
            # end
            return timestep_groups[position], timestep

        attention_mask = torch.zeros(total_tokens, total_tokens, dtype=torch.bool)
        for i in range(total_tokens):
            name_i, timestep_i = get_token_metadata(i)
            for j in range(total_tokens):
                name_j, timestep_j = get_token_metadata(j)
                allowed = name_j in ATTENTION_RULES[name_i] and timestep_j <= timestep_i
                attention_mask[i, j] = allowed
        return attention_mask

    def forward(self, task_tokens, obs_tokens, readout_tokens):
        """
        task_tokens: (batch, n_tokens, d). obs_tokens, readout_tokens: (batch, horizon, n_tokens, d).
        Returns the tokens of all groups in the same form.
        """
        n_task, horizon = task_tokens.shape[1], obs_tokens.shape[1]
        n_obs, n_readout = obs_tokens.shape[2], readout_tokens.shape[2]
        timesteps = torch.cat([obs_tokens, readout_tokens], dim=2).flatten(1, 2)
        tokens = torch.cat([task_tokens, timesteps], dim=1)

        mask = self.generate_attention_mask(n_task, n_obs, n_readout, horizon)
        tokens = tokens + self.attention(self.norm(tokens), mask.to(tokens.device))

        task, timesteps = tokens[:, :n_task], tokens[:, n_task:].unflatten(1, (horizon, -1))
        return task, timesteps[:, :, :n_obs], timesteps[:, :, n_obs:]
