"""SASRec: self-attention over the items that a user has seen, the last one at the right and 0 for padding."""

import torch
from torch import nn


class PointWiseFeedForward(nn.Module):
    def __init__(self, hidden_units, dropout_rate):
        super().__init__()
        self.conv1 = nn.Conv1d(hidden_units, hidden_units, kernel_size=1)
        self.dropout1 = nn.Dropout(p=dropout_rate)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv1d(hidden_units, hidden_units, kernel_size=1)
        self.dropout2 = nn.Dropout(p=dropout_rate)

    def forward(self, inputs):
        outputs = self.conv1(inputs.transpose(-1, -2))
        outputs = self.dropout2(self.conv2(self.relu(self.dropout1(outputs))))
        return outputs.transpose(-1, -2) + inputs  # as Conv1D requires (N, C, Length)


class SASRec(nn.Module):
    """
    log_seqs: (batch, length), the items of each user from the oldest to the newest
    returns the features of the users after each item, (batch, length, hidden_units)
    """

    def __init__(
        self, item_num, maxlen=50, hidden_units=50, num_blocks=2, num_heads=1, dropout_rate=0.2
    ):
        super().__init__()
        self.num_heads = num_heads
        self.item_emb = nn.Embedding(item_num + 1, hidden_units, padding_idx=0)
        self.pos_emb = nn.Embedding(maxlen + 1, hidden_units, padding_idx=0)
        self.emb_dropout = nn.Dropout(p=dropout_rate)

        self.attention_layernorms = nn.ModuleList()  # to be Q for self-attention
        self.attention_layers = nn.ModuleList()
        self.forward_layernorms = nn.ModuleList()
        self.forward_layers = nn.ModuleList()
        self.last_layernorm = nn.LayerNorm(hidden_units, eps=1e-8)
        for _ in range(num_blocks):
            self.attention_layernorms.append(nn.LayerNorm(hidden_units, eps=1e-8))
            self.attention_layers.append(
                nn.MultiheadAttention(hidden_units, num_heads, dropout_rate)
            )
            self.forward_layernorms.append(nn.LayerNorm(hidden_units, eps=1e-8))
            self.forward_layers.append(PointWiseFeedForward(hidden_units, dropout_rate))

    def log2feats(self, log_seqs):
        timeline_mask = log_seqs == 0
        seqs = self.item_emb(log_seqs) * self.item_emb.embedding_dim**0.5
        # the first item is at position 1, however much padding there is
        poss = (~timeline_mask).long().cumsum(dim=1)
        poss = poss * ~timeline_mask
        seqs = self.emb_dropout(seqs + self.pos_emb(poss))
        seqs = seqs * ~timeline_mask.unsqueeze(-1)  # broadcast in last dim

        tl = seqs.shape[1]  # time dim len for enforce causality
        # before
        attention_mask = ~torch.tril(torch.ones((tl, tl), dtype=torch.bool, device=seqs.device))
        # after
        attention_mask = ~torch.tril(torch.ones((tl, tl), dtype=torch.bool, device=seqs.device))
        # padding sees nothing but itself, so that no row is without a key
        itself = torch.eye(tl, dtype=torch.bool, device=seqs.device)
        attention_mask = attention_mask | (timeline_mask.unsqueeze(1) & ~itself)
        attention_mask = attention_mask.repeat_interleave(self.num_heads, dim=0)
        # end

        for i in range(len(self.attention_layers)):
            seqs = torch.transpose(seqs, 0, 1)
            Q = self.attention_layernorms[i](seqs)
            mha_outputs, _ = self.attention_layers[i](Q, seqs, seqs, attn_mask=attention_mask)
            seqs = Q + mha_outputs
            seqs = torch.transpose(seqs, 0, 1)

            seqs = self.forward_layernorms[i](seqs)
            seqs = self.forward_layers[i](seqs)
            seqs = seqs * ~timeline_mask.unsqueeze(-1)

        return self.last_layernorm(seqs)  # (U, T, C) -> (U, -1, C)

    def forward(self, log_seqs):
        return self.log2feats(log_seqs)
