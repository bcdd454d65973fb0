"""One step of a decoder with additive attention to the outputs of the encoder."""

import torch
import torch.nn.functional as F
from torch import nn


class BahdanauDecoder(nn.Module):
    def __init__(self, hidden_size, output_size, n_layers=1, drop_prob=0.1):
        super().__init__()
        self.hidden_size = hidden_size
        self.embedding = nn.Embedding(output_size, hidden_size)
        self.fc_hidden = nn.Linear(hidden_size, hidden_size, bias=False)
        self.fc_encoder = nn.Linear(hidden_size, hidden_size, bias=False)
        self.weight = nn.Linear(hidden_size, 1, bias=False)
        self.dropout = nn.Dropout(drop_prob)
        self.lstm = nn.LSTM(hidden_size * 2, hidden_size, n_layers, batch_first=True)
        self.classifier = nn.Linear(hidden_size, output_size)

    def forward(self, inputs, hidden, encoder_outputs):
        """
        inputs: the last words, of shape (batch, 1)
        hidden: the states and cells of the layers, each of shape (n_layers, batch, hidden_size)
        encoder_outputs: (batch, length, hidden_size)
        """
        embedded = self.dropout(self.embedding(inputs))

        # the alignment scores
        # before
        x = torch.tanh(self.fc_hidden(hidden[0]) + self.fc_encoder(encoder_outputs))
        # after
        x = torch.tanh(
            self.fc_hidden(hidden[0][-1].unsqueeze(1)) + self.fc_encoder(encoder_outputs)
        )
        # end
        alignment_scores = self.weight(x).squeeze(2)
        attn_weights = F.softmax(alignment_scores, dim=1)

        context_vector = torch.bmm(attn_weights.unsqueeze(1), encoder_outputs)
        output = torch.cat((embedded, context_vector), 2)
        output, hidden = self.lstm(output, hidden)
        output = F.log_softmax(self.classifier(output[:, 0]), dim=1)
        return output, hidden, attn_weights
