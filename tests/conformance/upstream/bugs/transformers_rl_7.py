"""The memory of an agent: a Transformer-XL with gates, which reads an episode in segments."""

import torch


class PositionalEmbedding(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        inv_freq = 1 / (10000 ** (torch.arange(0.0, dim, 2.0) / dim))
        self.register_buffer("inv_freq", inv_freq)

    def forward(self, positions):
        sinusoid_inp = torch.einsum("i,j->ij", positions.to(self.inv_freq.dtype), self.inv_freq)
        return torch.cat([sinusoid_inp.sin(), sinusoid_inp.cos()], dim=-1)


class GatingMechanism(torch.nn.Module):
    def __init__(self, d_input, bg=0.1):
        super().__init__()
        self.W = torch.nn.Linear(d_input, 2 * d_input)
        self.U = torch.nn.Linear(d_input, 2 * d_input)
        self.bg = bg

    def forward(self, x, y):
        z, h = (self.W(y) + self.U(x)).chunk(2, dim=-1)
        z = torch.sigmoid(z - self.bg)
        return (1 - z) * x + z * torch.tanh(h)


class MultiHeadAttentionXL(torch.nn.Module):
    def __init__(self, d_input, d_inner, n_heads=4):
        super().__init__()
        self.d_inner, self.n_heads = d_inner, n_heads
        self.linear_kv = torch.nn.Linear(d_input, d_inner * n_heads * 2, bias=False)
        self.linear_q = torch.nn.Linear(d_input, d_inner * n_heads, bias=False)
        self.linear_p = torch.nn.Linear(d_input, d_inner * n_heads, bias=False)
        self.u = torch.nn.Parameter(torch.randn(n_heads, d_inner) * 0.1)
        self.v = torch.nn.Parameter(torch.randn(n_heads, d_inner) * 0.1)
        self.lout = torch.nn.Linear(d_inner * n_heads, d_input, bias=False)

    def _rel_shift(self, x):
        zero_pad = x.new_zeros((x.size(0), 1, *x.size()[2:]))
        padded = torch.cat([zero_pad, x], dim=1)
        return padded.view(x.size(1) + 1, x.size(0), *x.size()[2:])[1:].reshape(x.shape)

    def forward(self, input_, pos_embs, memory, mask):
        cur_seq, bs, _ = input_.shape
        H, d = self.n_heads, self.d_inner
        k, v = self.linear_kv(torch.cat([memory, input_], dim=0)).chunk(2, dim=-1)
        q = self.linear_q(input_).view(cur_seq, bs, H, d)
        k, v = k.reshape(-1, bs, H, d), v.reshape(-1, bs, H, d)
        p = self.linear_p(pos_embs).view(-1, H, d)
        content_attn = torch.einsum("ibhd,jbhd->ijbh", q + self.u, k)
        position_attn = self._rel_shift(torch.einsum("ibhd,jhd->ijbh", q + self.v, p))
        attn = (content_attn + position_attn) * (1 / d**0.5)
        attn = attn.masked_fill(mask[..., None, None], -float("inf")).softmax(dim=1)
        out = torch.einsum("ijbh,jbhd->ibhd", attn, v)
        return self.lout(out.reshape(cur_seq, bs, H * d))


class StableTransformerXL(torch.nn.Module):
    def __init__(self, d_input, n_heads, d_head_inner, n_layers=1, mem_len=16):
        super().__init__()
        self.n_layers, self.mem_len = n_layers, mem_len
        self.pos_embs = PositionalEmbedding(d_input)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(d_input) for _ in range(n_layers))
        self.layers = torch.nn.ModuleList(
            MultiHeadAttentionXL(d_input, d_head_inner, n_heads) for _ in range(n_layers)
        )
        self.gates = torch.nn.ModuleList(GatingMechanism(d_input) for _ in range(n_layers))

    def init_memory(self, inputs):
        empty = inputs.new_empty(0, *inputs.shape[1:])
        return [empty for _ in range(self.n_layers + 1)]

    def update_memory(self, previous_memory, hidden_states):
        """
        + Arguments
            - previous_memory: List[torch.FloatTensor],
            - hidden_states: List[torch.FloatTensor]
        """
        assert len(hidden_states) == len(previous_memory)
        mem_len, seq_len = previous_memory[0].size(0), hidden_states[0].size(0)
        with torch.no_grad():
            new_memory = []
            end_idx = mem_len + seq_len
            # before
            beg_idx = max(0, end_idx - mem_len)
            # after
            beg_idx = max(0, end_idx - self.mem_len)
            # end
            for m, h in zip(previous_memory, hidden_states):
                cat = torch.cat([m, h], dim=0)
                new_memory.append(cat[beg_idx:end_idx].detach())
        return new_memory

    def forward(self, inputs, memory=None):
        """
        + Arguments
            - inputs: the observations of a segment, of shape (steps, batch, d_input)
            - memory: what the call on the segment before returned
        """
        if memory is None:
            memory = self.init_memory(inputs)
        cur_seq, prev_seq = inputs.shape[0], memory[0].size(0)
        mask = torch.ones(cur_seq, cur_seq + prev_seq, dtype=torch.bool, device=inputs.device)
        mask = mask.triu(diagonal=1 + prev_seq)
        pos_ips = torch.arange(cur_seq + prev_seq - 1, -1, -1, device=inputs.device)
        pos_embs = self.pos_embs(pos_ips)

        hidden_states = [inputs]
        for norm, layer, gate, mem in zip(self.norms, self.layers, self.gates, memory):
            src = hidden_states[-1]
            hidden_states.append(gate(src, layer(norm(src), pos_embs, norm(mem), mask)))
        #  Memory is treated as a const., don't propagate through it
        return hidden_states[-1], self.update_memory(memory, hidden_states)
