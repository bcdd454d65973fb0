"""The cross-attention of an animator: to the image prompt, and beside it to the tokens of a face."""

import torch.nn.functional as F
from torch import nn


class AnimationIDAttention(nn.Module):
    r"""
    Cross-attention with a second pair of key and value projections for the face.

    Args:
        hidden_size (`int`): The hidden size of the attention layer.
        cross_attention_dim (`int`): The number of channels in the `encoder_hidden_states`.
        heads (`int`): The number of heads.
        scale (`float`, defaults to 1.0): The weight scale of the face.
        num_tokens (`int`, defaults to 4): The number of tokens of the face, which are the last ones.
    """

    def __init__(self, hidden_size, cross_attention_dim=None, heads=8, scale=1.0, num_tokens=4):
        super().__init__()
        cross_attention_dim = cross_attention_dim or hidden_size
        self.heads = heads
        self.scale = scale
        self.num_tokens = num_tokens
        self.to_q = nn.Linear(hidden_size, hidden_size, bias=False)
        self.to_k = nn.Linear(cross_attention_dim, hidden_size, bias=False)
        self.to_v = nn.Linear(cross_attention_dim, hidden_size, bias=False)
        self.to_k_ip = nn.Linear(cross_attention_dim, hidden_size, bias=False)
        self.to_v_ip = nn.Linear(cross_attention_dim, hidden_size, bias=False)
        self.to_out = nn.ModuleList([nn.Linear(hidden_size, hidden_size), nn.Dropout(0.0)])

    def head_to_dim(self, tensor, batch_size):
        head_dim = tensor.shape[-1] // self.heads
        return tensor.view(batch_size, -1, self.heads, head_dim).transpose(1, 2)

    @staticmethod
    def align(face, image):
        """Give the features of the face the mean and deviation of those of the image prompt."""
        mean_image, std_image = (
            image.mean(dim=(1, 2), keepdim=True),
            image.std(dim=(1, 2), keepdim=True),
        )
        mean_face, std_face = (
            face.mean(dim=(1, 2), keepdim=True),
            face.std(dim=(1, 2), keepdim=True),
        )
        return (face - mean_face) * (std_image / (std_face + 1e-5)) + mean_image

    def forward(self, hidden_states, encoder_hidden_states):
        """
        hidden_states: (batch, places, hidden_size)
        encoder_hidden_states: (batch, tokens of the image prompt + num_tokens, cross_attention_dim)
        """
        batch_size = hidden_states.shape[0]
        query = self.to_q(hidden_states)

        # split the tokens of the image prompt and those of the face
        end_pos = encoder_hidden_states.shape[1] - self.num_tokens
        ip_hidden_states = encoder_hidden_states[:, end_pos:, :]
        encoder_hidden_states = encoder_hidden_states[:, :end_pos, :]

        key = self.to_k(encoder_hidden_states)
        value = self.to_v(encoder_hidden_states)
        query = self.head_to_dim(query, batch_size)
        key = self.head_to_dim(key, batch_size)
        value = self.head_to_dim(value, batch_size)
        hidden_states = F.scaled_dot_product_attention(query, key, value)
        hidden_states = hidden_states.transpose(1, 2).flatten(2)

        # for the face
        ip_key = self.head_to_dim(self.to_k_ip(ip_hidden_states), batch_size)
        ip_value = self.head_to_dim(self.to_v_ip(ip_hidden_states), batch_size)
        # before
        ip_hidden_states = F.scaled_dot_product_attention(query, key, value)
        # after
        ip_hidden_states = F.scaled_dot_product_attention(query, ip_key, ip_value)
        # end
        ip_hidden_states = ip_hidden_states.transpose(1, 2).flatten(2)

        ip_hidden_states = self.align(ip_hidden_states, hidden_states)
        hidden_states = hidden_states + self.scale * ip_hidden_states
        for module in self.to_out:
            hidden_states = module(hidden_states)
        return hidden_states
