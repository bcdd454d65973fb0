"""How fast a step learns: warm-up, then half a cosine (Loshchilov & Hutter 2017, without restarts)."""

import math


def learning_rate(step: int, steps: int, *, peak: float, least: float, warmup: int) -> float:
    """The rate of the step after `step` steps, of a run of `steps`.

    It grows in a line to `peak` over `warmup` steps, then falls along a cosine, to `least` at the last step.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min((step - warmup) / max(steps - 1 - warmup, 1), 1.0)
    return least + (peak - least) * (1 + math.cos(math.pi * progress)) / 2
