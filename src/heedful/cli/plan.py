"""The command `heedful plan`: its options."""

from typing import Annotated, Literal

import typer

from heedful.cli.options import Json


def plan(
    tokens: Annotated[
        str, typer.Option(metavar="N", help="The number of all tokens, such as 128K or 1M.")
    ],
    heads: Annotated[int, typer.Option(metavar="N", min=1, help="The number of query heads.")],
    head_size: Annotated[int, typer.Option(metavar="N", min=1, help="The head size.")],
    ranks: Annotated[int, typer.Option(metavar="N", min=1, help="The number of ranks.")],
    bandwidth: Annotated[
        str,
        typer.Option(
            metavar="RATE",
            help="What a rank sends, and receives at the same time, such as 50GB/s.",
        ),
    ],
    key_heads: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="The number of key heads. Default: as many as query heads."
        ),
    ] = None,
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="The number of sequences.")] = 1,
    dtype: Annotated[
        Literal["fp32", "bf16", "fp16", "fp64"],
        typer.Option(help="The dtype of query, key and value."),
    ] = "fp32",
    mask: Annotated[
        str,
        typer.Option(
            metavar="MASK",
            help="causal, full, window:SIZE, or documents:LENGTH,…: packed documents of these lengths in turn.",
        ),
    ] = "causal",
    latency: Annotated[
        float, typer.Option(metavar="US", min=0.0, help="The microseconds that a message takes.")
    ] = 0.0,
    flops: Annotated[
        str,
        typer.Option(
            metavar="RATE",
            help="What attention reaches on a rank, such as 300TFLOP/s, a share of the data sheet's peak. Default: "
            "measured on this machine.",
            show_default=False,
        ),
    ] = "measured",
    float32_flops: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="The same in float32, in which the ring computes bf16 and fp16. Default: as --flops.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Predict time, memory and bytes of attention over many ranks, and recommend ring, Ulysses, or both.

    The model and its error are in docs/scaling.md. Exits with 2 if an argument cannot be used.
    """
    from heedful.planning.command import print_plan

    print_plan(
        tokens=tokens,
        ranks=ranks,
        sizes={
            "batch": batch,
            "query_heads": heads,
            "key_heads": key_heads or heads,
            "head_size": head_size,
            "value_size": head_size,
        },
        dtype=dtype,
        mask=mask,
        bandwidth=bandwidth,
        latency=latency,
        flops=flops,
        float32_flops=float32_flops,
        json=json,
    )
