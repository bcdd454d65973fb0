"""The runs of a subject that the probes look at, each made when it is first needed and then kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.influence import influences
from heedful.conformance.calling.second_subject import second_subject
from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.expectations import Expectations, Expected, expectations_of
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.observation import Observation
from heedful.conformance.recording.target_source import own_text, prose_about

CHANGED = 2
"""The token that is changed where one token is enough. It is neither the first nor the last one."""

ALONG_BATCH: re.Pattern[str] = re.compile(
    r"\b(attention|attend(s|ing)?|applied|operates?)\b[^.]{0,30} (along|across|over) the batch\b"
    r"|\binter-?sample\b"
)
"""What code says in words, in lower case, if its sequences are meant to attend to each other."""

BATCH_AS_TOKENS: re.Pattern[str] = re.compile(r"""['"]\s*b \w[^'"]*->\s*1 b """)
"""A pattern of einops that makes the sequences the tokens of one sequence: "b n d -> 1 b (n d)"."""

MANY, SOME = 256, 32
"""The number of tokens of which each is changed in turn, and that of those which are changed if there are more."""

BATCH, TOKENS, PIXELS, VOXELS = 3, 7, 10, 20
"""Sizes unlike those that targets are built with, so that axes can be told apart by their sizes."""

MOST_TOKENS = 40
"""A window that hides something only from more tokens than these is not tried: there is a run for each token."""

OTHER_SIZES = ((3, 6), (3, 5), (2, 8), (4, 16))
"""Sizes for subjects that do not accept those: the next likely B and T."""

P = ParamSpec("P")
R = TypeVar("R")


def once(ask: Callable[Concatenate[Evidence, P], R]) -> Callable[Concatenate[Evidence, P], R]:
    """Make a function of evidence keep its answers there: several probes ask the same, and each run takes time."""

    @wraps(ask)
    def kept(evidence: Evidence, *args: P.args, **keywords: P.kwargs) -> R:
        question = (ask, args, *keywords.items())
        if question not in evidence.answers:
            evidence.answers[question] = ask(evidence, *args, **keywords)
        return evidence.answers[question]

    return kept


class Evidence:
    """Runs of a subject in eval mode on a small sample.

    Args:
        subject: The subject.
        expected: What the caller states about it.
    """

    def __init__(self, subject: Subject, expected: Expected) -> None:
        self.subject: Subject = subject
        self.stated: Expected = expected
        self.answers: dict[tuple[Hashable, ...], Any] = {}

    @cached_property
    def inputs(self) -> Inputs:
        """Three sequences of seven tokens, with other sizes only if the subject needs them."""
        window = self.stated.window_of(self.subject.module)
        convention = self.subject.convention
        T = PIXELS if convention.is_image else TOKENS
        if len(convention.grid_of(T)) > 2:  # so that no side of a volume has one voxel
            T = VOXELS
        most = self.subject.max_length or MOST_TOKENS
        if window is not None and TOKENS - 2 <= window <= min(most, MOST_TOKENS) - 3:
            T = window + 3
        B, T = self.subject.fixed_sizes or (BATCH, min(T, most))
        drawn = [
            self.subject.draw(b if self.subject.batched else 1, t)
            for b, t in ((B, T), *OTHER_SIZES)
        ]
        runs = (
            it
            for it in drawn
            if not isinstance(attempt(lambda it=it: self.subject.run(it)), Exception)
        )
        return next(runs, drawn[0])

    @cached_property
    def baseline(self) -> Observation:
        """The run on the sample."""
        return self.subject.record(self.inputs)

    @once
    def after(self, b: int, t: int) -> Observation:
        """Return the run on the sample with token t of batch entry b changed."""
        return self.subject.record(self.inputs.changed(b, t))

    @once
    def on_other_tokens(self, seed: int) -> Observation:
        """Return the run on other tokens, of the sizes of the sample; those of the sample have the seed 0."""
        return self.subject.record(self.subject.draw(*self.inputs.sizes, seed=seed))

    @once
    def in_training(self, seed: int) -> Observation:
        """Return the run of a copy in training mode on the sample; the seed is that of the random numbers."""
        return self.subject.fresh(train=True, seed=seed).record(self.inputs)

    @cached_property
    def expected(self) -> Expectations:
        """The behaviour that is expected of the subject."""
        return expectations_of(self.subject, self.stated, self.baseline)

    @cached_property
    def causal_alone(self) -> bool:
        """Whether one sequence alone is causal, and a batch is not: there, the caller's mask decides."""
        subject, (B, T) = self.subject, self.inputs.sizes
        takes_mask = subject.padding is not None or subject.attention_mask is not None
        if not takes_mask or not subject.batched or B < 2 or T < 2 or self.is_causal:
            return False
        earlier = (0, slice(T - 1))
        return influences(subject, self.inputs.entry(0), T - 1, rows=earlier) is False

    def of_one_sequence(self) -> Evidence:
        """Return the evidence on the first sequence of the sample alone."""
        alone = Evidence(self.subject, self.stated)
        alone.inputs = self.inputs.entry(0)
        return alone

    @cached_property
    def attentions(self) -> list[RecordedAttention]:
        """The attentions in `baseline`, in order."""
        return find_attentions(self.baseline)

    @once
    def attentions_after(self, b: int, t: int) -> list[RecordedAttention]:
        """Return the attentions in `after(b, t)`, in order."""
        return find_attentions(self.after(b, t))

    @once
    def rows_of_entries(self, index: int) -> list[Tensor] | None:
        """Return for each batch entry which of the L rows of an attention belong to it.

        A row belongs to an entry if its queries, or else its keys, change with the tokens of the entry. Return None if
        a row belongs to no entry or to several.

        Args:
            index: The index of the attention in `attentions`.
        """
        query, key = self.attentions[index].query, self.attentions[index].key
        rows: list[Tensor] = []
        for b in range(self.inputs.sizes[0]):
            attentions = self.attentions_after(b, CHANGED)
            if index >= len(attentions) or attentions[index].query.shape != query.shape:
                return None
            if attentions[index].key.shape != key.shape:
                return None
            changed = differing_entries(query, attentions[index].query).flatten(1).any(1)
            if not changed.any():  # those of a sequence that is held fixed
                changed = differing_entries(key, attentions[index].key).flatten(1).any(1)
            rows.append(changed.nonzero().flatten())
        each_row_once = sorted(torch.cat(rows).tolist()) == list(range(len(query)))
        return rows if each_row_once else None

    @cached_property
    def is_causal(self) -> bool:
        """True if no output of the first sequence depends on a later token."""
        return not self.influence[0, :, 0].triu(1).any()

    @cached_property
    def influence(self) -> Tensor:
        """(B, T, B, T) Boolean: entry [b, i, c, j] is True if output (b, i) changes when token (c, j) does.

        Of the pixels of a large image, some are changed, evenly spaced, and the others count as without influence.
        """
        B, T = self.inputs.sizes
        influence = torch.zeros(B, T, B, T, dtype=torch.bool)
        output = self.subject.run(self.inputs).detach()
        for c in range(B):
            for j in range(T) if T <= MANY else range(0, T, T // SOME):
                changed_output = self.subject.run(self.inputs.changed(c, j)).detach()
                influence[:, :, c, j] = self.differs(output, changed_output)
        return influence

    @property
    def mixes_tokens(self) -> bool:
        """Whether some output changes when another token does."""
        own = torch.eye(self.inputs.sizes[1], dtype=torch.bool)
        return bool((self.influence[0, :, 0] & ~own).any())

    @property
    def is_along_batch(self) -> bool:
        """Whether the code says that its sequences are meant to attend to each other."""
        callee = self.subject.target.callee
        said = ALONG_BATCH.search(prose_about(callee)) or BATCH_AS_TOKENS.search(own_text(callee))
        return said is not None

    @cached_property
    def of_second_sequence(self) -> Evidence | None:
        """Runs in which the second sequence holds the tokens; None if the subject takes no second one."""
        subject = second_subject(self.subject, causal=self.is_causal)
        return None if subject is None else Evidence(subject, self.stated)

    @staticmethod
    def differs(a: Tensor, b: Tensor) -> Tensor:
        """Return (B, T) Boolean, True where the rows of two outputs (B, T, …) differ by more than rounding."""
        return differing_entries(a, b).flatten(2).any(-1)
