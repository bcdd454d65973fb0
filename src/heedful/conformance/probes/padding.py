"""Whether padding is padding: seen by nobody, on either side, and no harm to anyone."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.changes import differing
from heedful.conformance.cores import Core, find_cores
from heedful.conformance.evidence import Evidence
from heedful.conformance.finding import Fact, Finding, Place
from heedful.conformance.probes.causality import UNMASKED, masking_step, unused_masking
from heedful.conformance.probing import probe
from heedful.conformance.subject import MaskArgument, Observation
from heedful.observation import Step

PADDED = (0, 3, 2)  # how many tokens of each sequence are padding


def _kept(evidence: Evidence, side: str) -> Tensor:
    """(B, T) Boolean, which tokens are real: all but `PADDED`, on one side."""
    _, T = evidence.inputs.sizes
    lengths = T - torch.tensor(PADDED)
    kept = torch.arange(T) < lengths[:, None]
    return kept.flip(1) if side == "left" else kept


def _usable(evidence: Evidence) -> MaskArgument | None:
    argument = evidence.subject.padding
    B, T = evidence.inputs.sizes
    return argument if argument is not None and B == len(PADDED) and T >= 6 else None


def _sizes(evidence: Evidence) -> str:
    B, T = evidence.inputs.sizes
    return f"B = {B}, T = {T}, of them padding: {', '.join(map(str, PADDED))}"


@probe("mask-unused", "mask-inverted")
def padding_argument(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Hides tokens by the padding argument: something must change, and as the argument's name promises."""
    argument = _usable(evidence)
    if argument is None:
        return
    keeps = "True keeps" if argument.true_keeps else "True hides"
    if argument.dtype.is_floating_point:
        keeps = "added to the scores"
    yield Fact("padding mask", f"{argument.name} {argument.form}, {keeps}")
    observation = evidence.subject.record(evidence.inputs, keep=_kept(evidence, "right"))
    if not argument.effective:
        yield Finding(
            "mask-unused",
            "bug",
            f"{argument.name} changes nothing: with padding hidden the output is the same.",
            _sizes(evidence),
            Place.of(unused_masking(observation)),
        )
    elif (
        argument.declared is not None
        and argument.hides
        and argument.true_keeps != argument.declared
    ):
        wanted = "1 keeps a token" if argument.declared else "True hides a token"
        yield Finding(
            "mask-inverted",
            "bug",
            f"By convention {wanted} in {argument.name}; here it does the opposite.",
            _sizes(evidence),
            _masked_where(find_cores(observation)),
        )


@probe("padding-leak", "mask-broadcast", "left-padding-positions", "mask-fill-too-small")
def padding(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Runs a padded batch, and each sequence alone: real tokens must come out the same, on either side of padding."""
    argument = _usable(evidence)
    if argument is None or not argument.effective or _is_opposite(argument):
        return
    for side in ("right", "left"):
        kept = _kept(evidence, side)
        padded = evidence.subject.record(evidence.inputs, keep=kept)
        leak = _leak(evidence, padded, kept)
        if leak is not None:
            yield leak
            return
        wrong = _unlike_alone(evidence, padded, kept)
        if wrong is not None and side == "left":
            b, apart = wrong
            yield Finding(
                "left-padding-positions",
                "bug",
                f"With {PADDED[b]} tokens of padding on its left, sequence {b} comes out otherwise than alone, by "
                f"{apart:.3g}, though no token sees the padding: positions are counted from the padding on.",
                _sizes(evidence),
            )
            return
        if wrong is not None:
            b, apart = wrong
            yield Finding(
                "padding-leak",
                "bug",
                f"Beside {PADDED[b]} tokens of padding sequence {b} comes out otherwise than alone, by {apart:.3g}.",
                _sizes(evidence),
                _masked_where(find_cores(padded)),
            )
            return


def _is_opposite(argument: MaskArgument) -> bool:
    return (
        argument.declared is not None
        and argument.hides
        and argument.true_keeps != argument.declared
    )


def _unlike_alone(
    evidence: Evidence, padded: Observation, kept: Tensor
) -> tuple[int, float] | None:
    """The first sequence that padding changes, and by how much; its real tokens alone are the measure."""
    for b in range(len(kept)):
        real = kept[b].nonzero().flatten()
        start, stop = int(real[0]), int(real[-1]) + 1
        alone = evidence.subject.run(evidence.inputs.entry(b).tokens(start, stop)).detach()[0]
        beside = padded.output[b, start:stop]
        if alone.shape == beside.shape and differing(alone, beside).any():
            return b, (alone - beside).abs().max().item()
    return None


def _leak(evidence: Evidence, padded: Observation, kept: Tensor) -> Finding | None:
    """A padded token that changes a real one's output, and how it comes to be seen."""
    for b in range(1, len(kept)):
        t = int((~kept[b]).nonzero()[0])
        changed = evidence.subject.run(evidence.inputs.changed(b, t), keep=kept).detach()
        rows = evidence.differs(padded.output, changed)[b] & kept[b]
        if rows.any():
            i = int(rows.nonzero()[0])
            proof = f"Changing token {t} of sequence {b}, which is padding, changes output {i}, which is not."
            return _named_leak(evidence, padded, kept, b, proof)
    return None


def _named_leak(
    evidence: Evidence, padded: Observation, kept: Tensor, b: int, proof: str
) -> Finding:
    cores = find_cores(padded)
    place, case = _masked_where(cores), _sizes(evidence)
    for core in cores:
        rows = _rows_of_entries(core, len(kept))
        if rows is None:
            continue
        why = _weak(core, rows[b], kept[b])
        if why:
            return Finding("mask-fill-too-small", "bug", f"{why} {proof}", case, place)
        why = _misdirected(core, rows, kept, b)
        if why:
            return Finding("mask-broadcast", "bug", f"{why} {proof}", case, place)
    unused = unused_masking(padded)
    if unused is not None:
        return Finding(
            "mask-unused", "bug", f"The result of {unused.operation} is used by nothing. {proof}", case, Place.of(unused)
        )  # fmt: skip
    return Finding("padding-leak", "bug", proof, case, place)


def _rows_of_entries(core: Core, B: int) -> list[Tensor] | None:
    """The leading indices of each batch entry: heads within entries, as nearly all targets have it."""
    L = len(core.used)
    return None if L % B else list(torch.arange(L).view(B, -1))


def _weak(core: Core, rows: Tensor, kept: Tensor) -> str:
    """Whether padded keys' scores are all one number that is no −∞."""
    logits = core.logits[rows][:, kept][:, :, ~kept]
    if logits.numel() and logits.isfinite().all() and (logits == logits.flatten()[0]).all():
        return f"The scores of padded keys are set to {logits.flatten()[0]:.3g}, not to −∞."
    return ""


def _misdirected(core: Core, rows: list[Tensor], kept: Tensor, b: int) -> str:
    """Whether what is hidden is another's: rows for columns, or another entry's padding."""
    hidden = _hidden(core)
    own = hidden[rows[b]]
    if own[:, ~kept[b]].all() and not own[:, kept[b]].any():
        return "The mask hides the queries that are padding, and no keys: it is broadcast along the wrong dimension."
    for other in range(len(kept)):
        if other != b and not (kept[other] == kept[b]).all():
            columns = hidden[rows[b]][:, 0]
            if (columns == ~kept[other]).all():
                return f"Sequence {b} is masked by the padding of sequence {other}."
    return ""


def _hidden(core: Core) -> Tensor:
    """(L, Tq, Tk) Boolean: whose score a mask has replaced, be it that the whole row is."""
    usual = core.scores.abs().max() * 2 + 100
    return (core.logits < -usual) | core.logits.isnan()


def _masked_where(cores: list[Core]) -> Place | None:
    """Where the mask is made of the argument, if that is a line of its own; otherwise where it is applied."""
    step = next((found for core in cores if (found := masking_step(core)) is not None), None)
    return Place.of(step)


@probe("mask-fill-too-small")
def padding_fill(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Lengthens queries and keys until scores outweigh what padded keys' are set to: they must stay hidden."""
    argument = _usable(evidence)
    if argument is None or not argument.effective or evidence.inputs.vocabulary:
        return
    kept = _kept(evidence, "right")
    for core in find_cores(evidence.subject.record(evidence.inputs, keep=kept)):
        hidden = (core.weights == 0) & core.logits.isfinite()
        if not hidden.any() or (level := core.logits[hidden].max().item()) < UNMASKED:
            continue
        size = core.logits[core.visible].abs().max().clamp_min(1e-6).item()
        factor = (4 * abs(level) / size) ** 0.5
        loud = find_cores(evidence.subject.record(evidence.inputs.scaled(factor), keep=kept))
        for it in loud:
            if it.visible.shape == hidden.shape and (it.visible & hidden).any():
                l, i, j = (int(n) for n in (it.visible & hidden).nonzero()[0])
                yield Finding(
                    "mask-fill-too-small",
                    "bug",
                    f"Scores of padded keys are set to about {level:.3g}, not to −∞: with products up to "
                    f"{it.scores.abs().max():.3g}, query {i} gives {it.used[l, i, j]:.3g} of its weight to key {j}.",
                    f"tokens × {factor:.0f}",
                    Place.of(masking_step(core)),
                )
                return


@probe("nan-on-masked-rows")
def masked_rows(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Lets queries see nothing at all: on the left of a causal text, or in a sequence of padding alone."""
    argument = _usable(evidence)
    if argument is None or not argument.effective or _is_opposite(argument):
        return
    causal = not evidence.influence[0, :, 0].triu(1).any()
    kept = _kept(evidence, "left")
    if not causal:
        kept = torch.ones_like(kept)
        kept[-1] = False
    output = evidence.subject.run(evidence.inputs, keep=kept)
    real = output[kept]
    gradients = _gradients(evidence, real.square().sum())
    rows = output.detach().isnan().flatten(2).any(-1)
    if not rows.any() and not any(it.isnan().any() for it in gradients):
        return
    observation = evidence.subject.record(evidence.inputs, keep=kept)
    where = "output" if rows.any() else "gradient of a loss on real tokens alone"
    yield Finding(
        "nan-on-masked-rows",
        "bug" if causal else "suspicious",
        f"Queries that see no key make NaN in the {where}"
        + (", and a layer further on in every row." if causal else "."),
        "padding on the left" if causal else "one sequence all padding",
        _masked_where(find_cores(observation)) or _first_nan(observation),
    )


def _gradients(evidence: Evidence, loss: Tensor) -> list[Tensor]:
    module = evidence.subject.module
    parameters = [] if module is None else [it for it in module.parameters() if it.requires_grad]
    if not parameters or not loss.requires_grad:
        return []
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [it for it in found if it is not None]


def _first_nan(observation: Observation) -> Place | None:
    step: Step | None = next(
        (
            it
            for it in observation.trace
            if isinstance(it.value, Tensor)
            and it.value.is_floating_point()
            and it.value.isnan().any()
        ),
        None,
    )
    return Place.of(step)
