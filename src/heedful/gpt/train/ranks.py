"""The ranks that train one model: what each of them computes, and what they do together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from heedful.gpt.data.batches import Batch
from heedful.gpt.train.loss import SummedLoss
from heedful.gpt.train.mesh import Mesh
from heedful.masks import Causal
from heedful.parallel import TokenOrder, balanced_order, context_parallel, tensor_parallel_plan

T = TypeVar("T")
TIMEOUT: timedelta = timedelta(minutes=5)  # for the other ranks, within a step
PATIENCE: timedelta = timedelta(hours=1)  # for the first rank, which prepares, evaluates and writes


class OneRank:
    """A model in one process.

    Attributes:
        mesh: the sizes of the mesh.
        rank: the number of this rank; the first one alone prints and writes results.
    """

    mesh: Mesh = Mesh()
    rank: int = 0

    @property
    def first(self) -> bool:
        """Whether this is the first rank."""
        return self.rank == 0

    def first_does(self, work: Callable[[], T]) -> T | None:
        """Do something on the first rank, while the others wait; these return None."""
        return work()

    def told(self, text: str) -> str:
        """Return the text that the first rank passes."""
        return text

    def any(self, flag: bool) -> bool:
        """Return whether a flag is set on any rank."""
        return flag

    def total(self, number: float) -> float:
        """Return the sum of the numbers that the parts of a batch have."""
        return number

    def part(self, batch: Batch) -> Batch:
        """Return the part of a batch that this rank computes. Its documents are those of all tokens of its rows."""
        return batch

    def computing(self, context_length: int) -> AbstractContextManager[None]:
        """Return the context in which a part of a batch is computed, forward and backward."""
        return nullcontext()

    def distribute(self, objective: SummedLoss) -> None:
        """Leave this rank its part of a model that is the same on all ranks."""

    def whole(self, tensor: Tensor) -> Tensor:
        """Return all of a tensor of which each rank has a part."""
        return tensor

    def clip(self, parameters: Iterable[nn.Parameter], most: float) -> None:
        """Scale all gradients down to this norm, if theirs is larger."""
        nn.utils.clip_grad_norm_(parameters, most)


class ManyRanks(OneRank):
    """A model over the processes that torchrun has started.

    FSDP shards weights, gradients and averages over all ranks that have the same heads, so that it also sums the
    gradients of different tokens. Gradients are sums and not means, because a loss is divided by the number of all
    targets before.

    Args:
        mesh: the sizes of the mesh.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh: Mesh = mesh
        self.rank: int = dist.get_rank()
        sizes = (mesh.dp, mesh.cp, mesh.tp)
        tokens = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "cp", "tp"))
        weights = init_device_mesh(
            "cpu", (mesh.dp * mesh.cp, mesh.tp), mesh_dim_names=("data", "tp")
        )
        self._row, self._tokens = tokens.get_local_rank("dp"), tokens.get_local_rank("cp")
        self._cp, self._data = tokens.get_group("cp"), weights.get_group("data")
        self._weights = weights
        for group in (*tokens.get_all_groups(), *weights.get_all_groups()):
            group.set_timeout(TIMEOUT)
        patient = dist.new_group(timeout=PATIENCE)
        assert isinstance(patient, dist.ProcessGroup)
        self._patient = patient

    def first_does(self, work: Callable[[], T]) -> T | None:
        done = work() if self.first else None
        dist.barrier(self._patient)
        return done

    def told(self, text: str) -> str:
        texts = [text]
        dist.broadcast_object_list(texts)
        return texts[0]

    def any(self, flag: bool) -> bool:
        flags = torch.tensor(int(flag))
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        return bool(flags)

    def total(self, number: float) -> float:
        numbers = torch.tensor(number, dtype=torch.float64)
        dist.all_reduce(numbers, group=self._data)
        return numbers.item()

    def part(self, batch: Batch) -> Batch:
        count = len(batch.inputs) // self.mesh.dp
        rows = slice(self._row * count, (self._row + 1) * count)
        inputs, targets, documents = (tensor[rows] for tensor in batch)
        places = token_order(batch.inputs.shape[1], self.mesh.cp).places[self._tokens]
        return Batch(inputs[:, places], targets[:, places], documents)

    def computing(self, context_length: int) -> AbstractContextManager[None]:
        if self.mesh.cp == 1:
            return nullcontext()
        return context_parallel(self._cp, token_order(context_length, self.mesh.cp))

    def distribute(self, objective: SummedLoss) -> None:
        model = objective.model
        if self.mesh.tp > 1:
            parallelize_module(model, self._weights["tp"], tensor_parallel_plan(model))
        if self._data.size() == 1:
            return
        for module in (*model.blocks, objective):
            fully_shard(module, mesh=self._weights["data"])
            assert isinstance(module, FSDPModule)
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other

    def whole(self, tensor: Tensor) -> Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def clip(self, parameters: Iterable[nn.Parameter], most: float) -> None:
        groups: dict[object, list[nn.Parameter]] = {}
        for parameter in parameters:
            groups.setdefault(mesh_of(parameter), []).append(parameter)
        norms = [
            self.whole(nn.utils.get_total_norm([p.grad for p in group if p.grad is not None]))
            for group in groups.values()
        ]
        norm = torch.stack(norms).norm()
        for group in groups.values():
            nn.utils.clip_grads_with_norm_(group, most, norm)


@functools.cache
def token_order(tokens: int, ranks: int) -> TokenOrder:
    """Return which tokens of a row each rank has, so that causal attention gives all of them equal work."""
    return balanced_order(Causal(), tokens, ranks)


def mesh_of(tensor: Tensor) -> object:
    """Return the mesh that a tensor is distributed over; None if it is not."""
    return tensor.device_mesh if isinstance(tensor, DTensor) else None
