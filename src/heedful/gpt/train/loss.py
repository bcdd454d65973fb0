"""The cross-entropy loss of a model: of one batch with gradients, and of a whole split without."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from heedful.gpt.data.batches import IGNORED, Batch, sweep
from heedful.gpt.data.corpus import Split
from heedful.gpt.model import GPT
from heedful.masks import Documents

MAX_LOGITS: int = 2**24  # in memory at once, for a large vocabulary: 64 MiB


def summed_loss(model: GPT, batch: Batch, precision: str) -> Tensor:
    """Return the sum of the cross-entropies of a batch's targets.

    Tokens attend to their own document only. The logits of a large vocabulary are computed some rows at a time, and
    computed again for their gradients.

    Args:
        model: the model.
        batch: windows of tokens, each tensor (B, T).
        precision: "float32" or "bfloat16".

    Returns:
        The sum in nats: a float32 scalar.
    """
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        hidden = model.hidden(batch.inputs, mask=Documents(batch.documents))
        hidden, targets = hidden.flatten(0, 1), batch.targets.flatten()  # (B·T, d_model), (B·T)
        rows = max(MAX_LOGITS // model.config.vocab_size, 1)
        if len(hidden) <= rows:
            return _cross_entropy(model.head, hidden, targets)
        parts = [
            checkpoint(_cross_entropy, model.head, *part, use_reentrant=False)
            for part in zip(hidden.split(rows), targets.split(rows), strict=True)
        ]
        return torch.stack(parts).sum()


class SummedLoss(nn.Module):
    """`summed_loss` as a module, which shards a whole model at once: its head, too, is computed within.

    Args:
        model: the model.
        precision: as in `summed_loss`.
    """

    def __init__(self, model: GPT, precision: str) -> None:
        super().__init__()
        self.model: GPT = model
        self.precision: str = precision

    def forward(self, batch: Batch) -> Tensor:
        return summed_loss(self.model, batch, self.precision)


@torch.no_grad()
def mean_loss(
    model: GPT, split: Split, batch_size: int, precision: str, max_batches: int | None = None
) -> float:
    """Return the mean loss of the tokens of a split, each predicted once.

    Args:
        model: the model, which is left in eval mode.
        split: the tokens; the first one is not predicted.
        batch_size: the number of windows per pass.
        precision: "float32" or "bfloat16".
        max_batches: about how many batches to use, spread evenly over the split and always the same ones; None uses
            all of them.

    Returns:
        The loss in nats per token.
    """
    model.eval()
    batches = list(sweep(split, batch_size, model.config.context_length))
    stride = 1 if max_batches is None else max(len(batches) // max_batches, 1)
    nats, targets = 0.0, 0
    for batch in batches[::stride]:
        nats += summed_loss(model, batch, precision).item()
        targets += int((batch.targets != IGNORED).sum())
    return nats / targets


def _cross_entropy(head: nn.Module, hidden: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(head(hidden).float(), targets, ignore_index=IGNORED, reduction="sum")
