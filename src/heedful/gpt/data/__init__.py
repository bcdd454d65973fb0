"""The training data of a GPT: books, their tokens on disk, and batches of windows of these tokens."""
