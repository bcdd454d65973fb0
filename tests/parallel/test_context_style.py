"""ContextParallel in parallelize_module: outputs and gradients of one process on two gloo ranks."""

import copy

import pytest
import torch
import torch.distributed as dist
from processes import run
from torch.distributed.tensor.parallel import parallelize_module
from torch.utils.checkpoint import checkpoint

from heedful.errors import ArgumentError
from heedful.gpt import GPT, GPTConfig
from heedful.masks import Causal, Window
from heedful.nn import MultiHeadAttention, RotaryEmbedding
from heedful.parallel import ContextParallel, balanced_order, shard, ulysses_attention, unshard

RANKS, T = 2, 14
IDS = torch.arange(2 * T).view(2, T) * 5 % 11
ORDER = balanced_order(Causal(), T, RANKS)


class Layers(torch.nn.Module):
    """Two attentions that know positions themselves; a backward pass computes the second one again."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (
            MultiHeadAttention(32, 4, num_kv_heads=2, window=5, rotary=RotaryEmbedding(8))
            for _ in range(2)
        )

    def forward(self, x):
        return checkpoint(self.second, x + self.first(x), use_reentrant=True)


def layers():
    torch.manual_seed(1)
    return Layers().double()


def gpt():
    torch.manual_seed(1)
    sizes = {"vocab_size": 11, "context_length": T, "d_model": 16, "num_heads": 4}
    return GPT(GPTConfig(**sizes, num_layers=2)).double()


TOKENS = torch.sin(torch.arange(2 * T * 32).double()).view(2, T, 32)
CASES = {
    "a whole GPT": (gpt, IDS, ContextParallel(ORDER)),
    "a whole module": (layers, TOKENS, ContextParallel(balanced_order(Window(5), T, RANKS))),
    "attentions": (layers, TOKENS, {"*": ContextParallel(ORDER)}),
    "Ulysses": (layers, TOKENS, {"*": ContextParallel(ORDER, ulysses_attention)}),
}


def outcomes(module, x, weight):
    output = module(x.requires_grad_(x.is_floating_point()))
    (output * weight).sum().backward()
    return output.detach(), {name: p.grad for name, p in module.named_parameters()}


def weight_of(module, x):
    width = module(x).shape[-1]
    return torch.cos(torch.arange(x.shape[0] * T * width).double()).view(x.shape[0], T, width)


def compute(rank, ranks, folder):
    """Save what every case finds on this rank, and the error of a plan that hides positions from a GPT."""
    mesh = dist.init_device_mesh("cpu", (ranks,))
    found = {}
    for name, (build, x, plan) in CASES.items():
        order = (plan if isinstance(plan, ContextParallel) else plan["*"]).order
        weight = shard(weight_of(build(), x), mesh, order)
        module = copy.deepcopy(parallelize_module(build(), mesh, plan))
        output, gradients = outcomes(module, shard(x, mesh, order, dim=1), weight)
        found[name] = unshard(output, mesh, order), gradients
    model = parallelize_module(gpt(), mesh, {"blocks.*.attention": ContextParallel(ORDER)})
    try:
        model(shard(IDS, mesh, ORDER, dim=1))
    except ArgumentError as error:
        found["error"] = str(error)
    try:
        parallelize_module(gpt(), mesh, ContextParallel(balanced_order(Causal(), T, 3)))
    except ArgumentError as error:
        found["other ranks"] = str(error)
    torch.save(found, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run(compute, RANKS, folder)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_one_process(found, name):
    build, x, _ = CASES[name]
    output, gradients = outcomes(build(), x, weight_of(build(), x))
    for of_rank, _ in (rank[name] for rank in found):
        torch.testing.assert_close(of_rank, output, rtol=0, atol=1e-10)
    for parameter, gradient in gradients.items():
        share = sum(rank[name][1][parameter] for rank in found)
        torch.testing.assert_close(share, gradient, rtol=0, atol=1e-10, msg=parameter)


def test_positions_that_a_model_counts_within_a_rank_are_refused(found):
    for of_rank in found:
        assert of_rank["error"].startswith("positions: expected the places of this rank's tokens")


def test_an_order_for_other_ranks_is_refused(found):
    for of_rank in found:
        assert of_rank["other ranks"].startswith("order: expected a TokenOrder for 2 ranks")
