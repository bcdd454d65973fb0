"""The GPT: what tokens see, its initialisation, and that caches, compilation and recording change nothing."""

import math

import pytest
import torch

from heedful import Documents, Padding, record
from heedful.errors import ArgumentError
from heedful.gpt import GPT, GPTConfig

SMALL = {
    "vocab_size": 61,
    "context_length": 32,
    "d_model": 48,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
}
SHAPES = {
    "gpt2": GPTConfig.gpt2(**SMALL),
    "llama": GPTConfig.llama(**SMALL),
    "mixed": GPTConfig(**SMALL, head_dim=20, norm="rms", activation="gelu", tied=False, window=7),
}


@pytest.fixture(params=SHAPES)
def model(request):
    """Return a model in eval mode with weights so large that attention is far from uniform."""
    torch.manual_seed(0)
    gpt = GPT(SHAPES[request.param]).eval()
    with torch.no_grad():
        for parameter in gpt.parameters():
            parameter.mul_(4.0 if parameter.dim() == 2 else 1.0)
    return gpt


def random_tokens(B: int, T: int) -> torch.Tensor:
    return torch.randint(SMALL["vocab_size"], (B, T), generator=torch.Generator().manual_seed(1))


def test_tokens_see_only_earlier_tokens(model):
    tokens = random_tokens(2, 20)
    changed = tokens.clone()
    changed[:, 12] = (changed[:, 12] + 1) % SMALL["vocab_size"]
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :12], after[:, :12])
    assert (before[:, 12:] - after[:, 12:]).abs().amax(-1).min() > 1e-4


def test_packed_documents_are_read_as_if_alone(model):
    tokens = random_tokens(1, 20)
    ids = torch.tensor([[0] * 8 + [1] * 12])
    positions = torch.cat([torch.arange(8), torch.arange(12)])
    packed = model(tokens, mask=Documents(ids), positions=positions)
    alone = torch.cat([model(tokens[:, :8]), model(tokens[:, 8:])], dim=1)
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(model(tokens), alone, atol=1e-3)


def test_padding_on_the_left_changes_nothing(model):
    tokens, lengths = random_tokens(2, 14), torch.tensor([14, 9])
    positions = (torch.arange(14) - (14 - lengths).unsqueeze(1)).clamp(min=0)
    logits = model(tokens, mask=Padding(lengths, side="left"), positions=positions)
    torch.testing.assert_close(logits[1:, 5:], model(tokens[1:, 5:]), atol=1e-5, rtol=1e-5)
    assert logits.isfinite().all()


def test_reading_in_parts_with_caches_equals_reading_at_once(model):
    tokens, caches, parts = random_tokens(2, 20), model.new_caches(2, 20), []
    for part in tokens.split([11, 1, 1, 7], dim=1):
        logits, caches = model(part, caches=caches)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens), atol=1e-5, rtol=1e-5)
    assert [cache.length for cache in caches] == [20, 20]


def test_a_mask_is_lowered_once_for_all_layers(model, monkeypatch):
    key_ranges, times = Documents.key_ranges, []

    def counted(self, grid):
        times.append(grid)
        return key_ranges(self, grid)

    monkeypatch.setattr(Documents, "key_ranges", counted)
    model(random_tokens(1, 9), mask=Documents(torch.arange(9) // 4))
    assert len(times) == 1


def test_a_boolean_tensor_is_accepted_as_mask(model):
    ids = torch.tensor([[0] * 8 + [1] * 12])
    same = (ids.unsqueeze(-1) == ids.unsqueeze(-2)).unsqueeze(1)
    documents, dense = (model(random_tokens(1, 20), mask=mask) for mask in (Documents(ids), same))
    torch.testing.assert_close(documents, dense, atol=1e-5, rtol=1e-5)


def test_the_head_computes_logits_from_hidden_states(model):
    tokens = random_tokens(2, 9)
    torch.testing.assert_close(model.head(model.hidden(tokens)[:, -1]), model(tokens)[:, -1])


def test_weights_are_initialised_as_in_gpt2s_paper():
    torch.manual_seed(0)
    config = GPTConfig.gpt2(vocab_size=500, context_length=100, num_layers=8)
    model = GPT(config)
    residual = 0.02 / math.sqrt(16)
    deviations = {
        name: parameter.std().item()
        for name, parameter in model.named_parameters()
        if parameter.dim() == 2
    }
    for name, deviation in deviations.items():
        is_residual = name.endswith(("out_proj.weight", "down.weight"))
        assert deviation == pytest.approx(residual if is_residual else 0.02, rel=0.02), name
    assert all(
        (parameter == 0).all()
        for name, parameter in model.named_parameters()
        if name.endswith("bias")
    )
    logits = model(torch.randint(500, (2, 50)))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.randint(500, (100,)))
    assert loss.item() == pytest.approx(math.log(500), abs=0.3)


def test_a_tied_model_has_one_matrix_for_embedding_and_head():
    tied, untied = (GPT(GPTConfig.llama(**SMALL, tied=tied)) for tied in (True, False))
    assert tied.head.weight is tied.token_embedding.weight
    assert untied.parameter_count - tied.parameter_count == 61 * 48


def test_the_default_llama_has_as_many_parameters_as_smollm2():
    with torch.device("meta"):
        model = GPT(GPTConfig.llama())
    assert model.parameter_count == 134_515_008


def test_dropout_acts_in_training_only():
    torch.manual_seed(0)
    model, tokens = GPT(GPTConfig.gpt2(**SMALL, dropout=0.5)), random_tokens(2, 9)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_model_compiles_to_one_graph(family):
    torch.manual_seed(0)
    model, tokens = GPT(getattr(GPTConfig, family)(**SMALL, dropout=0.0)), random_tokens(2, 12)
    mask = Documents(torch.arange(12) // 5)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    logits = compiled(tokens, mask=mask)
    torch.testing.assert_close(logits, model(tokens, mask=mask), atol=1e-5, rtol=1e-5)
    gradients = []
    for output in (logits, model(tokens, mask=mask)):
        gradients.append(
            torch.autograd.grad(output.logsumexp(-1).sum(), model.blocks[0].mlp.up.weight)[0]
        )
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_record_names_the_steps(model):
    trace = record(model, random_tokens(1, 6))
    names = {step.name for step in trace}
    assert {
        "queries",
        "keys",
        "values",
        "contexts",
        "normalised",
        "activated",
        "hidden",
        "x",
    } <= names
    assert torch.equal(trace["logits"].value, model(random_tokens(1, 6)))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("tokens", {"tokens": torch.zeros(3, dtype=torch.int64)}),
        ("tokens", {"tokens": torch.zeros(1, 3)}),
        ("tokens", {"tokens": torch.tensor([[0, 61]])}),
        ("tokens", {"tokens": torch.tensor([[-1, 0]])}),
        ("positions", {"tokens": torch.zeros(1, 33, dtype=torch.int64)}),
        ("caches", {"tokens": torch.zeros(1, 3, dtype=torch.int64), "caches": []}),
    ],
)
def test_an_invalid_argument_is_named(name, arguments):
    with pytest.raises(ArgumentError) as caught:
        GPT(SHAPES["gpt2"])(**arguments)
    assert caught.value.argument == name
