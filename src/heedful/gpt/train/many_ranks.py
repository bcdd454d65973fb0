"""The ranks that train a model over the processes that torchrun has started."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from heedful.gpt.config import GPTConfig
from heedful.gpt.data.batches import Batch
from heedful.gpt.train.loss import SummedLoss
from heedful.gpt.train.mesh import Mesh
from heedful.gpt.train.ranks import OneRank, mesh_of
from heedful.masks import Causal
from heedful.parallel import TokenOrder, balanced_order, context_parallel, tensor_parallel_plan
from heedful.sharded import rows_from

T = TypeVar("T")
PATIENCE: timedelta = timedelta(hours=1)  # for the first rank, which prepares, evaluates and writes


class ManyRanks(OneRank):
    """A model over the processes that torchrun has started.

    FSDP shards weights, gradients and averages over all ranks that have the same heads, so that it also sums the
    gradients of different tokens. Gradients are sums and not means, because a loss is divided by the number of all
    targets before.

    Args:
        mesh: the sizes of the mesh.
        timeout: how long a rank waits for another, within a step.
    """

    def __init__(self, mesh: Mesh, timeout: timedelta) -> None:
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
            group.set_timeout(timeout)
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

    def rows(self, count: int) -> range:
        """Return which of all rows of a batch this rank has."""
        own = count // self.mesh.dp
        return range(self._row * own, (self._row + 1) * own)

    def own(self, tensor: Tensor) -> Tensor:
        """Return the rows and tokens of this rank, of a tensor (all rows, all tokens, …)."""
        rows = self.rows(len(tensor))
        places = token_order(tensor.shape[1], self.mesh.cp).places[self._tokens]
        return tensor[rows.start : rows.stop, places]

    def part(self, batch: Batch) -> Batch:
        rows = self.rows(len(batch.documents))
        documents = batch.documents[rows.start : rows.stop]
        return Batch(self.own(batch.inputs), self.own(batch.targets), documents)

    @contextmanager
    def computing(self, batch: Batch) -> Iterator[None]:
        rows, tokens = batch.inputs.shape
        with ExitStack() as stack:
            stack.enter_context(rows_from(self.rows(rows).start))
            if self.mesh.cp > 1:
                stack.enter_context(context_parallel(self._cp, token_order(tokens, self.mesh.cp)))
            yield

    def distribute(self, objective: SummedLoss) -> None:
        model = objective.model
        for module in (model, *model.blocks):
            module.dropout = _DropoutOfPart(model.config, self)
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
        square = torch.zeros(())
        for group in groups.values():
            parts = [self._part(p.grad) for p in group if p.grad is not None]
            square += nn.utils.get_total_norm(parts) ** 2 / self._copies(group[0])
        dist.all_reduce(square)
        for group in groups.values():
            nn.utils.clip_grads_with_norm_(group, most, square.sqrt())

    def _part(self, tensor: Tensor) -> Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def _copies(self, tensor: Tensor) -> int:
        """Return how many ranks have the same part of a tensor."""
        return self.mesh.ranks // (tensor.device_mesh.size() if isinstance(tensor, DTensor) else 1)


@functools.cache
def token_order(tokens: int, ranks: int) -> TokenOrder:
    """Return which tokens of a row each rank has, so that causal attention gives all of them equal work."""
    return balanced_order(Causal(), tokens, ranks)


class _DropoutOfPart(nn.Dropout):
    """`nn.Dropout` that drops, of this rank's part of a batch, what it would drop of it in one process.

    It draws as much as one process does, so that all ranks keep the same state of torch's generator.

    Args:
        config: the configuration of the model.
        ranks: the ranks.
    """

    def __init__(self, config: GPTConfig, ranks: ManyRanks) -> None:
        super().__init__(config.dropout)
        self.tokens: int = config.context_length
        self.ranks: ManyRanks = ranks

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return input
        rows, features = len(input) * self.ranks.mesh.dp, input.shape[2]
        kept = input.new_empty(rows, self.tokens, features).bernoulli_(1 - self.p)
        return input * self.ranks.own(kept.div_(max(1 - self.p, 2**-32)))
