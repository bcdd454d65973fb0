"""Whether tokens that come in chunks, the earlier ones from a cache, give what they give all at once."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

from torch import Tensor

from heedful.conformance.changes import differing
from heedful.conformance.cores import Core, find_cores
from heedful.conformance.dataflow import way_back
from heedful.conformance.departures import first_departure
from heedful.conformance.evidence import Evidence
from heedful.conformance.finding import Fact, Finding, Place
from heedful.conformance.probes.causality import masking_step
from heedful.conformance.probing import probe
from heedful.conformance.subject import Observation
from heedful.observation import Step


@probe("cache-mismatch", "cache-garbage-read", "causal-alignment", "rotary-offset")
def caching(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Runs every split of the tokens into prefill and decoding: each must give the rows of one full run."""
    use = evidence.subject.cached
    if use is None:
        return
    yield Fact("cache", f"{use.argument} ({use.kind})")
    _, T = evidence.inputs.sizes
    for sizes in ((T - 1, 1), (T // 2, T - T // 2), (3, 1, T - 4), (1,) * T):
        if min(sizes) < 1:
            continue
        chunks = evidence.subject.chunks(evidence.inputs, sizes)
        start = 0
        for chunk in chunks:
            n = chunk.inputs.sizes[1]
            wrong = evidence.differs(evidence.base.output[:, start : start + n], chunk.output)
            if wrong.any():
                yield _named(evidence, chunks, chunk, start, sizes, wrong)
                return
            start += n


@probe("cache-garbage-read")
def unused_slots(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Fills a cache's slots with NaN before anything is in them: none may be read."""
    use, T = evidence.subject.cached, evidence.inputs.sizes[1]
    if use is None or not use.capacity:
        return
    sizes = (T - 1, 1)
    clean = evidence.subject.chunks(evidence.inputs, sizes)
    poisoned = evidence.subject.chunks(evidence.inputs, sizes, unused=float("nan"))
    start = 0
    for before, after in zip(clean, poisoned, strict=True):
        if after.output.isnan().any() and not before.output.isnan().any():
            yield Finding(
                "cache-garbage-read",
                "bug",
                "NaN in slots of the cache that hold no token yet reaches the output.",
                f"chunks of {_plus(sizes)} tokens",
                Place.of(_first_nan(after)),
            )
            return
        start += before.inputs.sizes[1]


def _first_nan(observation: Observation) -> Step | None:
    """The step that reads what holds nothing: the first with NaN that is no write."""
    for step in observation.trace:
        value = step.value
        if step.in_place or step.operation == "setitem" or not isinstance(value, Tensor):
            continue
        if value.is_floating_point() and value.isnan().any():
            return step
    return None


def _named(
    evidence: Evidence,
    chunks: list[Observation],
    chunk: Observation,
    start: int,
    sizes: tuple[int, ...],
    wrong: Tensor,
) -> Finding:
    """What the first chunk that is wrong does otherwise than the full run."""
    n = chunk.inputs.sizes[1]
    b, i = (int(it) for it in wrong.nonzero()[0])
    expected, got = evidence.base.output[b, start + i], chunk.output[b, i]
    shown = (
        f"With {start} tokens in the cache, output {start + i} differs from that of one full run by "
        f"{(expected - got).abs().max():.3g}"
    )
    name, why, place = _cause(evidence, chunks, chunk, start)
    return Finding(
        name, "bug", f"{shown}{why}.", f"chunks of {_plus(sizes)} tokens, B = {len(wrong)}, the one with {n}", place
    )  # fmt: skip


def _cause(
    evidence: Evidence, chunks: list[Observation], chunk: Observation, start: int
) -> tuple[str, str, Place | None]:
    stop = start + chunk.inputs.sizes[1]
    for core, full in zip(find_cores(chunk), evidence.cores, strict=False):
        if core.key.shape[1] < stop or core.query.shape[1] != stop - start:
            why = f": its {core.query.shape[1]} queries meet {core.key.shape[1]} keys"
            return "cache-mismatch", why, Place.of(core.scores_step)
        pairs = {
            "query": (core.query, full.query[:, start:stop]),
            "key": (core.key[:, :stop], full.key[:, :stop]),
            "value": (core.value[:, :stop], full.value[:, :stop]),
        }
        for role, (got, expected) in pairs.items():
            if got.shape == expected.shape and differing(expected, got).any():
                return _wrong_operand(evidence, chunks, chunk, start, core, role, got, expected)
        if differing(
            core.visible[..., :stop].int(), full.visible[:, start:stop, :stop].int()
        ).any():
            return _wrong_mask(evidence, chunk, start, core, full)
    return "cache-mismatch", "", None


def _wrong_operand(
    evidence: Evidence,
    chunks: list[Observation],
    chunk: Observation,
    start: int,
    core: Core,
    role: str,
    got: Tensor,
    expected: Tensor,
) -> tuple[str, str, Place | None]:
    source = getattr(core, f"{role}_source")
    step = None if source.step is None else chunk.trace[source.step]
    departing = None if step is None else first_departure(evidence.base, chunk, start, step)
    turned = role != "value" and not differing(got.norm(dim=-1), expected.norm(dim=-1)).any()
    if turned:
        why = f": the {role} has the right length and another direction, so that its position is not {start}"
        return "rotary-offset", why, _of_call(evidence, chunk, core, role, departing)
    columns = differing(expected, got).flatten(2).any(-1).any(0).nonzero().flatten().tolist()
    which = f": the {role}s of tokens {', '.join(map(str, columns[:4]))} are others"
    return (
        "cache-mismatch",
        which if role != "query" else ": its query is another",
        _of_write(chunks, departing),
    )


def _of_call(
    evidence: Evidence, chunk: Observation, core: Core, role: str, departing: Step | None
) -> Place | None:
    """The line that calls a helper, where the helper does right by the other operand; otherwise the helper's own."""
    if departing is None or departing.function == core.scores_step.function:
        return Place.of(departing)
    other = "key" if role == "query" else "query"
    full = evidence.cores[0]
    n = chunk.inputs.sizes[1]
    got, expected = getattr(core, other)[:, -n:], getattr(full, other)
    start = expected.shape[1] - n if expected.shape[1] == core.key.shape[1] else 0
    if differing(expected[:, start : start + n], got).any():
        return Place.of(departing)
    way = way_back(chunk, getattr(core, f"{role}_source"))
    names = [it.name for it in way if it.function == departing.function and "·" not in it.name]
    return _assigned_by_call(evidence, core.scores_step, departing, names) or Place.of(departing)


def _assigned_by_call(
    evidence: Evidence, within: Step, helper: Step, names: list[str]
) -> Place | None:
    """The assignment in the method of a step that calls a helper for one of some variables."""
    module = evidence.subject.module
    if module is None:
        return None
    try:
        lines, first = inspect.getsourcelines(type(module).forward)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    called = helper.function.rpartition(".")[2]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or called not in ast.unparse(node.value):
            continue
        targets = {
            it.id for target in node.targets for it in ast.walk(target) if isinstance(it, ast.Name)
        }
        if targets & set(names):
            return Place(
                within.file or "", first + node.lineno - 1, " ".join(ast.unparse(node).split())
            )
    return None


def _of_write(chunks: list[Observation], departing: Step | None) -> Place | None:
    """Where a cache was written, if what departs only reads it."""
    if departing is None:
        return None
    held = {it.name for it in departing.inputs if it.kind in ("buffer", "attribute")}
    for chunk in chunks:
        for step in chunk.trace:
            written = {it.name for it in step.inputs if it.kind in ("buffer", "attribute")}
            if held & written and (step.in_place or step.operation == "setitem"):
                return Place.of(step)
    return Place.of(departing)


def _wrong_mask(
    evidence: Evidence, chunk: Observation, start: int, core: Core, full: Core
) -> tuple[str, str, Place | None]:
    n = core.used.shape[1]
    seen = int(core.visible.any(0)[0].sum())
    should = int(full.visible.any(0)[start].sum())
    why = f": query {start} sees {seen} keys where it should see {should}, as if it were query {seen - 1}"
    step = masking_step(core)
    departing = None if step is None else first_departure(evidence.base, chunk, start, step)
    hidden_somewhere = not core.visible.all()
    if not hidden_somewhere and n > 1:
        why = f": its {n} queries see all {core.used.shape[2]} keys, later ones among them"
    place = Place.of(departing) if departing is not None else Place.of(step or masking_step(full))
    return "causal-alignment", why, place


def _plus(sizes: tuple[int, ...]) -> str:
    return " + ".join(map(str, sizes))
