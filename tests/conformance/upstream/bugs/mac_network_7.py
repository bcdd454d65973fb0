"""Visual question answering in steps: attention to the question decides what to read from the image (MAC)."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.init import xavier_uniform_


def linear(in_dim, out_dim):
    lin = nn.Linear(in_dim, out_dim)
    xavier_uniform_(lin.weight)
    lin.bias.data.zero_()
    return lin


class ControlUnit(nn.Module):
    """Chooses the words of the question that matter in this step."""

    def __init__(self, dim, max_step):
        super().__init__()
        self.position_aware = nn.ModuleList([linear(dim * 2, dim) for _ in range(max_step)])
        self.control_question = linear(dim * 2, dim)
        self.attn = linear(dim, 1)

    def forward(self, step, context, question, control, question_len):
        position_aware = self.position_aware[step](question)
        control_question = self.control_question(torch.cat([control, position_aware], 1))
        context_prod = control_question.unsqueeze(1) * context
        attn_weight = self.attn(context_prod)
        # before
        attn = F.softmax(attn_weight, 1)
        # after
        words = torch.arange(context.shape[1], device=context.device)
        pad = words[None, :, None] >= question_len[:, None, None]
        attn = F.softmax(attn_weight.masked_fill(pad, float("-inf")), 1)
        # end
        return (attn * context).sum(1)


class ReadUnit(nn.Module):
    """Reads from the image what the control asks for."""

    def __init__(self, dim):
        super().__init__()
        self.mem = linear(dim, dim)
        self.concat = linear(dim * 2, dim)
        self.attn = linear(dim, 1)

    def forward(self, memory, know, control):
        mem = self.mem(memory).unsqueeze(2)
        concat = self.concat(torch.cat([mem * know, know], 1).transpose(1, 2))
        attn = self.attn(concat * control.unsqueeze(1)).squeeze(2)
        attn = F.softmax(attn, 1).unsqueeze(1)
        return (attn * know).sum(2)


class MACNetwork(nn.Module):
    def __init__(self, n_vocab, dim, embed_hidden, in_channels, max_step=2, classes=5):
        super().__init__()
        self.dim = dim
        self.max_step = max_step
        self.conv = nn.Sequential(nn.Conv2d(in_channels, dim, 3, padding=1), nn.ELU())
        self.embed = nn.Embedding(n_vocab, embed_hidden)
        self.lstm = nn.LSTM(embed_hidden, dim, batch_first=True, bidirectional=True)
        self.lstm_proj = nn.Linear(dim * 2, dim)
        self.control = ControlUnit(dim, max_step)
        self.read = ReadUnit(dim)
        self.write = linear(dim * 2, dim)
        self.mem_0 = nn.Parameter(torch.randn(1, dim))
        self.control_0 = nn.Parameter(torch.randn(1, dim))
        self.classifier = nn.Sequential(linear(dim * 3, dim), nn.ELU(), linear(dim, classes))

    def forward(self, image, question, question_len):
        """
        image: feature maps, of shape (batch, in_channels, height, width).
        question: ids of words, of shape (batch, words). question_len: how many are real, of shape (batch,).
        """
        b_size = question.size(0)
        know = self.conv(image).flatten(2)

        embed = nn.utils.rnn.pack_padded_sequence(
            self.embed(question), question_len.cpu(), batch_first=True, enforce_sorted=False
        )
        lstm_out, (h, _) = self.lstm(embed)
        lstm_out, _ = nn.utils.rnn.pad_packed_sequence(lstm_out, batch_first=True)
        context = self.lstm_proj(lstm_out)
        h = h.permute(1, 0, 2).contiguous().view(b_size, -1)

        control = self.control_0.expand(b_size, self.dim)
        memory = self.mem_0.expand(b_size, self.dim)
        for step in range(self.max_step):
            control = self.control(step, context, h, control, question_len)
            read = self.read(memory, know, control)
            memory = self.write(torch.cat([read, memory], 1))
        return self.classifier(torch.cat([memory, h], 1))
