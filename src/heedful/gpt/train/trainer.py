"""The optimizer steps of a training run, and the state that the next step depends on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.gpt.checkpoint import assemble, memory_size
from heedful.gpt.config import GPTConfig
from heedful.gpt.data.batches import IGNORED, Batch, Batches
from heedful.gpt.data.corpus import Split
from heedful.gpt.model import GPT
from heedful.gpt.train.config import TrainingConfig
from heedful.gpt.train.loss import SummedLoss
from heedful.gpt.train.mesh import Mesh
from heedful.gpt.train.ranks import OneRank, mesh_of
from heedful.kernels.native import library

MAX_SIZE = 1 << 24  # of a model; larger ones overflow the number of bytes


def resolve_precision(precision: str) -> str:
    """Replace "auto" by bfloat16 where the processor multiplies it natively; elsewhere float32 is faster."""
    if precision != "auto":
        return precision
    return "bfloat16" if library.isa in ("avx512bf16", "amx", "neon_bf16") else "float32"


def check_mesh(mesh: Mesh, config: TrainingConfig) -> None:
    """Raise `ArgumentError` unless a mesh divides the batches and the model of a configuration."""
    mesh.check_fits(GPTConfig.llama(**config.model), config.batch_size)


def build_trainer(
    config: TrainingConfig,
    vocab_size: int,
    split: Split,
    steps: int,
    ranks: OneRank | None = None,
    **changes: Any,
) -> Trainer:
    """Build the trainer of a run before its first step.

    Args:
        config: the configuration, with a precision other than "auto".
        vocab_size: the tokenizer's.
        split: the tokens to train on.
        steps: the number of steps of the run.
        ranks: the ranks to train on; None: one process.
        changes: changes to the model's configuration.

    Returns:
        A trainer that is the same for the same arguments.

    Raises:
        ArgumentError: the model's configuration is invalid, its context is longer than the split, or the model or its
            batches are larger than this machine's memory.
    """
    shape = GPTConfig.llama(vocab_size=vocab_size, **config.model | changes)
    batches = Batches(split, config.batch_size, shape.context_length, seed=config.seed)
    _check_memory(shape, config.batch_size)
    torch.manual_seed(config.seed)
    return Trainer(GPT(shape), batches, config, steps, ranks)


def _check_memory(shape: GPTConfig, batch_size: int) -> None:
    """Raise `ArgumentError` if training surely takes more memory than there is, before any is allocated."""
    sizes = ("vocab_size", "d_model", "d_mlp", "num_heads", "head_dim", "num_layers")
    largest = max(sizes, key=lambda name: getattr(shape, name))
    if getattr(shape, largest) > MAX_SIZE:
        raise _too_large(f"{largest}={getattr(shape, largest)}", f"sizes of at most {MAX_SIZE:,}")
    with torch.device("meta"):  # tensors without memory
        one, two = (GPT(dataclasses.replace(shape, num_layers=n)).parameter_count for n in (1, 2))
    parameters = one + (shape.num_layers - 1) * (two - one)
    kept = batch_size * shape.context_length * shape.d_model * shape.num_layers  # for gradients
    needed = 4 * (4 * parameters + kept)  # bytes; weights, gradients and AdamW's two averages
    if needed > memory_size():
        raise _too_large(
            f"a model and batches that take at least {needed / 2**30:,.0f} GiB",
            f"ones that fit into this machine's {memory_size() / 2**30:,.0f} GiB",
        )


def _too_large(received: str, expected: str) -> ArgumentError:
    return ArgumentError(
        "--config",
        expected=expected,
        received=received,
        remedy="Choose a smaller model in the table [model], or a smaller batch_size.",
    )


class Trainer:
    """A model with its optimizer and its batches.

    The optimizer is AdamW with decoupled weight decay (Loshchilov & Hutter 2019, Algorithm 2); gradients are clipped.

    Args:
        model: the model to train.
        batches: its training data.
        config: the configuration, with a precision other than "auto".
        steps: the number of steps of the run, which the learning rate depends on.
        ranks: the ranks to train on, which all have this model and these batches; None: one process.

    Attributes:
        step: the number of steps taken so far.
    """

    def __init__(
        self,
        model: GPT,
        batches: Batches,
        config: TrainingConfig,
        steps: int,
        ranks: OneRank | None = None,
    ) -> None:
        self.model: GPT = model
        self.ranks: OneRank = ranks or OneRank()
        self.batches: Batches = batches
        self.config: TrainingConfig = config
        self.steps: int = steps
        self.step: int = 0
        self._summed_loss = SummedLoss(model, config.precision)
        self.ranks.distribute(self._summed_loss)
        self._optimizer = _optimizer(model, config)

    @property
    def weights(self) -> dict[str, nn.Parameter]:
        """The parameters by name; a tied one is there once."""
        return dict(self.model.named_parameters())

    @property
    def tokens_per_step(self) -> int:
        """The number of tokens that a step reads."""
        config = self.config
        return config.batch_size * config.accumulation * self.model.config.context_length

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        peak = self.config.learning_rate
        return learning_rate(
            self.step,
            self.steps,
            peak=peak,
            final=peak * self.config.least_learning_rate,
            warmup=round(self.steps * self.config.warmup),
        )

    def take_step(self) -> float:
        """Take one optimizer step on `accumulation` batches.

        Returns:
            The loss before the step, in nats per token.
        """
        self.model.train()
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate
        batches = [next(self.batches) for _ in range(self.config.accumulation)]
        targets = sum(count_targets(batch) for batch in batches)
        loss = self.ranks.total(sum(self.accumulate(batch, 1 / targets) for batch in batches))
        self.ranks.clip(self.model.parameters(), self.config.clip)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.step += 1
        return loss

    def accumulate(self, batch: Batch, weight: float) -> float:
        """Add the gradients of a batch's weighted loss, or of the part of it that this rank computes.

        Args:
            batch: the batch, the same on all ranks.
            weight: the factor of the sum of the cross-entropies of its targets.

        Returns:
            The weighted loss of this rank's part.
        """
        with self.ranks.computing(batch):
            loss = weight * self._summed_loss(self.ranks.part(batch))
            loss.backward()
        return loss.item()

    def with_whole_model(self, work: Callable[[GPT], None]) -> None:
        """Do something with the model and all its weights on the first rank, while the others wait."""
        model = self.model
        if self.ranks.mesh.ranks > 1:
            weights: dict[str, Tensor] = {}
            for name, part in self.weights.items():
                whole = self.ranks.whole(part.detach())
                if self.ranks.first:
                    weights[name] = whole
            model = assemble(model.config, weights, "the ranks") if self.ranks.first else model
        self.ranks.first_does(lambda: work(model))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return everything that the next step depends on: tensors, and facts that JSON can represent.

        Tensors that are distributed over ranks stay so.
        """
        tensors = {"random": torch.get_rng_state()}
        for name, parameter in self.weights.items():
            tensors[f"weight.{name}"] = parameter.detach()
            for key, tensor in self._optimizer.state[parameter].items():
                tensors[f"{key}.{name}"] = tensor
        return tensors, {"step": self.step, "batches": self.batches.state_dict()}

    def load_state(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Continue where `state` was called; the next step is the same to the bit.

        Args:
            tensors: as `state` returned them, on any ranks; whole ones are distributed.
            facts: as `state` returned them.

        Raises:
            ArgumentError: the state belongs to another model or to other batches.
        """
        keys = {name.split(".", 1)[0] for name in tensors} - {"random", "weight"}
        parameters = self.weights
        expected = {
            f"{key}.{name}": () if key == "step" else tuple(parameter.shape)
            for key in ("weight", *keys)
            for name, parameter in parameters.items()
        } | {"random": tuple(torch.get_rng_state().shape)}
        if expected != {name: tuple(tensor.shape) for name, tensor in tensors.items()}:
            raise ArgumentError(
                "--resume",
                expected="the checkpoint of a model of this shape",
                received="other tensors",
                remedy="Start a new run in another folder with --out.",
            )
        tensors = self._distributed(tensors)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(tensors[f"weight.{name}"])
                self._optimizer.state[parameter] = {key: tensors[f"{key}.{name}"] for key in keys}
        self.batches.load_state_dict(facts["batches"])
        self.step = facts["step"]
        torch.set_rng_state(tensors["random"])

    def _distributed(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return this rank's parts of whole tensors, each as the weight that it belongs to is distributed."""
        like = {name: mesh_of(parameter) for name, parameter in self.weights.items()}
        keys = {
            key
            for name, tensor in tensors.items()
            for key, _, weight in [name.partition(".")]
            if mesh_of(tensor) != like.get(weight) and tensor.dim()
        }
        parts = dict(tensors)
        for key in sorted(keys):
            twin = GPT(self.model.config)  # whose weights these tensors are
            with torch.no_grad():
                for name, parameter in twin.named_parameters():
                    parameter.copy_(tensors[f"{key}.{name}"])
            self.ranks.distribute(SummedLoss(twin, self.config.precision))
            parts |= {f"{key}.{name}": part.detach() for name, part in twin.named_parameters()}
        return parts


def count_targets(batch: Batch) -> int:
    """Return how many targets of a batch count."""
    return int((batch.targets != IGNORED).sum())


def learning_rate(step: int, steps: int, *, peak: float, final: float, warmup: int) -> float:
    """Return the learning rate of a step: a linear warm-up, then half a cosine.

    The cosine is that of Loshchilov & Hutter (2017, equation 5) without restarts.

    Args:
        step: the number of steps taken before.
        steps: the number of steps of the run.
        peak: the rate after the warm-up.
        final: the rate of the last step.
        warmup: the number of steps of the warm-up.

    Examples:
        >>> [round(learning_rate(n, 6, peak=1.0, final=0.0, warmup=2), 2) for n in range(6)]
        [0.5, 1.0, 1.0, 0.75, 0.25, 0.0]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min((step - warmup) / max(steps - 1 - warmup, 1), 1.0)
    return final + (peak - final) * (1 + math.cos(math.pi * progress)) / 2


def _optimizer(model: GPT, config: TrainingConfig) -> torch.optim.AdamW:
    groups: dict[
        tuple[bool, object], list[nn.Parameter]
    ] = {}  # a fused step takes tensors of one mesh
    for parameter in model.parameters():
        decayed = parameter.dim() >= 2
        groups.setdefault((decayed, mesh_of(parameter)), []).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": parameters, "weight_decay": config.weight_decay if decayed else 0.0}
            for (decayed, _), parameters in groups.items()
        ],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        fused=True,
    )
