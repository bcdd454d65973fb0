"""The attention of a whole model, summarized while one unchanged forward pass runs."""

from __future__ import annotations

import html
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from heedful.attention_calls import reader_of
from heedful.errors import ArgumentError
from heedful.masks import Dense, KeyRanges, Mask
from heedful.modes import unnoticed
from heedful.problem import AttentionProblem
from heedful.summaries import Summary, summarize
from heedful.tables import table


class AttentionOfModel(NamedTuple):
    """What `attention_of` returns.

    Attributes:
        output: what the model returned.
        layers: the summary of each attention, in the order in which they ran. The key is the name of the module that
            computed it; a second attention of the same module has " (2)" after its name.
    """

    output: Any
    layers: dict[str, Summary]

    def __repr__(self) -> str:
        names = [*self.layers]
        some = ", ".join(map(repr, names[:3])) + (", …" if len(names) > 3 else "")
        count = f"{len(names)} layer{'s' * (len(names) != 1)}"
        return f"AttentionOfModel(output: {type(self.output).__name__}, {count}: {some})"

    def _repr_html_(self) -> str:
        """Return the means of each layer, and those of its heads to unfold, for a notebook."""
        means = [summary.means for summary in self.layers.values()]
        columns = [*means[0]] if means else []
        rows = [
            (name, str(summary.lse.shape[1]), *(f"{values[it].mean():.3g}" for it in columns))
            for (name, summary), values in zip(self.layers.items(), means, strict=True)
        ]
        heads = "".join(
            f"<details><summary>{html.escape(name)}</summary>{summary._repr_html_()}</details>"
            for name, summary in [*self.layers.items()][:MOST_UNFOLDED]
        )
        return table(rows, header=("layer", "heads", *columns)) + heads


MOST_UNFOLDED: int = 48  # layers in a notebook


def attention_of(
    model: nn.Module,
    inputs: Any,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    each: Callable[[str, AttentionProblem, Summary], None] | None = None,
    **statistics: Any,
) -> AttentionOfModel:
    """Summarize every attention of a model in one forward pass, layer by layer.

    Each attention is summarized when it runs, from the queries and keys that it really has; then they are let go. The
    model computes what it always computes, so that its output is the same to the last bit. It sees the attention of
    `torch.nn.functional.scaled_dot_product_attention`, also where `accelerate` computes it, and of `heedful.attention`:
    so models of transformers under "sdpa" and "heedful", our GPT, and any module that calls one of these. It does not
    see attention in compiled graphs, in the fused inference path of `nn.MultiheadAttention`, or written out in steps.

    Args:
        model: the model. It runs without gradients, in its present mode.
        inputs: what to call it with: a dictionary of keyword arguments, a tuple of arguments, or one argument.
        layers: the indices of the attentions to summarize, in the order in which they run; None: all.
        heads: the indices of the query heads to summarize; None: all.
        each: called after each summarized attention with its name, its problem (query, key, mask and options of these
            heads), and its summary: for progress, or to keep more than statistics. The tensors belong to the model.
        **statistics: what to compute of each, as `summarize` takes it: for_each_query, for_each_key, top_k, pool,
            regions, rows and columns.

    Returns:
        The model's output, and the summary of each attention.

    Raises:
        ArgumentError: the model ran no attention that can be seen, or one that heedful cannot compute, or lacks a layer
            or head.

    Examples:
        >>> from heedful.nn import MultiHeadAttention
        >>> model = nn.Sequential(MultiHeadAttention(8, 2), MultiHeadAttention(8, 2))
        >>> output, layers = attention_of(model, torch.randn(1, 5, 8), pool=2)
        >>> {name: tuple(summary.pooled_mean.shape) for name, summary in layers.items()}
        {'0': (1, 2, 2, 2), '1': (1, 2, 2, 2)}
    """
    watcher = _Watcher(layers, heads, statistics, each)
    with (
        torch.no_grad(),
        _watched_modules(model, watcher.modules),
        unnoticed(watcher, torch.overrides, F),
        watcher,
    ):
        if isinstance(inputs, Mapping):
            output = model(**inputs)
        else:
            output = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    watcher.check_layers()
    return AttentionOfModel(output, {name: made() for name, made in watcher.kept.items()})


@contextmanager
def _watched_modules(model: nn.Module, running: list[str]) -> Iterator[None]:
    """Keep the names of the modules that are running, the innermost last."""

    def entering(name: str) -> Callable[..., None]:
        return lambda *_: running.append(name)

    def leaving(*_: Any) -> None:
        running.pop()

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            before = module.register_forward_pre_hook(entering(name or type(model).__name__))
            after = module.register_forward_hook(leaving, always_call=True)
            hooks.callback(before.remove)
            hooks.callback(after.remove)
        yield


class _Watcher(TorchFunctionMode):
    """Summarizes the attentions that run in this thread, and lets them run as they are."""

    def __init__(
        self,
        layers: Sequence[int] | None,
        heads: Sequence[int] | None,
        statistics: dict[str, Any],
        each: Callable[[str, AttentionProblem, Summary], None] | None,
    ) -> None:
        super().__init__()
        self.layers: set[int] | None = None if layers is None else set(layers)
        self.heads: Sequence[int] | None = heads
        self.statistics: dict[str, Any] = statistics
        self.each: Callable[[str, AttentionProblem, Summary], None] | None = each
        self.modules: list[str] = []
        self.count: int = 0
        self.kept: dict[str, Callable[[], Summary]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let a function of PyTorch or heedful run, and look at its arguments before if it is attention."""
        keywords = kwargs or {}
        read = reader_of(func)
        if read is None:
            return func(*args, **keywords)
        problem = read(*args, **keywords)
        if problem is not None:
            self.see(problem)
        result = func(*args, **keywords)  # which raises its own error if the arguments are wrong
        if problem is None:
            raise ArgumentError(
                "model",
                expected="attentions that heedful can compute, of dense tensors with one batch size",
                received=f"another one in {self.modules[-1] if self.modules else 'model'}",
                remedy="Pad nested tensors, and expand a batch that is broadcast.",
            )
        return result

    def see(self, problem: AttentionProblem) -> None:
        """Summarize an attention, unless it is not wanted."""
        index, self.count = self.count, self.count + 1
        if self.layers is not None and index not in self.layers:
            return
        name = self.modules[-1] if self.modules else "model"
        same = sum(other == name or other.startswith(f"{name} (") for other in self.kept)
        name = f"{name} ({same + 1})" if same else name
        with torch._C.DisableTorchFunction():
            if self.heads is not None:
                problem = _with_heads(problem, self.heads)
            summary = _summarize(problem, self.statistics)
            self.kept[name] = _apart(summary)
            if self.each is not None:
                self.each(name, problem, summary)

    def check_layers(self) -> None:
        """Raise ArgumentError unless all that was requested has run."""
        if not self.count:
            raise ArgumentError(
                "model",
                expected="a model that calls scaled_dot_product_attention or heedful.attention",
                received="one that calls neither where it can be seen",
                remedy='In transformers, use model.set_attn_implementation("sdpa"); leave out torch.compile; '
                "for modules of torch.nn in eval mode, call torch.backends.mha.set_fastpath_enabled(False).",
            )
        missing = sorted(i for i in self.layers or () if not 0 <= i < self.count)
        if missing:
            raise ArgumentError(
                "layers",
                expected=f"indices from 0 to {self.count - 1}, because the model ran {self.count} attentions",
                received=str(missing),
                remedy="Leave it out to see all.",
            )


def _summarize(problem: AttentionProblem, statistics: dict[str, Any]) -> Summary:
    return summarize(
        problem.query,
        problem.key,
        problem.mask,
        bias=problem.bias,
        scale=problem.scale,
        softcap=problem.softcap,
        sinks=problem.sinks,
        **statistics,
    )


def _apart(summary: Summary) -> Callable[[], Summary]:
    """Move a summary out of the heap, and return what makes it again.

    What stays in the heap, even an empty tensor, splits the room that a layer's large tensors leave when they are
    freed. Those of the next layers would find no place there, and the peak of the model would double.
    """
    tensors = {name: value for name, value in vars(summary).items() if isinstance(value, Tensor)}
    rest = replace(summary, **dict.fromkeys(tensors), region_mass={})
    values = {name: _moved(tensor) for name, tensor in tensors.items()}
    masses = {name: _moved(mass) for name, mass in summary.region_mass.items()}

    def made() -> Summary:
        tensors = {name: tensor() for name, tensor in values.items()}
        return replace(rest, **tensors, region_mass={name: it() for name, it in masses.items()})

    return made


def _moved(tensor: Tensor) -> Callable[[], Tensor]:
    """Copy a tensor of the CPU into memory of its own, and return what makes the tensor of it."""
    if not tensor.is_cpu or not tensor.numel():
        return lambda: tensor
    memory = mmap.mmap(-1, tensor.numel() * tensor.element_size())
    dtype, shape = tensor.dtype, tensor.shape
    torch.frombuffer(memory, dtype=dtype).view(shape).copy_(tensor)
    return lambda: torch.frombuffer(memory, dtype=dtype).view(shape)


def _with_heads(problem: AttentionProblem, heads: Sequence[int]) -> AttentionProblem:
    """Return the attention of some query heads, each with a key head of its own."""
    _, Hq, Hkv, *_ = problem.sizes
    if not heads or any(not 0 <= head < Hq for head in heads):
        raise ArgumentError(
            "heads",
            expected=f"indices of query heads from 0 to {Hq - 1}",
            received=repr(heads),
            remedy="Leave it out to see all.",
        )
    chosen = torch.tensor(heads, device=problem.query.device)
    mask, bias, sinks = problem.mask, problem.bias, problem.sinks
    if isinstance(mask, Mask) and problem.intervals is not None:
        mask = KeyRanges(problem.intervals)
    elif problem.dense_mask is not None:
        mask = Dense(_of_heads(problem.dense_mask, chosen))
    key = problem.key.index_select(1, chosen // (Hq // Hkv))
    return AttentionProblem(
        problem.query.index_select(1, chosen),
        key,
        key,
        mask,
        None if bias is None else _of_heads(bias, chosen),
        problem.scale,
        problem.softcap,
        None if sinks is None else sinks.index_select(0, chosen),
    )


def _of_heads(plane: Tensor, heads: Tensor) -> Tensor:
    """Return the entries of some heads, in a tensor (…, Hq or 1, Tq, Tk) that may be broadcast."""
    return plane.index_select(-3, heads) if plane.dim() > 2 and plane.shape[-3] > 1 else plane
