"""The order of a target's axes, read from its attributes and its source code."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from heedful.conformance.calling import names
from heedful.conformance.calling.documentation import comment_lines, docstring_lines, entry_of
from heedful.conformance.recording.sizes_read import size_read, tensor_of_shape
from heedful.conformance.recording.source import ParsedSource, parsed

# A shape in a docstring, such as "(batch, length, dim)" or "(batch,)".
DOCUMENTED_SHAPE: re.Pattern[str] = re.compile(
    r"[(\[]\s*([\w#*./+\-= ]+(?:,\s*[\w#*./+\-= ]+)+|[a-z_]+(?=,\s*[)\]]))\s*,?\s*[)\]]",
    re.IGNORECASE,
)
TIMES: re.Pattern[str] = re.compile(r"(?<=[A-Za-z_]) [x×] (?=\w)")  # "(B x T x D)"
DISTANCES: re.Pattern[str] = re.compile(r"\b2\s*\*?\s*(t|n|l|s|time|len|length|seq)\w*\s*-\s*1$")
"""A number of distances between tokens, such as 2 * T_1 - 1, in lower case."""
DISTANCE_AXIS = "R"
PATTERNS = ("einsum", "rearrange", "reduce", "repeat")  # functions whose patterns name axes
CHANNELS_FIRST = "B T"  # such as (batch, features, time)
LAYOUTS_BY_AXES: Mapping[str, str] = {"BT ": "(B, T, C)", "TB ": "(T, B, C)"}
HEAD_LAYOUTS: Mapping[str, str] = {
    "BTH": "(B, T, H, D)",
    "BHT": "(B, H, T, D)",
    "TBH": "(T, B, H, D)",
}
QUERY = rf"({'|'.join(names.QUERIES)})"


class Layouts(NamedTuple):
    """The layouts that a target may take.

    Attributes:
        tokens: Those of a batch of sequences, the more likely one first.
        heads: That of tokens which are split into heads.
        declared: Whether the target itself states the layout, so that the other one is no fault of its own.
        images: Whether tokens may be the pixels of a feature map.
        videos: Whether they may be those of a video, or the voxels of a volume.
        signals: Whether channels may come before tokens, as convolutions over time take them, or as docstrings or
            unpacked shapes say.
        heads_declared: Whether the target itself states the layout of heads.
        batched: Whether the docstring gives its queries an axis for sequences.
        batch_axis: Which of four axes the source calls the batch, or 0 for those of a feature map; None if none.
    """

    tokens: tuple[str, str]
    heads: str
    declared: bool = False
    images: bool = False
    videos: bool = False
    signals: bool = False
    heads_declared: bool = False
    batched: bool = False
    batch_axis: int | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """Those of a batch of ids, in the order of `tokens`."""
        return tuple(it.replace(", C)", ") ids") for it in self.tokens)


def likely_layouts(target: Callable[..., Any]) -> Layouts:
    """Return the layouts of a module or function, by its attributes and by the shapes that its source unpacks.

    Whether a module takes (B, T, C) or (T, B, C) is decided by its own `batch_first`, then by what its own docstring
    says of its first argument, then by its source and that of its parts (`T, B, C = x.shape`), then by the shapes in
    all their docstrings, then by the `batch_first` of a layer from torch.
    """
    own, inner = _declared_batch_first(target) if isinstance(target, nn.Module) else (True, None)
    shapes = [_axes(variables) for variables in _unpacked_shapes(target)]
    of_first = [it[:2] for it in _axes_of_first_argument(target)]
    unpacked = (
        axes.startswith("B")
        for axes in shapes
        if axes.startswith(("BT", "TB")) or (len(axes) == 3 and axes.startswith("B"))
    )
    described = [*documented_axes(target)]
    documented = (axes.startswith("BT") for axes in described if axes[:2] in ("BT", "TB"))
    sequences_first = (True for axes in described if len(axes) == 3 and axes.startswith("B"))
    said = (axes == "BT" for axes in of_first if axes in ("BT", "TB"))
    found = (next(it, None) for it in (said, unpacked, documented, sequences_first))
    stated = (own, *found, _is_batch_read_first(target))
    evidence = (*stated, inner)
    batch_first = next((answer for answer in evidence if answer is not None), True)
    of_heads = [it[:3] for it in (*shapes, *described) if it[:3] in HEAD_LAYOUTS]
    return Layouts(
        tokens=("(B, T, C)", "(T, B, C)") if batch_first else ("(T, B, C)", "(B, T, C)"),
        heads=next(
            (HEAD_LAYOUTS[it] for it in ("BTH", "TBH") if it in of_heads), HEAD_LAYOUTS["BHT"]
        ),
        declared=any(answer is not None for answer in stated),
        images=4 in unpacked_ranks(target) or _has_layers(target, nn.Conv2d),
        videos=_has_layers(target, nn.Conv3d),
        signals=_has_layers(target, nn.Conv1d)
        or CHANNELS_FIRST in described
        or channel_axis(target, 3) == 1,
        heads_declared=bool(of_heads),
        batched=any(it[:2] in ("BT", "TB") for it in documented_axes(target, QUERY)),
        batch_axis=_batch_axis(target),
    )


def _is_batch_read_first(target: Callable[..., Any]) -> bool | None:
    """Return whether the batch comes before the tokens, by single sizes that a target reads at its beginning.

    `seq_len = x.size(1)` says so, for example; None if it reads none. N may stand for the batch as well as for tokens.
    """
    forward = target.forward if isinstance(target, nn.Module) else target
    source = parsed(forward)
    first = next(iter(inspect.signature(forward).parameters), "")
    for statement in sorted(source.statements() if source else (), key=lambda it: it.lineno):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                match size_read(value), _axes([name]):
                    case (ast.Name(id=read), 0), _ if read == first and name in ("N", "n"):
                        continue
                    case (ast.Name(id=read), 0 | 1 as axis), "B" | "T" as letter if read == first:
                        return (axis, letter) in ((0, "B"), (1, "T"))
                if name == first:
                    return None
    return None


def takes_feature_maps(target: Callable[..., Any]) -> bool:
    """Check whether a target's source calls two of four axes a height and a width."""
    return any(
        {"h", "w"} <= {name.lower()[:1] for name in variables[1:]}
        for variables in _unpacked_shapes(target)
        if len(variables) == 4
    )


def _batch_axis(target: Callable[..., Any]) -> int | None:
    """Return which of four axes a target's source calls the batch; 0 if two of them are a height and a width."""
    for variables in (it for it in _unpacked_shapes(target) if len(it) == 4):
        axes = _axes(variables)
        if axes.count("B") == 1:
            return axes.index("B")
        if {"h", "w"} <= {name.lower()[:1] for name in variables[1:]}:
            return 0
    return None


def channel_axis(target: Callable[..., Any], axes: int) -> int | None:
    """Return which of so many axes a target's source calls channels, the last, the second or the third; None if none.

    The third one may be that of a video alone.
    """
    for variables in (it for it in _unpacked_shapes(target) if len(it) == axes):
        for axis in (axes - 1, 1, 2) if axes == 5 else (axes - 1, 1):
            if variables[axis].lower() in names.CHANNELS:
                return axis
    return None


def _has_layers(target: Callable[..., Any], kind: type[nn.Module]) -> bool:
    parts = target.modules() if isinstance(target, nn.Module) else ()
    return any(isinstance(part, kind) for part in parts)


def documented_axes(target: Callable[..., Any], argument: str = "") -> Iterator[str]:
    """Yield a letter per axis of each shape that docstrings, or comments, give: "BTC" for (batch, length, dim).

    Args:
        target: A module or function.
        argument: The name of an argument, or a pattern of names, if only lines that begin with it count.
    """
    yield from _axes_in((*docstring_lines(target), *comment_lines(target)), argument)


def _axes_of_first_argument(target: Callable[..., Any]) -> Iterator[str]:
    """Yield a letter per axis of each shape that the docstring of a target's own function gives its first argument."""
    forward = target.forward if isinstance(target, nn.Module) else target
    first = next(iter(inspect.signature(forward).parameters), "")
    if first:
        function = getattr(forward, "__func__", forward)
        yield from _axes_in((*docstring_lines(function), *comment_lines(function)), first)


def _axes_in(lines: Iterable[str], argument: str) -> Iterator[str]:
    """Yield a letter per axis of each shape in lines, of all or of those that begin with an argument."""
    goes_on = False  # an entry whose shape is on the next line
    for line in lines:
        shapes = DOCUMENTED_SHAPE.findall(TIMES.sub(", ", line))
        begins = re.match(rf"{argument}(?!\w)" if argument else "", entry_of(line)) is not None
        if begins or (goes_on and line.strip()[:1] in ("(", "[")):
            yield from (_documented_shape(shape.split(",")) for shape in shapes)
        goes_on = begins and bool(argument) and not shapes and not line.rstrip().endswith(".")


def documented_layouts(target: Callable[..., Any], argument: str) -> set[str]:
    """Return the layouts, such as "(B, T, C)", of the sequences of vectors that docstrings give an argument."""
    shapes = {*documented_axes(target, argument)}
    return {layout for axes, layout in LAYOUTS_BY_AXES.items() if axes in shapes}


def _documented_shape(parts: list[str]) -> str:
    """Return a letter per axis of a shape; N is the batch, as in torch.nn, or None, as in Keras, unless another is."""
    letters = "".join(map(_documented_axis, parts))
    batch = [n for n, part in enumerate(parts) if part.strip() in ("N", "None")]
    if len(batch) == 1 and "B" not in letters:
        return letters[: batch[0]] + "B" + letters[batch[0] + 1 :]
    return letters


def _documented_axis(text: str) -> str:
    """Return the letter of an axis as a docstring names it: "1" for a single entry, a blank for an unknown name."""
    text = text.strip(" #").lower()
    if text == "1":
        return text
    if DISTANCES.search(text):
        return DISTANCE_AXIS
    if re.fullmatch(r"\w+( ?\+ ?\w+)+", text):  # mlen + qlen: the tokens of a memory and its own
        return "T" if "T" in map(_documented_axis, text.split("+")) else " "
    words = re.findall(r"[a-z]+", text)
    plain = re.sub(r"_?\d$", "", text)  # T_1
    known = next((axis for axis, names_ in names.AXES.items() if {text, plain} & {*names_}), "")
    if known:
        return known
    letters = {
        "batch": "B",
        "bs": "B",
        "len": "T",
        "length": "T",
        "seq": "T",
        "sequence": "T",
        "height": "T",
        "token": "T",
        "tokens": "T",
        "steps": "T",
    }
    return next((letters[word] for word in words if word in letters), " ")


def unpacked_ranks(target: Callable[..., Any], functions: Sequence[str] = ("einsum",)) -> set[int]:
    """Return the numbers of axes that a target's source gives to tensors, by unpacking shapes or in patterns.

    Args:
        target: A module or function.
        functions: The names of functions whose patterns count.
    """
    ranks = {len(variables) for variables in _unpacked_shapes(target, slices=False)}
    for source in _sources(target):
        for node in source.nodes:
            match node:
                case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                    for pattern in node.args if name in functions else ():
                        if isinstance(pattern, ast.Constant) and "->" in str(pattern.value):
                            ranks |= set(_ranks_in(str(pattern.value), einsum=name == "einsum"))
    return ranks


def _declared_batch_first(module: nn.Module) -> tuple[bool | None, bool | None]:
    """Return the `batch_first` of a module itself, and that of the first layer from torch within it.

    A module's own one says nothing if the constructor does not take it: PyTorch's layers read it of any attention. A
    constructor that takes it may keep it in a layer from torch alone.
    """
    layers = [part for part in module.modules() if type(part).__module__.startswith("torch.")]
    own, *others = (getattr(part, "batch_first", None) for part in (module, *layers))
    inner = next((declared for declared in others if isinstance(declared, bool)), None)
    parameters = inspect.signature(type(module).__init__).parameters
    handed_on = any(it.kind is it.VAR_KEYWORD for it in parameters.values())
    taken = "batch_first" in parameters or (handed_on and own is not None)
    kept = own if isinstance(own, bool) else inner
    return kept if taken else None, inner


def _axes(variables: list[str]) -> str:
    """Return a letter per variable: "BT " for ["batch", "seq_len", "d"], with a blank for an unknown name."""
    return "".join(
        next((axis for axis, known in names.AXES.items() if variable.lower() in known), " ")
        for variable in variables
    )


def _ranks_in(pattern: str, *, einsum: bool) -> Iterator[int]:
    """Yield the numbers of axes of the operands in a pattern of einsum, or of the one of einops, without ellipses."""
    for operand in pattern.partition("->")[0].split(","):
        if "." not in operand:
            axes = re.sub(r"\(.*?\)", "x", operand)
            yield len(operand.replace(" ", "")) if einsum else len(axes.split())


def _unpacked_shapes(target: Callable[..., Any], *, slices: bool = True) -> Iterator[list[str]]:
    """Yield the variables into which a target's source unpacks shapes, those of `forward` first.

    Args:
        target: A module or function.
        slices: Whether leading slices of shapes count, too.
    """
    for source in _sources(target):
        for node in source.nodes:
            match node:
                case ast.Assign(targets=[ast.Tuple(elts=elements)], value=value) if tensor_of_shape(
                    value, slices=slices
                ):
                    yield [it.id if isinstance(it, ast.Name) else "" for it in elements]
                case ast.Assign(
                    targets=[ast.Tuple(elts=elements)],
                    value=ast.Tuple(elts=[ast.Starred(value=value), *others]),
                ) if tensor_of_shape(value, slices=slices):  # b, n, c, h = *x.shape, heads
                    axes = elements[: len(elements) - len(others)]
                    yield [it.id if isinstance(it, ast.Name) else "" for it in axes]
                case ast.Assign(
                    targets=[ast.Tuple(elts=elements)], value=ast.Tuple(elts=[*sizes])
                ) if slices and _axes_read(sizes) == [*range(len(elements))]:
                    yield [it.id if isinstance(it, ast.Name) else "" for it in elements]


def _axes_read(sizes: list[ast.expr]) -> list[int | None]:
    """Return the axis that each expression reads the size of; None for other expressions."""
    return [None if (read := size_read(it)) is None else read[1] for it in sizes]


def _sources(target: Callable[..., Any]) -> Iterator[ParsedSource]:
    """Yield the source of a function, or of the user's classes in a module: of each `forward`, then of its class."""
    classes = [type(part) for part in target.modules()] if isinstance(target, nn.Module) else []
    own = [cls for cls in dict.fromkeys(classes) if not cls.__module__.startswith("torch.")]
    for definition in [it for cls in own for it in (cls.forward, cls)] or [target]:
        if (source := parsed(definition)) is not None:
            yield source
