"""Batches: their windows and documents, each token once per epoch, and the same batches after a resume."""

import json
from itertools import islice

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from heedful.errors import ArgumentError
from heedful.gpt.data.batches import IGNORED, Batches, sweep
from heedful.gpt.data.books import Book
from heedful.gpt.data.corpus import Corpus, Split
from heedful.gpt.tokenizer import ByteTokenizer
from heedful.masks import Causal, Documents, Grid

lengths = st.lists(st.integers(1, 12), min_size=1, max_size=6)


def counted(*lengths: int) -> Split:
    """Return documents whose tokens are their own positions."""
    starts = np.cumsum([0, *lengths])[:-1]
    tokens = np.arange(sum(lengths) + 1, dtype=np.uint16)
    return Split(tokens, tuple(starts.tolist()), tuple(f"{n}" for n in range(len(lengths))))


def document(split: Split, position: int) -> int:
    return max(n for n, start in enumerate(split.starts) if start <= position)


@given(lengths=lengths, B=st.integers(1, 5), T=st.integers(1, 9))
def test_targets_are_the_next_tokens_and_documents_those_of_the_inputs(lengths, B, T):
    split = counted(*lengths)
    T = min(T, len(split) - 1)
    batches = Batches(split, B, T, seed=3)
    for batch in [*islice(batches, 4), *sweep(split, B, T)]:
        assert batch.inputs.dtype == batch.targets.dtype == batch.documents.dtype == torch.int64
        assert batch.inputs.shape == batch.targets.shape == batch.documents.shape
        assert torch.equal(batch.inputs.diff(), torch.ones_like(batch.inputs)[:, 1:])
        counts = batch.targets != IGNORED
        assert torch.equal(batch.targets[counts], (batch.inputs + 1)[counts])
        assert batch.documents.tolist() == [
            [document(split, position) for position in row] for row in batch.inputs.tolist()
        ]


@given(lengths=lengths, B=st.integers(1, 5), T=st.integers(1, 100))
def test_a_sweep_predicts_every_token_but_the_first_once(lengths, B, T):
    split = counted(*lengths)
    targets = torch.cat([batch.targets.flatten() for batch in sweep(split, B, T)])
    assert targets[targets != IGNORED].tolist() == list(range(1, len(split)))


def test_a_sweep_is_always_the_same():
    first, second = (list(sweep(counted(50, 7), 4, 9)) for _ in range(2))
    assert all(map(torch.equal, sum(first, ()), sum(second, ())))


@given(length=st.integers(2, 90), T=st.integers(1, 20))
def test_the_windows_of_an_epoch_lie_side_by_side(length, T):
    split = counted(length)
    T = min(T, length - 1)
    batches = Batches(split, 1, T)
    starts = sorted(int(batch.inputs[0, 0]) for batch in islice(batches, batches.windows_per_epoch))
    assert starts == list(range(starts[0], starts[0] + T * len(starts), T))
    assert starts[0] < T
    assert len(split) - T - starts[-1] <= 2 * T  # no more than one window is left over


def test_epochs_differ_in_their_order_and_in_their_first_token():
    batches = Batches(counted(1000), 1, 10)
    epochs = [
        [int(batch.inputs[0, 0]) for batch in islice(batches, batches.windows_per_epoch)]
        for _ in range(4)
    ]
    assert all(epoch != sorted(epoch) for epoch in epochs)
    assert len({min(epoch) for epoch in epochs}) > 1
    assert len({tuple(np.argsort(epoch)) for epoch in epochs}) == 4


def test_the_seed_determines_the_order():
    def drawn(seed: int) -> list[int]:
        batches = Batches(counted(500), 4, 10, seed=seed)
        return torch.cat([batch.inputs[:, 0] for batch in islice(batches, 5)]).tolist()

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


@pytest.mark.parametrize("steps", [0, 1, 5, 17, 40])
def test_resumed_batches_continue_the_sequence(steps):
    split = counted(60, 60)
    batches = Batches(split, 3, 7, seed=11)
    for _ in range(steps):
        next(batches)
    state = json.loads(json.dumps(batches.state_dict()))
    resumed = Batches(split, 3, 7, seed=11)
    resumed.load_state_dict(state)
    beyond_an_epoch = islice(zip(batches, resumed, strict=True), 30)
    for expected, got in beyond_an_epoch:
        assert all(map(torch.equal, expected, got))
    assert resumed.state_dict() == batches.state_dict()


def test_a_resume_may_change_the_batch_size():
    large, small = (Batches(counted(200), B, 8) for B in (6, 2))
    next(large)
    small.load_state_dict(large.state_dict())
    expected = next(large).inputs
    assert torch.equal(torch.cat([next(small).inputs for _ in range(3)]), expected)


@pytest.mark.parametrize(
    "other",
    [
        Batches(counted(51), 2, 8, seed=1).state_dict(),
        Batches(counted(50), 2, 9, seed=1).state_dict(),
        Batches(counted(50), 2, 8, seed=1).state_dict() | {"stride": 4},
        Batches(counted(50), 2, 8, seed=2).state_dict(),
    ],
    ids=["corpus", "context", "stride", "seed"],
)
def test_the_state_of_another_run_is_refused(other):
    batches = Batches(counted(50), 2, 8, seed=1)
    with pytest.raises(ArgumentError, match="settings that the run was started with"):
        batches.load_state_dict(other)
    with pytest.raises(ArgumentError, match="state"):
        batches.load_state_dict({})


def test_sizes_without_a_window_are_refused():
    with pytest.raises(ArgumentError, match=r"at most 10, .* 11 tokens for training; received 11"):
        Batches(counted(10), 1, 11)
    assert next(Batches(counted(10), 1, 10)).inputs.tolist() == [list(range(10))]
    for name, make in {
        "batch_size": lambda: Batches(counted(10), 0, 4),
        "context_length": lambda: next(sweep(counted(10), 1, 0)),
    }.items():
        with pytest.raises(ArgumentError, match=f"{name}: expected at least 1; received 0"):
            make()


def test_no_window_mixes_training_and_validation_text(tmp_path):
    """The training text consists of small letters, the validation text of capitals."""
    books = [Book(name, name * 95 + name.upper() * 5) for name in "abc"]
    corpus = Corpus.build(books, ByteTokenizer(), tmp_path)
    capitals = set(b"ABC")
    batches = Batches(corpus.train, 4, 16)
    for batch in islice(batches, 5 * batches.windows_per_epoch):  # each epoch begins elsewhere
        assert not capitals & set(torch.cat([batch.inputs, batch.targets]).flatten().tolist())
    for batch in sweep(corpus.validation, 2, 4):
        assert set(batch.inputs.flatten().tolist()) <= capitals | {ByteTokenizer.end_of_text}


def test_tokens_attend_to_their_own_document_only():
    """A window covers 3 and 2 tokens of two documents; the first token of the second sees only itself."""
    (batch,) = sweep(counted(3, 2), 1, 5)
    mask = Causal() & Documents(batch.documents)
    seen = mask.dense_on(Grid(1, 5, 5, 0, torch.device("cpu"))).squeeze()
    assert seen.int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 1, 1],
    ]
