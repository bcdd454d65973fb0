"""Check that several calls with a cache give the outputs of one call on all tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate

from heedful.conformance.calling.exceptions import attempt, describe_exception, raising_line
from heedful.conformance.evidence.alignment import PartialRun
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.masking import mask_helper_line
from heedful.conformance.probes.cache_causes import find_cache_cause
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.state import first_difference, line_changing_state
from heedful.conformance.recording.observation import Observation
from heedful.conformance.recording.source import parsed, source_lines
from heedful.conformance.recording.target_source import own_text, prose_about
from heedful.conformance.reporting.finding import Fact, Finding

CACHE_KINDS: dict[str, str] = {
    "object": "{argument}: made first, passed in each call",
    "grown": "{argument}: None at first, then what the last call returned",
    "buffers": "kept in the module, controlled by {argument}",
    "tokens": "{argument}: the earlier tokens themselves",
}


ONE_TOKEN: re.Pattern[str] = re.compile(
    r"\b(length|len|seq_len|tokens|t) (is|==|=) (1|one)\b|\b(one|single|1)[ -](new )?token\b"
    r"|\b(one at a time|token by token)\b"
)
"""What code says in words, in lower case, if each call with a filled cache takes one token."""
SEVERAL_TOKENS: re.Pattern[str] = re.compile(
    r"(\w*(len|length|seq|tokens)\w*|\b[TLNSn]|(shape\[-?\d\]|size\(-?\d\))) > 1\b"
)
"""A question of code that treats several tokens in another way than one: its words about one token are no limit."""


PREFILL: re.Pattern[str] = re.compile(r"# *prefill\b.*\n *if .*> 1:|> 1: *# *prefill\b")
"""What a cache says, in lower case, beside its question whether there are several tokens."""
SLIDING: re.Pattern[str] = re.compile(
    r"\b(slid(e|es|ing)|roll(s|ing)?|drop\w* the oldest)\b(?!\W+window)"
)
"""What code says in words, in lower case, if a filled cache loses its oldest token to each new one. An attention with a
window is another matter: its other keys are hidden without a cache, too."""


@probe("cache-mismatch", "causal-alignment", "rotary-offset", "stale-state")
def cache(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Run the tokens in several calls with a cache. Each output must equal that of one call on all tokens.

    The tokens are those of one sequence if a target is causal for one sequence alone.
    """
    use = evidence.subject.cache_use
    if use is None or evidence.subject.fixed_sizes is not None:
        return
    yield Fact("cache", CACHE_KINDS[use.kind].format(argument=use.argument))
    evidence = evidence.of_one_sequence() if evidence.causal_alone else evidence
    alone = _takes_one_token(evidence)
    for sizes in chunk_sizes(evidence.inputs.sizes[1]):
        if alone and max(sizes[1:]) > 1:
            continue
        finding = check_chunks(evidence, sizes)
        if finding is not None:
            yield finding
            return


def _takes_one_token(evidence: Evidence) -> bool:
    """Check whether each call with a filled cache takes one token, by what the code says.

    A cache may treat several tokens as those of a first call, which it names a prefill.
    """
    callee, make = evidence.subject.callee, evidence.subject.make_cache
    made = None if make is None else attempt(lambda: make(*evidence.inputs.sizes))
    if made is not None and _prefills(type(made)):
        return True
    return bool(
        ONE_TOKEN.search(prose_about(callee)) and not SEVERAL_TOKENS.search(own_text(callee))
    )


def _prefills(cache: type) -> bool:
    """Check whether the class of a cache says that it takes several tokens for those of a first call."""
    source = parsed(cache)
    return (
        source is not None and PREFILL.search("".join(source_lines(cache)[0]).lower()) is not None
    )


def chunk_sizes(T: int) -> list[tuple[int, ...]]:
    """Return ways to split T tokens: prefill and one token or more, prefill and several, one by one, and mixed.

    The mixed one appends several tokens after single ones have gone around a cache that a window has filled.
    """
    mixed = (T // 2, 1, 1, T - T // 2 - 2)
    one_by_one = (T - T // 2, *(1,) * (T // 2))
    splits = [(T - 1, 1), (T - T // 2, T // 2), (1,) * min(T, 4), one_by_one, mixed]
    return [sizes for sizes in dict.fromkeys(splits) if min(sizes) > 0]


def check_chunks(evidence: Evidence, sizes: Sequence[int]) -> Finding | None:
    """Run chunks of the given sizes with a cache, and report the first output that is wrong."""
    inputs = evidence.inputs.tokens(0, sum(sizes))
    outputs = attempt(lambda: evidence.subject.outputs_in_chunks(inputs, sizes))
    if isinstance(outputs, Exception):
        return _report_exception(evidence, outputs, sizes)
    expected_outputs = evidence.baseline.output[:, : sum(sizes)].split(list(sizes), dim=1)
    pairs = zip(outputs, expected_outputs, strict=True)
    if not any(evidence.differs(ours, theirs).any() for ours, theirs in pairs):
        return None
    runs = evidence.subject.run_in_chunks(inputs, sizes)
    slides = SLIDING.search(prose_about(evidence.subject.callee)) is not None
    for run, start in zip(runs, [0, *accumulate(sizes)], strict=False):
        partial = PartialRun(run, evidence.baseline, start)
        dropped = _dropped_tokens(partial) if slides else 0
        if dropped:
            kept = evidence.inputs.tokens(dropped, partial.stop)
            partial = PartialRun(run, evidence.subject.record(kept), start - dropped)
        expected = partial.whole.output[:, partial.start : partial.stop]
        if not evidence.differs(run.output, expected).any():
            continue
        if start == 0 and _differs_without_cache(evidence, run):
            return None
        distance = (run.output - expected).abs().max()
        stale = _stale_state(evidence, sizes, run)
        if stale is not None:
            return stale
        name, reason, line = find_cache_cause(evidence, partial)
        proof = f"{reason} With a cache the outputs from token {start} on differ by {distance:.3g}."
        return Finding(name, "bug", proof.strip(), describe_chunks(evidence, sizes), line)
    return None


def _dropped_tokens(partial: PartialRun) -> int:
    """Return how many of the first tokens the keys of a call lack."""
    attention = next(iter(find_attentions(partial.part)), None)
    return 0 if attention is None else max(partial.stop - attention.key.shape[1], 0)


def _stale_state(evidence: Evidence, sizes: Sequence[int], wrong: Observation) -> Finding | None:
    """Return a finding if a call is right once the module forgets all that earlier calls have left behind in it."""
    subject, start = evidence.subject, wrong.cached_tokens
    if subject.cache_use is None or subject.cache_use.kind == "buffers":
        return None
    inputs = evidence.inputs.tokens(0, sum(sizes))
    runs = attempt(lambda: subject.run_in_chunks(inputs, sizes, forget=True))
    if isinstance(runs, Exception):
        return None
    right = next(run for run in runs if run.cached_tokens == start)
    expected = evidence.baseline.output[:, start : start + right.inputs.sizes[1]]
    if evidence.differs(right.output, expected).any():
        return None
    distance = (wrong.output - right.output).abs().max()
    return Finding(
        "stale-state",
        "bug",
        f"What an earlier call leaves behind, beside the cache, changes the outputs from token {start} on by "
        f"{distance:.3g}.",
        describe_chunks(evidence, sizes),
        line_changing_state(subject, first_difference(wrong, right)),
    )


def _differs_without_cache(evidence: Evidence, first: Observation) -> bool:
    """Return True if the first tokens give the same outputs without a cache: then it is not to blame."""
    return not evidence.differs(evidence.subject.run(first.inputs).detach(), first.output).any()


def describe_chunks(evidence: Evidence, sizes: Sequence[int]) -> str:
    """Describe the calls for a report."""
    B, T = evidence.inputs.sizes
    return f"B = {B}, T = {T} in calls of {' + '.join(map(str, sizes))}"


def _report_exception(evidence: Evidence, error: Exception, sizes: Sequence[int]) -> Finding | None:
    """Report an exception in a call with a cache; None if the target itself rejects such calls."""
    if isinstance(error, ValueError | AssertionError | NotImplementedError):
        return None
    numbers = {int(number) for number in re.findall(r"\d+", str(error))}
    # A square mask, of the new tokens only, fits the first call and no later one.
    square_mask = "size" in str(error) and numbers >= {sizes[-1], sum(sizes)}
    subject = (
        "No mask of its size fits the cached keys: the target"
        if square_mask
        else "With a cache the target"
    )
    masked = evidence.attentions if square_mask else ()
    helpers = (mask_helper_line(evidence, attention) for attention in masked)
    # A cache may hold the keys of a window alone; a mask of ours that is for all keys does not fit it.
    holds_window = numbers >= {evidence.expected.window, sum(sizes)}
    maybe_miscalled = isinstance(error, TypeError | AttributeError) or holds_window
    return Finding(
        "causal-alignment" if square_mask else "cache-mismatch",
        "not-testable" if maybe_miscalled else "bug",
        f"{subject} raises {describe_exception(error)}",
        f"calls of {' + '.join(map(str, sizes))} tokens",
        next((line for line in helpers if line is not None), None) or raising_line(error),
    )
