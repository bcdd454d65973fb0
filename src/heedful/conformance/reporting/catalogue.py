"""The catalogue of findings: what each name means, how a probe shows it, and how to fix it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heedful.errors import ArgumentError

if TYPE_CHECKING:  # a shell that completes names reads this file, which needs no PyTorch
    from heedful.conformance.reporting.finding import Finding, Level


@dataclass(frozen=True)
class CatalogueEntry:
    """The explanation of a finding.

    Attributes:
        name: The stable name that reports print, and that `--explain` and expected failures take.
        level: The usual level. A single finding may have a lower one.
        meaning: What is wrong in the code.
        proof: How a probe shows it.
        remedy: What to write instead.
    """

    name: str
    level: Level
    meaning: str
    proof: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name} ({self.level})\n{self.meaning}\nShown by: {self.proof}\nRemedy: {self.remedy}"


def find_entry(name: str, argument: str) -> CatalogueEntry:
    """Return the entry with a name.

    Args:
        name: The name of a finding, such as "scale-missing".
        argument: The argument that the caller passed the name in, for the error message.

    Raises:
        ArgumentError: No finding has that name. The message suggests similar names.
    """
    if name not in CATALOGUE:
        similar = difflib.get_close_matches(name, CATALOGUE, n=3, cutoff=0.4)
        raise ArgumentError(
            argument,
            expected=f"the name of a finding{' such as ' if similar else ''}{' or '.join(similar)}",
            received=repr(name),
            remedy="Run `heedful check --list` to see all names.",
        )
    return CATALOGUE[name]


def remedy_of(finding: Finding) -> str:
    """Return the remedy of a finding: its own one, or else the one in the catalogue; "" if nothing could be tested."""
    of_bug = "" if finding.level == "not-testable" else CATALOGUE[finding.name].remedy
    return finding.remedy or of_bug


_MASKS = (
    CatalogueEntry(
        "mask-unused",
        "bug",
        "The module builds or accepts a mask that has no effect. Either the result of masked_fill() is discarded, or "
        "the mask argument is never read.",
        "The output changes when a token changes that the mask should hide, or it does not depend on the mask at all. "
        "The recording contains a masking step whose result nothing uses.",
        "Assign the result of masked_fill(), as in scores = scores.masked_fill(hidden, float('-inf')), or call "
        "masked_fill_() instead.",
    ),
    CatalogueEntry(
        "mask-inverted",
        "bug",
        "The mask hides what it should keep, because True and False are confused, or because the entries of a real "
        "token happen to sum to 0.",
        "The output changes with exactly the tokens that should be hidden, and not with those that should be visible.",
        "Negate the mask (~mask). masked_fill() fills the entries that are True, scaled_dot_product_attention() "
        "attends to the entries that are True, and nn.MultiheadAttention hides the entries that are True.",
    ),
    CatalogueEntry(
        "mask-after-softmax",
        "bug",
        "Weights are set to 0 after the softmax and not normalised again, so that the weights of a query sum to less "
        "than 1.",
        "The sum of a query's weights over all keys is below 1: if all values are equal, the context is smaller than "
        "they are.",
        "Fill the scores with float('-inf') before the softmax, or divide the masked weights by their sum.",
    ),
    CatalogueEntry(
        "mask-fill-too-small",
        "bug",
        "Hidden scores are set to a finite number (-1e4, -100, 0), so that hidden keys still get weight if the other "
        "scores are small in comparison.",
        "The tokens are multiplied by a large factor, which makes the scores larger. Hidden keys then change the "
        "output.",
        "Fill with float('-inf') or with torch.finfo(scores.dtype).min.",
    ),
    CatalogueEntry(
        "mask-fill-positive",
        "bug",
        "Hidden scores are set to +∞ or to a large positive number, so that hidden keys get all the weight, or "
        "the output is NaN.",
        "The recording contains a fill with a large positive number, and the softmax reads scores as large.",
        "Change the sign of the fill: hidden scores become float('-inf').",
    ),
    CatalogueEntry(
        "mask-fill-overflow",
        "suspicious",
        "Hidden scores are set to a number that float16 cannot hold, such as -1e9, so that the module fails in half "
        "precision. This is a bug if the code speaks of half precision.",
        "A copy of the module is run in float16, and masked_fill() refuses the number.",
        "Fill with float('-inf') or with torch.finfo(scores.dtype).min, which every dtype can hold.",
    ),
    CatalogueEntry(
        "mask-not-a-buffer",
        "bug",
        "The mask is a plain attribute of the module. .to(), .cuda() and state_dict() skip it.",
        "A copy of the module is moved to another device, and the mask stays on the old one.",
        "Register it: self.register_buffer('mask', mask, persistent=False).",
    ),
    CatalogueEntry(
        "mask-broadcast",
        "bug",
        "A mask of keys is broadcast along the wrong dimension. It hides queries, or the keys of another batch entry.",
        "The keys that a query sees change with the padding of another batch entry, or with whether the query itself "
        "is padding.",
        "Write mask[:, None, None, :] to apply a mask of keys (B, Tk) to scores (B, H, Tq, Tk). If heads are folded "
        "into the batch, repeat the mask in the order of the heads.",
    ),
    CatalogueEntry(
        "future-leak",
        "bug",
        "The module should be causal, but an output depends on a later token.",
        "Changing token j changes an output i with i < j.",
        "Hide the keys j > i with torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1), or pass is_causal=True.",
    ),
    CatalogueEntry(
        "self-hidden",
        "bug",
        "The mask also hides the diagonal, so that no query sees its own key, or it hides every key from some queries.",
        "The weight of each query on its own key is 0, or a mask that depends on no input lowers all of its scores.",
        "Start the hidden triangle above the diagonal: torch.triu(ones, diagonal=1). Number the regions of the keys as "
        "those of the queries.",
    ),
    CatalogueEntry(
        "window-off-by-one",
        "bug",
        "A sliding window is one key too wide or too narrow.",
        "The last query sees one key more or fewer than the size of the window, its own key included.",
        "Let query i see the keys with i - window < j <= i. These are `window` keys, including its own.",
    ),
    CatalogueEntry(
        "window-missing",
        "bug",
        "The module declares a sliding window, but queries see keys outside it, or far fewer keys.",
        "The number of keys that the last query sees differs from the size of the window, or a window of both sides "
        "limits one of them alone.",
        "Hide the keys with j <= i - window in addition to those with j > i, or those further than the window on "
        "either side.",
    ),
)

_PADDING = (
    CatalogueEntry(
        "padding-leak",
        "bug",
        "The vectors at padded positions change the outputs of real tokens.",
        "A padded batch is run again with other vectors at the padded positions, and its sequences are run one by one "
        "without padding. The outputs of real tokens differ.",
        "Hide padded keys in every attention: pass it the padding mask, combined with its other masks by &.",
    ),
    CatalogueEntry(
        "nan-on-masked-rows",
        "bug",
        "A query that may see no key gets a softmax over −∞ only. The result is NaN, which spreads to other tokens.",
        "In a left-padded batch, padded queries see no key. Outputs or gradients of real tokens are NaN.",
        "Let such queries see their own key and ignore their outputs, or set their weights to 0.",
    ),
    CatalogueEntry(
        "left-padding-positions",
        "bug",
        "Positions are counted from the first position of the row, padding included, so that left padding shifts the "
        "positions of real tokens.",
        "The outputs of a left-padded batch differ from those of its sequences without padding, and the outputs of a "
        "right-padded batch do not.",
        "Count real tokens only: positions = (attention_mask.cumsum(-1) - 1).clamp(min=0).",
    ),
)

_WEIGHTS = (
    CatalogueEntry(
        "softmax-wrong-dim",
        "bug",
        "The softmax normalises over queries, heads or the batch instead of over keys.",
        "The weights sum to 1 along another dimension, and not over the keys that a query sees.",
        "softmax(dim=-1): the last dimension of scores (…, Tq, Tk) holds the keys.",
    ),
    CatalogueEntry(
        "rows-not-normalised",
        "bug",
        "The weights of a query do not sum to 1: the softmax is missing, or the weights are changed after it.",
        "If all values are equal, the context differs from that value.",
        "Apply the softmax over the keys, and change the weights afterwards by dropout only.",
    ),
    CatalogueEntry(
        "softmax-twice",
        "bug",
        "A second softmax is applied to the weights, which makes them nearly equal.",
        "The weights that meet the values are computed again as the softmax of the logits, and differ from them at the "
        "second softmax.",
        "Remove one softmax. If a mask comes after the first one, apply it to the scores before the softmax.",
    ),
    CatalogueEntry(
        "weights-wrong",
        "bug",
        "The weights are not the softmax of scaled, masked scores, and no other finding explains the difference.",
        "Logits and weights are computed again from the recorded queries and keys. The report names the first step "
        "that departs. Biases of positions must tell distances apart, and must not grow with them. A map of channel or "
        "spatial attention is between 0 and 1, and pooling layers do what their names say.",
        "Between the scores and the values, only scale the scores, add a mask or a bias, apply the softmax, and drop "
        "weights.",
    ),
    CatalogueEntry(
        "context-wrong",
        "bug",
        "The weights are right, but what they multiply is not, or what their context is added to or multiplied by.",
        "The values that meet the weights are compared with those that were projected: they are scaled, or normalized "
        "in place of the queries or keys. One residual connection of a block adds what a norm has made of the block's "
        "input, and another one adds what its norm is given. A result is added to itself, or to the values, or no line "
        "takes a sum. A gate of the context has no sigmoid.",
        "Multiply the weights by the projected values as they are. The scale belongs to the scores.",
    ),
    CatalogueEntry(
        "attention-ignored",
        "bug",
        "The output does not depend on the attention: it is a constant, the input, or computed from each token alone.",
        "Each token is changed in turn, and no other token's output changes; or the derivative of the output by the "
        "scores is 0; or a product reads the scores in place of their softmax; or the code never reads an attention "
        "that a module's constructor takes and keeps.",
        "Return what was computed from the context: self.out_proj(context).",
    ),
    CatalogueEntry(
        "scale-missing",
        "bug",
        "The scores are not divided by √head_dim, so that the softmax saturates for large heads.",
        "The logits grow by 1, and not by 1/√head_dim, with each unit of query · key.",
        "scores = query @ key.transpose(-2, -1) * head_dim**-0.5",
    ),
    CatalogueEntry(
        "scale-wrong",
        "bug",
        "The factor of the scores is not 1/√head_dim. It may be computed from d_model or num_heads, inverted, or "
        "applied twice.",
        "The slope of the logits over query · key differs from 1/√head_dim. The report names it.",
        "Multiply once by head_dim**-0.5, where head_dim is the size of one head: query.shape[-1] after the heads are "
        "split.",
    ),
    CatalogueEntry(
        "keys-values-swapped",
        "bug",
        "The queries are multiplied by the values, or the weights by the keys; or queries and keys swap their layers.",
        "The names of the parameters show it: for example, the queries are multiplied by the result of W_value.",
        "scores = query @ key.transpose(-2, -1); context = weights @ value",
    ),
)

_HEADS = (
    CatalogueEntry(
        "heads-mixed-split",
        "bug",
        "view(B, H, T, D) splits (B, T, H·D) into heads without a transpose, so that the rows of a head mix tokens.",
        "Changing one token changes the queries, keys or values of other tokens, or a view names the axes of a tensor "
        "in another order than the tensor has them; or no number of heads changes the output. It is suspicious if "
        "tokens are split before they are projected: all heads share one small matrix then.",
        "x.view(B, T, H, D).transpose(1, 2)",
    ),
    CatalogueEntry(
        "heads-mixed-merge",
        "bug",
        "The contexts of the heads are reshaped to (B, T, H·D) without transposing back, so that tokens are mixed.",
        "Changing the context of one token changes the merged rows of other tokens.",
        "context.transpose(1, 2).reshape(B, T, H * D)",
    ),
    CatalogueEntry(
        "batch-mixed",
        "bug",
        "The outputs of a batch entry depend on the tokens of another one, often because the attention runs over the "
        "batch dimension.",
        "Changing a token of one batch entry changes the outputs of another one.",
        "Attend over the dimension of tokens. With batch_first=False the layout is (T, B, C): transpose before and "
        "after.",
    ),
    CatalogueEntry(
        "group-order",
        "bug",
        "Grouped keys or values are tiled by repeat(), so that query heads read the heads of other groups.",
        "Query head h reads another key head than h // (Hq // Hkv).",
        "Use key.repeat_interleave(Hq // Hkv, dim=1) or enable_gqa=True instead of repeat() or tile().",
    ),
    CatalogueEntry(
        "projection-unused",
        "bug",
        "The output does not depend on one of the projections or tables of positions, or a pooling layer is never "
        "called. Often another projection is used twice in its place.",
        "Adding 1 to its parameter changes no output. No line reads the pooling layer, or the table.",
        "Use each projection once: query from W_query, key from W_key, value from W_value, and out_proj at the end.",
    ),
)

_DROPOUT = (
    CatalogueEntry(
        "dropout-in-eval",
        "bug",
        "Weights are dropped in eval mode, because F.dropout() is called without training=self.training, or dropout_p "
        "is passed in both modes.",
        "Two runs in eval mode differ.",
        "Write F.dropout(weights, p, training=self.training), or dropout_p=self.p if self.training else 0.0.",
    ),
    CatalogueEntry(
        "dropout-misplaced",
        "bug",
        "Dropout acts on the scores before the softmax, or on the context, instead of on the weights.",
        "In train mode, the recording shows which result the dropout reads.",
        "Drop the weights after the softmax: weights = dropout(softmax(scores)); context = weights @ value.",
    ),
    CatalogueEntry(
        "dropout-unused",
        "bug",
        "The module declares a dropout for the weights, and never applies it.",
        "In train mode the dropout layer is never called, and two runs with different seeds drop no weight.",
        "Apply it to the weights: weights = self.dropout(softmax(scores)). To scaled_dot_product_attention(), pass "
        "dropout_p=self.p if self.training else 0.0.",
    ),
    CatalogueEntry(
        "dropout-rescale",
        "bug",
        "The weights that dropout keeps are not multiplied by 1/(1 − p), so that outputs in train mode and in eval "
        "mode differ in size.",
        "In train mode, the ratio of the applied weights to the weights of the softmax is neither 0 nor 1/(1 − p).",
        "Use nn.Dropout or F.dropout, or divide the kept weights by 1 − p.",
    ),
)

_CACHES = (
    CatalogueEntry(
        "cache-mismatch",
        "bug",
        "The outputs with a cache differ from those without one.",
        "The tokens are run at once, and then in every split into a prefill and decoding steps. The outputs differ.",
        "Append the keys and values of each call to the cached ones, and attend to all of them.",
    ),
    CatalogueEntry(
        "causal-alignment",
        "bug",
        "With cached keys, the causal mask is aligned with the first key, as is_causal=True aligns it, instead of with "
        "the last key. New queries see too few keys, or a chunk is not masked at all.",
        "The queries of a second chunk see other keys than in a run on all tokens.",
        "Hide the keys j > i + cached: torch.ones(Tq, Tk, dtype=torch.bool).tril(diagonal=Tk - Tq) keeps the others.",
    ),
    CatalogueEntry(
        "cache-garbage-read",
        "bug",
        "The attention reads slots of the cache that hold no token yet.",
        "NaN in the unused slots changes the outputs.",
        "Attend to key[:, :, :length] only, or hide the slots after it.",
    ),
    CatalogueEntry(
        "rotary-offset",
        "bug",
        "With a cache, the rotary positions start from 0 in each call, or they are off by one.",
        "Before the rotation, the queries and keys of a chunk equal those of a run on all tokens. After the rotation, "
        "they do not.",
        "Count from the number of cached tokens: positions = torch.arange(cached, cached + T).",
    ),
    CatalogueEntry(
        "rotary-layout",
        "convention",
        "Rotary embeddings pair dimensions in one of two layouts: (i, i + D/2) or (2i, 2i + 1). Weights trained with "
        "one layout do not work with the other.",
        "Changing one dimension of the queries changes the two dimensions of its pair in the rotated queries.",
        "Nothing needs to change, unless the weights come from a module with the other layout. In that case permute "
        "the rows of W_query and W_key.",
    ),
    CatalogueEntry(
        "rotary-mismatch",
        "bug",
        "Queries and keys are rotated in different layouts or along another axis than that of the tokens, or the cos "
        "and sin tables have another layout than the rotation expects.",
        "The rotation changes the lengths of vectors, the scores depend on more than the distance of two tokens, or all"
        " tokens are rotated alike and each head differently.",
        "Rotate queries and keys by the same function, with tables in its layout.",
    ),
    CatalogueEntry(
        "positions-wrong",
        "bug",
        "The positions that are added to the tokens are the same for all tokens of a sequence, because the table is "
        "cut to the number of sequences, or one row is chosen by the number of tokens; the sines and cosines of a "
        "table have different frequencies; or distances are computed for a part that is not given them.",
        "The rows that are added to the tokens of one sequence are compared with each other, with those of another "
        "sequence, and with those of a shorter one. The squares of a sine and its cosine must sum to 1.",
        "Take one row for each token: x + table[:, : x.size(1)] for x (B, T, C), x + table[: x.size(0)] for (T, B, C).",
    ),
    CatalogueEntry(
        "relative-shift-wrong",
        "bug",
        "A function that shifts scores by distance into place, as in Transformer-XL, mixes the rows of queries, or "
        "shifts rows by wrong distances.",
        "The entries of its result are looked for among its inputs. Each must come from the same query, and for each "
        "distance from the same column.",
        "Pad a column of zeros on the left, view (Tq, R + 1) as (R + 1, Tq), drop the first row, and view the rest as "
        "(Tq, R). Queries that see later keys need R = 2 Tk - 1 distances, negative ones among them.",
    ),
    CatalogueEntry(
        "rotary-precision",
        "bug",
        "The rotary angles are computed in a dtype below float32, which cannot tell large positions apart.",
        "After a cast of the module to bfloat16, which rounds integers above 256, the angles are wrong.",
        "Compute positions × frequencies, cos and sin in float32, and cast the tables afterwards.",
    ),
)

_STATE = (
    CatalogueEntry(
        "stale-state",
        "bug",
        "A call leaves state behind that changes the next call: a cached mask, a table, a global variable, a mask of "
        "the caller's that it has changed in place.",
        "After a run on other inputs, the output differs from a fresh module's, or a mask differs from a copy of it.",
        "Compute the state from the inputs of each call, or store it under everything that it depends on: length, "
        "dtype, device.",
    ),
    CatalogueEntry(
        "undefined-or-global-name",
        "bug",
        "forward() reads a name, an attribute or a method that nothing defines. It fails, if only on a line that few "
        "calls reach, or it uses a global tensor that is left over in the file.",
        "A NameError, a recorded step that reads a global tensor, or a line whose names neither the file nor PyTorch "
        "has.",
        "Use the local variable: the scores that forward() computes, not those of an earlier experiment.",
    ),
    CatalogueEntry(
        "table-not-a-buffer",
        "bug",
        "A table (of positions, cos, sin or slopes) is a plain attribute of the module. .to() and .cuda() skip it.",
        "A copy of the module is moved to another device, and the table stays on the old one.",
        "Register it: self.register_buffer('table', table, persistent=False).",
    ),
    CatalogueEntry(
        "parameter-not-registered",
        "bug",
        "The module computes with parameters that it has not registered: layers in a plain list or dict, or made anew "
        "in each call. parameters(), .to() and state_dict() skip them, so no optimizer trains them.",
        "The output of a call is followed back to its parameters, and parameters() lacks some of them.",
        "Make layers in the constructor, and keep several in nn.ModuleList or nn.ModuleDict, or parameters in "
        "nn.ParameterList.",
    ),
)

_NUMBERS = (
    CatalogueEntry(
        "output-not-finite",
        "bug",
        "The output has NaN or infinite entries although all inputs and parameters are finite, or depends on memory "
        "that was never written.",
        "The output on ordinary inputs, in eval and in train mode and on one token, and the first step that is not "
        "finite. What torch.empty() returns is filled with NaN, in the constructor as well.",
        "Look for a division by zero, an overflow of exp() and a softmax over −∞ only. Let each query see a key, and "
        "subtract the largest score before exp().",
    ),
    CatalogueEntry(
        "gradient-wrong",
        "bug",
        "The gradients are not those of the output, because of detach(), .data, no_grad() or a wrong custom backward.",
        "Autograd and central differences in float64 disagree along a random direction of a parameter or input.",
        "Keep every step from input to output in autograd. Test a custom backward with torch.autograd.gradcheck.",
    ),
    CatalogueEntry(
        "gradient-not-deterministic",
        "suspicious",
        "The gradients of the same backward pass differ when it is repeated.",
        "Repeated backward passes with the same seeds are not equal to the bit.",
        "Seed all random numbers. Avoid atomic sums, or set torch.use_deterministic_algorithms(True).",
    ),
    CatalogueEntry(
        "stride-dependent",
        "bug",
        "The results depend on the memory layout of the inputs, because view() or as_strided() is used on tensors that "
        "may not be contiguous.",
        "Transposed, expanded and sliced inputs give other results than contiguous inputs with equal values.",
        "Use reshape() instead of view(), or call .contiguous() first. Do not use as_strided() with fixed strides.",
    ),
    CatalogueEntry(
        "length-dependent",
        "bug",
        "The attention is wrong, or fails, for some numbers of tokens only.",
        "For 1 token and for lengths around powers of two, the weights are compared with the softmax of the logits.",
        "Take sizes from the inputs (B, T, C = x.shape), and cut tables to them: mask[:T, :T].",
    ),
    CatalogueEntry(
        "crashes",
        "bug",
        "The module raises an exception on ordinary input, with another option of its own, in bfloat16, or without an "
        "argument that is None by default and that the code compares with None.",
        "The exception, and the line of the module that raised it, or two branches that build one layer with its "
        "widths in two orders.",
        "See the exception.",
    ),
)

_RANKS = (
    CatalogueEntry(
        "ranks-output-differs",
        "bug",
        "On many ranks, the attention returns other numbers than on one: a mask is local to the tokens of a rank, "
        "partial results are merged wrongly, a bias is added on every rank, or keys are those of other tokens.",
        "heedful check --ranks N runs the target on N processes and on one, with the same weights and tokens.",
        "Compute on each rank what one rank computes for its tokens or heads, from the line that departs on.",
    ),
    CatalogueEntry(
        "ranks-gradient-differs",
        "bug",
        "On many ranks, the output is right, and gradients are not: an all-reduce of the gradients of keys and values "
        "is missing, or a gradient is scaled by the number of ranks.",
        "heedful check --ranks N goes back from the same gradients of the output on N processes and on one.",
        "Sum up in the backward pass what the forward pass hands to several ranks, and scale nothing by their number.",
    ),
    CatalogueEntry(
        "ranks-dropout-differs",
        "bug",
        "Ranks that have the same tensor drop different entries of it in training.",
        "In training mode, with the same random state on every rank, outputs that should be equal differ.",
        "Draw the dropout of a tensor that all ranks have from a random state that all of them share.",
    ),
    CatalogueEntry(
        "ranks-collectives-differ",
        "bug",
        "Ranks make different calls of torch.distributed where all of them have to make the same, or with other sizes.",
        "The calls of every rank are listed until the ranks no longer go on together.",
        "Make the call on all ranks, with the same sizes, or on none.",
    ),
    CatalogueEntry(
        "ranks-gradient-summed",
        "convention",
        "Gradients are those of the sum of what all ranks go back from, or shares that are to be summed over ranks.",
        "Every gradient is that of one rank times the number of ranks, or the sum over the ranks is that of one rank.",
        "Divide the loss by the number of ranks if all of them compute the same one, and sum shares over ranks.",
    ),
)

_INTENT = (
    CatalogueEntry(
        "statement-contradicted",
        "bug",
        "The target is not what the caller of the check states: it has another number of heads, another window, or is "
        "causal although it is said not to be.",
        "The recorded attention is compared with the statement.",
        "Correct the statement, or the target if the statement is what you mean.",
    ),
    CatalogueEntry(
        "lines-not-run",
        "bug",
        "Some lines of the target were not run by any probe, although the check was asked to be strict.",
        "The lines that run are traced.",
        "Give an example of the arguments that lead there, or check the target with other settings as well.",
    ),
)

CATALOGUE: dict[str, CatalogueEntry] = {
    entry.name: entry
    for group in (
        _MASKS,
        _PADDING,
        _WEIGHTS,
        _HEADS,
        _DROPOUT,
        _CACHES,
        _STATE,
        _NUMBERS,
        _RANKS,
        _INTENT,
    )
    for entry in group
}
"""Every entry by its name, in the order in which they are listed."""
