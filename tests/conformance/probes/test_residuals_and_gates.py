"""What is added to a context, what multiplies it, and the statistics and numbers from which weights are made."""

import pytest
import torch
from gapped_attention import bugs_in, self_attention
from torch import nn

from heedful.conformance.calling.construction import instantiate

pytestmark = pytest.mark.slow

STACK = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, num_heads=4):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        for _ in range(2):
            residual = x
            x, _ = self.attention(x, x, x)
            x = SUM
            x = x + self.mlp(x)
        return x
"""


def test_a_result_is_added_to_itself_in_place_of_the_input(tmp_path):
    assert bugs_in(tmp_path, STACK.replace("SUM", "x + x")) == {"context-wrong": "x = x + x"}
    assert not bugs_in(tmp_path, STACK.replace("SUM", "x + residual"))


CROSS = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, num_heads=4):
        super().__init__()
        self.w_q, self.w_k, self.w_v = (nn.Linear(dim, dim) for _ in range(3))
        self.attention = nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.local, self.norm = nn.Linear(dim, dim), nn.LayerNorm(dim)

    def forward(self, query, key, value):
        q, k, v = self.w_q(query), self.w_k(key), self.w_v(value)
        context, _ = self.attention(q, k, v)
        return self.norm(OPERAND + context)
"""


@pytest.mark.parametrize(
    ("operand", "names"),
    [("v", ["context-wrong"]), ("q", []), ("query", []), ("self.local(v)", [])],
)
def test_a_residual_connection_adds_the_values(tmp_path, operand, names):
    bugs = bugs_in(tmp_path, CROSS.replace("OPERAND", operand))
    assert [*bugs] == names
    assert all("v + context" in line for line in bugs.values())


GATED = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.to_q, self.to_kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.gating, self.to_out = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.mlp, self.mlp_gate = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, (k, v) = self.to_q(x), self.to_kv(x).chunk(2, dim=-1)
        context = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        context = context * GATE
        x = x + self.to_out(context)
        return x + self.mlp(x) * self.mlp_gate(x)
"""


def test_a_gate_of_the_context_has_no_sigmoid(tmp_path):
    bugs = bugs_in(tmp_path, GATED.replace("GATE", "self.gating(x)"))
    assert bugs == {"context-wrong": "context = context * self.gating(x)"}
    assert not bugs_in(tmp_path, GATED.replace("GATE", "self.gating(x).sigmoid()"))


SPATIAL = '''import torch
from torch import nn


class Attention(nn.Module):
    """WORDS, of maps (B, C, H, W)."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(2, 1, 7, padding=3)

    def forward(self, x):
        statistics = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], dim=1)
        weights = WEIGHTS
        return x * weights
'''


@pytest.mark.parametrize(
    ("words", "weights", "names"),
    [
        ("Spatial attention", "self.conv(statistics)", ["weights-wrong"]),
        ("Spatial attention", "self.conv(statistics).sigmoid()", []),
        ("A modulation", "self.conv(statistics)", []),
    ],
)
def test_a_map_of_spatial_attention_has_no_sigmoid(tmp_path, words, weights, names):
    bugs = bugs_in(tmp_path, SPATIAL.replace("WORDS", words).replace("WEIGHTS", weights))
    assert [*bugs] == names
    assert all(line == "return x * weights" for line in bugs.values())


CHANNELS = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.avg_pool = nn.AdaptiveAvgPool2d(1)
        self.max_pool = nn.MAXIMUM(1)
        self.fc = nn.Sequential(nn.Conv2d(channels, 4, 1), nn.ReLU(), nn.Conv2d(4, channels, 1))

    def forward(self, x):
        weights = self.fc(AVERAGE) + self.fc(self.max_pool(x))
        return x * weights.sigmoid()
"""


def test_pooling_layers_are_called_and_do_what_their_names_say(tmp_path):
    right = CHANNELS.replace("AVERAGE", "self.avg_pool(x)")
    assert not bugs_in(tmp_path, right.replace("MAXIMUM", "AdaptiveMaxPool2d"))
    bugs = bugs_in(tmp_path, right.replace("MAXIMUM", "AdaptiveAvgPool2d"))
    assert bugs == {"weights-wrong": "self.max_pool = nn.AdaptiveAvgPool2d(1)"}
    idle = CHANNELS.replace("AVERAGE", "x").replace("MAXIMUM", "AdaptiveMaxPool2d")
    assert bugs_in(tmp_path, idle) == {
        "projection-unused": "self.avg_pool = nn.AdaptiveAvgPool2d(1)"
    }


POOLED = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.vector = nn.Parameter(torch.MEMORY(dim))
        FILLED

    def forward(self, x):
        return (x @ self.vector).softmax(-1)[:, None] @ x
"""


@pytest.mark.parametrize("memory", ["empty", "FloatTensor"])
def test_a_parameter_gets_no_numbers(tmp_path, memory):
    source = POOLED.replace("MEMORY", memory)
    bugs = bugs_in(tmp_path, source.replace("FILLED", "pass"))
    assert bugs == {"output-not-finite": f"self.vector = nn.Parameter(torch.{memory}(dim))"}
    assert not bugs_in(tmp_path, source.replace("FILLED", "nn.init.normal_(self.vector)"))
    frozen = "self.vector.requires_grad = False"  # a checkpoint is to fill it
    assert not bugs_in(tmp_path, source.replace("FILLED", frozen))
    of_all = source.replace("FILLED", "for it in self.parameters(): nn.init.normal_(it)")
    assert not bugs_in(tmp_path, of_all)


def test_parameters_that_a_model_may_fill_later_are_a_suspicion(tmp_path):
    of_model = (
        "\n\ndef fill(model):\n    for it in model.parameters():\n        it.data.normal_()\n"
    )
    source = POOLED.replace("MEMORY", "empty").replace("FILLED", "pass") + of_model
    assert not bugs_in(tmp_path, source)


class WithMemory(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.register_buffer("cache", torch.empty(4, dim))
        self.table = torch.empty(4, dim)


def test_memory_of_a_cache_holds_no_nan_of_ours():
    made = instantiate(WithMemory, {})
    assert made.cache.isfinite().all()
    assert made.table.isfinite().all()


MAPS = '''import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Channel attention of maps (B, C, H, W)."""

    def __init__(self, channels):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(channels, 4), nn.ReLU(), nn.Linear(4, channels))

    def forward(self, x):
        B, C, H, W = x.shape
        mean = POOL
        return x * self.fc(mean.flatten(1)).sigmoid()[:, :, None, None]
'''


def test_maps_that_are_higher_than_wide_work_like_the_others(tmp_path):
    bugs = bugs_in(tmp_path, MAPS.replace("POOL", "F.avg_pool2d(x, H, stride=H)"))
    assert bugs == {"length-dependent": "mean = F.avg_pool2d(x, H, stride=H)"}
    assert not bugs_in(tmp_path, MAPS.replace("POOL", "F.avg_pool2d(x, (H, W))"))


def test_a_scale_is_kept_and_not_given_to_the_function_that_takes_one(tmp_path):
    made = "self.softmax_scale = 2.0 * (dim // heads) ** -0.5"
    function = (
        "\n\ndef attend(q, k, v, softmax_scale=None):\n"
        "    return F.scaled_dot_product_attention(q, k, v, scale=softmax_scale)\n"
    )
    call = "return self.out(attend(q, k, v).transpose(1, 2).flatten(2))"
    source = self_attention(call, made) + function
    bugs = bugs_in(tmp_path, source)
    assert bugs["scale-missing"] == call
    given = source.replace("attend(q, k, v)", "attend(q, k, v, softmax_scale=self.softmax_scale)")
    assert "scale-missing" not in bugs_in(tmp_path, given)


MEMORY = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, num_heads=4):
        super().__init__()
        self.heads = num_heads
        self.proj_q, self.proj_k, self.proj_v = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, dim)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x):
        q, k, v = (self.split(it(x)) for it in (self.proj_q, self.proj_k, self.proj_v))
        q, k = (nn.functional.elu(it) + 1 for it in (q, k))
        memory = STORED.transpose(-2, -1) @ v
        normalizer = q @ k.sum(-2)[..., None]
        return self.out((q @ memory / normalizer).transpose(1, 2).flatten(2))
"""


def test_a_memory_stores_values_under_queries(tmp_path):
    bugs = bugs_in(tmp_path, MEMORY.replace("STORED", "q"))
    assert bugs["keys-values-swapped"] == "memory = q.transpose(-2, -1) @ v"
    assert not bugs_in(tmp_path, MEMORY.replace("STORED", "k"))


POOLED_BY_QUERIES = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.to_q, self.to_v, self.up = nn.Linear(dim, 1), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        weights = self.to_q(x).softmax(1)
        context = weights.mT @ self.to_v(x)
        return x * self.up(context).sigmoid()
"""


def test_weights_that_are_made_of_queries_alone_store_nothing(tmp_path):
    assert not bugs_in(tmp_path, POOLED_BY_QUERIES)


ENERGY = '''import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, enc_dim=10, dec_dim=12):
        super().__init__()
        self.W, self.V, self.v = nn.Linear(enc_dim, 8), nn.Linear(dec_dim, 8), nn.Linear(8, 1)

    def forward(self, encoder_outputs, decoder_h):
        """
        Args:
            encoder_outputs [batch_size, sequence_length, enc_dim]
            decoder_h [batch_size, dec_dim]
        """
        B, T, _ = encoder_outputs.shape
        keys = self.W(encoder_outputs.reshape(B * T, -1))
        query = self.V(decoder_h).REPEATED
        energy = self.v(torch.tanh(keys + query)).view(B, T)
        return (energy.softmax(-1)[:, None] @ encoder_outputs)[:, 0]
'''


def test_a_state_is_repeated_in_another_order_than_the_tokens(tmp_path):
    bugs = bugs_in(tmp_path, ENERGY.replace("REPEATED", "repeat(T, 1)"))
    assert bugs == {"batch-mixed": "query = self.V(decoder_h).repeat(T, 1)"}
    assert not bugs_in(tmp_path, ENERGY.replace("REPEATED", "repeat_interleave(T, 0)"))


WEIGHTS_ALONE = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, input_dim, embed_dim):
        super().__init__()
        self.lin_proj = nn.Linear(input_dim, embed_dim)
        self.v = nn.Linear(embed_dim, 1)

    def forward(self, inputs):
        energy = self.v(torch.tanh(self.lin_proj(inputs))).SQUEEZED
        return energy.softmax(1)
"""


def test_an_axis_of_one_sequence_is_squeezed(tmp_path):
    bugs = bugs_in(tmp_path, WEIGHTS_ALONE.replace("SQUEEZED", "squeeze()"))
    assert bugs == {"length-dependent": "return energy.softmax(1)"}
    assert not bugs_in(tmp_path, WEIGHTS_ALONE.replace("SQUEEZED", "squeeze(-1)"))


@pytest.mark.parametrize("flag", ["is_causal", "use_causal_attn"])
def test_a_flag_of_causality_has_no_effect(tmp_path, flag):
    source = self_attention("pass").replace("heads=4", f"heads=4, {flag}=False")
    mask = (
        f"self.{flag} = {flag}\n        self.hidden = torch.ones(99, 99, dtype=torch.bool).triu(1)"
    )
    source = source.replace("        pass\n\n", f"        {mask}\n\n", 1)
    hiding = (
        f"if self.{flag}:\n            scores = scores.masked_fill(self.hidden[: x.shape[1], "
        ": x.shape[1]], -torch.inf)"
    )
    assert "future-leak" in bugs_in(tmp_path, source)
    right = source.replace("        pass\n        return", f"        {hiding}\n        return")
    assert "future-leak" not in bugs_in(tmp_path, right)


SQUEEZED = """import torch
from torch import nn


class Attention(nn.Module):
    '''Channel attention: a weight for each channel.'''

    def __init__(self, channels):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.layers = nn.Sequential(nn.Conv2d(channels, 4, 1), nn.ReLU(), nn.Conv2d(4, channels, 1))

    def forward(self, x):
        weights = self.layers(self.pool(x)).sigmoid()
        return x * WEIGHTS
"""


def test_a_sigmoid_is_applied_twice(tmp_path):
    bugs = bugs_in(tmp_path, SQUEEZED.replace("WEIGHTS", "weights.sigmoid()"))
    assert bugs == {"weights-wrong": "return x * weights.sigmoid()"}
    assert not bugs_in(tmp_path, SQUEEZED.replace("WEIGHTS", "weights"))


GRAPH = """import torch
from torch import nn


class Attention(nn.Module):
    '''Weights of the neighbours: SAID'''

    def __init__(self, dim):
        super().__init__()
        self.linear = nn.Linear(2 * dim, 1)

    def forward(self, x, adj):
        # x: (batch, nodes, features). adj: (batch, nodes, nodes).
        n = x.shape[1]
        left, right = x[:, :, None].expand(-1, -1, n, -1), x[:, None].expand(-1, n, -1, -1)
        scores = self.linear(torch.cat((left, right), -1)).squeeze(-1)
        weights = ACTIVATION(scores)
        return weights * adj
"""
SHARES = """

def shares(scores):
    return scores.sigmoid() / scores.sigmoid().sum(-1, keepdim=True)
"""
FORMULA = "w_ij = softmax_j(MLP(x_i || x_j))"


@pytest.mark.parametrize(
    ("said", "activation", "names"),
    [
        (FORMULA, "torch.sigmoid", ["rows-not-normalised"]),
        (FORMULA, "nn.Softmax(-1)", []),
        (FORMULA, "shares", []),
        ("a sigmoid takes the place of the softmax", "torch.sigmoid", []),
    ],
)
def test_the_docstring_has_a_softmax_and_the_code_has_none(tmp_path, said, activation, names):
    source = GRAPH.replace("SAID", said).replace("ACTIVATION", activation)
    bugs = bugs_in(tmp_path, source + SHARES if activation == "shares" else source)
    assert [*bugs] == names
    assert [*bugs.values()] == [f"weights = {activation}(scores)"] * len(names)
