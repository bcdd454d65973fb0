"""Published designs of attention that are not softmax(QKᵀ/√D)V, written from their papers.

A check must not report a bug in any of them. The docstring of each class is its name in the corpus.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

C, H, D, MAX_LENGTH = 24, 4, 6, 80


class _Projected(nn.Module):
    """Four projections around an attention (B, H, T, D) that a subclass defines."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out = (nn.Linear(C, C) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            projection(x).unflatten(-1, (H, D)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        raise NotImplementedError


# --- linear attention ----------------------------------------------------------------------------------


class KernelAttention(_Projected):
    """linear attention with elu + 1 (Katharopoulos et al. 2020)"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = F.elu(q) + 1, F.elu(k) + 1
        summary = k.transpose(-2, -1) @ v
        normalizer = q @ k.sum(dim=-2).unsqueeze(-1)
        return (q @ summary) / normalizer


class KernelAttentionByEinsum(nn.Module):
    """linear attention with elu + 1, as einsums on (B, T, H, D)"""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj, self.eps = nn.Linear(C, 3 * C, bias=False), nn.Linear(C, C), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = self.qkv(x).unflatten(-1, (3, H, D)).unbind(2)
        Q, K = F.elu(queries) + 1, F.elu(keys) + 1
        KV = torch.einsum("nshd,nshm->nhmd", K, values)
        Z = 1 / (torch.einsum("nlhd,nhd->nlh", Q, K.sum(dim=1)) + self.eps)
        V = torch.einsum("nlhd,nhmd,nlh->nlhm", Q, KV, Z)
        return self.proj(V.flatten(2))


class EfficientAttention(nn.Module):
    """efficient attention, with a softmax over features and one over tokens (Shen et al. 2021)"""

    def __init__(self) -> None:
        super().__init__()
        self.to_qkv, self.to_out = nn.Linear(C, 3 * C, bias=False), nn.Linear(C, C)
        self.scale = D**-0.5

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (it.unflatten(-1, (H, D)).transpose(1, 2) for it in self.to_qkv(x).chunk(3, -1))
        q, k = q.softmax(dim=-1) * self.scale, k.softmax(dim=-2)
        context = torch.einsum("bhnd,bhne->bhde", k, v)
        return self.to_out(torch.einsum("bhnd,bhde->bhne", q, context).transpose(1, 2).flatten(2))


class CausalKernelAttention(_Projected):
    """causal linear attention by a running sum of outer products"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = F.elu(q) + 1, F.elu(k) + 1
        sums = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(dim=2)
        normalizer = torch.einsum("bhtd,bhtd->bht", q, k.cumsum(dim=2))
        return torch.einsum("bhtd,bhtde->bhte", q, sums) / normalizer.unsqueeze(-1)


class QuadraticKernelAttention(_Projected):
    """causal linear attention in quadratic form, normalized by the sum of each row"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.relu(q) @ torch.relu(k).mT
        scores = scores.tril() + 1e-9
        scores = scores.tril()
        return scores / scores.sum(-1, keepdim=True) @ v


class RandomFeatures(_Projected):
    """linear attention by positive random features (Choromanski et al. 2021)"""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("directions", torch.randn(16, D))

    def features(self, x: Tensor) -> Tensor:
        x = x * D**-0.25
        return torch.exp(x @ self.directions.t() - x.square().sum(-1, keepdim=True) / 2) / 4

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = self.features(q), self.features(k)
        inverse = 1.0 / torch.einsum("...nd,...d->...n", q, k.sum(dim=-2))
        context = torch.einsum("...nd,...ne->...de", k, v)
        return torch.einsum("...de,...nd,...n->...ne", context, q, inverse)


class Retention(_Projected):
    """retention: scores with a decay instead of a softmax (Sun et al. 2023)"""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("gamma", 1 - 2.0 ** (-5 - torch.arange(H)))
        self.norm = nn.GroupNorm(H, C)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = torch.arange(q.shape[2])
        distance = n[:, None] - n[None, :]
        decay = self.gamma[:, None, None] ** distance.clamp(min=0) * (distance >= 0)
        retention = (q @ k.transpose(-1, -2) * D**-0.5) * decay
        return retention @ v


class CosineLinear(_Projected):
    """linear attention of L2-normalized queries and keys, divided by the number of tokens"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        return q @ (k.mT @ v) / k.shape[-2]


# --- other functions than a softmax ----------------------------------------------------------------------


class SigmoidBias(_Projected):
    """sigmoid attention with a bias of −log n (Ramapuram et al. 2024)"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / math.sqrt(D)
        return torch.sigmoid(scores - math.log(k.shape[-2])) @ v


class SigmoidAttention(_Projected):
    """sigmoid attention with a learned bias, masked"""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.full((H, 1, 1), -3.0))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT * D**-0.5 + self.bias
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(future, float("-inf")).sigmoid() @ v


class PlainSigmoidAttention(_Projected):
    """sigmoid attention without a bias"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.sigmoid(q @ k.transpose(-2, -1) / D**0.5) @ v


class ReLUAttention(_Projected):
    """ReLU attention divided by the number of tokens (Wortsman et al. 2023)"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.relu(q @ k.mT / D**0.5) / k.shape[-2] @ v


class SquaredReLU(_Projected):
    """squared ReLU of the scores over the number of tokens (Hua et al. 2022)"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        T = k.shape[-2]
        A = F.relu(torch.einsum("bhid,bhjd->bhij", q, k) / T) ** 2
        return torch.einsum("bhij,bhje->bhie", A, v)


class QuietSoftmax(_Projected):
    """softmax with 1 added to its denominator (Miller 2023)"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / D**0.5
        largest = scores.amax(-1, keepdim=True).clamp(min=0)
        exponentials = (scores - largest).exp()
        return exponentials / (exponentials.sum(-1, keepdim=True) + (-largest).exp()) @ v


class PlainQuietSoftmax(_Projected):
    """softmax with 1 added to its denominator, without a maximum"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        e = torch.exp(q @ k.mT / D**0.5)
        attn = e / (1 + e.sum(dim=-1, keepdim=True))
        return attn @ v


class ZeroColumn(_Projected):
    """softmax over the scores and one more logit of 0, dropped again"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = F.pad(q @ k.mT / D**0.5, (0, 1))
        return scores.softmax(-1)[..., :-1] @ v


class Differential(nn.Module):
    """differential attention (Ye et al. 2024)"""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(C, C, bias=False) for _ in range(4)
        )
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3)
        self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2 = (
            nn.Parameter(torch.randn(D) * 0.1) for _ in range(4)
        )
        self.subln = nn.RMSNorm(2 * D)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, H, D).transpose(1, 2) * D**-0.5
        k = self.k_proj(x).view(B, T, H, D).transpose(1, 2)
        v = self.v_proj(x).view(B, T, H // 2, 2 * D).transpose(1, 2)
        weights = F.softmax(q @ k.transpose(-1, -2), dim=-1).view(B, H // 2, 2, T, T)
        first = torch.exp((self.lambda_q1 * self.lambda_k1).sum())
        second = torch.exp((self.lambda_q2 * self.lambda_k2).sum())
        weights = weights[:, :, 0] - (first - second + self.lambda_init) * weights[:, :, 1]
        context = self.subln(weights @ v) * (1 - self.lambda_init)
        return self.out_proj(context.transpose(1, 2).reshape(B, T, C))


class DifferentialOfTwo(nn.Module):
    """differential attention with two pairs of projections"""

    def __init__(self) -> None:
        super().__init__()
        self.W_q, self.W_k, self.W_v = nn.Linear(C, 2 * D), nn.Linear(C, 2 * D), nn.Linear(C, C)
        self.lam = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        (q1, q2), (k1, k2), v = self.W_q(x).chunk(2, -1), self.W_k(x).chunk(2, -1), self.W_v(x)
        s = D**-0.5
        a1, a2 = (q1 @ k1.mT * s).softmax(-1), (q2 @ k2.mT * s).softmax(-1)
        return (a1 - self.lam * a2) @ v


class SlotAttention(nn.Module):
    """a softmax over the queries, and a weighted mean over the keys (Locatello et al. 2020)"""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(C, C, bias=False) for _ in range(3))
        self.eps, self.scale = 1e-8, C**-0.5

    def forward(self, inputs: Tensor) -> Tensor:
        q, k, v = self.to_q(inputs), self.to_k(inputs), self.to_v(inputs)
        attn = (torch.einsum("bid,bjd->bij", q, k) * self.scale).softmax(dim=1) + self.eps
        return torch.einsum("bjd,bij->bid", v, attn / attn.sum(dim=-1, keepdim=True))


class Reattention(_Projected):
    """weights mixed across heads by a trained matrix after the softmax (Zhou et al. 2021)"""

    def __init__(self) -> None:
        super().__init__()
        self.reattn_weights = nn.Parameter(torch.randn(H, H))
        self.reattn_norm = nn.LayerNorm(H)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attn = torch.einsum("bhid,bhjd->bhij", q, k) * D**-0.5
        attn = torch.einsum("bhij,hg->bgij", attn.softmax(dim=-1), self.reattn_weights)
        attn = self.reattn_norm(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return torch.einsum("bhij,bhjd->bhid", attn, v)


class ZeroTemperature(_Projected):
    """a learned temperature, in logarithms, that starts at 1"""

    def __init__(self) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT * self.log_temperature.exp()).softmax(-1) @ v


class LearnedScale(_Projected):
    """a learned scale of the queries that starts at 1"""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q * self.scale, k, v, scale=1.0)


class Sparsemax(_Projected):
    """sparsemax instead of softmax (Martins and Astudillo 2016)"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        z = q @ k.mT / D**0.5
        ordered = z.sort(dim=-1, descending=True).values
        sums = ordered.cumsum(-1) - 1
        counts = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype)
        size = (counts * ordered > sums).sum(-1, keepdim=True)
        threshold = sums.gather(-1, size - 1) / size
        return (z - threshold).clamp(min=0) @ v


class TopK(_Projected):
    """only the three largest scores of each query are kept"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / D**0.5
        least = scores.topk(min(3, scores.shape[-1]), dim=-1).values[..., -1:]
        return scores.masked_fill(scores < least, float("-inf")).softmax(-1) @ v


class TalkingHeads(_Projected):
    """talking heads: heads are mixed before and after the softmax (Shazeer et al. 2020)"""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(H, H, bias=False), nn.Linear(H, H, bias=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT * D**-0.5
        weights = self.before(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).softmax(-1)
        return self.after(weights.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) @ v


# --- other scores and scales -----------------------------------------------------------------------------


class CrossCovariance(nn.Module):
    """attention over channels with a learned temperature (El-Nouby et al. 2021)"""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(H, 1, 1))
        self.qkv, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, C)

    def forward(self, x: Tensor) -> Tensor:
        B, N, _ = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, H, D).permute(2, 0, 3, 4, 1)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        attn = (q @ k.transpose(-2, -1)) * self.temperature
        return self.proj((attn.softmax(dim=-1) @ v).permute(0, 3, 1, 2).reshape(B, N, C))


class ChannelAttention(nn.Module):
    """attention over the channels of each group, scaled by the number of tokens (Ding et al. 2022)"""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, C)

    def forward(self, x: Tensor) -> Tensor:
        B, N, _ = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, H, D).permute(2, 0, 3, 1, 4)
        q = q * N**-0.5
        attention = (q.transpose(-1, -2) @ k).softmax(dim=-1)
        out = (attention @ v.transpose(-1, -2)).transpose(-1, -2)
        return self.proj(out.transpose(1, 2).reshape(B, N, C))


class UnscaledWithBias(nn.Module):
    """no scale, and a bias that a table holds for each distance (Raffel et al. 2020)"""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(C, C, bias=False) for _ in range(4))
        self.relative_attention_bias = nn.Embedding(15, H)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (it(x).unflatten(-1, (H, D)).transpose(1, 2) for it in (self.q, self.k, self.v))
        positions = torch.arange(x.shape[1])
        distance = (positions[None] - positions[:, None]).clamp(-7, 7) + 7
        scores = q @ k.transpose(3, 2) + self.relative_attention_bias(distance).permute(2, 0, 1)
        return self.o((F.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2))


class T5Attention(_Projected):
    """no scale, as in the layers of T5 after the first"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # T5 has no scale: it is part of the initialization.
        return (q @ k.mT).softmax(-1) @ v


class SelfAttention2d(nn.Module):
    """attention of a GAN over the pixels, with a factor that starts at 0 (Zhang et al. 2019)"""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.g = nn.Conv1d(C, C // 8, 1), nn.Conv1d(C, C // 8, 1)
        self.h, self.gamma = nn.Conv1d(C, C, 1), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.transpose(1, 2)
        f, g, h = self.f(pixels), self.g(pixels), self.h(pixels)
        beta = F.softmax(torch.bmm(f.transpose(1, 2), g), dim=1)
        return (self.gamma * torch.bmm(h, beta) + pixels).transpose(1, 2)


class NonLocal(nn.Module):
    """non-local block, embedded Gaussian, with a last layer that starts at 0 (Wang et al. 2018)"""

    def __init__(self) -> None:
        super().__init__()
        self.theta, self.phi, self.g = (nn.Conv1d(C, C // 2, 1) for _ in range(3))
        self.W_z = nn.Conv1d(C // 2, C, 1)
        nn.init.zeros_(self.W_z.weight)
        nn.init.zeros_(self.W_z.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        theta, phi, g = self.theta(x).transpose(1, 2), self.phi(x), self.g(x).transpose(1, 2)
        y = F.softmax(theta @ phi, dim=-1) @ g
        return (self.W_z(y.transpose(1, 2)) + x).transpose(1, 2)


class CosineScores(_Projected):
    """cosine similarities with a learned, clamped scale (Liu et al. 2022)"""

    def __init__(self) -> None:
        super().__init__()
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(H, 1, 1)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        return (attn * self.logit_scale.clamp(max=math.log(100)).exp()).softmax(-1) @ v


class LearnedTemperature(_Projected):
    """scores with a learned temperature"""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.full((H, 1, 1), 0.9))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT * self.temperature).softmax(-1) @ v


class NormedWithGains(_Projected):
    """queries and keys of length 1, with different trained gains for each feature and no scale"""

    def __init__(self) -> None:
        super().__init__()
        self.q_scale, self.k_scale = (nn.Parameter(torch.rand(H, 1, D) * 3) for _ in range(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = F.normalize(q, dim=-1) * self.q_scale, F.normalize(k, dim=-1) * self.k_scale
        return F.scaled_dot_product_attention(q, k, v, scale=1.0)


class NormedByRoot(_Projected):
    """queries and keys normalized to length √D each, without a scale"""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(H, 1, D))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = (F.normalize(it, dim=-1) * D**0.5 * self.gamma for it in (q, k))
        return (q @ k.transpose(-1, -2)).softmax(dim=-1) @ v


class NormedQueries(_Projected):
    """queries and keys normalized over features, with learned gains"""

    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm = nn.RMSNorm(D), nn.RMSNorm(D)
        nn.init.uniform_(self.q_norm.weight)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (self.q_norm(q) @ self.k_norm(k).mT / D**0.5).softmax(-1) @ v


class Distances(_Projected):
    """squared distances of queries and keys instead of products (Kim et al. 2021)"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        squares = q.square().sum(-1, keepdim=True) + k.square().sum(-1).unsqueeze(-2)
        return (-(squares - 2 * q @ k.mT) / D**0.5).softmax(-1) @ v


class Additive(nn.Module):
    """additive scores (Bahdanau et al. 2015)"""

    def __init__(self) -> None:
        super().__init__()
        self.W_q, self.W_k, self.w_v = nn.Linear(C, C), nn.Linear(C, C), nn.Linear(C, 1)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.tanh(self.W_q(x).unsqueeze(2) + self.W_k(x).unsqueeze(1))
        return self.w_v(features).squeeze(-1).softmax(dim=-1) @ x


class Bilinear(nn.Module):
    """general scores x W y, without a scale (Luong et al. 2015)"""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Linear(C, C, bias=False)
        self.combine = nn.Linear(2 * C, C)

    def forward(self, x: Tensor) -> Tensor:
        context = (self.W(x) @ x.transpose(1, 2)).softmax(-1) @ x
        return torch.tanh(self.combine(torch.cat([context, x], dim=-1)))


class DenseSynthesizer(nn.Module):
    """weights synthesized from each token alone (Tay et al. 2020)"""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.weights = nn.Linear(C, C), nn.Linear(C, MAX_LENGTH)
        self.value = nn.Linear(C, C)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.weights(F.relu(self.inner(x)))[..., : x.shape[1]]
        return logits.softmax(-1) @ self.value(x)


# --- positions -------------------------------------------------------------------------------------------


class ShawPositions(_Projected):
    """vectors of relative positions added to keys and values (Shaw et al. 2018)"""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = nn.Embedding(9, D), nn.Embedding(9, D)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        positions = torch.arange(q.shape[2])
        distance = (positions[None] - positions[:, None]).clamp(-4, 4) + 4
        scores = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, self.keys(distance))
        weights = (scores / math.sqrt(D)).softmax(-1)
        return weights @ v + torch.einsum("bhij,ijd->bhid", weights, self.values(distance))


class SkewedPositions(_Projected):
    """relative positions by the skewing procedure, causal (Huang et al. 2019)"""

    def __init__(self) -> None:
        super().__init__()
        self.Er = nn.Parameter(torch.randn(MAX_LENGTH, D))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        T = q.shape[2]
        relative = F.pad(q @ self.Er[MAX_LENGTH - T :].t(), (1, 0))
        relative = relative.reshape(*relative.shape[:2], T + 1, T)[:, :, 1:]
        scores = (q @ k.mT + relative) / D**0.5
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        return scores.masked_fill(future, float("-inf")).softmax(-1) @ v


class TransformerXL(nn.Module):
    """tokens first, with biases u and v and relative sinusoids (Dai et al. 2019)"""

    def __init__(self) -> None:
        super().__init__()
        self.qkv_net, self.o_net = nn.Linear(C, 3 * C, bias=False), nn.Linear(C, C, bias=False)
        self.r_net = nn.Linear(C, C, bias=False)
        self.r_w_bias = nn.Parameter(torch.randn(H, D) * 0.1)
        self.r_r_bias = nn.Parameter(torch.randn(H, D) * 0.1)
        self.scale = 1 / D**0.5

    def forward(self, w: Tensor) -> Tensor:
        qlen, bsz = w.size(0), w.size(1)
        frequencies = 1 / (10000 ** (torch.arange(0.0, C, 2.0) / C))
        angles = torch.outer(torch.arange(qlen - 1, -1, -1.0), frequencies).to(w.dtype)
        r = torch.cat([angles.sin(), angles.cos()], dim=-1)
        heads_q, heads_k, heads_v = torch.chunk(self.qkv_net(w), 3, dim=-1)
        heads_q, heads_k, heads_v = (it.view(qlen, bsz, H, D) for it in (heads_q, heads_k, heads_v))
        AC = torch.einsum("ibnd,jbnd->ijbn", heads_q + self.r_w_bias, heads_k)
        BD = torch.einsum("ibnd,jnd->ijbn", heads_q + self.r_r_bias, self.r_net(r).view(qlen, H, D))
        padded = torch.cat([BD.new_zeros(qlen, 1, bsz, H), BD], dim=1)
        BD = padded.view(qlen + 1, qlen, bsz, H)[1:].view_as(BD)
        scores = (AC + BD) * self.scale
        future = torch.ones(qlen, qlen, dtype=torch.bool).triu(1)[:, :, None, None]
        weights = F.softmax(
            scores.float().masked_fill(future, -float("inf")).type_as(scores), dim=1
        )
        context = torch.einsum("ijbn,jbnd->ibnd", weights, heads_v)
        return self.o_net(context.contiguous().view(qlen, bsz, C))


class SymmetricAlibi(_Projected):
    """a penalty that grows with the distance to either side (Press et al. 2022)"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        positions = torch.arange(q.shape[2])
        distance = (positions[None] - positions[:, None]).abs()
        slopes = 2.0 ** (-8 * torch.arange(1, H + 1) / H)
        return (q @ k.mT / D**0.5 - slopes[:, None, None] * distance).softmax(-1) @ v


class CausalAlibi(_Projected):
    """a penalty on the distance to earlier keys, steep enough to hide the far ones"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        T = q.shape[2]
        positions = torch.arange(T)
        slopes = torch.tensor([1 / 2, 1 / 4, 1 / 8, 4.0])
        bias = -slopes[:, None, None] * (positions[:, None] - positions[None]).clamp(min=0)
        mask = torch.full((T, T), float("-inf")).triu(1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=(bias + mask).to(q.dtype))


class Disentangled(_Projected):
    """content-to-position and position-to-content scores, scaled by √(3D) (He et al. 2021)"""

    def __init__(self) -> None:
        super().__init__()
        self.rel_embeddings = nn.Parameter(torch.randn(16, C))
        self.pos_q, self.pos_k = nn.Linear(C, C), nn.Linear(C, C)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        positions = torch.arange(q.shape[2])
        distance = (positions[:, None] - positions[None]).clamp(-8, 7) + 8
        keys = self.pos_k(self.rel_embeddings).view(16, H, D).transpose(0, 1)
        queries = self.pos_q(self.rel_embeddings).view(16, H, D).transpose(0, 1)
        shape = (*q.shape[:2], *distance.shape)
        c2p = (q @ keys.mT).gather(-1, distance.expand(shape))
        p2c = (k @ queries.mT).gather(-1, distance.expand(shape)).mT
        return ((q @ k.mT + c2p + p2c) / math.sqrt(3 * D)).softmax(-1) @ v


# --- other keys --------------------------------------------------------------------------------------------


class Indexed(_Projected):
    """an indexer chooses the keys of each query by scores of its own (DeepSeek-AI 2025)"""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.weights = nn.Linear(C, 2 * D), nn.Linear(C, D), nn.Linear(C, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            it(x).unflatten(-1, (H, D)).transpose(1, 2)
            for it in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = torch.einsum("bthd,bsd->bths", self.wq(x).unflatten(-1, (2, D)), self.wk(x))
        index = torch.einsum("bths,bth->bts", F.relu(scores), self.weights(x))
        chosen = index.topk(min(3, x.shape[1]), dim=-1).indices
        mask = torch.full_like(index, float("-inf")).scatter(-1, chosen, 0.0)
        weights = (q @ k.mT / D**0.5 + mask.unsqueeze(1)).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Buckets(_Projected):
    """windows of four tokens that also see the window before them"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        T = q.shape[2]
        q, k, v = (F.pad(it, (0, 0, 0, -T % 4)).unflatten(2, (-1, 4)) for it in (q, k, v))
        k, v = (torch.cat([F.pad(it, (0, 0, 0, 0, 1, -1)), it], dim=-2) for it in (k, v))
        positions = torch.arange(q.shape[2] * 4).view(-1, 4)
        earlier = torch.cat([F.pad(positions, (0, 0, 1, -1), value=-1), positions], dim=-1)
        hidden = (earlier[:, None] > positions[..., None]) | (earlier[:, None] < 0)
        scores = (q @ k.mT / D**0.5).masked_fill(hidden, float("-inf"))
        return (scores.softmax(-1) @ v).flatten(2, 3)[:, :, :T]


class Linformer(nn.Module):
    """keys and values projected along the tokens (Wang et al. 2020)"""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (
            nn.Linear(C, C, bias=False) for _ in range(4)
        )
        self.E, self.F = (nn.Parameter(torch.randn(MAX_LENGTH, 5) * 0.3) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        T = x.shape[1]
        keys = torch.einsum("bnd,nk->bkd", self.to_k(x), self.E[:T])
        values = torch.einsum("bnd,nk->bkd", self.to_v(x), self.F[:T])
        q, k, v = (it.unflatten(-1, (H, D)).transpose(1, 2) for it in (self.to_q(x), keys, values))
        weights = (torch.einsum("bhnd,bhkd->bhnk", q, k) * D**-0.5).softmax(dim=-1)
        return self.to_out((weights @ v).transpose(1, 2).flatten(2))


class PersistentMemory(_Projected):
    """learned keys and values beside those of the tokens (Sukhbaatar et al. 2019)"""

    def __init__(self) -> None:
        super().__init__()
        self.mem_k, self.mem_v = (nn.Parameter(torch.randn(H, 2, D)) for _ in range(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        B = q.shape[0]
        k = torch.cat([self.mem_k.expand(B, -1, -1, -1), k], dim=-2)
        v = torch.cat([self.mem_v.expand(B, -1, -1, -1), v], dim=-2)
        return (q @ k.mT / D**0.5).softmax(-1) @ v


class PooledKeys(_Projected):
    """keys and values averaged over pairs of tokens (Liu et al. 2018)"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        T = k.shape[-2]
        k, v = (F.pad(it, (0, 0, 0, T % 2)).unflatten(-2, (-1, 2)).mean(-2) for it in (k, v))
        return (q @ k.mT / D**0.5).softmax(-1) @ v


class ExternalAttention(nn.Module):
    """two learned memories, normalized twice (Guo et al. 2021)"""

    def __init__(self) -> None:
        super().__init__()
        self.mk, self.mv = nn.Linear(C, 10, bias=False), nn.Linear(10, C, bias=False)

    def forward(self, queries: Tensor) -> Tensor:
        attn = self.mk(queries).softmax(dim=1)
        return self.mv(attn / attn.sum(dim=2, keepdim=True))


class InducedSet(nn.Module):
    """learned inducing points between the tokens (Lee et al. 2019)"""

    def __init__(self) -> None:
        super().__init__()
        self.inducing = nn.Parameter(torch.randn(1, 5, C))
        self.first = nn.MultiheadAttention(C, H, batch_first=True)
        self.second = nn.MultiheadAttention(C, H, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        points = self.inducing.expand(len(x), -1, -1)
        hidden = self.first(points, x, x, need_weights=False)[0]
        return self.second(x, hidden, hidden, need_weights=False)[0]


class GatedContext(_Projected):
    """a gate on the context of each head (Qiu et al. 2025)"""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(C, C)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            it(x).unflatten(-1, (H, D)).transpose(1, 2)
            for it in (self.q_proj, self.k_proj, self.v_proj)
        )
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(context.transpose(1, 2).flatten(2) * self.gate(x).sigmoid())


class Hopfield(nn.Module):
    """retrieval from a Hopfield network in two updates with a fixed β (Ramsauer et al. 2021)"""

    def __init__(self, beta: float = 0.25) -> None:
        super().__init__()
        self.beta = beta
        self.state, self.stored, self.content = (nn.Linear(C, C) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        state, stored = self.state(x), self.stored(x)
        for _ in range(2):
            state = (self.beta * state @ stored.mT).softmax(-1) @ stored
        return (self.beta * state @ stored.mT).softmax(-1) @ self.content(x)


class Nystrom(_Projected):
    """landmarks and an inverse (Xiong et al. 2021)"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = q * D**-0.5
        marks = torch.linspace(0, q.shape[2] - 1, 5).long()
        landmarks_q, landmarks_k = q[:, :, marks], k[:, :, marks]
        first = (q @ landmarks_k.mT).softmax(-1)
        middle = (landmarks_q @ landmarks_k.mT).softmax(-1)
        last = (landmarks_q @ k.mT).softmax(-1)
        inverse = torch.linalg.inv(middle + 0.1 * torch.eye(5, dtype=q.dtype))
        return first @ inverse @ (last @ v)
