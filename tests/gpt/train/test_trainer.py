"""Steps of training: what they compute, what decays, what documents see, and when the rate is highest."""

import dataclasses
import inspect
import math
import re
from itertools import pairwise

import pytest
import torch

from heedful.errors import ArgumentError
from heedful.gpt import GPT, GPTConfig
from heedful.gpt.data.batches import Batch, Batches
from heedful.gpt.data.books import Book
from heedful.gpt.data.corpus import Corpus
from heedful.gpt.tokenizer import ByteTokenizer
from heedful.gpt.train import loss as loss_module
from heedful.gpt.train.config import LARGE, SMALL, TrainingConfig, preset
from heedful.gpt.train.loss import mean_loss, summed_loss
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


def batch(ids: torch.Tensor, documents: torch.Tensor | None = None) -> Batch:
    documents = torch.zeros_like(ids[:, 1:]) if documents is None else documents
    return Batch(ids[:, :-1].clone(), ids[:, 1:].clone(), documents)


# --- the learning rate -------------------------------------------------------------------------------


def test_the_rate_warms_up_and_falls_along_a_cosine():
    rates = [learning_rate(n, 101, peak=2.0, final=0.2, warmup=10) for n in range(101)]
    assert rates[:10] == pytest.approx([0.2 * n for n in range(1, 11)])
    assert rates[10] == 2.0
    assert rates[55] == pytest.approx(1.1)  # half-way
    assert rates[-1] == pytest.approx(0.2)
    assert all(a > b for a, b in pairwise(rates[10:]))


def test_the_rate_of_very_short_runs():
    assert learning_rate(0, 1, peak=2.0, final=0.2, warmup=0) == 2.0


# --- the configuration -------------------------------------------------------------------------------


def test_a_budget_takes_the_place_of_another():
    assert LARGE.changed({"tokens": 5}).tokens == 5
    assert LARGE.changed({"tokens": 5}).minutes is None
    with pytest.raises(ArgumentError, match="steps and minutes"):
        LARGE.changed({"steps": 5, "minutes": 2})


def test_the_models_changes_are_added():
    changed = LARGE.changed({"model": {"num_layers": 2}})
    assert changed.model == LARGE.model | {"num_layers": 2}
    assert LARGE.model["num_layers"] != 2


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"learning_rat": 1e-3}, "'learning_rate'"),
        ({"wholly_unknown_key_of_mine": 1}, "No key resembles it"),
        ({"learning_rate": "fast"}, "str 'fast'"),
        ({"batch_size": 2.5}, "float 2.5"),
        ({"batch_size": 0}, "at least 1"),
        ({"beta2": 1.0}, "below 1"),
        ({"precision": "float8"}, "bfloat16"),
        ({"minutes": -1.0}, "above 0"),
    ],
)
def test_wrong_values_are_refused(changes, text):
    with pytest.raises(ArgumentError, match=text):
        LARGE.changed(changes)


def test_every_value_has_a_reason_beside_it():
    lines = inspect.getsource(TrainingConfig).splitlines()
    fields = [line for line in lines if re.match(r"    \w+: .+ = ", line)]
    assert len(fields) == len(dataclasses.fields(TrainingConfig))
    assert all("  # " in line for line in fields)


def test_the_preset_follows_the_size():
    assert preset(95_000) is SMALL
    assert preset(5_600_000) is LARGE
    shape = GPTConfig.llama(vocab_size=LARGE.vocab_size, **LARGE.model)
    parameters = sum(parameter.numel() for parameter in GPT(shape).parameters())
    assert 9.5e6 < parameters < 11e6
    assert shape.context_length == 512


# --- steps -------------------------------------------------------------------------------------------


def test_losses_fall(tmp_path):
    learner = trainer(tmp_path, learning_rate=1e-2)
    losses = [learner.take_step() for _ in range(50)]
    assert losses[0] == pytest.approx(math.log(257), abs=0.1)  # it begins knowing nothing
    assert losses[-1] < 0.5 * losses[0]


def test_a_step_is_adamws_with_decoupled_decay_on_matrices_alone(tmp_path):
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


def test_passes_accumulate_to_one_larger_batch(tmp_path):
    whole, parts = trainer(tmp_path, 4), trainer(tmp_path, 2, accumulation=2)
    for _ in range(3):
        assert parts.take_step() == pytest.approx(whole.take_step(), abs=1e-5)
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def test_dropout_acts_in_steps_and_not_in_evaluation(tmp_path):
    split = corpus(tmp_path).validation
    learner = trainer(tmp_path)
    learner.model = model(dropout=0.5)
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


# --- the loss ----------------------------------------------------------------------------------------


def test_documents_see_nothing_of_each_other():
    first, second = torch.randint(257, (1, 7)), torch.randint(257, (1, 10))
    ids = torch.cat([first, second], 1)
    documents = torch.tensor([[0] * 7 + [1] * 9])
    packed = batch(ids, documents)
    packed.targets[0, 6] = -100  # the border, which no document of its own predicts
    together = summed_loss(model(), packed, "float32")
    apart = [summed_loss(model(), batch(ids), "float32") for ids in (first, second)]
    torch.testing.assert_close(together, sum(apart))


def test_a_large_vocabularys_loss_comes_in_parts(monkeypatch):
    windows = batch(torch.randint(257, (3, 17)))
    losses, gradients = [], []
    for most in (2**24, 257 * 5):
        monkeypatch.setattr(loss_module, "MAX_LOGITS", most)
        learner = model()
        loss = summed_loss(learner, windows, "float32")
        loss.backward()
        losses.append(loss)
        gradients.append(learner.head.weight.grad)
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*gradients)


def test_bfloat16_is_near_float32_and_keeps_its_weights():
    windows, learner = batch(torch.randint(257, (3, 17))), model()
    single, half = (summed_loss(learner, windows, p) for p in ("float32", "bfloat16"))
    assert single.dtype == half.dtype == torch.float32
    assert single != half
    torch.testing.assert_close(single, half, rtol=1e-2, atol=0)
    assert {p.dtype for p in learner.parameters()} == {torch.float32}


def test_evaluation_counts_every_token_once(tmp_path):
    split = corpus(tmp_path, "".join(chr(97 + n % 26) for n in range(1000))).validation
    learner = model(context_length=len(split)).eval()
    ids = torch.from_numpy(split.tokens.astype("int64"))[None]
    with torch.no_grad():
        at_once = summed_loss(learner, batch(ids), "float32") / (len(split) - 1)
    assert mean_loss(learner, split, 2, "float32") == pytest.approx(at_once.item(), abs=1e-5)
