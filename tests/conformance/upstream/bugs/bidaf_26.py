"""Bi-directional attention flow for reading comprehension: where in the context is the answer to the question?"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Linear(nn.Module):
    def __init__(self, in_features, out_features, dropout=0.0):
        super().__init__()
        self.linear = nn.Linear(in_features=in_features, out_features=out_features)
        self.dropout = nn.Dropout(p=dropout)
        self.reset_params()

    def reset_params(self):
        nn.init.kaiming_normal_(self.linear.weight)
        nn.init.constant_(self.linear.bias, 0)

    def forward(self, x):
        return self.linear(self.dropout(x))


class BiDAF(nn.Module):
    def __init__(self, word_vocab_size, word_dim=100, hidden_size=100, dropout=0.2):
        super().__init__()
        self.word_emb = nn.Embedding(word_vocab_size, word_dim, padding_idx=1)
        self.word_linear = Linear(word_dim, hidden_size * 2, dropout=dropout)
        for i in range(2):
            setattr(self, f"highway_linear{i}", Linear(hidden_size * 2, hidden_size * 2))
            setattr(self, f"highway_gate{i}", Linear(hidden_size * 2, hidden_size * 2))

        # Attention Flow Layer
        self.att_weight_c = Linear(hidden_size * 2, 1)
        self.att_weight_q = Linear(hidden_size * 2, 1)
        self.att_weight_cq = Linear(hidden_size * 2, 1)

        # Output Layer
        self.p1_weight_g = Linear(hidden_size * 8, 1, dropout=dropout)
        self.p2_weight_g = Linear(hidden_size * 8, 1, dropout=dropout)

    def highway_network(self, x):
        for i in range(2):
            h = torch.relu(getattr(self, f"highway_linear{i}")(x))
            g = torch.sigmoid(getattr(self, f"highway_gate{i}")(x))
            x = g * h + (1 - g) * x
        return x

    def att_flow_layer(self, c, q, c_pad, q_pad):
        """
        :param c: (batch, c_len, hidden_size * 2)
        :param q: (batch, q_len, hidden_size * 2)
        :param c_pad: (batch, c_len), True for padding
        :param q_pad: (batch, q_len), True for padding
        :return: (batch, c_len, hidden_size * 8)
        """
        c_len = c.size(1)
        q_len = q.size(1)

        # one word of the question at a time, which takes less memory
        cq = []
        for i in range(q_len):
            qi = q.select(1, i).unsqueeze(1)
            # before
            ci = self.att_weight_cq(c * qi).squeeze()
            # after
            ci = self.att_weight_cq(c * qi).squeeze(2)
            # end
            cq.append(ci)
        cq = torch.stack(cq, dim=-1)

        # (batch, c_len, q_len)
        s = (
            self.att_weight_c(c).expand(-1, -1, q_len)
            + self.att_weight_q(q).permute(0, 2, 1).expand(-1, c_len, -1)
            + cq
        )
        s = s.masked_fill(q_pad.unsqueeze(1), float("-inf"))

        # (batch, c_len, hidden_size * 2)
        a = F.softmax(s, dim=2)
        c2q_att = torch.bmm(a, q)

        # (batch, 1, c_len)
        b = torch.max(s, dim=2)[0].masked_fill(c_pad, float("-inf"))
        b = F.softmax(b, dim=1).unsqueeze(1)
        # (batch, 1, c_len) * (batch, c_len, hidden_size * 2) -> (batch, hidden_size * 2)
        # before
        q2c_att = torch.bmm(b, c).squeeze()
        # after
        q2c_att = torch.bmm(b, c).squeeze(1)
        # end
        q2c_att = q2c_att.unsqueeze(1).expand(-1, c_len, -1)

        return torch.cat([c, c2q_att, c * c2q_att, c * q2c_att], dim=-1)

    def forward(self, c_word, q_word):
        """
        :param c_word: (batch, c_len), words of the contexts, 1 for padding
        :param q_word: (batch, q_len), words of the questions, 1 for padding
        :return: p1, p2: (batch, c_len), scores of where the answer starts and ends
        """
        c_pad = c_word == self.word_emb.padding_idx
        q_pad = q_word == self.word_emb.padding_idx

        c = self.highway_network(self.word_linear(self.word_emb(c_word)))
        q = self.highway_network(self.word_linear(self.word_emb(q_word)))
        g = self.att_flow_layer(c, q, c_pad, q_pad)

        # (batch, c_len)
        p1 = self.p1_weight_g(g).squeeze(2).masked_fill(c_pad, torch.finfo(g.dtype).min)
        p2 = self.p2_weight_g(g).squeeze(2).masked_fill(c_pad, torch.finfo(g.dtype).min)
        return p1, p2
