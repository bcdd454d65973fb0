"""Models on two gloo ranks: Mistral with a sliding window, and a GPT that generates with a sharded cache."""

import pytest
import torch
import torch.distributed as dist
from processes import run

from heedful.gpt import GPT, GPTConfig
from heedful.gpt.generation import Sampling, generate
from heedful.integrations.transformers import register
from heedful.masks import Window
from heedful.parallel import balanced_order, context_parallel, shard, unshard
from integrations.families import VOCABULARY, WINDOW, mistral

register()
RANKS, T = 2, 30
IDS = torch.arange(2 * T).view(2, T) * 7 % VOCABULARY
WEIGHT = torch.cos(torch.arange(2 * T * VOCABULARY).double()).view(2, T, VOCABULARY)
SAMPLING = Sampling(seed=2, top_k=8)


def model():
    torch.manual_seed(1)
    built = mistral().double()
    built.set_attn_implementation("heedful")
    return built


def text(group=None):
    torch.manual_seed(1)
    sizes = {"vocab_size": 23, "context_length": 32, "d_model": 32, "num_layers": 2, "num_heads": 4}
    gpt = GPT(GPTConfig(**sizes, window=9, positions="rotary")).double()
    return generate(gpt, [[1, 2, 3], [4]], tokens=25, sampling=SAMPLING, group=group)


def outcomes(built, logits, weight):
    gradients = torch.autograd.grad((logits * weight).sum(), tuple(built.parameters()))
    return logits.detach(), gradients


def compute(rank, ranks, folder):
    """Save the logits of all tokens, this rank's share of the gradients, and a text."""
    group, order = dist.group.WORLD, balanced_order(Window(WINDOW), T, ranks)
    built = model()
    mine, places = (shard(t, group, order, dim=1) for t in (IDS, torch.arange(T).unsqueeze(0)))
    with context_parallel(group, order):
        logits = built(mine, position_ids=places, use_cache=False).logits
        logits, shares = outcomes(built, logits, shard(WEIGHT, group, order))
    torch.save((unshard(logits, group, order), shares, text(group)), folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run(compute, RANKS, folder)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


def test_mistral_with_a_window_gives_the_logits_and_gradients_of_one_process(found):
    assert WINDOW < T // RANKS
    built = model()
    expected, gradients = outcomes(built, built(IDS, use_cache=False).logits, WEIGHT)
    for logits, *_ in found:
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
    for *shares, gradient in zip(*(shares for _, shares, _ in found), gradients, strict=True):
        torch.testing.assert_close(sum(shares), gradient, rtol=0, atol=1e-10)


def test_a_text_is_that_of_one_process(found):
    expected = text()
    assert [generated for *_, generated in found] == [expected] * RANKS
