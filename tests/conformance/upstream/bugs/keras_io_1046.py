"""
Title: Translation with a sequence-to-sequence Transformer
Description: The layers of the encoder and the decoder.
"""

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    """attention_mask: (batch, query length or 1, key length), True where a query may look"""

    def __init__(self, num_heads, key_dim, embed_dim):
        super().__init__()
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.query_dense = nn.Linear(embed_dim, num_heads * key_dim)
        self.key_dense = nn.Linear(embed_dim, num_heads * key_dim)
        self.value_dense = nn.Linear(embed_dim, num_heads * key_dim)
        self.output_dense = nn.Linear(num_heads * key_dim, embed_dim)

    def forward(self, query, value, key, attention_mask=None):
        query, key, value = (
            dense(x).unflatten(-1, (self.num_heads, self.key_dim)).transpose(1, 2)
            for dense, x in (
                (self.query_dense, query),
                (self.key_dense, key),
                (self.value_dense, value),
            )
        )
        scores = torch.matmul(query, key.transpose(-2, -1)) / self.key_dim**0.5
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask[:, None], torch.finfo(scores.dtype).min)
        return self.output_dense((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class TransformerDecoder(nn.Module):
    """
    embed_dim: size of the embeddings
    latent_dim: size of the feed-forward layer
    num_heads: number of heads; each has embed_dim features
    """

    def __init__(self, embed_dim, latent_dim, num_heads):
        super().__init__()
        self.embed_dim = embed_dim
        self.latent_dim = latent_dim
        self.num_heads = num_heads
        self.attention_1 = MultiHeadAttention(num_heads, embed_dim, embed_dim)
        self.attention_2 = MultiHeadAttention(num_heads, embed_dim, embed_dim)
        self.dense_proj = nn.Sequential(
            nn.Linear(embed_dim, latent_dim), nn.ReLU(), nn.Linear(latent_dim, embed_dim)
        )
        self.layernorm_1 = nn.LayerNorm(embed_dim)
        self.layernorm_2 = nn.LayerNorm(embed_dim)
        self.layernorm_3 = nn.LayerNorm(embed_dim)

    def forward(self, inputs, encoder_outputs, mask=None, encoder_mask=None):
        """
        inputs: (batch, target length, embed_dim)
        encoder_outputs: (batch, source length, embed_dim)
        mask: (batch, target length), True for words of the target
        encoder_mask: (batch, source length), True for words of the source
        """
        causal_mask = self.get_causal_attention_mask(inputs)
        # before
        padding_mask = None
        if mask is not None:
            padding_mask = mask[:, None, :] & causal_mask
        # after
        padding_mask = None
        if encoder_mask is not None:
            padding_mask = encoder_mask[:, None, :]
        if mask is not None:
            causal_mask = mask[:, None, :] & causal_mask
        # end

        attention_output_1 = self.attention_1(
            query=inputs, value=inputs, key=inputs, attention_mask=causal_mask
        )
        out_1 = self.layernorm_1(inputs + attention_output_1)

        attention_output_2 = self.attention_2(
            query=out_1,
            value=encoder_outputs,
            key=encoder_outputs,
            attention_mask=padding_mask,
        )
        out_2 = self.layernorm_2(out_1 + attention_output_2)

        proj_output = self.dense_proj(out_2)
        return self.layernorm_3(out_2 + proj_output)

    def get_causal_attention_mask(self, inputs):
        batch_size, sequence_length = inputs.shape[:2]
        i = torch.arange(sequence_length, device=inputs.device)[:, None]
        j = torch.arange(sequence_length, device=inputs.device)
        return (i >= j).expand(batch_size, sequence_length, sequence_length)
