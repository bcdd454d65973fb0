"""Training a GPT on books: the configuration, the steps, the run on disk, and its report."""

from heedful.gpt.train.config import TrainingConfig

__all__ = ["TrainingConfig"]
