"""What probes look at: the runs of a subject, each made once and kept."""

from __future__ import annotations

from functools import cache, cached_property

import torch
from torch import Tensor

from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.attention import RecordedAttention, find_attentions
from heedful.conformance.evidence.expectations import Expectations, Expected, expectations
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.inputs import Inputs, Observation

CHANGED = 2  # the token that is changed where one is enough: neither the first nor the last
TOKENS = 7  # unlike the sizes that targets are built with, so that axes can be told apart


class Evidence:
    """Runs of a subject in eval mode on a small sample, made when first asked for.

    Args:
        subject: what is looked at.
        told: what the caller says it should do.
    """

    def __init__(self, subject: Subject, told: Expected) -> None:
        self.subject, self._told = subject, told
        self.after = cache(self._after)
        self.attentions_after = cache(self._cores_after)
        self.rows_of_entries = cache(self._rows_of_entries)

    @cached_property
    def inputs(self) -> Inputs:
        """Three sequences of seven tokens: one if the subject takes but one, fewer or more tokens if it must be."""
        window = self.subject_window
        T = TOKENS if window is None or window < TOKENS - 2 else window + 3
        B, T = self.subject.fixed_sizes or (3, min(T, self.subject.max_length or T))
        return self.subject.draw(B if self.subject.batched else 1, T)

    @property
    def subject_window(self) -> int | None:
        """What is said of a window before anything was run."""
        return self._told.window_of(self.subject.module)

    @cached_property
    def baseline(self) -> Observation:
        """The sample as it is."""
        return self.subject.record(self.inputs)

    def _after(self, b: int, t: int) -> Observation:
        """The sample with token t of batch entry b changed."""
        return self.subject.record(self.inputs.changed(b, t))

    @cached_property
    def expected(self) -> Expectations:
        """What the subject should do."""
        return expectations(self._told, self.subject, self.baseline)

    @cached_property
    def attentions(self) -> list[RecordedAttention]:
        """The attentions in `base`, in order."""
        return find_attentions(self.baseline)

    def _cores_after(self, b: int, t: int) -> list[RecordedAttention]:
        """The attentions in `after(b, t)`."""
        return find_attentions(self.after(b, t))

    def _rows_of_entries(self, index: int) -> list[Tensor] | None:
        """Which of the L rows of a attention belong to each batch entry: those whose queries change with its tokens.

        None where the rows are not shared out among the entries.
        """
        base, found = self.attentions[index].query, []
        for b in range(self.inputs.sizes[0]):
            after = self.attentions_after(b, CHANGED)
            if index >= len(after) or after[index].query.shape != base.shape:
                return None
            found.append(
                differing_entries(base, after[index].query).flatten(1).any(1).nonzero().flatten()
            )
        shared = sorted(torch.cat(found).tolist()) == list(range(len(base)))
        return found if shared else None

    @cached_property
    def is_causal(self) -> bool:
        """Whether no output of the sample depends on a later token."""
        return not self.influence[0, :, 0].triu(1).any()

    @cached_property
    def influence(self) -> Tensor:
        """(B, T, B, T) Boolean: whether output (b, i) changes when token (c, j) does."""
        B, T = self.inputs.sizes
        found = torch.zeros(B, T, B, T, dtype=torch.bool)
        base = self.subject.run(self.inputs).detach()
        for c in range(B):
            for j in range(T):
                changed = self.subject.run(self.inputs.changed(c, j)).detach()
                found[:, :, c, j] = self.differs(base, changed)
        return found

    @staticmethod
    def differs(a: Tensor, b: Tensor) -> Tensor:
        """(B, T) Boolean: which rows of two outputs (B, T, …) are others, rounding apart; NaN is no number's equal."""
        return differing_entries(a, b).flatten(2).any(-1)
