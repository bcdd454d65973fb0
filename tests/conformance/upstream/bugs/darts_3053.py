"""The attention of a temporal fusion transformer, from the steps to forecast to all steps."""

import torch
from torch import nn


class InterpretableMultiHeadAttention(nn.Module):
    """Attention whose heads share their values."""

    def __init__(self, n_head, d_model):
        super().__init__()
        self.d_k = d_model // n_head
        self.q_layers = nn.ModuleList([nn.Linear(d_model, self.d_k) for _ in range(n_head)])
        self.k_layers = nn.ModuleList([nn.Linear(d_model, self.d_k) for _ in range(n_head)])
        self.v_layer = nn.Linear(d_model, self.d_k)
        self.w_h = nn.Linear(self.d_k, d_model, bias=False)

    def forward(self, q, k, v, mask):
        vs, heads = self.v_layer(v), []
        for q_layer, k_layer in zip(self.q_layers, self.k_layers):
            attn = torch.bmm(q_layer(q), k_layer(k).transpose(1, 2)) / self.d_k**0.5
            attn = attn.masked_fill(mask, float("-inf")).softmax(dim=-1)
            heads.append(torch.bmm(attn, vs))
        return self.w_h(torch.stack(heads).mean(dim=0))


class _TFTModule(nn.Module):
    """x: the embedded steps, of shape (batch, input_chunk_length + output_chunk_length, hidden_size)."""

    def __init__(
        self, input_chunk_length, output_chunk_length, hidden_size, num_attention_heads, dropout=0.1
    ):
        super().__init__()
        self.input_chunk_length = input_chunk_length
        self.output_chunk_length = output_chunk_length
        self.multihead_attn = InterpretableMultiHeadAttention(num_attention_heads, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(hidden_size)
        self.batch_size_last = -1
        # before
        self.attention_mask = None
        # after
        self.register_buffer("attention_mask", None, persistent=False)
        # end

    @staticmethod
    def get_attention_mask_future(encoder_length, decoder_length, batch_size, device):
        """Return true for the steps that a step to forecast does not see: itself and those after it."""
        predict_step = torch.arange(0, decoder_length, device=device)
        decoder_mask = predict_step[:, None] <= predict_step
        encoder_mask = torch.zeros(decoder_length, encoder_length, dtype=torch.bool, device=device)
        mask = torch.cat((encoder_mask, decoder_mask), dim=1)
        return mask.unsqueeze(0).expand(batch_size, -1, -1)

    def forward(self, x):
        batch_size, time_steps, _ = x.shape
        if batch_size != self.batch_size_last:
            self.attention_mask = self.get_attention_mask_future(
                encoder_length=self.input_chunk_length,
                decoder_length=self.output_chunk_length,
                batch_size=batch_size,
                device=x.device,
            )
            self.batch_size_last = batch_size
        decoder = x[:, self.input_chunk_length :]
        attn_out = self.multihead_attn(q=decoder, k=x, v=x, mask=self.attention_mask)
        return self.norm(self.dropout(attn_out) + decoder)
