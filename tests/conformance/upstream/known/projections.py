"""Known bugs of learned parts that are not used, or that learn nothing."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from upstream.cases import Case, edges, image, sizes
from upstream.proofs import CAUSAL, REAL, B, C, H, T, attended, heads, made, merged, proves, tokens


def _patches() -> tuple[Any, ...]:
    """Return the class tokens and patches of two videos of 3 frames of 4 patches, and these sizes."""
    return torch.randn(2, 13, 16), 4, 3


def _history() -> tuple[Any, ...]:
    """Return the neighbors of two entities at their time steps, the entities, their relations and all embeddings."""
    neighbors = [[[1, 2, 4], [0, 3]], [[2, 0], [1], [3, 4]]]
    return (
        neighbors,
        torch.tensor([3, 1]),
        torch.tensor([0, 2]),
        torch.randn(5, 8),
        torch.randn(3, 8),
    )


def _places_and_prompt() -> tuple[Any, ...]:
    """Return 6 places of two images, and 5 tokens of the image prompt with 4 of a face."""
    return torch.randn(2, 6, 16), torch.randn(2, 9, 12)


def _channels() -> tuple[Any, ...]:
    """Return the features of 5 channels, and their values at 8 steps."""
    return torch.randn(2, 5, 16), torch.randn(2, 5, 8)


def _pairs_of_sentences() -> tuple[Any, ...]:
    """Return two pairs of sentences of 7 words together, and which sentence each word belongs to."""
    return torch.randint(0, 20, (2, 7)), (torch.arange(7) > 3).long().expand(2, 7)


def _sentences() -> tuple[Any, ...]:
    """Return two sentences of up to 6 words, and where there are words."""
    return torch.randn(2, 6, 32), torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])


def _traffic() -> tuple[Any, ...]:
    """Return 3 features of 5 nodes at 4 times, and the sources and targets of 8 edges."""
    return torch.randn(5, 3, 4), edges()[1]


def _nodes() -> tuple[Any, ...]:
    """Return the nodes of a graph."""
    return (torch.randn(7, 16),)


def _two_stages() -> tuple[Any, ...]:
    """Return what two stages know."""
    return (torch.randn(3, 2, 32),)


def _sequences() -> tuple[Any, ...]:
    """Return two noisy sequences of 16 bases, their time steps and cell types."""
    return torch.randn(2, 1, 4, 16), torch.rand(2), torch.tensor([1, 3])


def _images_and_steps() -> tuple[Any, ...]:
    """Return two noisy images and their time steps."""
    return torch.randn(2, 3, 8, 8), torch.tensor([3, 40])


def _tiles() -> tuple[Any, ...]:
    """Return two tiles, their cells, which cells are neighbours, and the sizes of the cells."""
    near = torch.rand(2, 5, 5) < 0.4
    adjacency = (near | near.mT | torch.eye(5, dtype=torch.bool)).float()
    return torch.randn(2, 32), torch.randn(2, 5, 32), adjacency, torch.rand(2, 5, 2)


CASES = (
    Case("lanmt_11", "TransformerCrossEncoderLayer", "zomux/lanmt#11", "projection-unused"),
    Case(
        "audiolm_265",
        "TransformerBlock",
        "lucidrains/audiolm-pytorch#265",
        "projection-unused",
        options={"causal": True},
    ),
    Case(
        "motionformer_6",
        "TrajectoryAttention",
        "facebookresearch/Motionformer#6",
        "projection-unused",
        options=sizes(dim=16, num_heads=4),
        example=_patches,
    ),
    Case(
        "torchtune_21",
        "LlamaSelfAttention",
        "meta-pytorch/torchtune#21",
        "projection-unused",
        known_as=("context-wrong",),
        options={"causal": True, **sizes(embed_dim=32, num_heads=4, num_kv_heads=2)},
    ),
    Case(
        "x_transformers_352",
        "Attention",
        "lucidrains/x-transformers#352",
        "projection-unused",
        options=sizes(dim=32, dim_head=8, heads=4),
    ),
    Case(
        "re_net_6",
        "AttnAggregator",
        "INK-USC/RE-Net#6",
        "attention-ignored",
        known_as=("projection-unused",),
        options=sizes(h_dim=8, dropout=0.1, seq_len=4),
        example=_history,
    ),
    Case("a_gcn_4", "AttentionGraphConvolution", "queenie88/A-GCN#4", "gradient-wrong"),
    Case(
        "vqgan_23",
        "NonLocalBlock",
        "dome272/VQGAN-pytorch#23",
        "projection-unused",
        options=sizes(channels=16),
        example=image,
    ),
    Case(
        "apex_816",
        "SelfMultiheadAttn",
        "NVIDIA/apex#816",
        "gradient-wrong",
        known_as=("dropout-rescale",),
        options=sizes(embed_dim=32, num_heads=4, dropout=0.1),
    ),
    Case(
        "pytorch_geometric_1642",
        "GATConv",
        "pyg-team/pytorch_geometric#1642",
        "projection-unused",
        options=sizes(in_channels=16, out_channels=8, heads=2),
        example=edges,
    ),
    Case(
        "transformer_from_scratch_1",
        "MultiHeadAttention",
        "Khaliladib11/Transformer-from-scratch#1",
        "projection-unused",
    ),
    Case(
        "stableanimator_111",
        "AnimationIDAttention",
        "Francis-Rings/StableAnimator#111",
        "projection-unused",
        options=sizes(hidden_size=16, cross_attention_dim=12, heads=4),
        example=_places_and_prompt,
    ),
    Case(
        "duet_6",
        "ChannelEncoderLayer",
        "decisionintelligence/DUET#6",
        "projection-unused",
        known_as=("weights-wrong",),
        options=sizes(seq_len=8, d_model=16, n_heads=4),
        example=_channels,
    ),
    Case(
        "d2l_2121",
        "BERTEncoder",
        "d2l-ai/d2l-en#2121",
        "gradient-wrong",
        options=sizes(
            vocab_size=20, num_hiddens=16, ffn_num_hiddens=24, num_heads=4, num_blks=1, dropout=0.1
        ),
        example=_pairs_of_sentences,
    ),
    Case(
        "denoising_diffusion_1",
        "AttnBlock",
        "hmdolatabadi/denoising_diffusion#1",
        "projection-unused",
        known_as=("keys-values-swapped", "context-wrong"),
        options=sizes(channels=16),
        example=image,
    ),
    Case(
        "fast_transformers_10",
        "RecurrentAttentionLayer",
        "idiap/fast-transformers#10",
        "gradient-wrong",
        known_as=("crashes",),
        options={"causal": True},
    ),
    Case(
        "flash_linear_attention_875",
        "LinearAttention",
        "fla-org/flash-linear-attention#875",
        "gradient-wrong",
        options={"causal": True, **sizes(hidden_size=32, num_heads=4)},
    ),
    Case(
        "fastnlp_140",
        "StarTransformer",
        "FudanNLP/fastNLP#140",
        "projection-unused",
        known_as=("keys-values-swapped", "context-wrong"),
        options=sizes(hidden_size=32, num_layers=2, num_head=4, head_dim=8),
        example=_sentences,
    ),
    Case(
        "pytorch_geometric_temporal_204",
        "A3TGCN",
        "benedekrozemberczki/pytorch_geometric_temporal#204",
        "attention-ignored",
        known_as=("weights-wrong",),
        options=sizes(in_channels=3, out_channels=8, periods=4),
        example=_traffic,
    ),
    Case(
        "simgnn_2",
        "Attention",
        "pulkit1joshi/SimGNN#2",
        "attention-ignored",
        known_as=("context-wrong",),
        options=sizes(filters_3=16),
        example=_nodes,
    ),
    Case(
        "annotated_transformer_1",
        "MultiHeadedAttention",
        "yflyzhang/AnnotatedTransformer#1",
        "projection-unused",
        known_as=("keys-values-swapped", "context-wrong"),
        options=sizes(h=4, d_model=32),
    ),
    Case(
        "aitm_1",
        "Attention",
        "adtalos/AITM-torch#1",
        "projection-unused",
        known_as=("keys-values-swapped", "weights-wrong"),
        options=sizes(dim=32),
        example=_two_stages,
    ),
    Case(
        "pytorch_geometric_1354",
        "GATConv",
        "pyg-team/pytorch_geometric#1354",
        "attention-ignored",
        known_as=("weights-wrong",),
        options=sizes(in_channels=16, out_channels=8, heads=2),
        example=edges,
    ),
    Case(
        "deepctr_494",
        "Transformer",
        "shenweichen/DeepCTR#494",
        "keys-values-swapped",
        known_as=("context-wrong", "weights-wrong"),
        options=sizes(embedding_size=32, att_embedding_size=8, head_num=4),
    ),
    Case(
        "dna_diffusion_235",
        "UNet",
        "pinellolab/DNA-Diffusion#235",
        "attention-ignored",
        known_as=("context-wrong", "projection-unused"),
        options=sizes(dim=16, seq_len=16),
        example=_sequences,
    ),
    Case(
        "denoising_diffusion_pytorch_1",
        "Unet",
        "lucidrains/denoising-diffusion-pytorch#1",
        "attention-ignored",
        known_as=("projection-unused",),
        options=sizes(dim=16, dim_mults=(1, 2)),
        example=_images_and_steps,
    ),
    Case(
        "histocell_3",
        "HistoCell",
        "recolyce/HistoCell#3",
        "attention-ignored",
        known_as=("projection-unused", "context-wrong"),
        options=sizes(feat_dim=32, size_dim=8),
        example=_tiles,
    ),
)


@proves("lanmt_11")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.TransformerCrossEncoderLayer, C, H), tokens(), tokens(B, 4, C)
    ones = torch.ones(B, 4)
    h1 = m.attention(*[m.layer_norm1(x)] * 3, mask=REAL) + x
    h2 = h1 + m.cross_attention(m.layer_norm2(h1), y, y, mask=ones)
    return m(x, REAL, y, ones), m.ff_layer(m.layer_norm3(h2)) + h2


@proves("audiolm_265")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TransformerBlock, C), tokens()
    y = m.attn(x) + x
    return m(x), m.ff(y) + y


@proves("motionformer_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TrajectoryAttention, C, H), tokens(B, 7, C)
    q, k, v = (heads(part) for part in m.qkv(x).chunk(3, -1))
    first = F.scaled_dot_product_attention(q[:, :, :1], k, v)
    frames = [
        merged(F.scaled_dot_product_attention(q[:, :, 1:], k[:, :, s], v[:, :, s]))
        for s in (slice(1, 4), slice(4, 7))
    ]
    own = torch.cat([frames[0][:, :3], frames[1][:, 3:]], 1)
    k2, v2 = m.proj_kv(torch.stack(frames, 2)).flatten(0, 1).chunk(2, -1)
    context = attended(m.proj_q(own).reshape(-1, 1, C), k2, v2).view(B, 6, C)
    return m(x, 3, 2), m.proj(torch.cat([merged(first), context], 1))


@proves("torchtune_21")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.LlamaSelfAttention, C, H, 2), tokens()
    q, k, v = m.qkv_proj(x).view(B, T, 2, 4, 4).transpose(1, 2).split([2, 1, 1], 3)
    scores = torch.einsum("bgqnd,bgkd->bgnqk", q, k.squeeze(3)) / 2.0
    weights = scores.masked_fill(~CAUSAL, -torch.inf).softmax(-1)
    context = torch.einsum("bgnqk,bgkd->bqgnd", weights, v.squeeze(3))
    return m(x), m.output_proj(context.flatten(2))


@proves("x_transformers_352")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, dim_head=5, heads=H), tokens()
    with torch.no_grad():
        m.qk_norm_q_scale += tokens(H, 1, 5) / 4  # as after some steps of training
        m.qk_norm_k_scale += tokens(H, 1, 5) / 4
    q = F.normalize(heads(m.to_q(x)), dim=-1) * m.qk_norm_q_scale
    k = F.normalize(heads(m.to_k(x)), dim=-1) * m.qk_norm_k_scale
    context = F.scaled_dot_product_attention(q, k, heads(m.to_v(x)), scale=10.0)
    return m(x), m.to_out(merged(context))


@proves("re_net_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, entities, relations = made(module.AttnAggregator, C, 0.1, 2), tokens(5, C), tokens(3, C)
    pair, neighbors = torch.cat([entities[3], relations[0]]), [[1, 2, 4], [0, 3]]
    steps = []
    for chosen in neighbors:
        asked = torch.cat([entities[chosen], pair.expand(len(chosen), -1)], -1)
        weights = (m.attn_s(asked).tanh() @ m.v_s).softmax(0)
        steps.append(torch.cat([weights.T @ entities[chosen], pair[None]], -1))
    actual = m([neighbors], torch.tensor([3]), torch.tensor([0]), entities, relations)
    return actual[0], torch.cat(steps)


@proves("a_gcn_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AttentionGraphConvolution, C, C), tokens()
    direction, step = torch.randn_like(m.w_phi.weight), 1e-6
    loss = m(x).sum()
    gradient = torch.autograd.grad(loss, m.w_phi.weight, allow_unused=True)[0]
    with torch.no_grad():
        m.w_phi.weight += step * direction
        slope = (m(x).sum() - loss) / step
    actual = torch.zeros(()) if gradient is None else (gradient * direction).sum()
    close = (actual - slope).abs() < 1e-4 * (1 + slope.abs())
    return torch.where(close, slope, actual), slope


@proves("vqgan_23")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.NonLocalBlock, C), tokens(B, C, 3, 4)
    normed = m.gn(image)
    q, k, v = (conv(normed).flatten(2).mT for conv in (m.q, m.k, m.v))
    context = F.scaled_dot_product_attention(q, k, v).mT.reshape(B, C, 3, 4)
    return m(image), image + m.proj_out(context)


@proves("apex_816")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfMultiheadAttn, C, H), tokens().requires_grad_()
    q, k, v = m.in_proj(x).unflatten(-1, (3, C)).unbind(-2)
    expected = m.out_proj(attended(q, k, v, REAL))
    grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (m(x, ~REAL), expected)]
    return grads[0], grads[1]


@proves("pytorch_geometric_1642")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.GATConv, C, 5, heads=2), tokens(3, C)
    edges = torch.tensor([[0, 1, 2, 0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 1, 1, 2, 2, 2]])
    values = m.lin_l(x).view(3, 2, 5)
    scores = (values * m.att_r).sum(-1)[:, None] + (values * m.att_l).sum(-1)
    weights = F.leaky_relu(scores, 0.2).softmax(1)
    return m(x, edges), torch.einsum("ijh,jhd->ihd", weights, values).flatten(1) + m.bias


@proves("transformer_from_scratch_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y, z = made(module.MultiHeadAttention, C, H), tokens(), tokens(), tokens()
    q, k, v = m.query(heads(x)), m.key(heads(y)), m.value(heads(z))
    return m(y, x, z), m.fc_out(merged(F.scaled_dot_product_attention(q, k, v)))


@proves("stableanimator_111")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AnimationIDAttention, C, 12, H, num_tokens=2), tokens()
    prompt, face = tokens(B, 3, 12), tokens(B, 2, 12)
    of_prompt = attended(m.to_q(x), m.to_k(prompt), m.to_v(prompt))
    of_face = attended(m.to_q(x), m.to_k_ip(face), m.to_v_ip(face))
    expected = m.to_out[0](of_prompt + m.align(of_face, of_prompt))
    return m(x, torch.cat([prompt, face], 1)), expected


@proves("duet_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, series = made(module.ChannelEncoderLayer, 7, C, H), tokens(), tokens(B, T, 7)
    spectra = torch.fft.rfft(series).abs() @ m.mask_generator.A.T
    near = (-((spectra[:, :, None] - spectra[:, None]) ** 2).sum(-1)).exp().clamp(min=1e-6)
    q, k, v = (
        heads(project(x)) for project in (m.query_projection, m.key_projection, m.value_projection)
    )
    context = merged(F.scaled_dot_product_attention(q, k, v, attn_mask=near.log()[:, None]))
    y = m.norm1(x + m.out_projection(context))
    return m(x, series), m.norm2(y + m.conv2(m.conv1(y.mT).relu()).mT)


@proves("d2l_2121")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.BERTEncoder, 20, C, 24, H, 1, 0.0)
    words, sentences = torch.randint(20, (B, T)), torch.randint(2, (B, T))
    direction, weights = torch.randn_like(m.pos_embedding), tokens()
    (m(words, sentences) * weights).sum().backward()
    grad = m.pos_embedding.grad
    actual = torch.zeros(()) if grad is None else (grad * direction).sum()
    values = []
    for step in (1e-6, -1e-6):
        with torch.no_grad():
            m.pos_embedding += step * direction
            values.append((m(words, sentences) * weights).sum())
            m.pos_embedding -= step * direction
    expected = (values[0] - values[1]) / 2e-6
    return actual / expected, torch.ones(())


@proves("denoising_diffusion_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AttnBlock, C), tokens(B, C, 2, 3)
    h = m.normalize(x)
    q, k, v = (project(h).flatten(2).mT for project in (m.query, m.key, m.value))
    context = F.scaled_dot_product_attention(q, k, v)
    return m(x), x + m.proj_out(context.mT.reshape(x.shape))


@proves("fast_transformers_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, direction = made(module.RecurrentAttentionLayer, C, H), tokens(), tokens()
    q, k = (heads(F.elu(p(x).view(B, T, C)) + 1) for p in (m.query_projection, m.key_projection))
    weights = (q @ k.mT) * CAUSAL
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-6)
    expected = m.out_projection(merged(weights @ heads(m.value_projection(x))))
    weight = m.key_projection.weight
    grads = [torch.autograd.grad((y * direction).sum(), weight)[0] for y in (m(x), expected)]
    return grads[0], grads[1]


@proves("flash_linear_attention_875")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, direction = made(module.LinearAttention, C, H), tokens().requires_grad_(), tokens()
    q, k, v = (heads(project(x)) for project in (m.q_proj, m.k_proj, m.v_proj))
    weights = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).tril()
    expected = m.o_proj(merged(weights / weights.sum(-1, keepdim=True) @ v))
    gradients = [torch.autograd.grad((y * direction).sum(), x)[0] for y in (m(x), expected)]
    return gradients[0], gradients[1]


@proves("fastnlp_140")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.StarTransformer, C, 1, H, 4), tokens()
    nodes, relay = m(x, REAL.long())
    words = x * REAL[..., None]
    mean = words.sum(1, keepdim=True) / REAL.sum(1)[:, None, None]
    star, keys = m.star_att[0], torch.cat([mean, nodes], 1)
    seen = torch.cat([REAL[:, :1], REAL], 1)
    context = attended(star.WQ(mean), star.WK(keys), star.WV(keys), seen)
    return relay, F.leaky_relu(star.WO(context))[:, 0]


@proves("pytorch_geometric_temporal_204")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, states = made(module.PeriodAttention, C, 4), tokens(4, T, C)
    return m(states.flip(0)), m(states).flip(0)


@proves("simgnn_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, nodes = made(module.Attention, C), tokens(7, C)
    weights = (nodes @ (nodes.mean(0) @ m.weights_att).tanh()).sigmoid()
    return m(nodes), (weights[:, None] * nodes).sum(0, keepdim=True)


@proves("annotated_transformer_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, text = made(module.MultiHeadedAttention, H, C), tokens(B, 5, C), tokens()
    context = attended(m.q_proj(x), m.k_proj(text), m.v_proj(text), REAL)
    return m(x, text, text, REAL[:, None]), m.o_proj(context)


@proves("aitm_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C), tokens(B, 2, C)
    scores = torch.einsum("bsc,bsc->bs", m.q_layer(x), m.k_layer(x)) / C**0.5
    return m(x), torch.einsum("bs,bsc->bc", scores.softmax(-1), m.v_layer(x))


@proves("pytorch_geometric_1354")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, (nodes, ends) = made(module.GATConv, C, 8, 2), edges()
    nodes = nodes.double()
    x = m.lin(nodes).unflatten(-1, (2, 8))
    scores = (x * m.att_src).sum(-1)[None] + (x * m.att_dst).sum(-1)[:, None]
    keep = torch.eye(5, dtype=torch.bool)
    keep[ends[1], ends[0]] = True
    scores = F.leaky_relu(scores, 0.2).masked_fill(~keep[..., None], -torch.inf)
    return m(nodes, ends), torch.einsum("ijh,jhd->ihd", scores.softmax(1), x).flatten(1)


@proves("deepctr_494")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.Transformer, C, 4, H), tokens(), tokens()
    expected = x + attended(x @ m.W_Query, y @ m.W_key, y @ m.W_Value, REAL)
    return m(x, y, REAL.sum(-1)), expected + F.relu(expected @ m.fw1) @ m.fw2


@proves("dna_diffusion_235")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.UNet, C, seq_len=8), tokens(2, 1, 4, 8)
    time, cells = torch.rand(2, dtype=torch.float64), torch.tensor([1, 3])
    t, r = m.time_mlp(time) + m.label_emb(cells), m.init_conv(x)
    y = m.final_conv(m.final_res_block(torch.cat([m.mid_block(r, t), r], 1), t))
    a, bases = m.cross_attn, m.norm_to_cross(y.flatten(1)).view(2, 4, 8)
    k, v = a.to_kv(t.view(2, 4, 8)).chunk(2, -1)
    context = a.to_out(F.scaled_dot_product_attention(a.to_q(bases), k, v))
    return m(x, time, cells), y + context[:, None]


@proves("denoising_diffusion_pytorch_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Unet, C, dim_mults=(1, 2)), tokens(2, 3, 4, 4)
    time = torch.tensor([3.0, 40.0], dtype=torch.float64)
    for name, parameter in m.named_parameters():
        if name.endswith(".g"):
            torch.nn.init.constant_(parameter, 0.5)
    actual, t = m(x, time), m.time_mlp(time)

    def attention(wrapped: Any, x: Tensor) -> Tensor:
        a = wrapped.fn.fn
        q, k, v = (heads(y.flatten(2).mT) for y in a.to_qkv(x).chunk(3, 1))
        weights = q.softmax(-1) @ k.softmax(-2).mT
        return x + 0.5 * a.to_out(merged(weights @ v).mT.unflatten(2, x.shape[2:]))

    def level(blocks: Any, x: Tensor) -> Tensor:
        return attention(blocks[2], blocks[1](blocks[0](x, t), t))

    x = m.downs[0][3](level(m.downs[0], x))
    x = skipped = level(m.downs[1], x)
    x = m.mid_block2(attention(m.mid_attn, m.mid_block1(x, t)), t)
    x = m.ups[0][3](level(m.ups[0], torch.cat([x, skipped], 1)))
    return actual, m.final_conv(x)


@proves("histocell_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.HistoCell, C, 8)
    tissue, bag, size = tokens(B, C), tokens(), tokens(B, T, 2)
    near = torch.rand(B, T, T) < 0.4
    near = near | near.mT | torch.eye(T, dtype=torch.bool)
    y = m.merge(torch.cat([bag, m.size_embed(size)], -1)) @ m.gat.W
    pairs = torch.cat([y[:, :, None].expand(-1, -1, T, -1), y[:, None].expand(-1, T, -1, -1)], -1)
    scores = F.leaky_relu((pairs @ m.gat.a).squeeze(-1), 0.2)
    y = scores.masked_fill(~near, -torch.inf).softmax(-1) @ y
    expected = []
    for row in range(B):
        states = [m.out(torch.stack([tissue[row], cell])[None])[0][0, 1] for cell in y[row]]
        expected.append(m.predict(torch.stack(states)))
    return m(tissue, bag, near.double(), size)[0], torch.stack(expected)
