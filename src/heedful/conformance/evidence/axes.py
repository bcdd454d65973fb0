"""The axes of a product of two tensors: rows, columns, the axes summed over and those that both operands share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from torch import Tensor

from heedful.observation import Source, Step

LETTERS = "abcdefghijklmnopqrstuvwxyz"
Letters = tuple[str, str, str]


@dataclass(frozen=True, eq=False)
class Product:
    """A product of two tensors whose axes have letters, as in an equation of torch.einsum: left, right -> out.

    Attributes:
        step: The step that computed it.
        sources: The sources of both operands.
        left: The left operand.
        right: The right operand.
        out: The result.
        letters: The letters of the axes of `left`, `right` and `out`.
    """

    step: Step
    sources: tuple[Source, Source]
    left: Tensor
    right: Tensor
    out: Tensor
    letters: Letters

    @property
    def summed(self) -> str:
        """The letters of the axes summed over: those of both operands that the result lacks."""
        left, right, out = self.letters
        return "".join(letter for letter in left if letter in right and letter not in out)

    def own(self, side: int) -> str:
        """Return the letters of the result that only one operand has (0: left, 1: right)."""
        operand, other, out = self.letters[side], self.letters[1 - side], self.letters[2]
        return "".join(letter for letter in out if letter in operand and letter not in other)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis by its letter; a broadcast axis has the size that it has in the result."""
        sizes: dict[str, int] = {}
        for tensor, letters in zip((self.left, self.right, self.out), self.letters, strict=True):
            for letter, size in zip(letters, tensor.shape, strict=True):
                sizes[letter] = max(sizes.get(letter, 1), size)
        return sizes

    def operand(self, side: int, last: str, rows: str, order_of: int | None = None) -> Tensor:
        """Return an operand as (L, …, …): two axes at the end, and all others flattened into L.

        An axis that only the other operand has is repeated, so that both operands have the same L. The exception is
        the axis of the other operand's rows, which corresponds to one of the two last axes here.

        Args:
            side: The operand (0: left, 1: right).
            last: The letters of the two axes that come last.
            rows: The letter of the other operand's rows.
            order_of: The operand in whose order the axes are flattened, if it has all of them; the result by default.
        """
        tensor, letters = (self.left, self.right)[side], self.letters[side]
        leading = [letter for letter in self.letters[2] if letter not in last + rows]
        ordered = "" if order_of is None else self.letters[order_of]
        if set(leading) <= set(ordered):
            leading.sort(key=ordered.index)
        missing = [letter for letter in leading if letter not in letters]
        present = letters + "".join(missing)
        order = [*leading, *last]
        sizes = self.sizes
        view = tensor[(..., *[None] * len(missing))]
        view = view.permute([present.index(letter) for letter in order])
        view = view.expand([sizes[letter] for letter in order])
        return view.reshape(-1, *(sizes[letter] for letter in last))


def with_pixels_as_one(product: Product, tokens: int) -> Product:
    """Return a product in which several neighboring axes that together hold the tokens, as pixels do, are one axis.

    Neighboring axes that are summed over are one axis, too.
    """
    pairs = {pair for letters in product.letters for pair in pairwise(letters)}
    for pair in sorted(pairs):
        if _may_be_one(product, pair, tokens):
            merged = [
                _merged(tensor, letters, pair)
                for tensor, letters in zip(
                    (product.left, product.right, product.out), product.letters, strict=True
                )
            ]
            tensors, letters = zip(*merged, strict=True)
            left, right, out = tensors
            one = Product(product.step, product.sources, left, right, out, letters)
            return with_pixels_as_one(one, tokens)
    return product


def _may_be_one(product: Product, pair: tuple[str, str], tokens: int) -> bool:
    """Check whether two axes are neighbors wherever they are, and are summed over, or hold the tokens together."""
    sizes, word = product.sizes, "".join(pair)
    holding = [
        (tensor, letters)
        for tensor, letters in zip(
            (product.left, product.right, product.out), product.letters, strict=True
        )
        if set(pair) & set(letters)
    ]
    if not all(word in letters for _, letters in holding):
        return False
    broadcast = any(
        tensor.shape[letters.index(letter)] != sizes[letter]
        for tensor, letters in holding
        for letter in pair
    )
    if broadcast:
        return False
    if set(pair) <= set(product.summed):
        return True
    own = next((own for side in (0, 1) if set(pair) <= set(own := product.own(side))), "")
    return bool(own) and sizes[pair[0]] * sizes[pair[1]] == tokens and 1 < sizes[pair[0]] < tokens


def _merged(tensor: Tensor, letters: str, pair: tuple[str, str]) -> tuple[Tensor, str]:
    """Return a tensor in which two neighboring axes are one, and its letters; the same ones if it has no such axes."""
    axis = letters.find("".join(pair))
    if axis < 0:
        return tensor, letters
    return tensor.flatten(axis, axis + 1), letters.replace("".join(pair), pair[0])


def token_letter(product: Product, side: int, tokens: int, order: str = "") -> str:
    """Return the letter of the axis that an operand's own rows lie along; "" if it has none.

    If it has several own axes, such as groups of heads beside the queries, the last one whose size is the number of
    tokens is chosen.

    Args:
        product: The product.
        side: The operand (0: left, 1: right).
        tokens: The number of tokens.
        order: The letters in the order that decides which one is last; the order in the result by default.
    """
    own = product.own(side)
    own = "".join(letter for letter in (order or own) if letter in own)
    fitting = [letter for letter in own if product.sizes[letter] == tokens]
    return (fitting or list(own) or [""])[-1]


def product_of(step: Step, operands: Sequence[tuple[Source, Tensor]]) -> Product | None:
    """Return a step that multiplies two tensors with letters for its axes; None if it does something else."""
    (left_source, left), (right_source, right) = operands
    letters = _letters(step, left, right)
    if letters is None or not isinstance(step.value, Tensor):
        return None
    in_left, in_right, in_out = letters
    if any(
        letter not in in_out and not (letter in in_left and letter in in_right)
        for letter in in_left + in_right
    ):
        return None  # an axis of one operand alone is summed over
    return Product(step, (left_source, right_source), left, right, step.value, letters)


def _letters(step: Step, left: Tensor, right: Tensor) -> Letters | None:
    if step.operation == "einsum":
        return _letters_of_equation(step, left, right)
    if left.dim() < 2 or right.dim() < 2:
        return None
    shared = LETTERS[: max(left.dim(), right.dim()) - 2]
    summed, row, column = "xyz"
    return (
        shared[len(shared) - left.dim() + 2 :] + row + summed,
        shared[len(shared) - right.dim() + 2 :] + summed + column,
        shared + row + column,
    )


def letters_in(equation: str) -> Letters | None:
    """Return the letters of an einsum equation's two operands and of its result; None if there are not two."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    sides = inputs.split(",")
    if len(sides) != 2:
        return None
    if not arrow:
        both = "".join(sides)
        output = "".join(sorted(letter for letter in set(both) if both.count(letter) == 1))
    return sides[0], sides[1], output


def _letters_of_equation(step: Step, left: Tensor, right: Tensor) -> Letters | None:
    """Return the letters in an einsum equation, with "..." written out and an implicit result made explicit."""
    equation = step.arguments[0]
    letters = letters_in(equation) if isinstance(equation, str) else None
    if letters is None or not isinstance(equation, str):
        return None
    left_letters, right_letters, output = letters
    free = [letter for letter in LETTERS.upper() if letter not in equation]

    def written_out(letters: str, dimensions: int) -> str:
        """Replace "..." by letters; equal leading axes get equal letters, counted from the last one."""
        hidden = dimensions - len(letters.replace("...", ""))
        return letters.replace("...", "".join(free[:hidden][::-1]))

    result = cast(Tensor, step.value)
    return (
        written_out(left_letters, left.dim()),
        written_out(right_letters, right.dim()),
        written_out(output, result.dim()),
    )
