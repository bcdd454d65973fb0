"""The arguments of attention over many ranks, checked on each, and what all ranks have to agree on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from heedful.dispatch import choose
from heedful.dropout import Placement, draw_seed
from heedful.errors import ArgumentError
from heedful.functional import autocasts, cast_for_autocast
from heedful.masks import Dense, Mask
from heedful.parallel.agreement import Prepared, agree, describe, digest
from heedful.parallel.axes import Ranks
from heedful.parallel.order import TokenOrder
from heedful.parallel.part import Options
from heedful.parallel.sharding import check_order
from heedful.parallel.travel import Travel, travel_of
from heedful.problem import AttentionProblem, check_bias


@dataclass(frozen=True, eq=False)
class Arguments:
    """The arguments of a call, of which `check` leaves those that can be computed.

    Attributes:
        query: (B, Hq, tokens of this rank, D).
        key: (B, Hkv, tokens of this rank, D).
        value: (B, Hkv, tokens of this rank, Dv).
        mask: which keys each query sees, of all tokens.
        bias: broadcastable to (B, Hq, tokens of this rank, all tokens); with 4 dimensions once it is checked.
        sinks: (Hq,).
        options: all else that attention takes.
        order: which tokens each rank has.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask | Tensor | None
    bias: Tensor | None
    sinks: Tensor | None
    options: Options
    order: TokenOrder

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """The tensors that may have gradients."""
        return self.query, self.key, self.value, self.bias, self.sinks

    @property
    def differentiated(self) -> tuple[bool, ...]:
        """Which of the tensors need gradients."""
        recording = torch.is_grad_enabled()
        return tuple(recording and t is not None and t.requires_grad for t in self.tensors)


def agree_on(
    call: str, arguments: Arguments, ranks: Ranks, *, dense: bool, dealt_to: int = 1
) -> tuple[Arguments, Travel | None, tuple[int, ...]]:
    """Check the arguments on all ranks, and that they agree.

    Args:
        call: the name of the function.
        arguments: this rank's, as the caller passed them.
        ranks: who has to agree.
        dense: whether a mask may be dense, because each rank gets all tokens.
        dealt_to: among how many ranks the query heads are dealt out.

    Returns:
        The arguments with the tensors as they are computed and the seed of all ranks; the keys that travel, None with
        a dense mask; and the number of the call on each axis.

    Raises:
        ArgumentError: this rank's arguments do not fit together.
        KernelError: the kernel requested by name cannot run them.
        RankError: another rank has others, or is missing.
    """

    def prepare() -> Prepared[tuple[Arguments, Travel | None]]:
        checked = _checked(arguments, ranks, dealt_to)
        travel = None
        if not dense or not _is_dense(checked):
            assert checked.mask is None or isinstance(checked.mask, Mask)
            travel = travel_of(checked.mask, checked.order, checked.query.shape[0])
        seed = draw_seed() if checked.options.dropout_p > 0 else None
        return Prepared((checked, travel), _facts(call, checked, travel, rows_stay=not dense), seed)

    (checked, travel), seed, numbers = agree(ranks, prepare)
    return replace(checked, options=replace(checked.options, seed=seed)), travel, numbers


def _checked(arguments: Arguments, ranks: Ranks, dealt_to: int) -> Arguments:
    """Return the arguments of this rank as they are computed."""
    order, options, bias = arguments.order, arguments.options, arguments.bias
    query, key, value = arguments.query, arguments.key, arguments.value
    if autocasts(query):
        query, key, value = (cast_for_autocast(tensor) for tensor in (query, key, value))
    check_order(order, ranks)
    problem = AttentionProblem(
        *(query, key, value, None, None),
        *(options.scale, options.softcap, arguments.sinks, options.dropout_p),
        return_lse=True,
    )
    if not query.is_cpu:
        raise ArgumentError(
            "query",
            expected="a tensor on the CPU: other devices are not supported yet",
            received=f"one on {query.device}",
            remedy="Move query, key and value by .cpu(), and use a group of the backend gloo.",
        )
    if query.shape[1] < dealt_to:
        raise ArgumentError(
            "query",
            expected=f"at least {dealt_to} query heads, one for each rank that exchanges heads",
            received=f"{query.shape[1]} heads",
            remedy="ring_attention() takes any number, and mesh_attention() a mesh with fewer columns.",
        )
    own = len(order.places[ranks.rank])
    for name, tensor in (("query", query), ("key", key)):
        if tensor.shape[2] != own:
            raise ArgumentError(
                name,
                expected=f"the {own} tokens of this rank, of {order.tokens} in all",
                received=f"{tensor.shape[2]} tokens",
                remedy="shard(tensor, group, order) returns them.",
            )
    if bias is not None:
        check_bias(bias, problem.sizes._replace(Tk=order.tokens), query)
        bias = bias[(None,) * (4 - bias.dim())]
    _check_kernel(problem, options)
    mask = Dense(arguments.mask) if isinstance(arguments.mask, Tensor) else arguments.mask
    return replace(arguments, query=query, key=key, value=value, mask=mask, bias=bias)


def _check_kernel(problem: AttentionProblem, options: Options) -> None:
    """Raise KernelError if the kernel requested by name cannot run the problem as a part of one."""
    if options.dropout_p > 0:
        places = torch.arange(problem.sizes.Tq)
        placement = Placement(options.seed, places, places, options.first_head)
        problem = replace(problem, placement=placement)
    choose(problem, options.kernel)


def _is_dense(arguments: Arguments) -> bool:
    """Check whether key ranges cannot express the mask."""
    mask, tokens = arguments.mask, arguments.order.tokens
    return isinstance(mask, Mask) and mask.intervals(tokens, batch=arguments.query.shape[0]) is None


def _facts(
    call: str, arguments: Arguments, travel: Travel | None, *, rows_stay: bool
) -> dict[str, object]:
    """Return what has to be equal on all ranks."""
    query, key, value, bias, sinks = arguments.tensors
    options, tokens = arguments.options, arguments.order.tokens
    # A rank may have one query: only where rows are sent does it matter whether all queries share them.
    rows = {"tokens": 2} if bias is not None and (rows_stay or bias.shape[2] > 1) else {}
    if travel is not None:
        mask = travel.digest
    else:
        assert isinstance(arguments.mask, Mask)
        mask = digest(arguments.mask.dense(tokens, batch=query.shape[0]))
    return {
        "call": call,
        "query": describe(query, tokens=2),
        "key": describe(key, tokens=2),
        "value": describe(value, tokens=2),
        "mask": f"{arguments.mask!r}"[:80] + f" with digest {mask}",
        "bias": describe(bias, **rows),
        "sinks": describe(sinks),
        "scale, softcap, dropout_p, kernel": (
            f"{options.scale}, {options.softcap}, {options.dropout_p}, {options.kernel}"
        ),
        "gradients of query, key, value, bias, sinks": arguments.differentiated,
        "order": f"of {tokens} tokens with digest {arguments.order.digest}",
    }
