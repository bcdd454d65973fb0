"""How well a model predicts text that it was not trained on."""

import torch

from heedful.gpt.data.batches import IGNORED, sweep
from heedful.gpt.data.corpus import Split
from heedful.gpt.model import GPT
from heedful.gpt.train.trainer import summed_loss


@torch.no_grad()
def mean_loss(
    model: GPT, split: Split, batch_size: int, precision: str, most_batches: int | None = None
) -> float:
    """The loss of a split's tokens but the first, each predicted once, in nats per token.

    Args:
        model: is left in eval mode.
        split: which tokens.
        batch_size: of how many windows of the model's context length a pass is made.
        precision: "float32" or "bfloat16".
        most_batches: take about so many, spread evenly over the split, and always the same; None: take all.
    """
    model.eval()
    batches = list(sweep(split, batch_size, model.config.context_length))
    every = 1 if most_batches is None else max(len(batches) // most_batches, 1)
    nats, targets = 0.0, 0
    for batch in batches[::every]:
        nats += summed_loss(model, batch, precision).item()
        targets += int((batch.targets != IGNORED).sum())
    return nats / targets
