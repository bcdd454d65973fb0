"""Tensor parallelism: outputs and gradients of one process, on two gloo ranks."""

import copy

import pytest
import torch
import torch.distributed as dist
from processes import run
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from heedful.errors import ArgumentError
from heedful.gpt import GPT, GPTConfig
from heedful.masks import Window
from heedful.nn import MultiHeadAttention, RotaryEmbedding
from heedful.parallel import (
    balanced_order,
    context_parallel,
    shard,
    tensor_parallel_plan,
    unshard,
)

RANKS = 2
WEIGHT = torch.cos(torch.arange(2 * 12 * 32).double()).view(2, 12, 32)
IDS = torch.arange(24).view(2, 12) * 5 % 11


def attention():
    """Return a module with grouped heads, a window, biases and dropout."""
    torch.manual_seed(1)
    options = {"rotary": RotaryEmbedding(8), "window": 5, "dropout": 0.4, "bias": True}
    return MultiHeadAttention(32, num_heads=4, num_kv_heads=2, **options).double()


def gpt(**changes):
    """Return a model with SwiGLU and grouped heads."""
    torch.manual_seed(1)
    sizes = {"vocab_size": 11, "context_length": 12, "d_model": 16, "num_heads": 4}
    shape = {"num_kv_heads": 2, "num_layers": 2, "dropout": 0.3, "d_mlp": 24}
    return GPT(GPTConfig(**sizes, **{**shape, **changes})).double()


CASES = {
    "attention": (attention, torch.sin(torch.arange(2 * 12 * 32).double()).view(2, 12, 32)),
    "gelu": (gpt, IDS),
    "swiglu": (lambda: gpt(activation="swiglu", positions="rotary", norm="rms", bias=False), IDS),
}


def outcomes(module, x):
    """Return the output and the gradients of all parameters, whole."""
    torch.manual_seed(7)  # of dropout
    output = module(x)
    (output * WEIGHT[..., : output.shape[-1]]).sum().backward()
    found = {"output": output} | {name: p.grad for name, p in module.named_parameters()}
    return {name: arrived(tensor.detach()) for name, tensor in found.items()}


def arrived(tensor):
    """Return a whole tensor in plain memory."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def compute_on_mesh(rank, ranks, folder):
    """Save what an attention with dropout finds on a mesh of context and tensor parallelism."""
    build, x = CASES["attention"]
    mesh = dist.init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("cp", "tp"))
    module = parallelize_module(build(), mesh["tp"], tensor_parallel_plan(build()))
    order = balanced_order(Window(5), x.shape[1], 2)
    torch.manual_seed(7)
    with context_parallel(mesh["cp"], order):
        output = module(shard(x, mesh["cp"], order))
    (output * shard(WEIGHT, mesh["cp"], order)).sum().backward()
    shares = {name: arrived(p.grad) for name, p in module.named_parameters()}
    for share in shares.values():
        dist.all_reduce(share, group=mesh["cp"].get_group())
    whole = unshard(arrived(output.detach()), mesh["cp"], order)
    torch.save({"output": whole} | shares, folder / f"{rank}.pt")


def compute(rank, ranks, folder):
    """Save what every case finds on this rank, and errors."""
    mesh = dist.init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    found = {}
    for name, (build, x) in CASES.items():
        module = parallelize_module(build(), mesh, tensor_parallel_plan(build()))
        found[name] = outcomes(copy.deepcopy(module), x)
    for name, module in {
        "heads": MultiHeadAttention(8, 2, num_kv_heads=1),
        "mlp": gpt(d_mlp=25),
    }.items():
        try:
            parallelize_module(module, mesh, tensor_parallel_plan(module))
        except ArgumentError as error:
            whole = not any(isinstance(p, DTensor) for p in module.parameters())
            found[name] = str(error), whole
    torch.save(found, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run(compute, RANKS, folder)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_one_process(found, name):
    build, x = CASES[name]
    expected = outcomes(build(), x)
    for of_rank in found:
        assert of_rank[name].keys() == expected.keys()
        for part, tensor in expected.items():
            torch.testing.assert_close(of_rank[name][part], tensor, rtol=0, atol=1e-10, msg=part)


def test_context_and_tensor_parallelism_together(tmp_path):
    run(compute_on_mesh, 4, tmp_path)
    build, x = CASES["attention"]
    expected = outcomes(build(), x)
    for rank in range(4):
        found = torch.load(tmp_path / f"{rank}.pt")
        for part, tensor in expected.items():
            torch.testing.assert_close(found[part], tensor, rtol=0, atol=1e-10, msg=part)


def test_what_ranks_do_not_divide_is_refused_before_anything_changes(found):
    for of_rank in found:
        assert of_rank["heads"] == (
            "MultiHeadAttention.W_key: expected heads in a number that 2 ranks divide; received 1. "
            "Use fewer ranks for tensor parallelism; context_parallel() takes any number.",
            True,
        )
        message, whole = of_rank["mlp"]
        assert message.startswith(
            "MLP.up: expected features in a number that 2 ranks divide; received 25"
        )
        assert whole


def test_a_module_without_layers_to_split_is_refused():
    with pytest.raises(ArgumentError, match="column_parallel"):
        tensor_parallel_plan(torch.nn.MultiheadAttention(8, 2))
