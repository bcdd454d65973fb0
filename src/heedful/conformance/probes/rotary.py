"""How queries and keys are turned to their positions: in which pairs, to the same positions, from exact angles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.subject import Subject
from heedful.conformance.calling.target import is_from_transformers
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import ancestors, steps_from_projection
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine, call_site
from heedful.conformance.reporting.finding import Fact, Finding, Level
from heedful.observation import Source, Step

RUNS = 24  # at most, for as many samples as a head has features
FAR = 300  # tokens: in bfloat16, whole numbers above 256 are rounded
LEAST = 1e-3  # rad
SMALL = 1e-6
LONGER, FEW = 65, 4  # tokens, and runs on so many
BREAK = 0.05  # what begins smaller is rounding
COARSE = (torch.bfloat16, torch.float16)
PAIRS = {"half": "(i, i + D/2)", "interleaved": "(2i, 2i + 1)"}
USERS = {
    "half": "transformers' Llama and GPT-NeoX",
    "interleaved": "the paper, GPT-J and Meta's checkpoints",
}


@dataclass(frozen=True, eq=False)
class Rotation:
    """What is done to queries, or to keys, by position.

    Attributes:
        maps: (T, D, D), the matrix for each position: after = map @ before.
        steps: the steps from the features as projected to the ones turned, both included.
    """

    maps: Tensor
    steps: tuple[Step, ...]

    @property
    def layout(self) -> str | None:
        """Which features are turned with which: a key of `PAIRS`, or None."""
        entries = (self.maps.abs() > SMALL).any(0)
        turned = int((entries.sum(1) > 1).sum())
        rows = [set(row.nonzero().flatten().tolist()) for row in entries[:turned]]
        fits = {
            "half": all(len({j % (turned // 2) for j in row}) == 1 for row in rows),
            "interleaved": all(len({j // 2 for j in row}) == 1 for row in rows),
        }
        found = [name for name, fit in fits.items() if fit]
        return found[0] if turned > 2 and len(found) == 1 else None

    @property
    def preserves_lengths(self) -> bool:
        """Whether each map turns, up to one factor for all, and does nothing else."""
        products = self.maps.mT @ self.maps
        factor = products[0].diagonal().mean()
        return _near(products, factor * torch.eye(len(products[0]), dtype=products.dtype))


@probe("rotary-layout", "rotary-mismatch", "rotary-offset", "length-dependent")
def rotary(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Recovers the matrices that turn queries and keys: scores must depend on how far apart two tokens stand."""
    if evidence.subject.fixed_sizes is not None:
        return
    for attention in evidence.attentions:
        turned = _turned(evidence, attention)
        if turned is None:
            continue
        finding = _judged(evidence.baseline, attention, *turned) or _further_on(evidence, *turned)
        if finding is not None:
            yield finding
            return
        query = turned[0]
        if query is not None and query.layout is not None:
            D = query.maps.shape[-1]
            yield Fact("rotary", f"{query.layout} {PAIRS[query.layout]}")
            yield Finding(
                "rotary-layout",
                "convention",
                f"Features are turned in pairs {PAIRS[query.layout]}, as in {USERS[query.layout]}.",
                f"head size {D}",
                SourceLine.of(query.steps[-1]),
                "None is needed, unless weights come from the other layout.",
            )
            return


def _turned(
    evidence: Evidence, attention: RecordedAttention
) -> tuple[Rotation | None, Rotation | None] | None:
    """What is done to queries and to keys; None if nothing is."""
    D = attention.query.shape[-1]
    if D < 2 or attention.key.shape[-1] != D:
        return None
    observations = [evidence.baseline]
    sides = [
        _way(evidence.baseline, it, D) for it in (attention.query_source, attention.key_source)
    ]
    if not any(sides):
        return None
    while len(observations) < RUNS and _samples(sides, observations) < D + 3:
        more = evidence.subject.draw(*evidence.inputs.sizes, seed=len(observations))
        observations.append(evidence.subject.record(more))
    query, key = (_rotation(observations, pairs) for pairs in sides)
    return None if query is None and key is None else (query, key)


def _way(
    observation: Observation, source: Source, D: int
) -> list[tuple[Step, Step, tuple[Step, ...]]]:
    """The pairs of steps of one shape, with an axis of tokens, between which a rotation may lie; the widest first."""
    way, T = steps_from_projection(observation, source), observation.inputs.sizes[1]
    steps = [it for it in way if len(it.shape) > 1 and it.shape[-1] == D and T in it.shape[:-1]]
    return [
        (before, after, tuple(it for it in way if before.index <= it.index <= after.index))
        for after in reversed(steps)
        for before in steps
        if before.index < after.index and before.shape == after.shape
    ]


def _samples(
    sides: Sequence[list[tuple[Step, Step, tuple[Step, ...]]]], observations: Sequence[Observation]
) -> int:
    """How many rows there are for each position, in the side that has fewer."""
    T = observations[0].inputs.sizes[1]
    rows = [
        torch.Size(side[0][0].shape).numel() // (T * side[0][0].shape[-1]) for side in sides if side
    ]
    return len(observations) * min(rows)


def _rotation(
    observations: Sequence[Observation], pairs: list[tuple[Step, Step, tuple[Step, ...]]]
) -> Rotation | None:
    for before, after, way in pairs:
        maps = _maps(observations, before, after)
        if maps is not None and not _near(maps, maps[:1]):
            done = next(it for it in way if _same(it, after))
            return Rotation(maps, tuple(it for it in way if it.index <= done.index))
    return None


def _same(step: Step, other: Step) -> bool:
    one, another = tensor_of(step), tensor_of(other)
    return one is not None and another is not None and torch.equal(one, another)


def _maps(observations: Sequence[Observation], before: Step, after: Step) -> Tensor | None:
    """The matrices (T, D, D) by which rows of one step become those of another; None if no matrices do."""
    x, y = (_rows(observations, step) for step in (before, after))
    if x is None or y is None or x.shape != y.shape or x.shape[1] <= x.shape[2]:
        return None
    if int(torch.linalg.matrix_rank(x).min()) < x.shape[2]:
        return None
    solution = torch.linalg.lstsq(x, y).solution
    return solution.mT if _near(x @ solution, y) else None


def _rows(observations: Sequence[Observation], step: Step) -> Tensor | None:
    """(T, samples, D) of all runs."""
    found: list[Tensor] = []
    for observation in observations:
        value, T = tensor_of(observation.trace[step.index]), observation.inputs.sizes[1]
        if value is None or value.shape != step.shape or not value.is_floating_point():
            return None
        axis = value.shape[:-1].index(T)
        found.append(value.movedim(axis, 0).flatten(1, -2).double())
    return torch.cat(found, dim=1) if found[0].dim() == 3 else None


def _near(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= SMALL * b.abs().max().clamp_min(SMALL))


# --- whether queries and keys go together ----------------------------------------------------------


def _judged(
    observation: Observation,
    attention: RecordedAttention,
    query: Rotation | None,
    key: Rotation | None,
) -> Finding | None:
    """What is wrong with how queries are turned against keys."""
    if query is None or key is None:
        one, other = ("queries", "keys") if key is None else ("keys", "queries")
        done = query or key
        assert done is not None
        proof = f"The {one} are turned to their positions, and the {other} are not."
        last = done.steps[-1]
        call = (
            call_site(observation, last)
            if last.function != attention.scores_step.function
            else None
        )
        return _mismatch(proof, done, call or SourceLine.of(last))
    products = query.maps.mT.unsqueeze(1) @ key.maps  # (T, T, D, D): what scores are made with
    by_distance = _near(products[1:, 1:], products[:-1, :-1])
    own = products.diagonal(dim1=0, dim2=1).permute(2, 0, 1)
    if by_distance and not _near(
        own, own[0].diagonal().mean() * torch.eye(len(own[0]), dtype=own.dtype)
    ):
        if not (query.preserves_lengths and key.preserves_lengths):
            return None
        return Finding(
            "rotary-offset",
            "bug",
            "Queries and keys are turned to different positions: a query and the key of the same token stand apart.",
            f"head size {own.shape[-1]}",
            SourceLine.of(key.steps[-1]),
        )
    if by_distance or (query.preserves_lengths and _near(query.maps, key.maps)):
        return None  # or the positions are none in a row, as those of images are
    layouts = {query.layout, key.layout}
    if query.preserves_lengths and key.preserves_lengths and len(layouts) == 2:
        pairs = " and ".join(f"{it.layout} pairs" for it in (query, key))
        return _mismatch(
            f"Queries and keys are turned in different layouts: {pairs}.",
            key,
            SourceLine.of(key.steps[-1]),
        )
    apart = (products[1:, 1:] - products[:-1, :-1]).abs().max()
    proof = f"Tokens 1 and 2 do not meet as tokens 0 and 1 do: what their scores are made with differs by {apart:.3g}"
    wrong = next((it for it in (key, query) if not it.preserves_lengths), None)
    if wrong is None:
        return _mismatch(f"{proof}.", key, SourceLine.of(key.steps[-1]))
    step = _wrong_partner(wrong) or _doubled(observation, wrong) or wrong.steps[-1]
    return _mismatch(f"{proof}, and lengths change.", wrong, SourceLine.of(step))


def _mismatch(proof: str, rotation: Rotation, place: SourceLine | None) -> Finding:
    case = f"head size {rotation.maps.shape[-1]}"
    return Finding("rotary-mismatch", "bug", proof, case, place)


def _wrong_partner(rotation: Rotation) -> Step | None:
    """The step that swaps each feature with its partner, the sign of one changed, if it does not do that.

    Done twice it must change every sign: turned by 90° and by 90° again.
    """
    before = tensor_of(rotation.steps[0])
    assert before is not None
    for step in rotation.steps[1:-1]:
        value = tensor_of(step)
        if value is None or value.shape != before.shape:
            continue
        x, y = (it.flatten(0, -2).double() for it in (before, value))
        partner = torch.linalg.lstsq(x, y).solution.mT
        if not _near(x @ partner.mT, y) or not _near(
            partner.abs().sum(0), torch.ones(len(partner))
        ):
            continue
        if not _near(partner @ partner, -torch.eye(len(partner), dtype=partner.dtype)):
            return step
    return None


def _doubled(observation: Observation, rotation: Rotation) -> Step | None:
    """The step that makes a table of angles which is not the same for both features of a pair."""
    D, T = rotation.maps.shape[-1], observation.inputs.sizes[1]
    steps, (first, *_, last) = observation.trace.steps, rotation.steps
    turned = {it.index for it in rotation.steps} | ancestors(steps, first)
    for index in sorted(ancestors(steps, last) - turned):
        table = tensor_of(observation.trace[index])
        if table is None or table.shape[-1:] != (D,) or T not in table.shape[:-1]:
            continue
        halves = table.unflatten(-1, (2, -1) if rotation.layout == "half" else (-1, 2))
        one, other = halves.abs().unbind(-2 if rotation.layout == "half" else -1)
        if not _near(one, other):
            return observation.trace[index]
    return None


# --- whether positions go on as they began ---------------------------------------------------------


def _further_on(evidence: Evidence, query: Rotation | None, key: Rotation | None) -> Finding | None:
    """Looks further than the sample: positions that wrap, or come to an end, put neighbours elsewhere."""
    subject, (B, T) = evidence.subject, evidence.inputs.sizes
    if query is None or key is None:
        return None
    longer = min(subject.max_length or LONGER, LONGER)
    D, heads = (
        key.maps.shape[-1],
        torch.Size(key.steps[0].shape).numel() // (B * T * key.maps.shape[-1]),
    )
    runs = D // (B * heads) + 1
    if longer <= T or runs > FEW:
        return None
    observations = [
        attempt(lambda seed=seed: subject.record(subject.draw(B, longer, seed=seed)))
        for seed in range(runs)
    ]
    if any(isinstance(it, Exception) for it in observations):
        return None
    sides = [_maps_of(observations, it) for it in (query, key)]
    if sides[0] is None or sides[1] is None:
        return None
    neighbours = sides[0][1:].mT @ sides[1][:-1]
    apart = (neighbours - neighbours[0]).abs().amax((1, 2))
    t = int((apart > SMALL).int().argmax()) + 1
    if apart[t - 1] < BREAK:
        return None
    return Finding(
        "length-dependent",
        "bug",
        f"Tokens {t - 1} and {t} are turned against each other as tokens 0 and 1 are not: positions break off.",
        f"T = {longer}",
        SourceLine.of(_bent(observations[0], query, t)),
    )


def _maps_of(observations: Sequence[Observation], rotation: Rotation) -> Tensor | None:
    """The same rotation's matrices in longer runs; None if these take other steps."""
    steps = observations[0].trace.steps
    for it in rotation.steps:
        if it.index >= len(steps) or (steps[it.index].line, steps[it.index].operation) != (
            it.line,
            it.operation,
        ):
            return None
    first, last = (steps[it.index] for it in (rotation.steps[0], rotation.steps[-1]))
    return _maps(observations, first, last)


def _bent(observation: Observation, rotation: Rotation, t: int) -> Step | None:
    """The first step behind a rotation that counts on up to token t, and no further."""
    steps, T = observation.trace.steps, observation.inputs.sizes[1]
    first, last = (steps[it.index] for it in (rotation.steps[0], rotation.steps[-1]))
    for index in sorted(ancestors(steps, last) - ancestors(steps, first)):
        value = tensor_of(steps[index])
        if value is None or T not in value.shape or value.dtype == torch.bool:
            continue
        counted = value.double().movedim(value.shape.index(T), 0).reshape(T, -1)
        bends = counted.diff(n=2, dim=0).abs().amax(1) > SMALL
        if bends.any() and not bends[: t - 2].any():
            return steps[index]
    return None


# --- from which angles -----------------------------------------------------------------------------


@probe("rotary-precision")
def precision(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Casts the target to bfloat16, as models are run: angles must be computed in float32 or better."""
    subject, (_, T) = evidence.subject, evidence.inputs.sizes
    cosines = (_cosine(evidence.baseline, attention) for attention in evidence.attentions)
    made = next((it for it in cosines if it is not None), None)
    if made is None or subject.module is None or subject.fixed_sizes is not None:
        return
    cast = subject.fresh(dtype=torch.bfloat16)
    error = _error(subject, cast, made, T)
    if error is not None and error.rounded:
        T = min(subject.max_length or FAR, FAR)
        error = _error(subject, cast, made, T) or error
        if error.size > LEAST:
            yield _finding(error, T, "bug", f"are computed in {error.step.dtype}")
    elif error is not None and error.size > LEAST and not _is_of_transformers(subject.module):
        yield _finding(
            error, T, "suspicious", "are made from frequencies that the cast has rounded"
        )


@dataclass(frozen=True, eq=False)
class Error:
    """How far the angles of a target that was cast are from those of the target itself.

    Attributes:
        step: the first behind the cosine that rounds positions, or what is made of them; else what made the angles.
        rounded: whether there is one that rounds.
        size: of the largest error.
        position: of the token that has it.
    """

    step: Step
    rounded: bool
    size: float
    position: int


def _finding(error: Error, T: int, level: Level, why: str) -> Finding:
    return Finding(
        "rotary-precision",
        level,
        f"In bfloat16 the angles {why}: at position {error.position} they are off by {error.size:.3g} rad.",
        f"T = {T}, after .bfloat16()",
        SourceLine.of(error.step),
        "" if error.rounded else "Keep the frequencies in float32 whatever the module is cast to.",
    )


def _error(subject: Subject, cast: Subject, made: Step, T: int) -> Error | None:
    """The error with T tokens; None where one of the two does not run, or takes another way."""
    exact, angles = (_angles(it, made, T) for it in (subject, cast))
    if exact is None or angles is None or exact.value.shape != angles.value.shape:
        return None
    steady = torch.arange(T, dtype=torch.float64)[:, None] * angles.value[1]
    expected = steady if exact.rounding else exact.value  # then it is no better than the cast
    errors = (angles.value - expected).abs().amax(1)
    position = int(errors.argmax())
    step = (angles.rounding or angles.behind[-1:])[0]
    return Error(step, bool(angles.rounding), errors[position].item(), position)


@dataclass(frozen=True, eq=False)
class Angles:
    """What a cosine was taken of.

    Attributes:
        value: (T, angles).
        behind: the steps that it was made in; the last one gave it.
    """

    value: Tensor
    behind: list[Step]

    @property
    def rounding(self) -> list[Step]:
        """Those steps that round positions, or what is made of them."""
        return [it for it in self.behind if it.dtype in COARSE and len(self.value) in it.shape]


def _angles(subject: Subject, made: Step, T: int) -> Angles | None:
    """What the same cosine is taken of in a run on T tokens."""
    observation = attempt(lambda: subject.record(subject.draw(1, T)))
    if isinstance(observation, Exception):
        return None
    trace = observation.trace
    same = (it for it in trace if (it.line, it.operation) == (made.line, made.operation))
    cosine = next(same, None)
    index = None if cosine is None else cosine.inputs[-1].step
    value = None if index is None else tensor_of(trace[index])
    if index is None or value is None or T not in value.shape:
        return None
    rows = value.double().movedim(value.shape.index(T), 0).reshape(T, -1)
    return Angles(rows, [trace[it] for it in sorted(ancestors(trace.steps, trace[index]))])


def _cosine(observation: Observation, attention: RecordedAttention) -> Step | None:
    """The cosine that queries were turned by."""
    if attention.query_source.step is None:
        return None
    steps = observation.trace.steps
    behind = (steps[it] for it in sorted(ancestors(steps, steps[attention.query_source.step])))
    return next((it for it in behind if it.operation in ("cos", "cos_", "polar")), None)


def _is_of_transformers(module: nn.Module) -> bool:
    """Whether a module is cast by from_pretrained, which leaves frequencies as they are, and not by .to()."""
    return any(is_from_transformers(it) for it in module.modules())
