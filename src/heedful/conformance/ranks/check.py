"""The check of an attention over many ranks: run it on one and on many, and report what differs."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter

import torch

from heedful.conformance.ranks.attempt import Attempt
from heedful.conformance.ranks.building import RanksRequest
from heedful.conformance.ranks.collectives import differing_collectives
from heedful.conformance.ranks.judging import findings_of
from heedful.conformance.ranks.layout import DESCRIPTIONS, LAYOUTS, ORDERS, Layout
from heedful.conformance.ranks.processes import PATIENCE, Failure, blamed, run_on_ranks
from heedful.conformance.ranks.rank import run_part, run_whole
from heedful.conformance.ranks.run import Whole
from heedful.conformance.ranks.weights import is_packed
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.conformance.reporting.report import Report
from heedful.conformance.reporting.result import ProbeRun
from heedful.errors import ArgumentError

MOST_RANKS = 16
NAME = "ranks"
"""The name of this check among the probes of a report."""


def check_on_ranks(
    target: str,
    ranks: int,
    *,
    reference: str = "",
    layout: Layout | None = None,
    arguments: Mapping[str, str] = {},
    example: str = "",
    causal: bool | None = None,
    expected_failures: Mapping[str, str] = {},
    patience: float = PATIENCE,
) -> Report:
    """Check whether an attention over many ranks computes what it computes on one, and what differs first if not.

    Every rank is a process with PyTorch's default process group, of the backend gloo. The target is built on each as on
    one rank, with the same random state, and gets the weights of the one. Outputs, and gradients of arguments and
    parameters, are compared in float64 if the target runs in it.

    Args:
        target: The target as "path/to/file.py:Name" or "package.module:Name".
        ranks: How many ranks, at most 16.
        reference: The same attention for one rank, in the same form; "" if the target itself runs on one.
        layout: Which part of the tokens each rank gets; None to try which one fits.
        arguments: The arguments of the constructor. Each value is a Python literal, an expression, or else text.
        example: The arguments of a call on one rank, as a Python expression; "" to try conventional ones.
        causal: Whether calls should be causal, if an argument decides that.
        expected_failures: The names of known findings, each with a reason. They do not count as bugs.
        patience: The seconds that a rank waits for another one.

    Returns:
        The findings, with proof, rank and line.

    Raises:
        ArgumentError: The target cannot be built or called on one rank or on many.
    """
    if not 2 <= ranks <= MOST_RANKS:
        raise ArgumentError(
            "--ranks",
            expected=f"2 to {MOST_RANKS} ranks, which are processes of this machine",
            received=str(ranks),
            remedy="Two show most bugs; four show those of key heads and of rings.",
        )
    start = perf_counter()
    request = RanksRequest(target, reference, dict(arguments), example, causal, ranks)
    with tempfile.TemporaryDirectory(prefix="heedful-whole-") as folder:
        whole = _whole(request, patience)
        file = Path(folder, "whole")
        torch.save(whole, file)
        findings, facts = _judged(_Trials(request, whole, str(file), layout, patience))
    run = ProbeRun(NAME, perf_counter() - start, tuple(findings), tuple(facts))
    return Report(
        f"{whole.name} on {ranks} ranks",
        tuple(findings),
        tuple(facts),
        dict(expected_failures),
        (run,),
    )


def _whole(request: RanksRequest, patience: float) -> Whole:
    (outcome,) = run_on_ranks(run_whole, 1, request, patience=patience)
    if not isinstance(outcome, Failure):
        if outcome.run.outputs:
            return outcome
        raise ArgumentError(
            "TARGET",
            expected="an attention that returns a tensor of vectors",
            received=f"{outcome.name}, which returns none",
            remedy="Check the attention itself.",
        )
    if outcome.error is not None:
        raise outcome.error
    raise ArgumentError(
        "TARGET",
        expected="an attention that runs on one rank, too",
        received=f"{request.reference or request.target}: {outcome}",
        remedy="Give the same attention for one rank: --reference FILE:NAME.",
    )


class _Trials:
    """The runs of a target with one layout after another, until one fits."""

    def __init__(
        self,
        request: RanksRequest,
        whole: Whole,
        whole_file: str,
        layout: Layout | None,
        patience: float,
    ) -> None:
        self.request, self.whole = request, whole
        self.stated: Layout | None = layout
        self._file, self._patience = whole_file, patience
        self.attempts: list[Attempt] = []
        self.failures: dict[Layout, list[Failure]] = {}
        self.collectives: Finding | None = None

    def run(self) -> Attempt | None:
        """Return the first attempt whose outputs are right; None if there is none."""
        for layout in self._layouts():
            attempt = self._run(layout, in_sections=True)
            if attempt is not None and is_packed(attempt.dealt[0]) and attempt.right_share < 1:
                attempt = self._run(layout, in_sections=False)
            if attempt is not None and attempt.right_share == 1:
                return attempt
            if any(it.ending in ("hangs", "waits") for it in self.failures.get(layout, ())):
                return None  # each such trial takes as long as a rank waits
        return None

    def _layouts(self) -> list[Layout]:
        """Return the layouts to try: the stated one, or that which the source names, or all of them."""
        words = self.whole.words.replace("_", "").replace("-", "").replace(" ", "")
        named: list[Layout] = [it for it in ORDERS[1:] if it.rstrip("d") in words]
        orders: list[Layout] = named or [*ORDERS]
        layouts: list[Layout] = [*orders, "replicated", "heads"]
        if self.stated is not None:
            layouts = [self.stated]
        return layouts

    def _run(self, layout: Layout, *, in_sections: bool) -> Attempt | None:
        outcomes = run_on_ranks(
            run_part,
            self.request.ranks,
            self.request,
            self._file,
            layout,
            in_sections,
            patience=self._patience,
        )
        failures = [it for it in outcomes if isinstance(it, Failure)]
        if failures:
            self.failures[layout] = failures
            calls = [
                it.collectives if isinstance(it, Failure) else it[0].collectives for it in outcomes
            ]
            if not any(it.own for it in failures):
                self.collectives = self.collectives or differing_collectives(
                    calls, [it.rank for it in failures if it.ending != "waits"]
                )
            return None
        runs, dealt = zip(*outcomes, strict=True)
        attempt = Attempt(self.whole, layout, in_sections, runs, dealt)
        if len(attempt.expected) < self.request.ranks or not attempt.is_distributed:
            return None
        self.attempts.append(attempt)
        return attempt


def _judged(trials: _Trials) -> tuple[list[Finding], list[Fact]]:
    """Return the findings and facts about a target.

    Raises:
        ArgumentError: It cannot be called on the ranks, or no layout is sure to be right.
    """
    fitting = trials.run()
    if fitting is None and trials.collectives is not None:
        return [trials.collectives], [Fact("ranks", str(trials.request.ranks))]
    if fitting is None and not trials.attempts:
        raise _not_callable(trials)
    attempt = fitting or max(
        trials.attempts, key=lambda it: (round(it.compared.right_share, 3), it.right_share)
    )
    findings, certain = findings_of(attempt)
    if not certain and trials.stated is None:
        raise ArgumentError(
            "--shard",
            expected=f"a layout under which ranks compute something that one rank computes: {', '.join(LAYOUTS)}",
            received=f"{trials.whole.name}, which returns other numbers under each that it runs with",
            remedy="State how tokens are dealt to ranks (--shard), or the attention for one rank (--reference).",
        )
    facts = [
        Fact("ranks", str(attempt.ranks)),
        Fact("tokens", f"{attempt.layout}: {DESCRIPTIONS[attempt.layout]}"),
    ]
    cut = [
        f"{name} along dimension {it.axis}"
        for name, it in attempt.dealt[0].items()
        if it.axis is not None
    ]
    if cut:
        facts.append(Fact("weights dealt", ", ".join(cut)))
    return findings, facts


def _not_callable(trials: _Trials) -> ArgumentError:
    """Return the error about a target that fails on ranks with every layout, naming rank, line and cause."""
    found = {layout: blamed(failures) for layout, failures in trials.failures.items()}
    theirs = {layout: it for layout, it in found.items() if not it.own} or found
    causes = "; ".join(dict.fromkeys(f"{it} with {layout} tokens" for layout, it in theirs.items()))
    return ArgumentError(
        "--ranks",
        expected=f"an attention that runs on {trials.request.ranks} ranks",
        received=f"{trials.whole.name}: {causes or 'its ranks compute the same, without dealing anything'}",
        remedy="If the arguments do not fit, state them: --shard, --with, --example or --reference.",
    )
