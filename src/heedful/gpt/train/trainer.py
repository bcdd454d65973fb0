"""One step after another, and all that the next one depends on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from heedful.errors import ArgumentError
from heedful.gpt.data.batches import IGNORED, Batch, Batches
from heedful.gpt.model import GPT
from heedful.gpt.train.schedule import learning_rate
from heedful.gpt.train.config import TrainingConfig
from heedful.masks import Documents

MOST_LOGITS = 2**24  # held at a time, of a large vocabulary: 64 MiB


class Trainer:
    """A model, its optimizer and its batches: AdamW with decoupled decay (Loshchilov & Hutter 2019), clipped gradients.

    Args:
        model: what is trained.
        batches: what it reads.
        config: how.
        steps: the run's length, for the learning rate.
    """

    def __init__(self, model: GPT, batches: Batches, config: TrainingConfig, steps: int) -> None:
        self.model, self.batches, self.config, self.steps = model, batches, config, steps
        self.step = 0  # how many are done
        self._optimizer = _optimizer(model, config)

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        peak = self.config.learning_rate
        return learning_rate(
            self.step,
            self.steps,
            peak=peak,
            least=peak * self.config.least_learning_rate,
            warmup=round(self.steps * self.config.warmup),
        )

    def take_step(self) -> float:
        """Read a batch, or `accumulation` of them, and learn; the loss before it, in nats per token."""
        self.model.train()
        for group in self._optimizer.param_groups:
            group["lr"] = self.rate
        passes = self.config.accumulation
        loss = sum(self.learn_from(next(self.batches), 1 / passes) for _ in range(passes))
        nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.step += 1
        return loss

    def learn_from(self, batch: Batch, share: float) -> float:
        """Add the gradients of a batch's mean loss, times its share in a step; the loss, times that."""
        loss = share * summed_loss(self.model, batch, self.config.precision) / batch.targets.numel()
        loss.backward()
        return loss.item()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What the next step depends on: tensors, and facts that JSON can say."""
        tensors = {"random": torch.get_rng_state()}
        for name, parameter in self.model.named_parameters():  # tied ones once
            tensors[f"weight.{name}"] = parameter
            for key, value in self._optimizer.state[parameter].items():
                tensors[f"{key}.{name}"] = value
        return tensors, {"step": self.step, "batches": self.batches.state_dict()}

    def load_state(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Go on where the state was taken, to the bit.

        Raises:
            ArgumentError: it is of another model, or of other batches.
        """
        names = {name.split(".", 1)[0] for name in tensors} - {"random", "weight"}
        parameters = dict(self.model.named_parameters())
        expected = {
            f"{kind}.{name}": () if kind == "step" else tuple(parameter.shape)
            for kind in ("weight", *names)
            for name, parameter in parameters.items()
        } | {"random": tuple(torch.get_rng_state().shape)}
        if expected != {name: tuple(tensor.shape) for name, tensor in tensors.items()}:
            raise ArgumentError(
                "--resume",
                expected="the checkpoint of a model of this shape",
                received="other tensors",
                remedy="Start anew in another folder with --out.",
            )
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(tensors[f"weight.{name}"])
                self._optimizer.state[parameter] = {key: tensors[f"{key}.{name}"] for key in names}
        self.batches.load_state_dict(facts["batches"])
        self.step = facts["step"]
        torch.set_rng_state(tensors["random"])


def summed_loss(model: GPT, batch: Batch, precision: str) -> Tensor:
    """The cross-entropy of a batch's targets, summed: nats, float32 ().

    Documents see nothing of each other. Logits of a large vocabulary are made, and made again for their gradients, some
    rows at a time.
    """
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        hidden = model.hidden(batch.inputs, mask=Documents(batch.documents))
        hidden, targets = hidden.flatten(0, 1), batch.targets.flatten()
        rows = max(MOST_LOGITS // model.config.vocab_size, 1)
        if len(hidden) <= rows:
            return _cross_entropy(model.head, hidden, targets)
        parts = [
            checkpoint(_cross_entropy, model.head, *part, use_reentrant=False)
            for part in zip(hidden.split(rows), targets.split(rows), strict=True)
        ]
        return torch.stack(parts).sum()


def _cross_entropy(head: nn.Module, hidden: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(head(hidden).float(), targets, ignore_index=IGNORED, reduction="sum")


def _optimizer(model: GPT, config: TrainingConfig) -> torch.optim.AdamW:
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=True
    )
