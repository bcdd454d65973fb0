"""Probe: the products of queries and keys are multiplied by 1/√head_dim before the softmax."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor, nn

from heedful.conformance.calling.conventional import GUESSES, SIZES
from heedful.conformance.calling.declared import attribute_of
from heedful.conformance.calling.target import is_from_transformers
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.chain import (
    CAPS,
)
from heedful.conformance.evidence.designs import reads_trained_numbers
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.latents import size_of_comparison
from heedful.conformance.evidence.masking import scores_after
from heedful.conformance.evidence.regression import centred, slope_of
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.scale_lines import SCALES, TOLERANCE, factor_of, scaling_line
from heedful.conformance.probes.softmax import has_sink
from heedful.conformance.probes.weighting_causes import ADDITIONS
from heedful.conformance.recording.conditions import unmet_conditions
from heedful.conformance.recording.dataflow import (
    CONVOLUTIONS,
    SCALINGS,
    SOFTMAXES,
    behind_views,
    is_projection,
    parameter_names,
    steps_from_projection,
)
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine, fields_read
from heedful.conformance.recording.target_source import prose_about
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step

SHORT = 1e-2  # tokens this short keep soft-caps in their linear part
FREE: re.Pattern[str] = re.compile(
    r"\bt5|luong|\bautoint|\bnon-?local|embedded gaussian|\b[mμµ]up\b|unscaled|\b(no|not|without)( a| any)? scal"
)
"""Words that announce another scale than 1/√head_dim, in lower case."""
CONFIGURED: re.Pattern[str] = re.compile(
    r"(attn|attention|softmax|logit|score|qk)\w*(scal(e|ar)|multiplier)|\bmscale"
)
"""Fields of a configuration that hold the scale, such as Gemma's query_pre_attn_scalar or YaRN's mscale."""
MISTAKEN: tuple[str, ...] = ("1/√d_model", "1/d_model", "√head_dim", "head_dim")
"""Scales that no design asks for."""
ATTRIBUTES: re.Pattern[str] = re.compile(r"\bself\.(\w+)\b")


class _Scale(NamedTuple):
    """The scale of an attention.

    Attributes:
        factor: by which the products of unscaled queries and keys are multiplied in all.
        formula: what it equals, such as "1/√d_model"; "" if nothing known.
        steps: that multiply queries or keys before the product.
        head_size: the number of features by which queries and keys are compared.
    """

    factor: float
    formula: str
    steps: list[Step]
    head_size: int


@probe("scale-missing", "scale-wrong")
def scale(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Regress the logits on the products of queries and keys: the slope is the scale."""
    observation = evidence.subject.record(evidence.inputs.scaled(SHORT))
    other_inputs = evidence.subject.draw(*evidence.inputs.sizes, seed=1).scaled(SHORT)
    others = find_attentions(evidence.subject.record(other_inputs))
    for index, (attention, other) in enumerate(
        zip(find_attentions(observation), others, strict=False)
    ):
        erased = _step_erasing(attention)
        if erased is not None:
            yield Finding(
                "scale-wrong",
                "bug",
                "The scores are multiplied by 0, so that a query gives all keys that it sees the same weight.",
                "",
                SourceLine.of(erased),
            )
            return
        without_logits = attention.softmax_step is None or has_sink(attention)
        slope = None if without_logits else _slope(attention, other)
        summed = slope is None and not without_logits
        slope = _slope_of_sum(attention, other) if summed else slope
        if slope is None:
            continue
        used = _total_scale(evidence, observation, attention, slope)
        D = used.head_size
        formula = used.formula and f" = {used.formula}"
        yield Fact("scale", f"{used.factor:.4g}{formula} (head size {D})")
        wrong = abs(used.factor - D**-0.5) > TOLERANCE * D**-0.5
        if summed and used.formula not in MISTAKEN:
            continue  # a sum of several products may need another scale
        if wrong and D > 1 and not _is_intended(evidence, index, attention, other, used.factor):
            yield _finding(evidence, observation, attention, used, is_sum=summed)
            return


def _step_erasing(attention: RecordedAttention) -> Step | None:
    """Return the step that multiplies all scores by 0; None if there is none, or if the factor is trained."""
    for step in attention.chain[1:]:
        trained = any(it.kind == "parameter" for it in step.inputs)
        values = tensor_of(step) if step.operation in SCALINGS and not trained else None
        are_scores = values is not None and values.numel() == attention.scores.numel()
        if values is not None and are_scores and attention.scores.any() and not values.any():
            return step
    return None


def _slope(attention: RecordedAttention, other: RecordedAttention) -> float | None:
    """Return the slope of the logits over the products of queries and keys; None if they do not lie on a line.

    A difference of two runs is used, in which biases that depend on positions alone cancel, and deviations from the
    mean of a row, because the softmax ignores what all logits of a row have in common.
    """
    if attention.scores.shape != other.scores.shape:
        return None
    visible = attention.visible & other.visible
    visible &= attention.logits.isfinite() & other.logits.isfinite()
    visible &= attention.logits != other.logits  # a mask has filled those that are equal
    x = centred(attention.scores - other.scores, visible)
    y = centred(attention.logits - other.logits, visible)
    return slope_of(x, y)


def _slope_of_sum(attention: RecordedAttention, other: RecordedAttention) -> float | None:
    """Return the slope over the products of queries and keys where other scores of the same tokens are added to them.

    Those of their distance are, for example (Dai et al. 2019). It is the slope up to the sum times that of the sum.
    """
    pairs = zip(pairwise(attention.chain), pairwise(other.chain), strict=False)
    for (before, step), (before_other, step_other) in pairs:
        if step.operation not in ADDITIONS:
            continue
        terms = scores_after(before, attention), scores_after(before_other, other)
        totals = scores_after(step, attention), scores_after(step_other, other)
        if terms[0] is None or terms[1] is None or totals[0] is None or totals[1] is None:
            return None
        first = slope_of(attention.scores - other.scores, terms[0] - terms[1])
        sums = replace(attention, scores=totals[0]), replace(other, scores=totals[1])
        second = _slope(*sums)
        return None if first is None or second is None else first * second
    return None


def _total_scale(
    evidence: Evidence, observation: Observation, attention: RecordedAttention, slope: float
) -> _Scale:
    """Multiply a slope by the factors that queries and keys were multiplied by before their product."""
    steps, total = [], slope
    for source in (attention.query_source, attention.key_source):
        factors = _factors_of_all(observation, steps_from_projection(observation, source))
        steps += [observation.trace.steps[index] for index in factors]
        total *= math.prod(factors.values())
    D = size_of_comparison(observation, attention)
    return _Scale(total, _formula(total, D, attention, evidence), steps, D)


def _factors_of_all(observation: Observation, path: list[Step]) -> dict[int, float]:
    """Return the numbers by which the steps of a path multiply all of its end; the keys are the steps.

    No factor is left after a softmax.
    """
    factors: dict[int, dict[int, float]] = {}
    for step in path:
        operands = [factors[it.step] for it in step.inputs if it.step in factors]
        factor = factor_of(observation, step) if step.operation in SCALINGS else None
        own = {} if factor is None else {step.index: factor}
        of_step = _factors_together(step, operands) | own
        factors[step.index] = {} if step.operation in SOFTMAXES else of_step
    return factors[path[-1].index] if path else {}


def _factors_together(step: Step, operands: list[dict[int, float]]) -> dict[int, float]:
    """Return the factors of what a step makes of operands.

    Those of a product multiply. Terms of a sum, such as a projection and its low-rank update, may each have their own:
    unless these are equal in all, only those count that the terms have in common.
    """
    if not operands or step.operation in SCALINGS:
        return {index: factor for it in operands for index, factor in it.items()}
    are_equal = len({round(math.prod(it.values()), 6) for it in operands}) == 1
    common = set.intersection(*map(set, operands))
    return operands[-1] if are_equal else {it: operands[-1][it] for it in common}


def _formula(scale: float, D: int, attention: RecordedAttention, evidence: Evidence) -> str:
    """Return what a scale equals, in terms of the sizes; "" if nothing known."""
    H = evidence.expected.num_heads or 1
    formulas = {
        "1/√head_dim": D**-0.5,
        "no scaling": 1.0,
        "√head_dim": D**0.5,
        "1/√d_model": (D * H) ** -0.5,
        "1/√num_heads": H**-0.5,
        "1/head_dim": 1 / D,
        "head_dim": float(D),
        "1/head_dim^¼": D**-0.25,
        "1/√(number of tokens)": attention.key.shape[1] ** -0.5,
        "1/√batch": evidence.inputs.sizes[0] ** -0.5,
        "1/d_model": 1 / (D * H),
    }
    near = (name for name, value in formulas.items() if abs(scale - value) <= TOLERANCE * value)
    return next(near, "")


def _is_intended(
    evidence: Evidence,
    index: int,
    attention: RecordedAttention,
    other: RecordedAttention,
    scale: float,
) -> bool:
    """Check whether a scale other than 1/√head_dim is right.

    It is, if queries and keys are normalised, or if the factor is part of a projection's weights. Two runs differ
    by the weights alone; the vectors of short tokens are hardly more than the biases.
    """
    if index < len(evidence.attentions):  # at full length, where the ε of a norm does not matter
        full = evidence.attentions[index]
        if all(
            _is_normalised_vector(evidence.baseline, tensor, source)
            for tensor, source in ((full.query, full.query_source), (full.key, full.key_source))
        ):
            return True
    if abs(scale - 1) > TOLERANCE:
        return False
    query, key = attention.query - other.query, attention.key - other.key
    if not query.any():  # the queries are the same in both runs, as latents are
        query, key = attention.query, attention.key
    ratio = query.norm(dim=-1).mean() / key.norm(dim=-1).mean()
    return ratio.item() < 1.3 * attention.query.shape[-1] ** -0.5


def _is_normalised_vector(observation: Observation, operand: Tensor, source: Source) -> bool:
    """Check whether an operand's vectors have one length, or had before they were multiplied by trained gains."""
    path = steps_from_projection(observation, source)
    made = (tensor for step in path if (tensor := tensor_of(step)) is not None)
    tensors = [operand, *(tensor for tensor in made if tensor.is_floating_point())]
    lengths = (tensor.norm(dim=-1) for tensor in tensors if tensor.shape[-1:] == operand.shape[-1:])
    return any(bool(it.std() <= 1e-3 * it.mean()) for it in lengths if it.numel() > 1)


def _is_free(
    evidence: Evidence, observation: Observation, attention: RecordedAttention, scale: _Scale
) -> bool:
    """Check whether the scale is left to training, to the user or to the design.

    That is so in models of transformers, whose weights were trained with it; if something trained is added to the
    scores or multiplies them (Raffel et al. 2020), or tanh bounds them (Lu et al. 2016); where the constructor or a
    configuration takes the number, or has turned the scale off; and where the keys are the latents of the values
    (DeepSeek-AI 2024). No scale at all is needed between projections by convolutions, or by one head of the pixels of a
    feature map (Wang et al. 2018), between projected and plain tokens, between vectors of length 1 and others, where
    one tensor is both keys and values or plain tokens meet one plain query (Luong et al. 2015, Sukhbaatar et al. 2015),
    where one projection makes queries and keys (Chen et al. 2017), and where the code says so in words.
    """
    module, convention = evidence.subject.module, evidence.subject.convention
    paths = [
        steps_from_projection(observation, source)
        for source in (attention.query_source, attention.key_source)
    ]
    projected = [any(is_projection(step) for step in path) for path in paths]
    by_convolution = [any(step.operation in CONVOLUTIONS for step in path) for path in paths]
    is_unit = [any(step.operation == "normalize" for step in path) for path in paths]
    return (
        is_from_transformers(module)
        or reads_trained_numbers(observation, attention)
        or any(parameter_names([step]) for step in scale.steps)
        or _is_default_of_constructor(module, scale.factor)
        or _is_configured(module)
        or _is_guess(evidence, attention, scale)
        or _is_bounded(attention)
        or _compares_latents(observation, attention)
        or (
            _is_missing(scale)
            and (
                all(by_convolution)
                or (convention.is_image and len(attention.query) == evidence.inputs.sizes[0])
                or projected[0] != projected[1]
                or is_unit[0] != is_unit[1]
                or _share_a_projection(paths)
                or _keys_are_values(observation, attention)
                or any(SCALES.search(attribute) for _, attribute in unmet_conditions(module))
                or _has_no_scale(module)
                or _is_one_plain_query(paths, attention)
            )
        )
        or FREE.search(prose_about(evidence.subject.callee)) is not None
    )


def _compares_latents(observation: Observation, attention: RecordedAttention) -> bool:
    """Check whether the keys are the latents from which the values are projected.

    The heads' own projection of the keys is then part of the queries', and the scale may be that of its size.
    """
    path = steps_from_projection(observation, attention.value_source)
    if not path or not is_projection(path[0]) or not path[0].inputs:
        return False
    steps = observation.trace.steps
    latents = behind_views(steps, path[0].inputs[0])
    return latents.step is not None and latents == behind_views(steps, attention.key_source)


def _has_no_scale(module: nn.Module | None) -> bool:
    """Check whether a module keeps None as its scale, which its constructor has left out."""
    parts = () if module is None else module.modules()
    return any(
        it is None and SCALES.search(name) for part in parts for name, it in vars(part).items()
    )


def _share_a_projection(paths: Sequence[Sequence[Step]]) -> bool:
    """Check whether queries and keys are made by the same parameters in two calls, not in one that makes both."""
    of_queries, of_keys = (parameter_names(path) for path in paths)
    in_one = {step.index for step in paths[0]} & {step.index for step in paths[1]}
    return of_queries == of_keys != [] and not in_one


def _keys_are_values(observation: Observation, attention: RecordedAttention) -> bool:
    """Check whether one tensor holds the keys and the values.

    It holds the plain tokens of one argument, which may be the queries, too, or those that a decoder reads with one
    query a step.
    """
    sources = (attention.query_source, attention.key_source, attention.value_source)
    query, key, value = (behind_views(observation.trace.steps, it) for it in sources)
    is_step = attention.query.shape[1] == 1 < attention.key.shape[1]
    return key == value and (key.kind == "input" or (key != query and is_step))


def _is_one_plain_query(paths: Sequence[Sequence[Step]], attention: RecordedAttention) -> bool:
    """Check whether one vector for each sequence, such as a state, is compared with keys, and nothing projects them."""
    projections = (it for path in paths for it in path if is_projection(it))
    plain = all(it.operation == "embedding" for it in projections)
    return plain and attention.query.shape[1] == 1 < attention.key.shape[1]


def _is_bounded(attention: RecordedAttention) -> bool:
    """Check whether tanh gives the logits, without a factor behind it as that of a soft cap."""
    softmax = attention.softmax_step
    before = [it for it in attention.chain if softmax is not None and it.index < softmax.index]
    bounding = [n for n, step in enumerate(before) if step.operation in CAPS]
    return bool(bounding) and not any(it.operation in SCALINGS for it in before[bounding[-1] :])


def _is_missing(scale: _Scale) -> bool:
    return abs(scale.factor - 1) <= TOLERANCE


def _is_default_of_constructor(module: nn.Module | None, factor: float) -> bool:
    """Check whether a scale, or its inverse, is a number that a constructor takes, and that it has kept."""
    for part in () if module is None else module.modules():
        for name, parameter in inspect.signature(type(part).__init__).parameters.items():
            number = parameter.default
            kept = isinstance(number, float) and attribute_of(part, name) == number
            if kept and _is_factor(number, factor):
                return True
    return False


def _is_configured(module: nn.Module | None) -> bool:
    """Check whether a part reads its scale from a field of a configuration."""
    parts = () if module is None else module.modules()
    classes = {
        cls for part in parts for cls in type(part).__mro__ if inspect.isfunction(cls.__init__)
    }
    fields = (field for cls in classes for read in fields_read(cls).values() for field in read)
    return any(CONFIGURED.search(field) for field in fields)


def _is_guess(evidence: Evidence, attention: RecordedAttention, scale: _Scale) -> bool:
    """Check whether a line that scales reads an attribute that has its number from a guess of ours.

    Sizes are no guesses: their values are conventional.
    """
    module = evidence.subject.module
    if module is None or not evidence.subject.target.guessed:
        return False
    by_name = (getattr(module, it, None) for it in evidence.subject.target.guessed if "scal" in it)
    if any(_is_factor(it, scale.factor) for it in by_name):
        return True
    for step in (*scale.steps, *attention.chain):
        owner = module.get_submodule(step.module or "")
        for name in ATTRIBUTES.findall(step.source):
            number = None if name in SIZES else getattr(owner, name, None)
            if number in GUESSES and _is_factor(number, scale.factor):
                return True
    return False


def _is_factor(number: object, factor: float) -> bool:
    """Check whether a number is a factor or its inverse."""
    if not isinstance(number, int | float) or isinstance(number, bool) or number <= 0:
        return False
    return min(abs(factor - number), abs(1 / factor - number)) < TOLERANCE


def _finding(
    evidence: Evidence,
    observation: Observation,
    attention: RecordedAttention,
    scale: _Scale,
    *,
    is_sum: bool,
) -> Finding:
    """Build the finding on a wrong scale, of the products of queries and keys or of a sum of several."""
    D = scale.head_size
    is_free = not is_sum and _is_free(evidence, observation, attention, scale)
    formula = scale.formula and f" ({scale.formula})"
    return Finding(
        "scale-missing" if _is_missing(scale) else "scale-wrong",
        "convention" if is_free else "bug",
        f"The logits grow by {scale.factor:.4g}{formula} per unit of query · key; 1/√head_dim is {D**-0.5:.4g}.",
        f"head size {D}, {attention.query.shape[1]} tokens",
        scaling_line(evidence, observation, attention, scale.steps, D),
    )
