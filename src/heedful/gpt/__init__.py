"""A GPT: its model, checkpoints, data, training and generation."""

from heedful.gpt.config import GPTConfig
from heedful.gpt.model import GPT

__all__ = ["GPT", "GPTConfig"]
