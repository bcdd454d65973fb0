"""The attention of a transformer for music, with an embedding for each distance of two notes."""

import math

import torch
import torch.nn.functional as F


class RelativeGlobalAttention(torch.nn.Module):
    """From Music Transformer (Huang et al, 2018)."""

    def __init__(self, h=4, d=256, max_seq=2048, **kwargs):
        super().__init__()
        self.max_seq = max_seq
        self.h = h
        self.d = d
        self.dh = d // h
        self.Wq = torch.nn.Linear(self.d, self.d)
        self.Wk = torch.nn.Linear(self.d, self.d)
        self.Wv = torch.nn.Linear(self.d, self.d)
        self.fc = torch.nn.Linear(d, d)
        # before
        self.E = torch.randn([self.max_seq, int(self.dh)], requires_grad=False)
        # after
        self.E = torch.nn.Parameter(torch.randn([self.max_seq, int(self.dh)]))
        # end

    def forward(self, inputs, mask=None):
        """
        :param inputs: a list of tensors. i.e) [Q, K, V], each of shape (batch, notes, d)
        :param mask: 1 at the keys that a query does not see
        :return: final tensor ( output of attention )
        """
        q, k, v = (
            layer(x).unflatten(-1, (self.h, -1)).permute(0, 2, 1, 3)
            for layer, x in zip((self.Wq, self.Wk, self.Wv), inputs)
        )
        len_q, len_k = q.size(2), k.size(2)

        E = self._get_left_embedding(len_q).to(q.device, q.dtype)
        QE = torch.einsum("bhld,md->bhlm", q, E)
        Srel = self._skewing(self._qe_masking(QE))

        QKt = torch.matmul(q, k.permute(0, 1, 3, 2))
        logits = (QKt + Srel) / math.sqrt(self.dh)
        if mask is not None:
            logits = logits + mask.to(logits.dtype) * -1e9
        attention_weights = F.softmax(logits, -1)
        attention = torch.matmul(attention_weights, v)

        out = attention.permute(0, 2, 1, 3).reshape(q.size(0), -1, self.d)
        return self.fc(out), attention_weights

    def _get_left_embedding(self, len_q):
        return self.E[max(0, self.max_seq - len_q) :, :]

    @staticmethod
    def _skewing(tensor):
        b, h, rows, columns = tensor.shape
        padded = F.pad(tensor, [1, 0])
        return padded.reshape(b, h, columns + 1, rows)[:, :, 1:, :]

    @staticmethod
    def _qe_masking(qe):
        """Set the scores of distances to 0 that lead beyond the first note."""
        rows = torch.arange(qe.size(-2), device=qe.device)
        columns = torch.arange(qe.size(-1), device=qe.device)
        return qe * (columns >= qe.size(-1) - 1 - rows[:, None]).to(qe.dtype)
