"""The decoder of T5. The first layer computes the relative position biases for all layers."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class T5LayerNorm(nn.Module):
    """Layer norm without bias and without subtraction of the mean."""

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * x / torch.sqrt(variance + self.variance_epsilon)


class T5Attention(nn.Module):
    def __init__(self, d_model, d_kv, n_heads, output_attentions, num_buckets=0, max_distance=128):
        super().__init__()
        self.n_heads, self.d_kv = n_heads, d_kv
        self.output_attentions = output_attentions
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.q = nn.Linear(d_model, n_heads * d_kv, bias=False)
        self.k = nn.Linear(d_model, n_heads * d_kv, bias=False)
        self.v = nn.Linear(d_model, n_heads * d_kv, bias=False)
        self.o = nn.Linear(n_heads * d_kv, d_model, bias=False)
        if num_buckets:
            self.relative_attention_bias = nn.Embedding(num_buckets, n_heads)

    def compute_bias(self, qlen, klen):
        """Bias of shape (1, n_heads, qlen, klen). Half of the buckets are exact, half logarithmic."""
        device = self.q.weight.device
        distance = torch.arange(qlen, device=device)[:, None] - torch.arange(klen, device=device)
        distance = distance.clamp(min=0)
        max_exact = self.num_buckets // 2
        far = torch.log(distance.clamp(min=1).float() / max_exact)
        far = far / math.log(self.max_distance / max_exact) * (self.num_buckets - max_exact)
        far = (max_exact + far.long()).clamp(max=self.num_buckets - 1)
        buckets = torch.where(distance < max_exact, distance, far)
        return self.relative_attention_bias(buckets).permute(2, 0, 1).unsqueeze(0)

    def forward(self, input, mask=None, kv=None, position_bias=None):
        """Self-attention, or attention over kv. Returns context, (weights) and position bias."""
        kv = input if kv is None else kv
        q, k, v = (
            t.unflatten(-1, (self.n_heads, self.d_kv)).transpose(1, 2)
            for t in (self.q(input), self.k(kv), self.v(kv))
        )
        scores = q @ k.transpose(2, 3)
        if position_bias is None:
            qlen, klen = scores.shape[2:]
            if self.num_buckets:
                position_bias = self.compute_bias(qlen, klen)
            else:
                position_bias = scores.new_zeros(1, self.n_heads, qlen, klen)
            if mask is not None:
                position_bias = position_bias + mask
        weights = F.softmax(scores + position_bias, dim=-1)
        context = self.o((weights @ v).transpose(1, 2).flatten(2))
        if self.output_attentions:
            return context, weights, position_bias
        return context, position_bias


class T5Block(nn.Module):
    def __init__(self, d_model, d_kv, d_ff, n_heads, output_attentions, num_buckets):
        super().__init__()
        self.SelfAttention = T5Attention(d_model, d_kv, n_heads, output_attentions, num_buckets)
        self.EncDecAttention = T5Attention(d_model, d_kv, n_heads, output_attentions)
        self.wi = nn.Linear(d_model, d_ff, bias=False)
        self.wo = nn.Linear(d_ff, d_model, bias=False)
        self.layer_norms = nn.ModuleList([T5LayerNorm(d_model) for _ in range(3)])

    def forward(self, x, mask, position_bias, kv, encoder_mask, encoder_position_bias):
        y, *self_outputs = self.SelfAttention(
            self.layer_norms[0](x), mask=mask, position_bias=position_bias
        )
        x = x + y
        y, *cross_outputs = self.EncDecAttention(
            self.layer_norms[1](x), mask=encoder_mask, kv=kv, position_bias=encoder_position_bias
        )
        x = x + y
        x = x + self.wo(F.relu(self.wi(self.layer_norms[2](x))))
        return (x, *self_outputs, *cross_outputs)


class T5Decoder(nn.Module):
    """
    input_ids: (batch, target length). encoder_hidden_states: (batch, source length, d_model).
    encoder_attention_mask: (batch, source length), 1 for words and 0 for padding.
    Returns the hidden states and, with output_attentions, the weights of the self-attentions.
    """

    def __init__(
        self, vocab_size, d_model, d_kv, d_ff, num_layers, num_heads, output_attentions=False
    ):
        super().__init__()
        self.output_attentions = output_attentions
        self.embed_tokens = nn.Embedding(vocab_size, d_model)
        sizes = (d_model, d_kv, d_ff, num_heads, output_attentions)
        self.block = nn.ModuleList([T5Block(*sizes, 0 if i else 32) for i in range(num_layers)])
        self.final_layer_norm = T5LayerNorm(d_model)

    def forward(self, input_ids, encoder_hidden_states, encoder_attention_mask):
        x = self.embed_tokens(input_ids)
        lowest = torch.finfo(x.dtype).min
        mask = torch.full((x.shape[1], x.shape[1]), lowest, dtype=x.dtype, device=x.device).triu(1)
        encoder_mask = (1.0 - encoder_attention_mask[:, None, None, :].to(x.dtype)) * lowest

        position_bias, encoder_decoder_position_bias, attentions = None, None, ()
        for i, layer_module in enumerate(self.block):
            layer_outputs = layer_module(
                x,
                mask,
                position_bias,
                encoder_hidden_states,
                encoder_mask,
                encoder_decoder_position_bias,
            )
            x = layer_outputs[0]
            if i == 0:
                # We share the position biases between the layers - the first layer stores them
                position_bias = layer_outputs[2 if self.output_attentions else 1]
                # before
                encoder_decoder_position_bias = layer_outputs[3 if self.output_attentions else 2]
                # after
                encoder_decoder_position_bias = layer_outputs[4 if self.output_attentions else 2]
                # end
            if self.output_attentions:
                attentions = (*attentions, layer_outputs[1])
        x = self.final_layer_norm(x)
        return (x, attentions) if self.output_attentions else (x,)
