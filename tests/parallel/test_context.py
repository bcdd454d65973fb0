"""Modules within context_parallel(): the results and gradients of one process; what would be wrong is refused."""

import pytest
import torch
from parallel_cases import same_seed
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful import attention
from heedful.errors import ArgumentError
from heedful.gpt.config import GPTConfig
from heedful.gpt.model import GPT
from heedful.masks import Causal, Documents, Padding
from heedful.nn import KVCache, MultiHeadAttention, RotaryEmbedding
from heedful.parallel import (
    balanced_order,
    context_parallel,
    contiguous_order,
    mesh_attention,
    ring_attention,
    shard,
    simulate,
    ulysses_attention,
    unshard,
)

IDS = torch.tensor([[0] * 5 + [1] * 12 + [2] * 7])
T = IDS.shape[1]
SCHEMES = [
    ((3,), None),
    ((2,), ulysses_attention),
    ((2, 2), None),
    ((4,), ring_attention),
    ((2, 2), mesh_attention),
]


def gradients_of(module, loss):
    return torch.autograd.grad(loss, tuple(module.parameters()))


def assert_same_gradients(of_ranks, of_one):
    """Weights are on every rank, which has its share of their gradients."""
    for *shares, expected in zip(*of_ranks, of_one, strict=True):
        torch.testing.assert_close(sum(shares), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("sizes", "attend"), SCHEMES)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_module_of_heedful_gives_the_results_of_one_process(sizes, attend, dropout):
    module = MultiHeadAttention(
        32, num_heads=4, num_kv_heads=2, rotary=RotaryEmbedding(8), window=9, dropout=dropout
    ).double()
    x, weight = (
        torch.randn(2, T, 32, dtype=torch.float64),
        torch.randn(2, T, 32, dtype=torch.float64),
    )
    mask = Documents(IDS)
    one_seed, rank_seed = same_seed()
    with one_seed:
        expected = module(x, mask=mask)
    order = balanced_order(Causal() & mask, T, torch.tensor(sizes).prod().item(), batch=2)

    def on_each_rank(group):
        with context_parallel(group, order, attend):
            output = module(shard(x, group, order), mask=mask)
        gradients = gradients_of(module, (output * shard(weight, group, order)).sum())
        return unshard(output.detach(), group, order), gradients

    with rank_seed:
        results = simulate(on_each_rank, *sizes)
    for output, _ in results:
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-10)
    assert_same_gradients([g for _, g in results], gradients_of(module, (expected * weight).sum()))


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_gpt_has_the_losses_and_gradients_of_one_process(positions):
    config = GPTConfig(
        vocab_size=11, context_length=T, d_model=16, num_heads=4, num_layers=2, positions=positions
    )
    model = GPT(config).double()
    ids, targets = torch.randint(0, 11, (2, T)), torch.randint(0, 11, (2, T))

    def loss_of(logits, labels):  # a sum, so that the losses of ranks add up to that of one process
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), reduction="sum"
        )

    expected = loss_of(model(ids), targets)
    order = balanced_order(Causal(), T, 3)

    def on_each_rank(group):
        with context_parallel(group, order):
            logits = model(shard(ids, group, order, dim=1))
        loss = loss_of(logits, shard(targets, group, order, dim=1))
        return loss.detach(), gradients_of(model, loss)

    results = simulate(on_each_rank, 3)
    torch.testing.assert_close(sum(loss for loss, _ in results), expected, rtol=0, atol=1e-10)
    assert_same_gradients([g for _, g in results], gradients_of(model, expected))


@pytest.mark.parametrize("scheme", [ring_attention, ulysses_attention])
@pytest.mark.parametrize("tokens", [2, 3])
def test_a_rank_with_one_token_sees_no_later_ones(scheme, tokens):
    """A module needs no mask for one token, which is the newest, unless other ranks have newer ones."""
    module, x = MultiHeadAttention(8, num_heads=2).double(), torch.randn(1, tokens, 8).double()
    order = contiguous_order(tokens, 2)

    def on_each_rank(group):
        with context_parallel(group, order, scheme):
            return unshard(module(shard(x, group, order)), group, order)

    for output in simulate(on_each_rank, 2):
        torch.testing.assert_close(output, module(x), rtol=0, atol=1e-10)


def test_a_gpt_takes_masks_of_all_tokens():
    config = GPTConfig(vocab_size=11, context_length=T, d_model=16, num_heads=4, num_layers=2)
    model, ids = GPT(config).double(), torch.randint(0, 11, (2, T))
    restarts = torch.cat([torch.arange(n) for n in IDS.unique(return_counts=True)[1]])
    order = balanced_order(Causal() & Documents(IDS), T, 3)
    for mask, positions in [(Documents(IDS), restarts), (Padding([T, 9]), torch.arange(T))]:

        def on_each_rank(group, mask=mask, positions=positions):
            mine, places = shard(ids, group, order, dim=1), shard(positions, group, order, dim=0)
            with context_parallel(group, order):
                return unshard(model(mine, mask=mask, positions=places), group, order)

        expected = model(ids, mask=mask, positions=positions)
        for logits in simulate(on_each_rank, 3):
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)


def within(function, ranks=2):
    """Run a function within the context on simulated ranks of 4 tokens each."""
    order = contiguous_order(4 * ranks, ranks)

    def on_each_rank(group):
        with context_parallel(group, order):
            return function(torch.zeros(1, 2, 4, 8))

    return simulate(on_each_rank, ranks)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("PyTorch's scaled_dot_product_attention", lambda x: scaled_dot_product_attention(x, x, x)),
        (
            "heedful's scaled_dot_product_attention",
            lambda x: heedful.scaled_dot_product_attention(x, x, x),
        ),
        (
            "PyTorch's multi_head_attention_forward",
            lambda x: torch.nn.MultiheadAttention(8, 2)(*[x[0]] * 3),
        ),
        (
            "PyTorch's multi_head_attention_forward",
            lambda x: torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()(*[x[0]] * 3),
        ),
        (
            "PyTorch's multi_head_attention_forward",
            lambda x: torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()(x[0]),
        ),
    ],
)
def test_attention_that_knows_nothing_of_other_ranks_is_refused(name, call):
    with pytest.raises(
        ArgumentError, match="would take the tokens of this rank for all tokens"
    ) as refused:
        within(call)
    assert name in str(refused.value)


def test_attention_written_with_a_softmax_is_refused():
    x = torch.randn(1, 4, 8)
    for softmax in (torch.softmax, torch.Tensor.softmax, torch.nn.functional.softmax):
        with pytest.raises(ArgumentError, match="a softmax of 4 x 4 scores"):
            within(lambda _, softmax=softmax: softmax(x @ x.mT, dim=-1))
    experts = within(lambda _: torch.softmax(x, dim=-1))  # 8 of them for each token
    assert torch.equal(experts[0], torch.softmax(x, dim=-1))


def test_a_cache_other_tokens_and_a_second_context_are_refused():
    module = MultiHeadAttention(8, num_heads=2, rotary=RotaryEmbedding(4))
    with pytest.raises(ArgumentError, match="the 4 tokens of this rank"):
        within(lambda _: module(torch.zeros(1, 3, 8)))
    with pytest.raises(ArgumentError, match="the 4 tokens of this rank"):
        within(lambda _: MultiHeadAttention(8, num_heads=2)(torch.zeros(1, 3, 8)))
    cache = KVCache.empty(1, 2, capacity=4, head_dim=4)
    with pytest.raises(ArgumentError, match="received a cache"):
        within(lambda _: module(torch.zeros(1, 4, 8), cache=cache))
    with pytest.raises(ArgumentError, match="return_received_mass"):
        within(lambda x: attention(x, x, x, return_received_mass=True))

    def twice(group):
        with (
            context_parallel(group, contiguous_order(4, 1)),
            context_parallel(group, contiguous_order(4, 1)),
        ):
            pass

    with pytest.raises(ArgumentError, match="one context at a time"):
        simulate(twice, 1)
    with pytest.raises(ArgumentError, match="a TokenOrder for 3 ranks"):
        simulate(lambda group: context_parallel(group, contiguous_order(4, 2)).__enter__(), 3)


def test_the_context_ends():
    x = torch.randn(1, 2, 4, 8)
    order = contiguous_order(8, 2)

    def on_each_rank(group):
        with pytest.raises(ZeroDivisionError), context_parallel(group, order):
            raise ZeroDivisionError
        return attention(x, x, x), scaled_dot_product_attention(x, x, x)

    for ours, theirs in simulate(on_each_rank, 2):
        torch.testing.assert_close(ours, theirs)
