"""heedful: attention for PyTorch that you can read, check, see and run fast."""

__version__ = "0.1.0"
