"""The mesh of a run: how many ranks share its rows, its tokens and its heads."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass

from heedful.errors import ArgumentError
from heedful.gpt.config import GPTConfig

OPTION = "--mesh"
LAUNCHED = "torchrun --nproc-per-node {ranks} -m heedful train … --mesh {mesh}"


@dataclass(frozen=True)
class Mesh:
    """The sizes of a mesh of ranks. The last dimension runs fastest.

    Attributes:
        dp: how many parts the rows of a batch are divided into (data parallelism).
        cp: how many parts the tokens of a row are divided into (context parallelism).
        tp: how many parts the heads and the features of MLPs are divided into (tensor parallelism).

    Examples:
        >>> mesh = Mesh.parse("dp=2,cp=3")
        >>> str(mesh), mesh.ranks
        ('dp=2,cp=3,tp=1', 6)
    """

    dp: int = 1
    cp: int = 1
    tp: int = 1

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Read the sizes of a mesh, such as "dp=2,cp=2,tp=1"; a dimension that is left out has the size 1.

        Raises:
            ArgumentError: a dimension is unknown or there twice, or its size is not a positive whole number.
        """
        sizes: dict[str, int] = {}
        for part in text.split(","):
            name, _, size = (piece.strip() for piece in part.partition("="))
            if name not in asdict(cls()) or name in sizes or not size.isdecimal() or int(size) < 1:
                raise ArgumentError(
                    OPTION,
                    expected="sizes of at least 1 of dp (rows), cp (tokens) and tp (heads), each at most once, "
                    "as dp=2,cp=2,tp=1",
                    received=repr(part),
                    remedy="A dimension that is left out has the size 1.",
                )
            sizes[name] = int(size)
        return cls(**sizes)

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in asdict(self).items())

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.dp * self.cp * self.tp

    def check_fits(self, shape: GPTConfig, batch_size: int) -> None:
        """Raise `ArgumentError` unless the mesh divides batches and a model of this shape."""
        for size, name, number, remedy in (
            (self.dp, "batch_size", batch_size, "Choose another batch_size, or another dp."),
            (self.cp, "context_length", shape.context_length, "Choose another context, or cp."),
            (self.tp, "num_kv_heads", shape.num_kv_heads, "Choose another number of heads, or tp."),
            (self.tp, "d_mlp", shape.d_mlp, "Choose another d_mlp, or another tp."),
        ):
            if number % size:
                raise ArgumentError(
                    name,
                    expected=f"a multiple of {size}, because of {OPTION} {self}",
                    received=str(number),
                    remedy=remedy,
                )


def launched_ranks() -> int | None:
    """Return how many processes torchrun has started; None without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if "WORLD_SIZE" in os.environ else None


def launched_rank() -> int:
    """Return the number of this process among those that torchrun has started; 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


def choose_mesh(text: str | None) -> Mesh | None:
    """Return the mesh that the command line asks for, for the processes that torchrun has started.

    Args:
        text: the value of the option; None without it.

    Returns:
        The mesh; None for one process without a mesh.

    Raises:
        ArgumentError: the text is no mesh, or there are more or fewer processes than it has ranks.
    """
    started = launched_ranks()
    if text is None:
        if started is not None and started > 1:
            raise ArgumentError(
                OPTION,
                expected=f"the sizes of a mesh of {started} ranks, because torchrun has started that many",
                received="no mesh",
                remedy=f"For example: {LAUNCHED.format(ranks=started, mesh=f'dp={started}')}",
            )
        return None
    mesh = Mesh.parse(text)
    if started != mesh.ranks:
        raise ArgumentError(
            OPTION,
            expected=f"{mesh.ranks} processes, which torchrun starts",
            received="one process, without torchrun"
            if started is None
            else f"{started} that torchrun has started",
            remedy=f"Run: {LAUNCHED.format(ranks=mesh.ranks, mesh=text)}",
        )
    return mesh
