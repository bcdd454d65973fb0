"""A GPT of our own: its model, checkpoints, corpus, training and generation."""

from heedful.gpt.config import GPTConfig
from heedful.gpt.model import GPT

__all__ = ["GPT", "GPTConfig"]
