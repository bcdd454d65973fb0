"""
Translation with a Sequence to Sequence Network and Attention
*************************************************************

An encoder network condenses an input sequence into vectors, and a decoder network unfolds them
into a new sequence. Attention lets the decoder focus on a different part of the encoder's outputs
for every step of its own outputs.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

SOS_token = 0
EOS_token = 1
MAX_LENGTH = 10


######################################################################
# The Encoder
# -----------
#
# For every input word the encoder outputs a vector and a hidden state,
# and uses the hidden state for the next input word.


class EncoderRNN(nn.Module):
    def __init__(self, input_size, hidden_size, dropout_p=0.1):
        super().__init__()
        self.hidden_size = hidden_size
        self.embedding = nn.Embedding(input_size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, input):
        embedded = self.dropout(self.embedding(input))
        output, hidden = self.gru(embedded)
        return output, hidden


######################################################################
# Attention Decoder
# -----------------
#
# At every step the decoder is given an input token and a hidden state. The
# attention weights are multiplied by the encoder output vectors to create a
# weighted combination, which is another input of the step.

# before
# after


class BahdanauAttention(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.Wa = nn.Linear(hidden_size, hidden_size)
        self.Ua = nn.Linear(hidden_size, hidden_size)
        self.Va = nn.Linear(hidden_size, 1)

    def forward(self, query, keys):
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys)))
        weights = F.softmax(scores.transpose(1, 2), dim=-1)
        context = torch.bmm(weights, keys)
        return context, weights


# end
class AttnDecoderRNN(nn.Module):
    """
    encoder_outputs: (batch, words of the source, hidden_size)
    encoder_hidden: (1, batch, hidden_size)
    target_tensor: (batch, words of the target), for teacher forcing; None to feed back the output

    Returns the log probabilities of the words, the last hidden state and the attention weights.
    """

    def __init__(self, hidden_size, output_size, dropout_p=0.1):
        super().__init__()
        self.embedding = nn.Embedding(output_size, hidden_size)
        # before
        self.attn = nn.Linear(hidden_size * 2, MAX_LENGTH)
        # after
        self.attention = BahdanauAttention(hidden_size)
        # end
        self.gru = nn.GRU(2 * hidden_size, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, output_size)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, encoder_outputs, encoder_hidden, target_tensor=None):
        batch_size = encoder_outputs.size(0)
        decoder_input = torch.full(
            (batch_size, 1), SOS_token, dtype=torch.long, device=encoder_outputs.device
        )
        decoder_hidden = encoder_hidden
        decoder_outputs = []
        attentions = []

        steps = MAX_LENGTH if target_tensor is None else target_tensor.size(1)
        for i in range(steps):
            decoder_output, decoder_hidden, attn_weights = self.forward_step(
                decoder_input, decoder_hidden, encoder_outputs
            )
            decoder_outputs.append(decoder_output)
            attentions.append(attn_weights)
            if target_tensor is not None:
                # Teacher forcing: Feed the target as the next input
                decoder_input = target_tensor[:, i].unsqueeze(1)
            else:
                # Without teacher forcing: use its own predictions as the next input
                decoder_input = decoder_output.argmax(dim=-1).detach()

        decoder_outputs = F.log_softmax(torch.cat(decoder_outputs, dim=1), dim=-1)
        return decoder_outputs, decoder_hidden, torch.cat(attentions, dim=1)

    def forward_step(self, input, hidden, encoder_outputs):
        embedded = self.dropout(self.embedding(input))
        query = hidden.permute(1, 0, 2)
        # before
        attn_weights = F.softmax(self.attn(torch.cat((embedded, query), dim=2)), dim=-1)
        padding = MAX_LENGTH - encoder_outputs.size(1)
        context = torch.bmm(attn_weights, F.pad(encoder_outputs, (0, 0, 0, padding)))
        # after
        context, attn_weights = self.attention(query, encoder_outputs)
        # end
        output, hidden = self.gru(torch.cat((embedded, context), dim=2), hidden)
        return self.out(output), hidden, attn_weights
