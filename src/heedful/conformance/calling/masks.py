"""Find out, by trial, which arguments of a target are masks, in which form, and whether True keeps or hides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.conformance.calling import names
from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.convention import MEMORY
from heedful.conformance.calling.documentation import documented_arguments
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.handed_masks import documenting_part
from heedful.conformance.calling.layouts import documented_axes
from heedful.conformance.calling.mask_forms import (
    AFTER_FIRST,
    ATTENTION_FORMS,
    LENGTHS,
    PADDING_FORMS,
    MaskArgument,
    Masks,
    mask_tensor,
)
from heedful.conformance.calling.mask_traces import (
    axes_of_scores,
    is_read_as_list,
    is_read_as_truth,
)
from heedful.conformance.calling.names import Names
from heedful.conformance.calling.polarity import (
    documented_polarity,
    is_documented_as_additive,
    suggests_real_tokens,
)
from heedful.conformance.calling.position_argument import find_positions
from heedful.conformance.calling.resizing import Resized, is_binary
from heedful.conformance.calling.roles import OfMemory
from heedful.conformance.calling.target import is_from_torch
from heedful.conformance.recording.conditions import has_own_default
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.forwarding import parameter_is_read
from heedful.conformance.recording.inputs import Inputs
from heedful.observation.leaves import leaves_of

TOKENS, SEQUENCES = 5, 3  # unlike the numbers of heads that masks are broadcast over
MAX_UNKNOWN = 2  # arguments of unknown names that are tried as masks
FAINT = 1e-2  # the largest share of a hidden token's effect that an imperfect mask may leave
SIMILAR = 1.05  # what leaves no more than this times the smallest share is as good, and the likelier form is taken
MASK_WORDS = ("mask", "pad", "valid", "keep", "visible")


class _Trial(NamedTuple):
    """A mask argument that runs, and the share of a hidden token's effect that it leaves."""

    argument: MaskArgument
    remaining: float


def find_masks(caller: Caller, max_length: int | None) -> Masks:
    """Return the arguments by which a target takes masks."""
    if max_length is not None and max_length < _sizes(caller)[1]:
        masks = Masks()
    else:
        masks = _distinct(_find_padding(caller), _find_attention_mask(caller))
        masks = replace(masks, weak=_weak_masks(caller, masks))
    positions = find_positions(caller.with_masks(masks))
    return replace(masks, positions=positions)


def _find_padding(caller: Caller) -> MaskArgument | None:
    forms = (*PADDING_FORMS, AFTER_FIRST)
    padding = _first_fitting(caller, _candidates(caller, names.PADDING_MASKS, forms))
    if padding is not None and padding.effective:
        return padding
    others = (*_unknown(caller), *_given_masks(caller))
    unknown = _first_hiding(caller, _candidates(caller, others, PADDING_FORMS))
    if unknown is not None:
        return unknown
    lengths = map(_as_lengths, _called_lengths(caller))
    by_name = _first_fitting(caller, lengths) or padding
    if by_name is not None:
        return by_name
    by_word = (*said_to_be_masks(caller), *_masks_within(caller))
    said = _first_fitting(caller, _candidates(caller, by_word, PADDING_FORMS))
    if said is None or said.effective or said.declared is not None:
        return said
    return None if said.dtype.is_floating_point or not _is_truth(caller, said) else said


def _weak_masks(caller: Caller, found: Masks) -> tuple[MaskArgument, ...]:
    """Return arguments for padding that have an effect, but do not hide a token as they should.

    They are a second mask, beside one that does, or lengths.
    """
    known = {it.name for it in (found.padding, found.attention_mask) if it is not None and it.hides}
    others = (name for name in names.PADDING_MASKS if known and name not in known)
    forms = PADDING_FORMS[:1]  # no other form tells that it is a mask of tokens
    fitting = [_first_fitting(caller, _candidates(caller, (name,), forms)) for name in others]
    if found.padding is None:
        trials = (_trial(caller, it) for it in map(_as_lengths, _called_lengths(caller)))
        fitting += [it.argument for it in trials if it is not None]
    return tuple(it for it in fitting if it is not None and it.effective and not it.hides)


def _as_lengths(name: str) -> MaskArgument:
    return MaskArgument(name, LENGTHS, torch.int64, True)


def _find_attention_mask(caller: Caller) -> MaskArgument | None:
    by_caller = caller.convention.visible_keys is not None and not is_from_torch(caller.module)
    forms = ATTENTION_FORMS[::-1] if by_caller else ATTENTION_FORMS  # models make one for all heads
    known = (*names.ATTENTION_MASKS, *names.ADDED_MASKS)
    attention = _first_fitting(caller, _candidates(caller, known, forms))
    if attention is not None and attention.effective:
        return attention
    return _first_hiding(caller, _candidates(caller, _unknown(caller), forms)) or attention


def masks_by_name(caller: Caller) -> Names:
    """Return the arguments that their names, or the docstrings, call masks."""
    named = (name for name in caller.parameters if name in names.MASKS)
    return tuple(dict.fromkeys((*named, *said_to_be_masks(caller))))


def _unknown(caller: Caller) -> Names:
    """Return the arguments of no conventional name that may be masks: they are required, or None by default.

    What an example gives is not replaced.
    """
    convention = caller.convention
    given = convention.constants if convention.from_example else ()
    optional = (name for name, it in caller.target.parameters.items() if it.default is None)
    required = (
        name
        for name, value in convention.constants.items()
        if value is not MEMORY and not isinstance(value, OfMemory)
    )
    candidates = (name for name in (*required, *optional) if name not in given)
    found = (
        name
        for name in candidates
        if name not in names.OF_KNOWN_ROLES and not names.NO_MASKS.search(name)
    )
    return tuple(dict.fromkeys(found))[:MAX_UNKNOWN]


def _called_lengths(caller: Caller) -> Names:
    """Return the arguments that their names, or the docstrings, call lengths."""
    word_for = caller.convention.word_for
    leaves = (leaf for leaf in caller.convention.leaves if "len" in word_for(leaf).lower())
    known = _among(caller, names.VALID_LENGTHS)
    said = _said_to_be_lengths(caller)
    return tuple(dict.fromkeys((*known, *said, *leaves, *_given_lengths(caller))))


def _said_to_be_lengths(caller: Caller) -> Names:
    """Return the arguments of unknown names that their names, or the docstrings, call lengths."""
    return tuple(
        name
        for name in _unknown(caller)
        if "len" in name.lower()
        or [len(axes) for axes in documented_axes(caller.target.callee, name)][:1] == [1]
    )


def _given_lengths(caller: Caller) -> Iterator[str]:
    """Yield the arguments of an example that may be lengths: a number for each sequence, the largest one T."""
    for name, given in caller.convention.constants.items():
        value = given.value if isinstance(given, Resized) else None
        if isinstance(given, Resized) and isinstance(value, Tensor) and value.dtype == torch.int64:
            of_sequences = given.axes.of(value.shape) == "B"
            if of_sequences and int(value.min()) > 0 and int(value.max()) == given.axes.T:
                yield name


def _given_masks(caller: Caller) -> Names:
    """Return the arguments of an example, of unknown names, that hold 1 and 0 for tokens and are called masks."""
    documented = documented_arguments(caller.target.callee)
    return tuple(
        name
        for name, given in caller.convention.constants.items()
        if isinstance(given, Resized) and given.is_mask_of_keys
        if name not in names.OF_KNOWN_ROLES and name in caller.target.parameters
        if any(word in f"{name} {documented.get(name, '')}".lower() for word in MASK_WORDS)
    )


def _masks_within(caller: Caller) -> Names:
    """Return the words, of no known role, that call leaves within an example's arguments masks."""
    words = dict.fromkeys(map(caller.convention.word_for, caller.convention.leaves))
    unknown = (word for word in words if word not in names.OF_KNOWN_ROLES)
    return tuple(word for word in unknown if any(it in word.lower() for it in MASK_WORDS))


def said_to_be_masks(caller: Caller) -> Names:
    """Return the arguments of unknown names that their names, or the docstrings, call masks of padding."""
    documented = documented_arguments(caller.target.callee)
    return tuple(
        name
        for name in _unknown(caller)
        if any(word in f"{name} {documented.get(name, '')}".lower() for word in MASK_WORDS)
        or documented_polarity(documented.get(name, "")) is not None
    )


def _first_hiding(caller: Caller, candidates: Iterable[MaskArgument]) -> MaskArgument | None:
    """Return the first argument that hides a token completely, which no other kind of argument does."""
    trials = (_trial(caller, candidate) for candidate in candidates)
    hiding = (it.argument for it in trials if it is not None and it.argument.hides)
    effective = (it for it in hiding if it.effective)
    return next(
        (it for it in effective if not (it.dtype.is_floating_point and _is_truth(caller, it))), None
    )


def _is_truth(caller: Caller, argument: MaskArgument) -> bool:
    """Check whether the code takes 1 and 0 from a mask, which is then not added as it is."""
    return is_read_as_truth(caller, _with_mask(caller, argument), argument.name)


def _distinct(padding: MaskArgument | None, attention: MaskArgument | None) -> Masks:
    """Return both arguments; only the one with an effect if they are one argument that takes one of both masks."""
    if padding is None or attention is None or padding.name != attention.name:
        return Masks(padding, attention)
    if padding.effective == attention.effective:
        return Masks(padding, attention)
    return Masks(padding=padding) if padding.effective else Masks(attention_mask=attention)


def _candidates(caller: Caller, known: Names, forms: Sequence[str]) -> Iterator[MaskArgument]:
    """Yield the mask arguments to try, the most likely first.

    A mask is not added to the scores if the docstring, or an example, says what 1 means, and of no other kind if the
    docstring says that it is added. It has a shape that the docstring gives it. The mask of a second sequence is none
    of the first one.
    """
    given, sizes = _given(caller), _sizes(caller)
    documented = documented_arguments(caller.target.callee)
    constants = caller.convention.constants.items()
    of_second = tuple(f"{name}_" for name, value in constants if value is MEMORY)
    for name in (it for it in _among(caller, known) if not it.startswith(of_second)):
        said = documented_polarity(documented.get(name, ""))
        part = documenting_part(caller, name, *sizes) if said is None else None
        said = said if part is None else part.true_keeps
        said = _polarity_of_example(caller.convention.constants.get(name)) if said is None else said
        declared = _usual_polarity(caller, name) if said is None else said
        dtypes = (torch.bool, torch.int64, *([caller.dtype] if said is None else []))
        if name in names.ADDED_MASKS or is_documented_as_additive(documented.get(name, "")):
            declared, dtypes = True, (caller.dtype,)
        example = given.get(name)
        allowed = _documented_forms(caller, name, forms)
        keeps = suggests_real_tokens(name) if declared is None else declared
        arguments = (
            MaskArgument(name, form, dtype, true_keeps, declared)
            for dtype in dtypes
            for form in allowed
            if not isinstance(example, Tensor) or _is_like(example, form, dtype, *sizes)
            for true_keeps in ((True,) if dtype.is_floating_point else (keeps, not keeps))
        )
        is_whole = name in caller.target.parameters  # and no leaf of one
        is_unread = is_whole and not parameter_is_read(caller.target.forward, name)
        yield from islice(arguments, 1) if is_unread else arguments  # no form has an effect then


def _usual_polarity(caller: Caller, name: str) -> bool | None:
    """Return whether True keeps a key by the name of a mask; None if it may be that of the module's own mask."""
    own = has_own_default(caller.target.forward, name)
    return None if own else names.TRUE_KEEPS.get(caller.convention.word_for(name))


def _among(caller: Caller, known: Names) -> Iterator[str]:
    """Yield the arguments of known names, and the leaves within an example's arguments whose keys are such names.

    An argument that is annotated as a text names a kind of mask, as "subsequent" does, and takes none; one whose
    entries the code takes one by one holds numbers.
    """
    annotations = {name: it.annotation for name, it in caller.target.parameters.items()}
    for name in known:
        is_tensor = not _is_text(annotations.get(name)) and not is_read_as_list(caller.target, name)
        if name in caller.parameters and is_tensor:
            yield name
        word_for = caller.convention.word_for
        yield from (leaf for leaf in caller.convention.leaves if word_for(leaf) == name)


def _is_text(annotation: object) -> bool:
    """Check whether an annotation is that of a text, as `str` or `Optional[str]`, and of no tensor."""
    return re.search(r"\bstr\b", str(annotation)) is not None and "Tensor" not in str(annotation)


def _documented_forms(caller: Caller, name: str, forms: Sequence[str]) -> list[str]:
    """Return those of some forms that fit the shapes in an argument's documentation; all of them if it gives none.

    Indices such as [i, j] look like a shape of unknown axes, which counts only if there is no other one.
    """
    shapes = list(documented_axes(caller.target.callee, name))
    shapes = [it for it in shapes if it.strip()] or shapes
    fitting = {
        form
        for form in (*PADDING_FORMS, *ATTENTION_FORMS, LENGTHS)
        if any(_fits(form, shape) for shape in shapes)
    }
    return [form for form in forms if form in fitting] if fitting else list(forms)


def _fits(form: str, documented: str) -> bool:
    """Check whether a form may have a documented shape, in which a blank stands for any axis."""
    letters = [letter for letter in form.strip("()").split(", ") if letter]
    return len(letters) == len(documented) and all(
        said in (" ", letter) or (said == "H" and letter == "1")
        for letter, said in zip(letters, documented, strict=True)
    )


def _given(caller: Caller) -> Mapping[str, object]:
    """Return the arguments of an example; nothing if there is none."""
    if not caller.convention.from_example:
        return {}
    given = caller.convention.arguments(caller.draw(*_sizes(caller)), caller.dtype)
    return {f"{name}{path}": leaf for name, it in given.items() for path, leaf in leaves_of(it)}


def _is_like(example: Tensor, form: str, dtype: torch.dtype, B: int, T: int) -> bool:
    """Check whether masks of a form and a dtype are of the kind that an example has, for B sequences of T tokens.

    A mask whose size does not vary with the number of tokens is one of something else. Numbers 1 and 0 in a floating
    dtype are no mask that is added to the scores.
    """
    if dtype.is_floating_point and bool((example == 1).any()):
        return False
    if form.startswith("(B, ") and example.shape[:1] not in ((1,), (B,)):
        return False
    if form.endswith("T)") and example.shape[-1:] not in ((1,), (T,)):
        return False
    same_axes = form.count(",") + 1 == example.dim() or form == LENGTHS
    of_numbers = example.dtype != torch.bool and bool(((example == 1) | (example == 0)).all())
    same_kind = dtype == example.dtype or (
        dtype == torch.int64
        and (of_numbers or not (example.is_floating_point() or example.dtype == torch.bool))
    )
    return same_axes and same_kind


def _polarity_of_example(given: object) -> bool | None:
    """Return whether 1 marks real tokens in an example's mask (B, T); None if it is no such mask, or does not tell.

    All sequences begin with a real token, and some end with padding, or the other way round.
    """
    mask = given.value if isinstance(given, Resized) else None
    if not isinstance(given, Resized) or not isinstance(mask, Tensor):
        return None
    if mask.dim() != 2 or given.axes.of(mask.shape) != "BT" or not is_binary(mask):
        return None
    for ends, other_ends in ((mask[:, 0], mask[:, -1]), (mask[:, -1], mask[:, 0])):
        if (ends == ends[0]).all() and not (other_ends == other_ends[0]).all():
            return bool(ends[0])
    return None


def _first_fitting(caller: Caller, candidates: Iterable[MaskArgument]) -> MaskArgument | None:
    """Return the first argument that hides a token, if imperfectly; or that has any effect; or that runs."""
    running: list[_Trial] = []
    plain = cache(lambda: axes_of_scores(caller, caller.arguments(caller.draw(*_sizes(caller)))))

    def adds_axes(candidate: MaskArgument) -> bool:
        """Check whether the code adds axes to another form of mask, so that the scores have more of them."""
        return 0 < plain() < axes_of_scores(caller, _with_mask(caller, candidate))

    for candidate in candidates:
        same = [it.argument for it in running if it.argument.name == candidate.name][:1]
        if candidate.dtype.is_floating_point and any(_is_truth(caller, it) for it in same):
            continue
        trial = _trial(caller, candidate)
        if trial is None or (trial.argument.effective and adds_axes(candidate)):
            continue
        nothing_is_left = trial.remaining < FAINT or trial.argument.hides  # also if all is NaN
        if trial.argument.effective and nothing_is_left:
            return trial.argument
        if candidate.form != LENGTHS or _are_lengths(caller, candidate.name):
            running.append(trial)
    effective = [trial for trial in running if trial.argument.effective]
    least = min((trial.remaining for trial in effective), default=0.0)
    best = (trial for trial in effective if trial.remaining <= SIMILAR * least)
    chosen = next(best, running[0] if running else None)
    return chosen and chosen.argument


def _are_lengths(caller: Caller, name: str) -> bool:
    """Check whether a required argument, even if it has no effect, is documented, named or read as a tensor of lengths.

    A length that only a number would be, such as seq_len, says nothing; nor do those of an example, which may be of
    another sequence.
    """
    convention = caller.convention
    if convention.from_example or not callable(convention.constants.get(name)):
        return False
    if [len(axes) for axes in documented_axes(caller.target.callee, name)][:1] == [1]:
        return True
    inputs = caller.draw(*_sizes(caller))
    with torch.no_grad(), caller.isolated():
        steps = caller.trace(caller.arguments(inputs)).steps
    reads = any(it.name == name and it.kind == "input" for step in steps for it in step.inputs)
    return name in names.VALID_LENGTHS or reads


def _with_mask(caller: Caller, argument: MaskArgument) -> dict[str, Any]:
    """Return the arguments of a call with a mask that hides no token."""
    B, T = _sizes(caller)
    mask = mask_tensor(argument, _all_visible(argument, B, T), B, caller.dtype)
    return caller.arguments(caller.draw(B, T)) | {argument.name: mask}


def _trial(caller: Caller, argument: MaskArgument) -> _Trial | None:
    """Hide one token, change it, and compare a row that should not depend on it; None if the form does not run.

    It is hidden in one sequence alone, and in all of them if that has no effect.
    """
    B, T = _sizes(caller)
    inputs, visible = caller.draw(B, T), _all_visible(argument, B, T)
    before = _rows(caller, inputs, argument, visible)
    if before is None:
        return None
    without_effect = _Trial(replace(argument, effective=False, hides=False), float("inf"))
    for sequences in (slice(-1, None), slice(None)):
        masked = _one_hidden(argument, visible, sequences)
        before_masked = _rows(caller, inputs, argument, masked)
        if before_masked is None:
            return without_effect if sequences == slice(None) else None
        if bool(differing_entries(before, before_masked).any()):
            return _trial_of(caller, argument, (visible, masked), (before, before_masked))
    return without_effect


def _one_hidden(argument: MaskArgument, visible: Tensor, sequences: slice) -> Tensor:
    """Return a mask that hides one more token than another one, in some sequences, the last one among them."""
    masked, T = visible.clone(), visible.shape[-1]
    _, hidden = _row_and_hidden(argument)
    masked[sequences, 2 * (argument.form in ATTENTION_FORMS) :, hidden] = False
    return masked | torch.eye(T, dtype=torch.bool)  # a token that sees only itself affects no other


def _row_and_hidden(argument: MaskArgument) -> tuple[int, int]:
    """Return the row that is compared, and the token that is hidden.

    The last row depends on earlier tokens in causal modules too; a length can hide the last token alone.
    """
    return (0, -1) if argument.form == LENGTHS else (-1, -2)


def _trial_of(
    caller: Caller, argument: MaskArgument, masks: Sequence[Tensor], before: Sequence[Tensor]
) -> _Trial | None:
    """Change the hidden token, with masks that show and hide it, under which a run before had other rows."""
    B, T = _sizes(caller)
    row, hidden = _row_and_hidden(argument)
    changed = caller.draw(B, T).changed(B - 1, hidden % T)
    after, after_masked = (_rows(caller, changed, argument, it) for it in masks)
    if after is None or after_masked is None:
        return None
    effect = (after - before[0])[row].abs().max().item()
    remaining = (after_masked - before[1])[row].abs().max().item()
    share = remaining / effect if effect > 0 else float("inf")
    hides = effect > 0 and not differing_entries(before[1][row], after_masked[row]).any()
    return _Trial(replace(argument, effective=True, hides=hides), share)


def _sizes(caller: Caller) -> tuple[int, int]:
    """Return the B and T of a trial; an example's own sizes are left to its own masks."""
    if caller.fixed_sizes is not None and not caller.convention.from_example:
        return caller.fixed_sizes
    return (SEQUENCES if caller.batched else 1), TOKENS


def _all_visible(argument: MaskArgument, B: int, T: int) -> Tensor:
    """Return a mask without effect for padding; in forms with queries, the first two see all, the others one another.

    A padding mask that is taken for such a form shows every token: its rows, one per sequence, are then the first two.
    """
    if argument.form not in ATTENTION_FORMS:
        return torch.ones(B, T, T, dtype=torch.bool)
    visible = torch.ones(1, T, T, dtype=torch.bool)
    visible[:, 2:, :2] = False
    return visible


def _rows(caller: Caller, inputs: Inputs, argument: MaskArgument, visible: Tensor) -> Tensor | None:
    """Return the rows (T, …) of the last sequence under a mask; None if the target does not take it."""
    mask = mask_tensor(argument, visible, inputs.sizes[0], caller.dtype)
    with torch.no_grad():
        output = attempt(
            lambda: caller.call(caller.arguments(inputs) | {argument.name: mask}, inputs)
        )
    return None if isinstance(output, Exception) else output[-1]
