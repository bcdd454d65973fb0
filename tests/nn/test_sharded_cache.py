"""A cache sharded over ranks: the logits and the texts of one process, from a share of the memory."""

import pytest
import torch

from heedful import attention
from heedful.errors import ArgumentError, KernelError, RankError
from heedful.gpt import GPT, GPTConfig
from heedful.gpt.generation import GREEDY, Sampling, generate
from heedful.masks import Causal, Dense, Padding, Sinks, Window
from heedful.nn import MultiHeadAttention, RotaryEmbedding, ShardedKVCache
from heedful.parallel import count_traffic, decode_attention, simulate

PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [8, 9], [10]]


def gpt(**changes):
    sizes = {"vocab_size": 23, "context_length": 16, "d_model": 32, "num_layers": 2, "num_heads": 4}
    return GPT(GPTConfig(**sizes, **{"num_kv_heads": 2, **changes})).double().eval()


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "changes", [{}, {"window": 5, "positions": "rotary"}], ids=["learned", "window"]
)
def test_logits_are_those_of_one_process_token_for_token(ranks, changes):
    model, tokens = gpt(**changes), torch.randint(0, 23, (2, 15))
    expected = model(tokens).detach()

    @torch.inference_mode()
    def on_each_rank(group):
        caches, found = model.new_caches(2, 15, group), []
        for part in tokens.split([6, 1, 3, 1, 1, 1, 1, 1], dim=1):
            logits, caches = model(part, caches=caches)
            found.append(logits)
        assert sum(cache.key.shape[2] for cache in caches[:1]) == -(-15 // ranks)
        return torch.cat(found, dim=1)

    first, *others = simulate(on_each_rank, ranks)
    torch.testing.assert_close(first, expected, rtol=0, atol=1e-12)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=3, top_k=9)])
def test_generated_texts_are_those_of_one_process(sampling):
    """Prompts of different lengths are padded, and texts grow beyond the context."""
    model = gpt(positions="rotary")
    expected = generate(model, PROMPTS, tokens=14, sampling=sampling)
    texts = simulate(
        lambda group: generate(model, PROMPTS, tokens=14, sampling=sampling, group=group), 3
    )
    assert texts == [expected] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "mask",
    [
        None,
        Causal(align="end"),
        Sinks(2) | Window(4, align="end"),
        Padding(torch.tensor([9, 0]), side="left"),
    ],
    ids=["none", "causal", "sinks", "padding"],
)
def test_attention_to_keys_on_all_ranks(mask, dtype):
    query = torch.randn(2, 4, 3, 8).to(dtype)
    key, value = torch.randn(2, 2, 9, 8).to(dtype), torch.randn(2, 2, 9, 6).to(dtype)
    expected = attention(query.double(), key.double(), value.double(), mask, softcap=3.0, scale=0.5)

    def on_each_rank(group):
        places = torch.tensor([[0, 4, 5], [], [1, 2, 3, 6, 7, 8]][group.axes[0].rank]).long()
        tensors = query, key[:, :, places], value[:, :, places]
        return decode_attention(
            *tensors, mask, group=group, places=places, tokens=9, softcap=3.0, scale=0.5
        )

    first, *others = simulate(on_each_rank, 3)
    assert first.dtype == dtype
    torch.testing.assert_close(
        first.double(), expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 2e-2
    )
    assert all(torch.equal(first, other) for other in others)


def test_no_keys_are_sent():
    query, key = torch.randn(1, 4, 1, 8), torch.randn(1, 2, 500, 8)

    def on_each_rank(group):
        places = torch.arange(group.axes[0].rank, 1000, 2)
        with count_traffic() as traffic:
            decode_attention(query, key, key, group=group, places=places, tokens=1000)
        return traffic.bytes

    assert (
        simulate(on_each_rank, 2) == [4 * (8 + 1) * 4] * 2
    )  # an output and a number for each head


def test_ranks_that_read_other_tokens_are_named():
    model = gpt()

    def on_each_rank(group):
        rank = group.axes[0].rank
        return generate(model, [[1 + rank, 2]], tokens=3, sampling=GREEDY, group=group)

    with pytest.raises(RankError, match="rank 1: query"):
        simulate(on_each_rank, 2)


def refused(name, error=ArgumentError, **changes):
    """Call decode_attention() with changed arguments, and check what the error names."""
    tensors = {"query": torch.randn(1, 2, 1, 8), "key": torch.randn(1, 2, 3, 8)}
    tensors["value"] = tensors["key"]
    options = {"mask": None, "places": torch.arange(3), "tokens": 3}
    with pytest.raises(error, match=name):
        simulate(
            lambda group: decode_attention(group=group, **{**tensors, **options, **changes}), 1
        )


def test_arguments_that_do_not_fit_are_refused():
    refused("^mask: ", mask=Dense(torch.ones(1, 3).bool() & torch.tensor([True, False, True])))
    refused("^mask: ", mask=torch.ones(1, 3).bool())
    refused("^places: ", places=torch.arange(2))
    refused("^query: .*no gradients", query=torch.randn(1, 2, 1, 8, requires_grad=True))
    refused("^value: ", value=torch.randn(1, 2, 4, 8))
    refused("torch_sdpa", KernelError, kernel="torch_sdpa", softcap=3.0)


def test_training_and_too_many_tokens_are_refused():
    module = MultiHeadAttention(8, 2, rotary=RotaryEmbedding(4), dropout=0.5)

    def step(group, tokens=1):
        cache = ShardedKVCache.on_ranks(group, 1, 2, capacity=4, head_dim=4)
        return module(torch.zeros(1, tokens, 8), cache=cache)

    with pytest.raises(ArgumentError, match="no gradients"):
        simulate(step, 2)
    with torch.no_grad():
        with pytest.raises(ArgumentError, match="eval"):
            simulate(torch.no_grad()(step), 2)
        module.eval()
        with pytest.raises(ArgumentError, match="at most 4 tokens"):
            simulate(torch.no_grad()(lambda group: step(group, tokens=5)), 2)
