"""Steps of training: their optimizer, their gradients, and their learning rate."""

import math
from itertools import pairwise

import pytest
import torch

from heedful.gpt import GPT, GPTConfig
from heedful.gpt.data.batches import Batches
from heedful.gpt.data.books import Book
from heedful.gpt.data.corpus import Corpus
from heedful.gpt.tokenizer import ByteTokenizer
from heedful.gpt.train.config import TrainingConfig
from heedful.gpt.train.loss import mean_loss
from heedful.gpt.train.trainer import Trainer, learning_rate

TINY = {
    "vocab_size": 257,
    "context_length": 16,
    "d_model": 16,
    "num_layers": 2,
    "num_heads": 2,
    "num_kv_heads": 1,
}


def model(**changes) -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig.llama(**TINY | changes))


def config(**changes) -> TrainingConfig:
    return TrainingConfig(steps=50).changed({"precision": "float32", "batch_size": 4} | changes)


def corpus(folder, text: str = "so it goes, " * 100) -> Corpus:
    return Corpus.build([Book("book", text)], ByteTokenizer(), folder)


def trainer(folder, batch_size: int = 4, **changes) -> Trainer:
    settings = config(batch_size=batch_size, **changes)
    batches = Batches(corpus(folder).train, batch_size, TINY["context_length"])
    return Trainer(model(), batches, settings, steps=50)


def test_the_rate_warms_up_and_falls_along_a_cosine():
    rates = [learning_rate(n, 101, peak=2.0, final=0.2, warmup=10) for n in range(101)]
    assert rates[:10] == pytest.approx([0.2 * n for n in range(1, 11)])
    assert rates[10] == 2.0
    assert rates[55] == pytest.approx(1.1)  # half-way
    assert rates[-1] == pytest.approx(0.2)
    assert all(a > b for a, b in pairwise(rates[10:]))


def test_the_rate_of_very_short_runs():
    assert learning_rate(0, 1, peak=2.0, final=0.2, warmup=0) == 2.0


def test_losses_fall(tmp_path):
    learner = trainer(tmp_path, learning_rate=1e-2)
    losses = [learner.take_step() for _ in range(50)]
    assert losses[0] == pytest.approx(math.log(257), abs=0.1)  # a uniform distribution at first
    assert losses[-1] < 0.5 * losses[0]


def test_a_step_is_that_of_adamw_with_decoupled_decay_of_matrices_only(tmp_path):
    learner = trainer(tmp_path, weight_decay=0.3, warmup=0.0, learning_rate=1e-2)
    before = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    learner.take_step()
    tensors, _ = learner.state()
    for name, parameter in learner.model.named_parameters():
        mean = tensors[f"exp_avg.{name}"] / (1 - 0.9)
        square = tensors[f"exp_avg_sq.{name}"] / (1 - 0.95)
        decay = 0.3 if parameter.dim() == 2 else 0.0
        expected = before[name] * (1 - 1e-2 * decay) - 1e-2 * mean / (square.sqrt() + 1e-8)
        torch.testing.assert_close(parameter, expected, atol=1e-5, rtol=1e-5)


def test_gradients_are_clipped(tmp_path):
    learner = trainer(tmp_path, clip=1e-3)
    learner.take_step()
    tensors, _ = learner.state()
    means = [tensor for name, tensor in tensors.items() if name.startswith("exp_avg.")]
    norm = torch.stack([mean.norm() for mean in means]).norm() / (1 - 0.9)
    assert norm == pytest.approx(1e-3, rel=1e-2)


def test_accumulated_passes_equal_one_larger_batch(tmp_path):
    whole, parts = trainer(tmp_path, 4), trainer(tmp_path, 2, accumulation=2)
    for _ in range(3):
        assert parts.take_step() == pytest.approx(whole.take_step(), abs=1e-5)
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def test_dropout_acts_in_training_but_not_in_evaluation(tmp_path):
    split = corpus(tmp_path).validation
    batches = Batches(corpus(tmp_path).train, 4, TINY["context_length"])
    learner = Trainer(model(dropout=0.5), batches, config(), steps=50)
    windows = next(learner.batches)
    first, second = (
        learner.accumulate(windows, 1.0) for _ in range(2) if learner.model.train() is not None
    )
    assert first != second
    state = torch.get_rng_state()
    assert mean_loss(learner.model, split, 4, "float32") == mean_loss(
        learner.model, split, 4, "float32"
    )
    assert torch.equal(torch.get_rng_state(), state)
