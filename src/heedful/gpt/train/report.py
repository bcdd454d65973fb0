"""What came of a run: its validation loss beside the bigram model's, its speed, and where the time went."""

from __future__ import annotations

from dataclasses import dataclass

from heedful.gpt.train.bigram import Bigram
from heedful.gpt.train.loss import mean_loss
from heedful.gpt.train.history import write_curve
from heedful.gpt.train.run import Run
from heedful.writing import reserved

REPORT, CURVE = "report.txt", "losses.png"


@dataclass(frozen=True)
class RunReport:
    """Losses in nats per token, of the same validation tokens."""

    parameters: int
    validation: float
    bigram: float
    validation_tokens: int
    steps: int
    planned: int
    tokens: int
    precision: str
    spent: dict[str, float]  # seconds by what they were spent on

    def __str__(self) -> str:
        seconds, gain = sum(self.spent.values()), self.bigram - self.validation
        shares = ", ".join(f"{what} {s / seconds:.0%}" for what, s in self.spent.items())
        early = "" if self.steps == self.planned else f" of {self.planned}: the time was up"
        return "\n".join(
            [
                f"validation loss   {self.validation:.3f} nats per token, of {self.validation_tokens:,} tokens",
                f"bigram model      {self.bigram:.3f} nats per token, of the same tokens (interpolated, Kneser–Ney)",
                f"                  {abs(gain):.3f} {'below' if gain > 0 else 'above'} the bigram model",
                f"parameters        {self.parameters:,}",
                f"steps             {self.steps:,}{early}, {self.tokens:,} tokens, in {self.precision}",
                f"speed             {self.tokens / self.spent['steps']:,.0f} tokens/s",
                f"time              {int(seconds // 60)}:{int(seconds % 60):02d} minutes: {shares}",
            ]
        )


def report(run: Run) -> RunReport:
    """Take all validation tokens, beside the bigram model; write the report and the curve into the run's folder.

    Raises:
        ArgumentError: they cannot be written.
    """
    trainer, config, validation = run.trainer, run.trainer.config, run.corpus.validation
    with run.clock.spending("validation"):
        loss = mean_loss(trainer.model, validation, config.batch_size, config.precision)
    with run.clock.spending("bigram model"):
        model = Bigram(run.corpus.train.tokens, run.tokenizer.vocab_size)
        bigram = model.loss(validation.tokens)
    with run.clock.spending("saving"):
        write_curve(run.folder / CURVE, run.history, bigram)
    found = RunReport(
        parameters=sum(parameter.numel() for parameter in trainer.model.parameters()),
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
        write(f"{found}\n")
    return found
