"""Joint attention of the tokens of an image and the tokens of its prompt."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


class QwenDoubleStreamAttention(nn.Module):
    def __init__(self, dim: int, num_heads: int, eps: float = 1e-6):
        super().__init__()
        self.heads = num_heads
        head_dim = dim // num_heads
        self.to_q = nn.Linear(dim, dim)
        self.to_k = nn.Linear(dim, dim)
        self.to_v = nn.Linear(dim, dim)
        self.add_q_proj = nn.Linear(dim, dim)
        self.add_k_proj = nn.Linear(dim, dim)
        self.add_v_proj = nn.Linear(dim, dim)
        self.norm_q = nn.RMSNorm(head_dim, eps=eps)
        self.norm_k = nn.RMSNorm(head_dim, eps=eps)
        self.norm_added_q = nn.RMSNorm(head_dim, eps=eps)
        self.norm_added_k = nn.RMSNorm(head_dim, eps=eps)
        self.to_out = nn.Linear(dim, dim)
        self.to_add_out = nn.Linear(dim, dim)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_hidden_states_mask: Optional[torch.Tensor] = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        hidden_states: the image, of shape (batch, image tokens, dim).
        encoder_hidden_states: the prompt, of shape (batch, text tokens, dim).
        encoder_hidden_states_mask: 1 at real text tokens and 0 at padding, of shape (batch, text tokens).
        """
        seq_txt = encoder_hidden_states.shape[1]
        img_query = self.norm_q(self.to_q(hidden_states).unflatten(-1, (self.heads, -1)))
        img_key = self.norm_k(self.to_k(hidden_states).unflatten(-1, (self.heads, -1)))
        img_value = self.to_v(hidden_states).unflatten(-1, (self.heads, -1))
        txt_query = self.add_q_proj(encoder_hidden_states).unflatten(-1, (self.heads, -1))
        txt_key = self.add_k_proj(encoder_hidden_states).unflatten(-1, (self.heads, -1))
        txt_value = self.add_v_proj(encoder_hidden_states).unflatten(-1, (self.heads, -1))
        txt_query, txt_key = self.norm_added_q(txt_query), self.norm_added_k(txt_key)

        joint_query = torch.cat([txt_query, img_query], dim=1).transpose(1, 2)
        joint_key = torch.cat([txt_key, img_key], dim=1).transpose(1, 2)
        joint_value = torch.cat([txt_value, img_value], dim=1).transpose(1, 2)
        # before
        joint = F.scaled_dot_product_attention(joint_query, joint_key, joint_value, dropout_p=0.0)
        # after
        attention_mask = None
        if encoder_hidden_states_mask is not None:
            image_mask = torch.ones_like(hidden_states[..., 0], dtype=torch.bool)
            attention_mask = torch.cat([encoder_hidden_states_mask.bool(), image_mask], dim=1)
            attention_mask = attention_mask[:, None, None, :]
        joint = F.scaled_dot_product_attention(
            joint_query, joint_key, joint_value, attn_mask=attention_mask, dropout_p=0.0
        )
        # end
        joint = joint.transpose(1, 2).flatten(2, 3)
        txt_attn_output, img_attn_output = joint[:, :seq_txt], joint[:, seq_txt:]
        return self.to_out(img_attn_output), self.to_add_out(txt_attn_output)
