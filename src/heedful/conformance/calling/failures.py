"""Decide whether failed calls prove a bug of the target, or only that our guesses do not fit it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from heedful.conformance.calling import names
from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.exceptions import (
    attempt,
    describe_exception,
    described_with_line,
    own_frames,
    raising_line,
    unequal_sizes,
)
from heedful.conformance.calling.layouts import PATTERNS, likely_layouts, unpacked_ranks
from heedful.conformance.calling.missing_names import is_missing_name
from heedful.conformance.calling.target import Target, is_required, made_parameters, tables
from heedful.conformance.recording.assignments import variables_read
from heedful.conformance.recording.source import SourceLine, contains_line, nodes_of, parsed_file
from heedful.errors import ArgumentError

SIZES = ((3, 5), (4, 8), (2, 16))  # B and T at which a call must fail alike to prove a bug
PRODUCTS = frozenset(
    {"linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "einsum"}
    | {"conv1d", "conv2d", "tensordot", "scaled_dot_product_attention"}
)
STRIDES = "view size is not compatible with input tensor's size and stride"
INDIVISIBLE: re.Pattern[str] = re.compile(
    r"can't divide axis|shape '\[[^]]*\b0\b[^]]*\]' is invalid"
)
TOO_FEW: re.Pattern[str] = re.compile(
    r"index k out of range|Kernel size can't be greater|Output size is too small|"
    r"Padding size should be less|Invalid number of data points|to have non-zero size"
)
"""What PyTorch says of a convolution, spectrum, maximum or choice of the largest scores that needs more tokens."""
FIXED_WIDTH: re.Pattern[str] = re.compile(
    r"expecting embedding dimension of (\d+), but|passed-in embed_dim (\d+) didn't match"
)
"""What an attention of PyTorch's says of tokens of another width."""
UNFIT_LAYER: re.Pattern[str] = re.compile(
    r"shapes cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)"
)
UNFIT_NORM: re.Pattern[str] = re.compile(
    r"(normalized_shape=\[|embed_dim )(?P<wanted>\d+).*(size\[.*\b|last dim of query )(?P<given>\d+)"
)
UNFIT_VIEW: re.Pattern[str] = re.compile(
    r"shape '\[(\d+(?:, \d+)*)\]' is invalid for input of size (\d+)"
)
DIVIDED: re.Pattern[str] = re.compile(r".+ % .+ == 0")
OTHER_DEVICE: re.Pattern[str] = re.compile(r"on the same device")
FIXED_BATCH: re.Pattern[str] = re.compile(r"shape '\[(\d+), -1,")
SIDE_OF_A_WINDOW: re.Pattern[str] = re.compile(r"(window|block|patch)(_?size)?$")
MAX_LENGTH, MAX_LENGTHS = 256, 6  # the largest number of tokens, and how many numbers are tried
MAX_BATCH = 64  # the largest batch size that is tried
MAX_LISTED = 4  # ways of calling that an error lists


class UncallableError(ArgumentError):
    """No call of a target works, which may be because of our guesses.

    Attributes:
        failures: What the calls raised, once for each line of the target that raised and for each kind of message.
    """

    failures: tuple[BaseException, ...]


@dataclass(frozen=True, eq=False)
class FailedCall:
    """A call that raised.

    Attributes:
        caller: How the target was called.
        error: What it raised.
    """

    caller: Caller
    error: BaseException


def lengths_named(failures: Sequence[FailedCall]) -> list[int]:
    """Return numbers of tokens that the exceptions may ask for: numbers in their messages, and squares of these.

    The length that a layer of flattened tokens takes comes first, then twice the length of segments, then sides of
    an image, and of its windows, that the module keeps, and tables with a row for each distance. Windows of an
    image have a fixed number of tokens, and tables of relative positions have one row for each pair.
    """
    widths = failures[0].caller.convention.features
    messages = [
        describe_exception(it.error) for it in failures if raising_line(it.error) is not None
    ]
    numbers = Counter(
        int(text) for message in messages for text in set(re.findall(r"\b\d{1,3}\b", message))
    )
    named = [n for n, _ in numbers.most_common() if n >= 2 and n not in (*widths, 3, 5, 15)]
    lengths = [size for n in named for size in (n, n * n) if size <= MAX_LENGTH]
    pairs = (
        int(text) for message in messages for text in re.findall(r"input of size (\d+)", message)
    )
    roots = (n for size in pairs for n in range(MAX_LENGTH, 1, -1) if size % (n * n) == 0)
    module = failures[0].caller.module
    segments = _segments(module) if any(is_stated(it.error) for it in failures) else ()
    own = (
        *_flattened_lengths(messages),
        *(2 * it for it in segments),
        *square_sizes(module),
        *_grid_sizes(module),
        *_relative_lengths(module),
    )
    sizes = (*own, *lengths, *roots)
    return list(dict.fromkeys(sizes))[:MAX_LENGTHS]


def _flattened_lengths(messages: Sequence[str]) -> Iterator[int]:
    """Yield numbers of tokens of which a layer takes all features in a row, as Linear(T * C, classes)."""
    B, T = SIZES[0]
    for message in messages:
        sizes = UNFIT_LAYER.findall(message) if f"multiplied ({B}x" in message else []
        sizes += [(found["given"], found["wanted"]) for found in UNFIT_NORM.finditer(message)]
        for given, wanted in sizes:
            width, rest = divmod(int(given), T)
            if rest == 0 and 1 < width < int(wanted) and int(wanted) % width == 0:
                yield int(wanted) // width


def _segments(module: nn.Module | None) -> list[int]:
    """Return the lengths of the segments that a module goes through, as `divmod(T, self.segment)` counts them."""
    lengths: list[str] = []
    for node in nodes_of(module.forward) if module is not None else ():
        match node:
            case ast.Call(
                func=ast.Name(id="divmod" | "range"),
                args=[*_, ast.Attribute(value=ast.Name(id="self"), attr=name)],
            ):
                lengths.append(name)
            case _:
                pass
    sizes = (getattr(module, name, None) for name in lengths)
    return [it for it in sizes if type(it) is int and 1 < it <= MAX_LENGTH // 2]


def batches_named(failures: Sequence[FailedCall]) -> list[int]:
    """Return batch sizes that the target's code has fixed, as in "shape '[20, -1, 24]' is invalid"."""
    found = (FIXED_BATCH.search(describe_exception(it.error)) for it in failures)
    sizes = (int(it[1]) for it in found if it is not None)
    return [size for size in dict.fromkeys(sizes) if 1 < size <= MAX_BATCH]


def expected_width(error: BaseException) -> int | None:
    """Return the width of tokens that an attention of PyTorch's within a target expects; None if it asks for none."""
    said = FIXED_WIDTH.search(describe_exception(error))
    return None if said is None else int(said[1] or said[2])


def expected_features(error: BaseException) -> tuple[int, int] | None:
    """Return the features that a layer received and those that it expects; None if it does not say so."""
    said = UNFIT_LAYER.search(describe_exception(error))
    return None if said is None else (int(said[1]), int(said[2]))


def missing_factor(error: BaseException) -> int | None:
    """Return how many times as many numbers a view needs as it is given; None if it is no whole number of times."""
    said = UNFIT_VIEW.search(describe_exception(error))
    if said is None:
        return None
    wanted, received = prod(map(int, said[1].split(", "))), int(said[2])
    return wanted // received if received and wanted > received and wanted % received == 0 else None


def has_too_few(error: BaseException) -> bool:
    """Check whether an exception says that a convolution, a spectrum or a choice needs more tokens."""
    return TOO_FEW.search(describe_exception(error)) is not None


def _grid_sizes(module: nn.Module | None) -> Iterator[int]:
    """Yield the numbers of pixels of images whose two sides, or the side of whose windows, a user's module keeps."""
    for part in () if module is None else module.modules():
        if type(part).__module__.startswith("torch."):
            continue
        for name, value in vars(part).items():
            match value:
                case (int(height), int(width)) if 1 < height * width <= MAX_LENGTH:
                    yield height * width
                case int(side) if side > 1 and SIDE_OF_A_WINDOW.search(name):
                    yield from (n for n in ((2 * side) ** 2, side**2) if n <= MAX_LENGTH)


def _relative_lengths(module: nn.Module | None) -> Iterator[int]:
    """Yield the numbers of tokens for which a table of a user's module has a row for each distance, 2 T − 1."""
    rows = () if module is None else (table.shape[0] for table in tables(module))
    yield from ((n + 1) // 2 for n in rows if n % 2 == 1 and 3 < n < 2 * MAX_LENGTH)


def square_sizes(module: nn.Module | None) -> list[int]:
    """Return the sizes of a module's square buffers, which may hold a number for each pair of tokens."""
    buffers = () if module is None else module.buffers()
    shapes = (it.squeeze().shape for it in buffers)
    return [
        shape[0] for shape in shapes if len(shape) == 2 and 1 < shape[0] == shape[1] <= MAX_LENGTH
    ]


def proof_of_bug(failures: Sequence[FailedCall]) -> BaseException | None:
    """Return an exception that is the target's own fault; None if other arguments might have worked.

    It is a name that exists nowhere; or the same line raises in every call that the target's own code shows to be
    valid, whatever the sizes are. Such a call gives only tokens, with as many axes as the code unpacks and a width that
    its first projection takes, and the exception does not name the number of tokens. Where the code unpacks no axes,
    the exception names two unequal sizes, the same ones in all calls. Other arguments do no harm if the exception is
    about strides, which no value changes. An argument that is None by default may be required nevertheless, where the
    line of `forward` that raises uses it.
    """
    missing = (it.error for it in failures if is_missing_name(it.error))
    first = next(missing, None)
    if first is not None or failures[0].caller.target.guessed:
        return first
    target = failures[0].caller.target
    layouts, ranks = likely_layouts(target.callee), unpacked_ranks(target.callee, PATTERNS)
    errors: list[BaseException] = []
    for caller in (failure.caller for failure in failures):
        if caller.convention.guessed or (layouts.declared and caller.layout == layouts.tokens[1]):
            continue
        for (_, T), error in _errors(caller, ranks):
            if _has_constants(caller) and STRIDES not in describe_exception(error):
                continue
            place = raising_line(error)
            if (
                place is None
                or is_refusal(error)
                or _names_tokens(error, caller, T)
                or _uses_omitted_argument(target, error)
            ):
                return None
            errors.append(error)
    if len(set(map(raising_line, errors))) != 1:
        return None
    return errors[0] if ranks or _are_of_same_sizes(errors) else None


def _names_tokens(error: BaseException, caller: Caller, T: int) -> bool:
    """Check whether an exception names the number of tokens, or one side of a feature map, as in "3x1 and 40x16"."""
    text = describe_exception(error)
    if caller.convention.is_image:
        sides = {T, *caller.convention.grid_of(T)}
        return not sides.isdisjoint(map(int, re.findall(r"(?<![A-Za-wyz\d])\d+", text)))
    return re.search(rf"\b{T}\b", text) is not None


def _uses_omitted_argument(target: Target, error: BaseException) -> bool:
    """Check whether the line of `forward` that raises reads an argument that is None, as it is by default."""
    code = getattr(target.forward, "__code__", None)
    for frame, line in (it for it in own_frames(error) if it[0].f_code is code):
        read = variables_read(frame.f_code.co_filename, line)
        defaults = (name for name in read if name in target.parameters)
        if any(
            target.parameters[name].default is None and frame.f_locals.get(name, code) is None
            for name in defaults
        ):
            return True
    return False


def _are_of_same_sizes(errors: Sequence[BaseException]) -> bool:
    """Check whether all exceptions name the same two sizes, which then belong to the target and not to the tokens."""
    found = {unequal_sizes(it) for it in errors}
    return None not in found and len(found) == 1


def _errors(caller: Caller, ranks: set[int]) -> Iterator[tuple[tuple[int, int], Exception]]:
    """Yield the sizes B and T, and what a call with them raises after a product with the tokens.

    A product with a parameter shows that the tokens have the width that the target takes.
    """
    has_matrices = caller.module is not None and any(
        it.dim() > 1 for it in made_parameters(caller.module)
    )
    for B, T in SIZES:
        inputs = caller.draw(B if caller.batched else 1, T)
        arguments = caller.arguments(inputs)
        if ranks and next(iter(arguments.values())).dim() not in ranks:
            return
        products = _Products()
        error = attempt(lambda it=arguments, watch=products: _called(caller, it, watch))
        began = products.with_parameter if has_matrices else products.any
        if began and isinstance(error, Exception):
            yield (B, T), error


def _called(caller: Caller, arguments: Mapping[str, Any], products: _Products) -> Any:
    args, keywords = caller.target.bound(arguments)
    with torch.no_grad(), caller.isolated(), products:
        return caller.callee(*args, **keywords)


def _has_constants(caller: Caller) -> bool:
    """Check whether a call needs arguments other than tokens and the flag that makes it causal."""
    return any(name not in names.CAUSAL for name in caller.convention.constants)


def is_refusal(error: BaseException) -> bool:
    """Check whether the target rejects a call itself, cannot cut an axis into its windows, or needs more tokens."""
    text = attempt(lambda: str(error))  # which an exception of the target may not have
    unfit = isinstance(text, str) and bool(INDIVISIBLE.search(text) or TOO_FEW.search(text))
    return unfit or is_stated(error)


def is_stated(error: BaseException) -> bool:
    """Check whether the target's own code raises an exception on purpose."""
    place = raising_line(error)
    stated = place is not None and place.source.startswith(("raise", "assert"))
    return stated or isinstance(error, AssertionError | NotImplementedError)


def refusing_tests(error: BaseException) -> Iterator[ast.expr]:
    """Yield the conditions of the `if` and `assert` statements by which the target's own code raised an exception."""
    frames = own_frames(error)
    source = parsed_file(frames[-1][0].f_code.co_filename) if frames else None
    for statement in () if source is None else source.statements():
        match statement:
            case ast.If(test=test, body=body):
                raising = [it for it in body if isinstance(it, ast.Raise)]
            case ast.Assert(test=test):
                raising = [statement]
            case _:
                continue
        if any(contains_line(it, frames[-1][1]) for it in raising):
            yield test


def refuses_what_it_demands(error: BaseException) -> bool:
    """Check whether an exception demands that a number be divisible where the code raises because it is."""
    said = describe_exception(error)
    demands = "divisible" in said and "not be divisible" not in said
    tests = [] if isinstance(error, AssertionError) else refusing_tests(error)
    return demands and any(DIVIDED.fullmatch(ast.unparse(test)) for test in tests)


class _Products(TorchFunctionMode):
    """Notes whether a product was computed, and whether one with a parameter was."""

    def __init__(self) -> None:
        super().__init__()
        self.any: bool = False
        self.with_parameter: bool = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in PRODUCTS:
            self.any = True
            operands = (*args, *(kwargs or {}).values())
            self.with_parameter |= any(isinstance(it, nn.Parameter) for it in operands)
        return result


def not_callable(target: Target, failures: Sequence[FailedCall]) -> UncallableError:
    """Return the error that says what was tried, what is missing, and what to give."""
    failure = _most_telling(failures)
    conventions = list(dict.fromkeys(it.caller.convention for it in failures))
    callers = {it.caller.convention: it.caller for it in reversed(failures)}
    shown = conventions[: 4 * MAX_LISTED]
    listed = dict.fromkeys(_described_call(callers[convention]) for convention in shown)
    tried = list(listed)[:MAX_LISTED]
    count = len(conventions) - len(tried)
    more = f" and {count} other ways" if count > 0 else ""
    error = UncallableError(
        target.name,
        expected="a call that works and returns one row for each token",
        received=f"{described_with_line(failure.error)}. Tried: {'; '.join(tried)}{more}. "
        "This may be our guess of the arguments rather than a bug",
        remedy=f"{_device_remedy(failure.error)}{_constructor_remedy(target)}Give an example of its arguments, "
        f"{', '.join(target.parameters)}: example=…, or {_command(failure.caller)}.",
    )
    error.failures = tuple({_kind_of(it.error): it.error for it in reversed(failures)}.values())
    return error


def _kind_of(error: BaseException) -> tuple[SourceLine | None, str]:
    """Return the line that raises and what it says, without the numbers."""
    return raising_line(error), re.sub(r"\d+", "", describe_exception(error))


def _device_remedy(error: BaseException) -> str:
    """Return what to do about tensors that the target makes on a GPU; "" if the exception is not about devices."""
    if not OTHER_DEVICE.search(describe_exception(error)):
        return ""
    return (
        "The check runs on the CPU: make tensors on the device of the arguments, as in torch.ones(T, device=x.device), "
        "or run the command heedful check, which hides GPUs from the target. "
    )


def _constructor_remedy(target: Target) -> str:
    options = " ".join(f"--with {name}=VALUE" for name in target.guessed)
    return f"The constructor's values are guesses as well: {options}. " if options else ""


def _most_telling(failures: Sequence[FailedCall]) -> FailedCall:
    """Return the failure that came from the target's own code, or else the first one."""
    own = (it for it in failures if raising_line(it.error) is not None)
    return next(own, failures[0])


def _described_call(caller: Caller) -> str:
    """Describe the arguments of a trial: "x (3, 5, 24), mask None"."""
    arguments = attempt(lambda: caller.arguments(caller.draw(3 if caller.batched else 1, 5)))
    if isinstance(arguments, Exception):
        return caller.layout
    parts = (f"{name} {_described(value)}" for name, value in arguments.items())
    return ", ".join(parts)


def _described(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def _command(caller: Caller) -> str:
    """Return the options of the command that give an example, ready to be edited."""
    target = caller.target
    arguments = attempt(lambda: caller.arguments(caller.draw(2 if caller.batched else 1, 9)))
    bound = attempt(lambda: target.bound(arguments)[0])
    whole = () if isinstance(bound, Exception) else bound
    given = dict(zip(target.signature.parameters, whole, strict=False))
    required = [name for name, it in target.signature.parameters.items() if is_required(it)]
    values = ", ".join(_as_code(given.get(name), name) for name in required)
    return f"--example '{values}', or --example-from tests/test_x.py::test_x"


def _as_code(value: Any, name: str) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(_as_code(it, name) for it in value)})"
    if isinstance(value, dict):
        parts = (f'"{key}": {_as_code(it, key)}' for key, it in value.items())
        return f"{{{', '.join(parts)}}}"
    if not isinstance(value, Tensor):
        return name if value is None else repr(value) if isinstance(value, int | float) else name
    shape = ", ".join(map(str, value.shape))
    if value.is_floating_point():
        return f"torch.randn({shape})"
    return f"torch.ones({shape}, dtype={value.dtype})"
