"""The command `heedful show`: from a target's name to a page."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from heedful.conformance.calling.command_examples import evaluated_example, evaluated_values
from heedful.conformance.calling.exceptions import described_with_line
from heedful.conformance.calling.loading import loaded
from heedful.conformance.calling.options import in_command
from heedful.conformance.command import pairs
from heedful.errors import ArgumentError, HeedfulError
from heedful.screen import print_out, visible
from heedful.viewer import what_if as what_if_page
from heedful.viewer.page import Page, View, check_name
from heedful.viewer.steps.discovery import recording_of_target
from heedful.viewer.steps.recording import Recording

SEED = 123
"""The seed of weights and tokens: targets that are built alike get the same ones."""


def show(
    target: str | None,
    *,
    what_if: bool,
    beside: str | None,
    assignments: Sequence[str],
    example: str | None,
    causal: bool | None,
    module: str | None,
    labels: str | None,
    out: Path,
) -> None:
    """Write a page, or a picture, of what a target computes.

    Args:
        target: The target as "path/to/file.py:Name" or "package.module:Name".
        what_if: Write the page on which the reader changes a small attention instead.
        beside: Another target, to be shown side by side.
        assignments: Arguments of the constructor as "name=value". Each value is a Python literal, an
            expression, or else text.
        example: The arguments of a call as a Python expression.
        causal: Whether the call should be causal, if an argument decides that.
        module: The name of a module within the target, which is shown instead.
        labels: The tokens' labels, separated by spaces; they also say how many tokens there are.
        out: The file: .html, .svg or .png.

    Raises:
        ArgumentError: An option cannot be used, or the target cannot be imported, built or called.
        MissingExtraError: A picture needs Matplotlib, which is not installed.
    """
    check_name(out, "--out")
    if what_if == (target is not None):
        raise ArgumentError(
            "TARGET",
            expected="a target, --what-if or --model",
            received="a target and --what-if" if what_if else "none of them",
            remedy="Write heedful show my.py:Attention, heedful show --what-if, "
            'or heedful show --model FOLDER --text "…".',
        )
    if target is None:
        page = what_if_page()
    else:
        names = [target] if beside is None else [target, beside]
        words = None if labels is None else labels.split()
        values = dict(pairs(assignments, "--with"))
        recordings = tuple(
            _recorded(name, words, values, example, causal, module) for name in names
        )
        title = " beside ".join(it.title for it in recordings)
        note = "" if example else "Its weights and tokens are random numbers."
        page = Page(title, (View(recordings),), introduction=note)
    page.save(out, "--out")
    print_out(f"Wrote {visible(str(out))}.")


def check_unused(options: Mapping[str, object], model: str | None) -> None:
    """Raise `ArgumentError` if options are given that do not go with the subject: a model, or something else."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ArgumentError(
            ", ".join(given),
            expected="no such option without --model"
            if model is None
            else "no such option with --model",
            received="it" if len(given) == 1 else "them",
            remedy="`heedful show --help` says what goes together.",
        )


def _recorded(
    target: str,
    labels: Sequence[str] | None,
    arguments: dict[str, str],
    example: str | None,
    causal: bool | None,
    module: str | None,
) -> Recording:
    try:
        with (
            in_command(),
            contextlib.redirect_stdout(sys.stderr),
            torch.random.fork_rng(devices=[]),
            loaded(target) as definition,
        ):
            torch.manual_seed(SEED)
            given = None if example is None else evaluated_example(example, target)
            return recording_of_target(
                definition,
                labels,
                arguments=evaluated_values(arguments, target),
                example=given,
                causal=causal,
                module=module,
            )
    except HeedfulError:
        raise
    except Exception as error:  # the target's code runs and may raise anything
        raise ArgumentError(
            "TARGET",
            expected="a module that can be imported, built and called",
            received=f"{target}, which raises {described_with_line(error)}",
            remedy="Import it and call it in Python to see where that happens.",
        ) from error
