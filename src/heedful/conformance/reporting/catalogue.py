"""Every finding's name: what is wrong, how a probe shows it, and what to write instead."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from heedful.conformance.reporting.finding import Finding, Level
from heedful.errors import ArgumentError


@dataclass(frozen=True)
class Entry:
    """A kind of finding.

    Attributes:
        name: stable: what reports print, `--explain` takes and expected failures are called by.
        level: the usual one; a single finding may be less sure.
        meaning: what is wrong in the code.
        proof: how a probe shows it.
        remedy: what to write instead.
    """

    name: str
    level: Level
    meaning: str
    proof: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name} ({self.level})\n{self.meaning}\nShown by: {self.proof}\nRemedy: {self.remedy}"


def explained(name: str, argument: str) -> Entry:
    """The entry of a name.

    Args:
        name: such as "scale-missing".
        argument: what the caller gave it as, for the error.

    Raises:
        ArgumentError: there is no finding of that name; the text lists close ones.
    """
    if name not in CATALOGUE:
        close = difflib.get_close_matches(name, CATALOGUE, n=3, cutoff=0.4)
        raise ArgumentError(
            argument,
            expected=f"the name of a finding{' such as ' if close else ''}{' or '.join(close)}",
            received=repr(name),
            remedy="`heedful check --list` prints them all.",
        )
    return CATALOGUE[name]


_MASKS = (
    Entry(
        "mask-unused",
        "bug",
        "A mask is made or accepted, and has no effect: nobody takes the tensor that masked_fill() returns, or nothing "
        "reads the argument.",
        "Output i changes with a token that the mask hides, or not at all with the mask; a recorded masking step whose "
        "result nothing uses.",
        "Use what masked_fill() returns, scores = scores.masked_fill(hidden, float('-inf')), or write masked_fill_().",
    ),
    Entry(
        "mask-inverted",
        "bug",
        "The mask hides what it should keep: True is read the other way round.",
        "Outputs change with exactly the tokens that should be hidden, and not with those that should be seen.",
        "Negate the mask (~mask). masked_fill() fills where True; scaled_dot_product_attention() attends where True; "
        "nn.MultiheadAttention hides where True.",
    ),
    Entry(
        "mask-after-softmax",
        "bug",
        "Weights are set to 0 after the softmax and not normalised again, so that a query's sum to less than 1.",
        "Equal values give a smaller context: the sum of a query's weights over the keys is below 1.",
        "Fill the scores with float('-inf') before the softmax, or divide the masked weights by their sum.",
    ),
    Entry(
        "mask-fill-too-small",
        "bug",
        "Hidden scores get a finite number (-1e4, -100, 0), and keep weight where scores are large.",
        "With longer tokens, whose scores are larger, hidden keys change the output.",
        "Fill with float('-inf'), or with torch.finfo(scores.dtype).min.",
    ),
    Entry(
        "mask-not-a-buffer",
        "bug",
        "The mask is a plain attribute of the module, so that .to(), .cuda() and state_dict() leave it behind.",
        "A copy of the module is moved to another device: the mask stays where it was.",
        "self.register_buffer('mask', mask, persistent=False)",
    ),
    Entry(
        "mask-broadcast",
        "bug",
        "A mask of keys is broadcast along another dimension: it hides queries, or another batch entry's keys.",
        "Which keys a query sees changes with the padding of another batch entry, or with the query's own padding.",
        "Shape a (B, Tk) mask of keys as mask[:, None, None, :] to meet scores (B, H, Tq, Tk); where heads are folded "
        "into the batch, repeat it in their order.",
    ),
    Entry(
        "future-leak",
        "bug",
        "A target that should be causal lets an output depend on a later token.",
        "Changing token j changes an output i < j.",
        "Hide keys j > i: torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1), or is_causal=True.",
    ),
    Entry(
        "self-hidden",
        "bug",
        "The diagonal is hidden too: no query sees its own key, and the first sees none at all.",
        "The weight of every query on its own key is 0.",
        "Begin the hidden triangle above the diagonal: torch.triu(ones, diagonal=1).",
    ),
    Entry(
        "window-off-by-one",
        "bug",
        "A sliding window is one key too wide or too narrow.",
        "The last query sees one key more or fewer than the window says, its own included.",
        "Query i sees i - window < j <= i: as many keys as the window says, its own included.",
    ),
    Entry(
        "window-missing",
        "bug",
        "A window is declared, and queries see keys beyond it, or far fewer.",
        "The keys that the last query sees are counted.",
        "Hide keys j <= i - window as well as those j > i.",
    ),
)

_PADDING = (
    Entry(
        "padding-leak",
        "bug",
        "What stands in padded places changes the outputs of real tokens.",
        "A padded batch is run with other vectors in the padding, and beside each sequence alone.",
        "Hide padded keys in every attention: give it the padding mask, combined with its other masks by &.",
    ),
    Entry(
        "nan-on-masked-rows",
        "bug",
        "A query that may see no key gets a softmax over −∞ alone: NaN, which spreads.",
        "A left-padded batch, whose padded queries see nothing: NaN in outputs or gradients of real tokens.",
        "Let such queries see their own key and ignore their output, or set their weights to 0.",
    ),
    Entry(
        "left-padding-positions",
        "bug",
        "Positions are counted from the row's first slot, padding included, so that left padding shifts real tokens.",
        "A left-padded batch gives other outputs than each sequence alone; right-padded it gives the same.",
        "Count positions over real tokens: (attention_mask.cumsum(-1) - 1).clamp(min=0).",
    ),
)

_WEIGHTS = (
    Entry(
        "softmax-wrong-dim",
        "bug",
        "The softmax is taken over queries, heads or the batch, not over keys.",
        "The weights sum to 1 along another dimension, and not over the keys that a query sees.",
        "softmax(dim=-1): the last dimension of scores (…, Tq, Tk) is the keys'.",
    ),
    Entry(
        "rows-not-normalised",
        "bug",
        "A query's weights do not sum to 1: no softmax, or something is done to them after it.",
        "Equal values give a context other than that value.",
        "Let the softmax over keys be the last thing done to the weights, dropout apart.",
    ),
    Entry(
        "scale-missing",
        "bug",
        "Scores are not divided by √head_dim, so that softmax saturates as heads grow.",
        "The logits grow by 1, not by 1/√head_dim, with each unit of query · key.",
        "scores = query @ key.transpose(-2, -1) * head_dim**-0.5",
    ),
    Entry(
        "scale-wrong",
        "bug",
        "Scores are multiplied by another number than 1/√head_dim: √d_model, √num_heads, the inverse, or twice.",
        "The slope of the logits over query · key, which the report names.",
        "Multiply once by head_dim**-0.5, with the size of one head: query.shape[-1] after the heads are split.",
    ),
    Entry(
        "keys-values-swapped",
        "bug",
        "Queries are multiplied by the values, and weights by the keys.",
        "The names of the parameters that the two products' tensors come from.",
        "scores = query @ key.transpose(-2, -1); context = weights @ value",
    ),
)

_HEADS = (
    Entry(
        "heads-mixed-split",
        "bug",
        "view(B, H, T, D) cuts (B, T, H·D) into heads without a transpose, so that their rows mix tokens.",
        "Changing one token changes the queries, keys or values of others.",
        "x.view(B, T, H, D).transpose(1, 2)",
    ),
    Entry(
        "heads-mixed-merge",
        "bug",
        "The heads' contexts are reshaped to (B, T, H·D) without the transpose back, so that tokens are mixed.",
        "Changing one token's context changes other tokens' merged rows.",
        "context.transpose(1, 2).reshape(B, T, H * D)",
    ),
    Entry(
        "batch-mixed",
        "bug",
        "Attention runs over the batch: one entry's outputs depend on another's tokens.",
        "Changing a token of one batch entry changes outputs of another.",
        "Attend over the token dimension: with batch_first=False the layout is (T, B, C); transpose before and after.",
    ),
    Entry(
        "group-order",
        "bug",
        "Grouped keys and values are tiled (repeat), so that query heads read other groups' keys.",
        "Which key head each query head reads: it must be h // (Hq // Hkv).",
        "key.repeat_interleave(Hq // Hkv, dim=1), or enable_gqa=True; not repeat() or tile().",
    ),
    Entry(
        "projection-unused",
        "bug",
        "A projection is made and the output does not depend on it; another often stands in its place twice.",
        "Changing its parameter by 1 changes no output.",
        "Use each projection once: query from W_query, key from W_key, value from W_value, then out_proj.",
    ),
)

_DROPOUT = (
    Entry(
        "dropout-in-eval",
        "bug",
        "Weights are dropped in eval mode: F.dropout() without training=self.training, or dropout_p given always.",
        "Two runs in eval mode differ.",
        "F.dropout(weights, p, training=self.training); dropout_p=self.p if self.training else 0.0",
    ),
    Entry(
        "dropout-misplaced",
        "bug",
        "Dropout acts on scores before the softmax, or on the context, in place of the weights.",
        "In train mode, which recorded step the dropout reads.",
        "Drop the weights, after the softmax: weights = dropout(softmax(scores)); context = weights @ value.",
    ),
    Entry(
        "dropout-rescale",
        "bug",
        "What is left of the dropped weights is not multiplied by 1/(1 − p), so that train and eval differ in size.",
        "In train mode, the ratio of the weights used to the softmax's: it must be 0 or 1/(1 − p).",
        "Use nn.Dropout or F.dropout, or divide what is kept by 1 − p.",
    ),
)

_CACHES = (
    Entry(
        "cache-mismatch",
        "bug",
        "With a cache the outputs are others than without.",
        "One full pass beside every split into prefill and decoding.",
        "Append this call's keys and values behind the cached ones, and attend to all of them.",
    ),
    Entry(
        "causal-alignment",
        "bug",
        "With cached keys the causal mask is aligned to the first key, as is_causal=True is, not to the last: "
        "new queries see too few keys, or a chunk is not masked at all.",
        "Which keys the queries of a second chunk see.",
        "Hide keys j > i + cached: torch.ones(Tq, Tk, dtype=torch.bool).tril(diagonal=Tk - Tq) keeps the rest.",
    ),
    Entry(
        "cache-garbage-read",
        "bug",
        "Cache slots that hold no token yet are read.",
        "NaN in the unused slots changes the outputs.",
        "Attend to key[:, :, :length] alone, or hide the slots beyond.",
    ),
    Entry(
        "rotary-offset",
        "bug",
        "With a cache, rotary positions begin at 0 again with each call, or are off by one.",
        "Before the rotation a chunk's queries and keys agree with the full pass's, and after it they do not.",
        "positions = torch.arange(cached, cached + T): count from what is cached.",
    ),
    Entry(
        "rotary-layout",
        "convention",
        "Rotary embeddings pair dimensions in one of two layouts: (i, i + D/2) or (2i, 2i + 1); weights fit only one.",
        "Which dimensions of the rotated queries change with one dimension of the queries.",
        "None is needed, unless weights come from the other layout: then permute the rows of W_query and W_key.",
    ),
    Entry(
        "rotary-mismatch",
        "bug",
        "Queries and keys are rotated in different layouts, or the tables are in another layout than the rotation.",
        "The rotation changes lengths, or scores do not depend on the distance alone.",
        "Rotate queries and keys by one function, with tables in its own layout.",
    ),
    Entry(
        "rotary-precision",
        "bug",
        "Rotary angles are computed in a dtype below float32, which cannot tell large positions apart.",
        "The error of the angles after a cast to bfloat16, which rounds whole numbers above 256.",
        "Compute positions × frequencies, cos and sin in float32, and cast the tables afterwards.",
    ),
)

_STATE = (
    Entry(
        "stale-state",
        "bug",
        "A call leaves something behind that changes the next: a cached mask, a table, a global.",
        "A module that has run on other inputs gives another output than a fresh copy.",
        "Compute it from this call's inputs, or key what is kept by all that it depends on: length, dtype, device.",
    ),
    Entry(
        "undefined-or-global-name",
        "bug",
        "forward reads a name that it does not assign: it fails, or takes a tensor left over in the file.",
        "A NameError, or a recorded step that reads a global tensor.",
        "Use the local variable: scores computed in forward, not the one of the experiment before it.",
    ),
    Entry(
        "table-not-a-buffer",
        "bug",
        "A table (of positions, cos, sin, slopes) is a plain attribute, so that .to() and .cuda() leave it behind.",
        "A copy of the module is moved to another device: the table stays where it was.",
        "self.register_buffer('table', table, persistent=False)",
    ),
)

_NUMBERS = (
    Entry(
        "gradient-wrong",
        "bug",
        "Gradients are not the output's: detach(), .data, no_grad() or a backward of one's own is in the way.",
        "Central differences in float64 beside autograd, along a random direction of each parameter and input.",
        "Keep every step from input to output in autograd; hold your own backward to torch.autograd.gradcheck.",
    ),
    Entry(
        "gradient-not-deterministic",
        "suspicious",
        "The same backward pass gives other gradients when repeated.",
        "Repeated backward passes with the same seeds, compared to the bit.",
        "Seed what is drawn; avoid atomic sums, or set torch.use_deterministic_algorithms(True).",
    ),
    Entry(
        "stride-dependent",
        "bug",
        "Results depend on how inputs lie in memory: view() or as_strided() on what may not be contiguous.",
        "Transposed, expanded and sliced inputs of equal values beside contiguous ones.",
        "reshape() in place of view(), or .contiguous() before it; never as_strided() with strides assumed.",
    ),
    Entry(
        "length-dependent",
        "bug",
        "The attention is wrong, or fails, at some numbers of tokens only.",
        "Lengths around powers of two, 1 included, each held to the softmax of its own logits.",
        "Take sizes from the inputs (B, T, C = x.shape) and cut tables to them: mask[:T, :T].",
    ),
    Entry(
        "crashes",
        "bug",
        "The target raises on ordinary input.",
        "The exception, and the line of the target that raised it.",
        "See the exception.",
    ),
)

CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for group in (_MASKS, _PADDING, _WEIGHTS, _HEADS, _DROPOUT, _CACHES, _STATE, _NUMBERS)
    for entry in group
}


def remedy_of(finding: Finding) -> str:
    """A finding's own remedy, or the catalogue's."""
    return finding.remedy or CATALOGUE[finding.name].remedy
