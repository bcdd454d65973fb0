"""The command `heedful generate`: its options."""

from pathlib import Path
from typing import Annotated

import typer


def generate(
    folder: Annotated[
        Path,
        typer.Option(
            "--from",
            metavar="DIR",
            help="A folder that heedful train wrote, or a GPT-2 or Llama of transformers with its tokenizer.json.",
        ),
    ] = Path("gpt"),
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="The beginning of the text; - reads it from stdin. Repeatable, for a batch of texts.",
        ),
    ] = None,
    tokens: Annotated[
        int, typer.Option(metavar="N", help="The maximum number of new tokens.")
    ] = 200,
    temperature: Annotated[
        float,
        typer.Option(
            metavar="T",
            help="0 always takes the most likely token; 1 samples from the model's probabilities.",
        ),
    ] = 0.8,
    top_k: Annotated[
        int | None,
        typer.Option(metavar="K", help="Sample only from the K most likely tokens."),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="Sample only from the most likely tokens whose probabilities add up to P.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="The seed; the same seed gives the same text.")
    ] = None,
) -> None:
    """Continue a text with a GPT that heedful train made, or with a GPT-2 or Llama of transformers.

    When a text grows beyond the model's context, the oldest half of the context is dropped. Exits with 2 if an
    argument cannot be used.
    """
    from heedful.gpt.command import print_continuations
    from heedful.gpt.generation import Sampling

    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    print_continuations(folder, prompt or [""], tokens=tokens, sampling=sampling)
