"""The number of steps that the budget of a run allows on this machine."""

from __future__ import annotations

import math
import time
from statistics import median

from heedful.gpt.train.config import TrainingConfig
from heedful.gpt.train.progress import Clock
from heedful.gpt.train.trainer import Trainer

# The share of the minutes that is planned for steps. The rest is for validation, samples, saving and slower steps.
SHARE_OF_STEPS = 0.84
TIMED_STEPS = 5


def plan_steps(config: TrainingConfig, trainer: Trainer, clock: Clock) -> int:
    """Return the number of steps that the budget of a configuration allows.

    Args:
        config: has exactly one budget.
        trainer: takes a few steps to be timed if the budget is in minutes; not to be used afterwards.
        clock: the time spent so far counts towards the minutes.
    """
    if config.steps is not None:
        return config.steps
    if config.tokens is not None:
        return math.ceil(config.tokens / trainer.tokens_per_step)
    assert config.minutes is not None  # TrainingConfig requires one budget
    with clock.spending("preparing"):
        seconds = _seconds_per_step(trainer)
    remaining = config.minutes * 60 * SHARE_OF_STEPS - clock.seconds
    return max(int(remaining / seconds), 1)


def _seconds_per_step(trainer: Trainer) -> float:
    """Return the median time of a few steps."""
    seconds = []
    for _ in range(1 + TIMED_STEPS):
        start = time.perf_counter()
        trainer.take_step()
        seconds.append(time.perf_counter() - start)
    return median(seconds[1:])  # the first step also allocates memory
