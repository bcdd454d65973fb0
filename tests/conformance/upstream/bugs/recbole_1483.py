"""The evolution of a user's interest, by a recurrent unit whose gates are weighted by attention."""

import torch
from torch import nn


class SequenceAttLayer(nn.Module):
    """The attention of the next item to the items of a history."""

    def __init__(self, embedding_size, att_hidden_size=(16, 8), softmax_stag=False):
        super().__init__()
        sizes = (4 * embedding_size, *att_hidden_size)
        layers = []
        for before, after in zip(sizes[:-1], sizes[1:]):
            layers += [nn.Linear(before, after), nn.Sigmoid()]
        self.att_mlp_layers = nn.Sequential(*layers)
        self.dense = nn.Linear(sizes[-1], 1)
        self.softmax_stag = softmax_stag

    def forward(self, queries, keys, keys_length):
        hist_len = keys.shape[1]
        queries = queries.unsqueeze(1).expand(-1, hist_len, -1)
        input_tensor = torch.cat([queries, keys, queries - keys, queries * keys], dim=-1)
        output = self.dense(self.att_mlp_layers(input_tensor)).squeeze(-1)

        mask = torch.arange(hist_len, device=keys.device) >= keys_length.unsqueeze(1)
        output = output.masked_fill(mask, float("-inf") if self.softmax_stag else 0.0)
        output = output / (keys.shape[-1] ** 0.5)
        return output.softmax(dim=1) if self.softmax_stag else output


class AUGRUCell(nn.Module):
    """A GRU whose update gate is multiplied by the weight of the step."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.gates = nn.Linear(input_size + hidden_size, 2 * hidden_size)
        self.candidate = nn.Linear(input_size + hidden_size, hidden_size)

    def forward(self, inputs, hx, att_score):
        gates = torch.sigmoid(self.gates(torch.cat([inputs, hx], dim=-1)))
        reset_gate, update_gate = gates.chunk(2, dim=-1)
        new_state = torch.tanh(self.candidate(torch.cat([inputs, reset_gate * hx], dim=-1)))
        update_gate = att_score.unsqueeze(-1) * update_gate
        return (1 - update_gate) * hx + update_gate * new_state


class InterestEvolvingLayer(nn.Module):
    """
    queries: the next item, of shape [B, H]. keys: the interests of the history, of shape [B, T, H].
    keys_length: the number of items in each history, of shape [B].
    """

    def __init__(self, input_size, rnn_hidden_size, att_hidden_size=(16, 8)):
        super().__init__()
        self.rnn_hidden_size = rnn_hidden_size
        # before
        self.attention_layer = SequenceAttLayer(input_size, att_hidden_size)
        # after
        self.attention_layer = SequenceAttLayer(input_size, att_hidden_size, softmax_stag=True)
        # end
        self.dynamic_rnn = AUGRUCell(input_size, rnn_hidden_size)

    def forward(self, queries, keys, keys_length):
        att_outputs = self.attention_layer(queries, keys, keys_length)
        hidden = keys.new_zeros(len(keys), self.rnn_hidden_size)
        for t in range(keys.shape[1]):
            new_hidden = self.dynamic_rnn(keys[:, t], hidden, att_outputs[:, t])
            hidden = torch.where((t < keys_length).unsqueeze(-1), new_hidden, hidden)
        return hidden
