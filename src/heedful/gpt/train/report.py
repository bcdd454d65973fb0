"""The final report of a run: its validation loss beside a bigram model's, its speed, and a picture of its losses."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heedful.gpt.model import GPT
from heedful.gpt.train.bigram import Bigram
from heedful.gpt.train.history import StepLosses
from heedful.gpt.train.loss import mean_loss
from heedful.gpt.train.run import Run
from heedful.writing import reserved

REPORT, CURVE = "report.txt", "losses.png"


@dataclass(frozen=True)
class TrainingReport:
    """The results of a run.

    Attributes:
        parameters: the number of the model's parameters.
        validation: the model's loss in nats per token, of all validation tokens.
        bigram: the bigram model's loss of the same tokens.
        validation_tokens: the number of these tokens.
        steps: the number of steps taken.
        planned: the number of steps planned.
        tokens: the number of training tokens read.
        precision: the precision of training.
        spent: seconds by purpose.
    """

    parameters: int
    validation: float
    bigram: float
    validation_tokens: int
    steps: int
    planned: int
    tokens: int
    precision: str
    spent: dict[str, float]

    def __str__(self) -> str:
        total, gain = sum(self.spent.values()), self.bigram - self.validation
        shares = ", ".join(
            f"{purpose} {seconds / total:.0%}" for purpose, seconds in self.spent.items()
        )
        early = "" if self.steps == self.planned else f" of {self.planned}: the time was up"
        return "\n".join(
            [
                f"validation loss   {self.validation:.3f} nats per token, of {self.validation_tokens:,} tokens",
                f"bigram model      {self.bigram:.3f} nats per token, of the same tokens (interpolated, Kneser–Ney)",
                f"                  {abs(gain):.3f} {'below' if gain > 0 else 'above'} the bigram model",
                f"parameters        {self.parameters:,}",
                f"steps             {self.steps:,}{early}, {self.tokens:,} tokens, in {self.precision}",
                f"speed             {self.tokens / self.spent['steps']:,.0f} tokens/s",
                f"time              {int(total // 60)}:{int(total % 60):02d} minutes: {shares}",
            ]
        )


def write_report(run: Run, model: GPT) -> TrainingReport:
    """Evaluate a finished run on all validation tokens, and write the report and the picture into its folder.

    Args:
        run: the run.
        model: its model, with all weights.

    Raises:
        ArgumentError: a file cannot be written.
    """
    trainer, config, validation = run.trainer, run.trainer.config, run.corpus.validation
    with run.clock.spending("validation"):
        loss = mean_loss(model, validation, config.batch_size, config.precision)
    with run.clock.spending("bigram model"):
        counted = Bigram(run.corpus.train.tokens, run.tokenizer.vocab_size)
        bigram = counted.loss(validation.tokens)
    with run.clock.spending("saving"):
        draw_losses(run.folder / CURVE, run.history, bigram)
    report = TrainingReport(
        parameters=model.parameter_count,
        validation=loss,
        bigram=bigram,
        validation_tokens=len(validation) - 1,
        steps=trainer.step,
        planned=run.record.steps,
        tokens=run.tokens,
        precision=config.precision,
        spent=dict(run.clock.spent),
    )
    with reserved(run.folder / REPORT, "--out") as write:
        write(f"{report}\n")
    return report


def draw_losses(path: Path, history: Sequence[StepLosses], bigram: float) -> None:
    """Draw the training and validation losses against the tokens read, with the bigram model's loss, as PNG.

    Raises:
        ArgumentError: the file cannot be written.
    """
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports] - an extra

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(
        [row.tokens for row in history],
        [row.training for row in history],
        linewidth=0.6,
        alpha=0.5,
        label="training, each step's batch",
    )
    measured = [(row.tokens, row.validation) for row in history if row.validation is not None]
    axes.plot(*zip(*measured, strict=True), "o-", markersize=3, label="validation")
    axes.axhline(
        bigram, color="gray", linestyle="--", label="interpolated bigram model, validation"
    )
    axes.set_xlabel("tokens read")
    axes.set_ylabel("loss, nats per token")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    with reserved(path, "--out") as write:
        write(content.getvalue())
