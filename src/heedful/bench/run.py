"""One case, from tensors to verdict."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.bench import checking, judging, models
from heedful.bench.cases import Case, Requirement
from heedful.bench.checking import Check
from heedful.bench.contender import Contender
from heedful.bench.judging import HOLDS, MISSED, OPEN, WRONG, Judgement
from heedful.bench.measuring import Budget, Spread, Timed, Times, take_turns, time_runs
from heedful.bench.models import ModelSetting
from heedful.bench.peaks import Peak
from heedful.bench.peers import OURS, PEERS, Peer
from heedful.bench.settings import Inputs, Setting, make
from heedful.bench.worker import Worker, WorkerError
from heedful.dispatch import explain
from heedful.functional import attention
from heedful.kernels.native import library
from heedful.masks import Causal

PEER_ERROR = 0.05  # a peer whose result is further from float64 computes something else
BACKWARD = 3.5  # matrix products of both passes, for each of the forward pass
TAIL = 64  # queries of the longest case that are held to float64
THREADS = (1, 2, 4)


@dataclass(frozen=True)
class Conditions:
    """Under which all cases run.

    Attributes:
        peers: the names of those to compare with; baselines are timed in any case.
        budget: how long each case is measured.
        peaks, limits: the probes of the machine's peaks, and what they measured (per second).
        quick: small shapes, whose speed is not judged.
    """

    peers: tuple[str, ...]
    budget: Budget
    peaks: dict[str, Peak]
    limits: dict[str, float]
    quick: bool


@dataclass(frozen=True)
class Found:
    """What came of a case.

    Attributes:
        case: which.
        setting: what was computed; small where that was asked for.
        kernel: the one that `attention` took; "" for a whole model, which calls it many times.
        checks: how far ours is from float64; of a wrong result nothing is timed.
        judgements: each requirement with what came of it.
        times: all that was timed; None where nothing was.
        share, limit: the share of a peak that ours reaches, and the peak's name; None where there is none.
        left_out: who was not compared, and why.
    """

    case: Case
    setting: Setting | ModelSetting
    kernel: str
    checks: tuple[Check, ...] = ()
    judgements: tuple[Judgement, ...] = ()
    times: Times | None = None
    share: Spread | None = None
    limit: str = ""
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """WRONG, MISSED, not measured or holds, the worst of them; "" where nothing is required."""
        if not all(check.right for check in self.checks):
            return WRONG
        verdicts = [judgement.verdict for judgement in self.judgements]
        return next((worst for worst in (MISSED, OPEN, HOLDS) if worst in verdicts), "")

    @property
    def peers(self) -> tuple[str, ...]:
        """Who was timed beside ours."""
        timed = () if self.times is None else self.times.seconds
        return tuple(name for name in self.case.peers if name in timed)

    def ratio(self, peer: str) -> Spread:
        """How many times as long as ours a peer takes."""
        assert self.times is not None
        return self.times.ratio(peer, self.case.ours)

    def judgement_of(self, against: str) -> Judgement | None:
        """What came of the requirement on the speed against a peer."""
        return next(
            (
                judgement
                for judgement in self.judgements
                if judgement.requirement.quantity in ("speed", "small")
                and judgement.requirement.against == against
            ),
            None,
        )


def run(case: Case, conditions: Conditions) -> Found:
    """Check the results, then time them; a wrong result is not timed."""
    setting = case.setting.quick() if conditions.quick else case.setting
    if isinstance(setting, ModelSetting):
        return _model(case, setting, conditions)
    kinds = {requirement.quantity for requirement in case.requirements}
    if "memory" in kinds:
        return _memory(case, setting)
    if "equal" in kinds:
        return _threads(case, setting)
    inputs = make(setting)
    found = Found(case, setting, _kernel(inputs))
    reason = _isa_missing(case)
    if reason:
        return _unmeasured(found, reason)
    with ExitStack() as workers:
        return _speed(found, inputs, conditions, workers)


def _unmeasured(found: Found, reason: str) -> Found:
    open_ = tuple(judging.unmeasured(one, reason) for one in found.case.requirements)
    return replace(found, judgements=open_, left_out={found.case.ours: reason})


def _model(case: Case, setting: ModelSetting, conditions: Conditions) -> Found:
    """A whole model, by turns under each attention implementation."""
    found = Found(case, setting, kernel="")
    reason = models.missing(setting)
    if reason:
        return _unmeasured(found, reason)
    found = replace(found, checks=models.check(setting))
    if found.verdict == WRONG:
        return found
    budget = conditions.budget if conditions.quick else models.BUDGET
    found = replace(found, times=take_turns(models.contenders(setting), budget))
    return found if conditions.quick else _judged(found)


def _speed(found: Found, inputs: Inputs, conditions: Conditions, workers: ExitStack) -> Found:
    case, setting = found.case, inputs.setting
    baseline, *others = case.peers
    ours, our_results = _ready(OURS[case.ours], setting, workers, case.isa)
    theirs, their_results = _ready(PEERS[baseline], setting, workers)
    checks = _check(case, inputs, found.kernel, our_results, their_results)
    if not all(check.right for check in checks):
        return replace(found, checks=checks)
    contenders: dict[str, Timed] = {case.ours: ours, baseline: theirs}
    left_out = {}
    for name in others:
        entered = _enter(PEERS[name], setting, conditions, workers, their_results[0])
        if isinstance(entered, str):
            left_out[name] = entered
        else:
            contenders[name] = entered
    limit = _limit(case, setting)
    probed = limit in conditions.peaks and any(r.quantity == "share" for r in case.requirements)
    if probed:
        contenders[limit] = conditions.peaks[limit].timed
    times = take_turns(contenders, conditions.budget)
    found = replace(
        found,
        checks=checks,
        times=times,
        share=_share(inputs, times, case.ours, limit, conditions.limits, probed=probed),
        limit=limit,
        left_out=left_out,
    )
    return found if conditions.quick else _judged(found)


def _ready(
    peer: Peer, setting: Setting, workers: ExitStack, isa: str = ""
) -> tuple[Timed, tuple[Tensor, ...]]:
    """What is timed, here or in a process of its own, and what it computes."""
    if peer.apart or isa:
        worker = workers.enter_context(Worker(peer.name, setting, isa))
        return worker.seconds, worker.results()
    contender: Contender = peer.prepare(make(setting))
    return partial(time_runs, contender.run), checking.results_of(contender)


def _enter(
    peer: Peer, setting: Setting, conditions: Conditions, workers: ExitStack, right: Tensor
) -> Timed | str:
    """A peer ready to be timed, or why it is not: a result far from the baseline's among the reasons."""
    if peer.name not in conditions.peers:
        return "not asked for"
    reason = peer.missing or peer.refusal(setting)
    if reason:
        return reason
    try:
        timed, results = _ready(peer, setting, workers)
    except WorkerError as error:
        return str(error)
    error = checking.relative_error(results[0], right)
    return timed if error <= PEER_ERROR else f"its result is {error:.1e} from PyTorch's"


def _check(
    case: Case,
    inputs: Inputs,
    kernel: str,
    ours: tuple[Tensor, ...],
    baseline: tuple[Tensor, ...],
) -> tuple[Check, ...]:
    if case.ours == "heedful module":
        right = checking.module_reference(inputs)
        return checking.check_alone(ours[0], right, baseline[0], inputs.setting.dtype)
    if inputs.setting.dropout_p > 0:
        if kernel == "torch_sdpa":  # which drops what PyTorch draws, as the baseline does
            return ()
        baseline = checking.dropping_baseline(inputs)
    return checking.check(inputs, ours, baseline)


# --- judging -----------------------------------------------------------------------------------------


def _judged(found: Found) -> Found:
    judgements = tuple(_judge(found, requirement) for requirement in found.case.requirements)
    return replace(found, judgements=judgements)


def _judge(found: Found, requirement: Requirement) -> Judgement:
    assert found.times is not None
    ours = found.times.median(found.case.ours)
    against = requirement.against
    if requirement.quantity == "share":
        reached = None if found.share is None else found.share.median
        return judging.share(
            requirement, reached, library.missing or f"no instruction for {against}"
        )
    if against not in found.times.seconds:
        return judging.ratio(requirement, None, found.left_out[against])
    theirs = found.times.median(against)
    if requirement.quantity == "small":
        return judging.small(requirement, theirs, ours)
    return judging.ratio(requirement, theirs / ours)


def _limit(case: Case, setting: Setting) -> str:
    """The peak that bounds a case; "": none is worth telling."""
    for requirement in case.requirements:
        if requirement.quantity == "share":
            return requirement.against
        if requirement.quantity == "small":
            return ""
    return "" if case.isa or case.ours != "heedful" else _PEAKS[setting.dtype]


_PEAKS = {"fp32": "fma", "bf16": "bf16", "fp16": "fma"}


def _share(
    inputs: Inputs, times: Times, ours: str, limit: str, limits: dict[str, float], *, probed: bool
) -> Spread | None:
    """The share of the limit: by the probe that took turns with ours, else by what it gave at the start."""
    if limit not in limits:
        return None
    amount = inputs.flops * (BACKWARD if inputs.setting.backward else 1)
    amount = inputs.bytes_read if limit == "read" else amount
    if probed:
        ratio = times.ratio(limit, ours)
        return Spread(amount * ratio.median, amount * ratio.low, amount * ratio.high)
    spread, most = times.spread(ours), amount / limits[limit]
    return Spread(most / spread.median, most / spread.high, most / spread.low)


def _kernel(inputs: Inputs) -> str:
    tensors = inputs.query, inputs.key, inputs.value
    return explain(*tensors, inputs.mask, dropout_p=inputs.setting.dropout_p).kernel


def _isa_missing(case: Case) -> str:
    if not case.isa:
        return ""
    if library.missing is not None:
        return library.missing
    return "" if case.isa in library.isas() else f"this machine has no {case.isa}"


# --- what is not timed -------------------------------------------------------------------------------


def _memory(case: Case, setting: Setting) -> Found:
    """What one call adds to the memory of a fresh process; its last queries are held to float64."""
    inputs = make(setting)
    found = Found(case, setting, _kernel(inputs))
    with Worker(case.ours, setting) as worker:
        added = worker.memory()
        (output,) = worker.results()
    query, key, value = inputs.query[:, :, -TAIL:], inputs.key, inputs.value
    mask = Causal(align="end")
    right = attention(query.double(), key.double(), value.double(), mask, kernel="reference")
    assert isinstance(right, Tensor)  # not asked for the lse
    seen = mask.dense(query.shape[2], setting.keys)
    baseline = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
    return replace(
        found,
        checks=checking.check_alone(output[:, :, -TAIL:], right, baseline, setting.dtype),
        judgements=tuple(judging.memory(one, added) for one in case.requirements),
    )


def _threads(case: Case, setting: Setting) -> Found:
    """The results on several numbers of threads, bit by bit."""
    inputs = make(setting)
    contender = OURS[case.ours].prepare(inputs)
    before, results = torch.get_num_threads(), []
    try:
        for threads in THREADS:
            torch.set_num_threads(threads)
            results.append(checking.results_of(contender))
    finally:
        torch.set_num_threads(before)
    differing = [
        name
        for name, *versions in zip(checking.NAMES, *results, strict=False)
        if not all(torch.equal(versions[0], version) for version in versions)
    ]
    baseline = checking.results_of(PEERS["sdpa"].prepare(inputs))
    return Found(
        case,
        setting,
        _kernel(inputs),
        checks=checking.check(inputs, results[0], baseline),
        judgements=tuple(judging.equal(one, differing) for one in case.requirements),
    )
