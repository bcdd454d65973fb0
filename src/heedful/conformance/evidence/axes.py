"""Which axis of a product of two tensors is what: rows, columns, what is summed over, what both share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from heedful.observation import Source, Step

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, eq=False)
class Product:
    """A product of two tensors with its axes lettered, as torch.einsum would: left, right -> out.

    Attributes:
        step: that made it.
        sources: where left and right came from.
        left, right, out: the tensors.
        letters: theirs.
    """

    step: Step
    sources: tuple[Source, Source]
    left: Tensor
    right: Tensor
    out: Tensor
    letters: tuple[str, str, str]

    @property
    def summed(self) -> str:
        """The letters that both operands have and the result has not."""
        left, right, out = self.letters
        return "".join(it for it in left if it in right and it not in out)

    def own(self, side: int) -> str:
        """The result's letters that only one operand has (0: left, 1: right)."""
        other = self.letters[1 - side]
        return "".join(it for it in self.letters[2] if it in self.letters[side] and it not in other)

    @property
    def sizes(self) -> dict[str, int]:
        """How long each axis is; a broadcast one as long as the result's."""
        found: dict[str, int] = {}
        for tensor, letters in zip((self.left, self.right, self.out), self.letters, strict=True):
            for letter, size in zip(letters, tensor.shape, strict=True):
                found[letter] = max(found.get(letter, 1), size)
        return found

    def operand(self, side: int, last: str, rows: str) -> Tensor:
        """An operand, its two axes named by `last` at the end, all others flattened into one in front: (L, …, …).

        Axes that only the other operand has are repeated, so that both operands have the same L: all but `rows`, which
        takes the place of `last` there.
        """
        tensor, letters = (self.left, self.right)[side], self.letters[side]
        leading = [it for it in self.letters[2] if it not in last and it not in rows]
        missing = [it for it in leading if it not in letters]
        view = tensor
        for _ in missing:
            view = view.unsqueeze(-1)
        order = letters + "".join(missing)
        wanted = [*leading, *last]
        view = view.permute([order.index(it) for it in wanted])
        return view.expand([self.sizes[it] for it in wanted]).reshape(
            -1, *(self.sizes[it] for it in last)
        )


def token_letter(product: Product, side: int, tokens: int, order: str = "") -> str:
    """The axis of an operand that its own rows lie along.

    Where it has several, such as groups of heads beside the queries, the last one that is as long as there are tokens.

    Args:
        product: of two operands.
        side: which of them.
        tokens: how many there are.
        order: the letters in the order in which "last" is meant; the result's by default.
    """
    own = product.own(side)
    own = "".join(it for it in (order or own) if it in own)
    fitting = [it for it in own if product.sizes[it] == tokens]
    return (fitting or list(own) or [""])[-1]


def product_of(step: Step, operands: Sequence[tuple[Source, Tensor]]) -> Product | None:
    """Letter the axes of a step that multiplies two tensors; None if it does something else."""
    (left_source, left), (right_source, right) = operands
    letters = _letters(step, left, right)
    if letters is None or not isinstance(step.value, Tensor):
        return None
    if any(
        it not in letters[2] and not (it in letters[0] and it in letters[1])
        for it in "".join(letters)
    ):
        return None  # summed over in one operand alone
    return Product(step, (left_source, right_source), left, right, step.value, letters)


def _letters(step: Step, left: Tensor, right: Tensor) -> tuple[str, str, str] | None:
    if step.operation == "einsum":
        return _of_equation(step, left, right)
    if left.dim() < 2 or right.dim() < 2:
        return None
    shared = LETTERS[: max(left.dim(), right.dim()) - 2]
    summed, row, column = "xyz"
    return (
        shared[len(shared) - left.dim() + 2 :] + row + summed,
        shared[len(shared) - right.dim() + 2 :] + summed + column,
        shared + row + column,
    )


def _of_equation(step: Step, left: Tensor, right: Tensor) -> tuple[str, str, str] | None:
    equation = step.arguments[0]
    if not isinstance(equation, str):
        return None
    equation = equation.replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    sides = inputs.split(",")
    if len(sides) != 2:
        return None
    if not arrow:
        everything = "".join(sides)
        output = "".join(sorted(it for it in set(everything) if everything.count(it) == 1))
    free = [it for it in LETTERS.upper() if it not in equation]
    spelled = []
    for side, dim in ((sides[0], left.dim()), (sides[1], right.dim()), (output, None)):
        if dim is None:
            dim = cast(Tensor, step.value).dim()
        rest = dim - len(side.replace("...", ""))
        spelled.append(side.replace("...", "".join(free[:rest][::-1])))
    return spelled[0], spelled[1], spelled[2]
