"""Scores without a scale."""

from dataclasses import dataclass

import pytest
import torch
from edited_attention import CLASS, CORRECT, edited
from torch import Tensor, nn

from heedful import check

HELPER = """
def fused(q, k, v, mask, factor_scale=None):
    return F.scaled_dot_product_attention(q, k, v, mask, scale=factor_scale)

def plain(q, k, v, mask, scaling):
    scores = (q @ k.mT) * scaling
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v

"""


class TokensAsKeys(nn.Module):
    """Projected queries that attend to the tokens themselves."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.project = nn.Linear(d_model, d_model, bias=False)
        self.combine = nn.Linear(2 * d_model, d_model, bias=False)

    def forward(self, query: Tensor, context: Tensor) -> Tensor:
        query = self.project(query)
        mix = torch.bmm((query @ context.mT).softmax(-1), context)
        return self.combine(torch.cat([mix, query], dim=-1)).tanh()


class ProjectedKeys(TokensAsKeys):
    """The same, with keys and values from a projection of their own."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.other = nn.Linear(d_model, d_model, bias=False)

    def forward(self, query: Tensor, context: Tensor) -> Tensor:
        return super().forward(query, self.other(context))


class StatesAsKeys(nn.Module):
    """Weighs encoder states by their products with decoder states; nothing is trained."""

    def forward(self, query: Tensor, context: Tensor) -> Tensor:
        return (query @ context.mT).softmax(-1) @ context


class StatesAsKeysAlone(nn.Module):
    """Takes values of their own beside the keys."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (query @ key.mT).softmax(-1) @ value


class StateAsQuery(nn.Module):
    """Compares the state of a decoder with the keys that an encoder has projected; nothing is trained."""

    def forward(self, state: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        energy = torch.bmm(keys, state.unsqueeze(2)).squeeze(2)
        return torch.bmm(energy.softmax(1).unsqueeze(1), values).squeeze(1)


class ProjectedStateAsQuery(StateAsQuery):
    """Projects all three, as attention with a scale does."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, state: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return super().forward(self.q(state), self.k(keys), self.v(values))


class Memories(nn.Module):
    """Compares an embedded question with embedded sentences (Sukhbaatar et al. 2015)."""

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.question, self.keys, self.values = (
            nn.Embedding(vocab_size, d_model) for _ in range(3)
        )

    def forward(self, memories: Tensor, question: Tensor) -> Tensor:
        query = self.question(question).sum(dim=1, keepdim=True)
        weights = (query @ self.keys(memories).sum(dim=2).mT).softmax(dim=-1)
        return (weights @ self.values(memories).sum(dim=2)).squeeze(1)


class SelfAttention(StatesAsKeysAlone):
    """Projects the tokens of one sequence."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.q(x), self.k(x), self.v(x))


class StatedScale(ProjectedKeys):
    """Multiplies the scores by a number that whoever builds it has to state."""

    def __init__(self, d_model: int, sharpness) -> None:
        super().__init__(d_model)
        self.sharpness = sharpness

    def forward(self, query: Tensor, context: Tensor) -> Tensor:
        query, context = self.project(query), self.other(context)
        mix = ((query @ context.mT) * self.sharpness).softmax(-1) @ context
        return self.combine(torch.cat([mix, query], dim=-1)).tanh()


class Averaged(nn.Module):
    """Divides the products by the number of keys, which are fewer than the queries (Wang et al. 2018)."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Conv2d(in_channels, 4, 1) for _ in range(3))
        self.combine, self.pool = nn.Conv2d(4, in_channels, 1), nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pool(x)
        query, key, value = self.query(x), self.key(pooled), self.value(pooled)
        query, key, value = (part.flatten(2) for part in (query, key, value))
        scores = query.mT @ key
        context = scores / scores.size(-1) @ value.mT
        return x + self.combine(context.mT.unflatten(-1, x.shape[2:]))


@dataclass
class Configuration:
    hidden_size: int = 24
    query_pre_attn_scalar: float = 144.0


class ConfiguredScale(nn.Module):
    """Takes its scale from its configuration, as Gemma does."""

    def __init__(self, config: Configuration) -> None:
        super().__init__()
        self.scale = config.query_pre_attn_scalar**-0.5
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        return (query @ key.mT * self.scale).softmax(-1) @ value


class NonLocal(SelfAttention):
    """A non-local block in its embedded Gaussian version."""

    def forward(self, x: Tensor) -> Tensor:
        return (self.q(x) @ self.k(x).mT).softmax(-1) @ self.v(x)


@pytest.mark.parametrize("definition", [ConfiguredScale, NonLocal])
def test_a_scale_that_the_configuration_or_the_design_states_is_no_bug(definition) -> None:
    findings = check(definition).findings
    assert [it.level for it in findings if it.name.startswith("scale")] == ["convention"]


def test_a_scale_that_the_check_has_guessed_is_no_bug() -> None:
    assert not check(StatedScale).bugs


def test_products_divided_by_the_number_of_keys_are_a_design() -> None:
    assert not check(Averaged).bugs


@pytest.mark.parametrize(("scale", "bugs"), [(1.0, ["scale-missing"]), (8**-0.5, [])])
def test_the_scale_of_the_weights_is_not_that_of_the_biases(scale, bugs) -> None:
    attention = SelfAttention(8)
    with torch.no_grad():
        attention.q.weight *= scale
        attention.q.bias *= 0.1
    assert [finding.name for finding in check(attention).bugs] == bugs


def test_an_embedded_question_needs_no_scale() -> None:
    ids = [torch.randint(1, 30, shape) for shape in ((3, 6, 5), (3, 4))]
    assert not check(Memories(30, 8), example=tuple(ids)).bugs


def levels(definition: type[nn.Module]) -> list[str]:
    findings = check(definition).findings
    return [finding.level for finding in findings if finding.name == "scale-missing"]


@pytest.mark.parametrize("definition", [TokensAsKeys, StatesAsKeys, StateAsQuery])
def test_attention_to_unprojected_tokens_needs_no_scale(definition) -> None:
    assert levels(definition) == ["convention"]


@pytest.mark.parametrize("definition", [ProjectedKeys, StatesAsKeysAlone, ProjectedStateAsQuery])
def test_attention_to_keys_beside_values_needs_a_scale(definition) -> None:
    assert levels(definition) == ["bug"]


@pytest.mark.parametrize(
    ("query", "call", "line"),
    [
        (" * self.factor", "fused(query, key, value, seen, self.factor)", "fused(query"),
        ("", "plain(query, key, value, seen, scaling=self.wrong)", "self.wrong ="),
        ("", "plain(query, key, value, seen, factor)", "factor = query.shape"),
    ],
    ids=["twice", "wrong attribute", "wrong variable"],
)
def test_a_scale_that_a_call_passes_on_is_blamed_where_it_comes_from(tmp_path, query, call, line):
    source = CORRECT.replace(CLASS, HELPER + CLASS)
    start = source.index("        scores = query @")
    stop = source.index("        context = context.transpose")
    body = (
        f"        query = query{query}\n"
        "        seen = ~self.mask[:T, :T]\n"
        "        factor = query.shape[-1] ** -0.25\n"
        f"        context = {call}\n"
    )
    source = source[:start] + body + source[stop:]
    source = source.replace(
        "        self.p = dropout\n",
        "        self.factor = (d_model // num_heads) ** -0.5\n"
        "        self.wrong = d_model ** -0.5\n",
    )
    with edited(tmp_path, source=source) as attention:
        bugs = check(attention, causal=True).bugs
    (bug,) = (bug for bug in bugs if bug.name == "scale-wrong")
    assert bug.place is not None
    assert line in bug.place.source


def test_an_unpacked_size_is_right_and_dividing_by_it_is_wrong(tmp_path):
    source = CORRECT.replace("key.shape[-1] ** 0.5", "C**0.5")
    with edited(tmp_path, source=source) as attention:
        bugs = check(attention, causal=True).bugs
    assert [(it.name, it.place and it.place.source) for it in bugs] == [
        ("scale-wrong", "scores = scores / C**0.5")
    ]


@pytest.mark.parametrize(
    ("root", "given", "line"),
    [
        ("math.sqrt(size)", "d_model", "self.divide = Divide(d_model)"),
        ("size ** 0.5", "d_model", "self.divide = Divide(d_model)"),
        ("2 * size ** 0.5", "d_model // num_heads", "self.divisor = 2 * size ** 0.5"),
    ],
    ids=["a function", "a power", "the root itself is right"],
)
def test_a_submodule_that_divides_by_the_root_of_a_size_is_given_the_wrong_size(
    tmp_path, root, given, line
):
    divide = f"""
import math

class Divide(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.divisor = {root}

    def forward(self, scores):
        return scores / self.divisor

"""
    source = CORRECT.replace(CLASS, divide + CLASS)
    source = source.replace("scores / key.shape[-1] ** 0.5", "self.divide(scores)")
    source = source.replace(
        "        self.p = dropout\n",
        f"        self.p = dropout\n        self.divide = Divide({given})\n",
    )
    with edited(tmp_path, source=source) as attention:
        bugs = check(attention, causal=True).bugs
    assert [(it.name, it.place and it.place.source) for it in bugs] == [("scale-wrong", line)]


@pytest.mark.parametrize(
    ("fill", "diagonal", "bug"),
    [("-8.0", 1, "mask-fill-too-small"), ("torch.finfo(x.dtype).min", 0, "self-hidden")],
)
def test_a_wrong_scale_is_found_beside_a_wrong_mask(tmp_path, fill, diagonal, bug):
    source = CORRECT.replace("key.shape[-1] ** 0.5", "x.shape[-1] ** 0.5")
    source = source.replace('float("-inf")', fill).replace("triu(1)", f"triu({diagonal})")
    with edited(tmp_path, source=source) as attention:
        bugs = check(attention, causal=True).bugs
    assert {it.name for it in bugs} == {bug, "scale-wrong"}


class OverPixels(nn.Module):
    """Projects the pixels of a feature map by linear layers, as others do by convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(channels, channels) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        pixels = x.flatten(2).transpose(1, 2)
        weights = (self.query(pixels) @ self.key(pixels).mT).softmax(-1)
        return x + (weights @ self.value(pixels)).transpose(1, 2).reshape(b, c, h, w)


def test_between_projected_pixels_no_scale_is_a_convention():
    assert [(it.name, it.level) for it in check(OverPixels).findings] == [
        ("scale-missing", "convention")
    ]
