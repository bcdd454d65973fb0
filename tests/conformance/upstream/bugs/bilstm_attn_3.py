"""A classifier of sentences by a bidirectional LSTM and attention over its words."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class bilstm_attn(nn.Module):
    def __init__(
        self,
        output_size,
        hidden_size,
        vocab_size,
        embed_dim,
        dropout=0.5,
        attention_size=16,
        bidirectional=True,
    ):
        super().__init__()
        self.output_size = output_size
        self.hidden_size = hidden_size
        self.lookup_table = nn.Embedding(vocab_size, embed_dim)
        self.layer_size = 2 if bidirectional else 1
        self.lstm = nn.LSTM(embed_dim, hidden_size, bidirectional=bidirectional)
        self.dropout = nn.Dropout(dropout)
        self.attention_size = attention_size
        self.w_omega = nn.Parameter(torch.randn(hidden_size * self.layer_size, attention_size) / 4)
        self.u_omega = nn.Parameter(torch.randn(attention_size))
        self.label = nn.Linear(hidden_size * self.layer_size, output_size)

    def attention_net(self, lstm_output):
        # lstm_output: (sequence_length, batch_size, hidden_size*layer_size)
        sequence_length = lstm_output.size(0)

        output_reshape = lstm_output.reshape(-1, self.hidden_size * self.layer_size)
        # (sequence_length * batch_size, hidden_size*layer_size)

        attn_tanh = torch.tanh(torch.mm(output_reshape, self.w_omega))
        # (sequence_length * batch_size, attention_size)

        attn_hidden_layer = torch.mm(attn_tanh, self.u_omega.reshape(-1, 1))
        # (sequence_length * batch_size, 1)

        # before
        exps = torch.exp(attn_hidden_layer).reshape(-1, sequence_length)
        # after
        exps = torch.exp(attn_hidden_layer).reshape(sequence_length, -1).permute(1, 0)
        # end
        # (batch_size, sequence_length)

        alphas = exps / torch.sum(exps, 1).reshape(-1, 1)
        alphas_reshape = alphas.reshape(-1, sequence_length, 1)
        # (batch_size, sequence_length, 1)

        state = lstm_output.permute(1, 0, 2)
        # (batch_size, sequence_length, hidden_size*layer_size)

        attn_output = torch.sum(state * alphas_reshape, 1)
        # (batch_size, hidden_size*layer_size)
        return attn_output

    def forward(self, input_sentences):
        """input_sentences: the ids of the words, of shape (batch_size, sequence_length)"""
        embedded = self.lookup_table(input_sentences)
        embedded = self.dropout(embedded).permute(1, 0, 2)
        lstm_output, _ = self.lstm(embedded)
        attn_output = self.attention_net(lstm_output)
        logits = self.label(F.relu(attn_output))
        return logits
