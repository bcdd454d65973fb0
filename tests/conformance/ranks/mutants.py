"""Bugs of context and tensor parallelism as they were published, each an edit of a right attention in `right/`."""

from dataclasses import dataclass
from pathlib import Path

RIGHT = Path(__file__).parent / "right"


@dataclass(frozen=True)
class Mutant:
    """An edit of a right attention.

    Attributes:
        name: what the bug is.
        seen_in: where such a bug was published.
        base: the file and the class, such as "ring:RingAttention".
        old, new: the text that is replaced.
        finding: the name of the finding.
        rank: the first rank that is wrong.
        blamed: the text of the line that is to be reported.
        ranks: the number of ranks.
        options: arguments of `check_on_ranks`.
    """

    name: str
    seen_in: str
    base: str
    old: str
    new: str
    finding: str
    rank: int
    blamed: str
    ranks: int = 2
    arguments: tuple[tuple[str, str], ...] = ()

    @property
    def target(self) -> str:
        """The right attention, as a target of a check."""
        file, _, name = self.base.partition(":")
        return f"{RIGHT / file}.py:{name}"

    def written(self, folder: Path) -> str:
        """Write the wrong attention to a file in a folder, and return it as a target."""
        file, _, name = self.base.partition(":")
        text = (RIGHT / f"{file}.py").read_text()
        assert text.count(self.old) == 1, self.name
        path = folder / f"{file}.py"
        path.write_text(text.replace(self.old, self.new))
        return f"{path}:{name}"


OUTPUT, GRADIENT = "ranks-output-differs", "ranks-gradient-differs"
GATHERED, RING = "gathered:GatheredAttention", "ring:RingAttention"
ZIGZAG, PARALLEL = "zigzag:ZigzagRingAttention", "tensor_parallel:ParallelAttention"
ULYSSES = "ulysses:UlyssesAttention"

MUTANTS = (
    Mutant(
        "the sliding window is dropped as soon as there are several ranks",
        "accelerate's context parallelism",
        GATHERED,
        "hidden = (columns > rows) | (columns <= rows - self.window)",
        "hidden = columns > rows\n"
        "        if dist.get_world_size() == 1:\n"
        "            hidden = hidden | (columns <= rows - self.window)",
        OUTPUT,
        0,
        "masked_fill(hidden",
    ),
    Mutant(
        "the causal mask counts queries from the beginning of each rank's chunk",
        "context parallelism by hand",
        GATHERED,
        "torch.arange(T)[:, None] + dist.get_rank() * T",
        "torch.arange(T)[:, None]",
        OUTPUT,
        1,
        "masked_fill(hidden",
    ),
    Mutant(
        "the gradients of gathered keys and values are not summed over ranks",
        "TransformerEngine, diffusers",
        GATHERED,
        "        dist.all_reduce(gradient)\n        start",
        "        start",
        GRADIENT,
        0,
        "return gradient[:, :, start",
    ),
    Mutant(
        "the gradients of gathered keys and values are averaged over ranks",
        "loss scaling of Megatron's context parallelism",
        GATHERED,
        "        dist.all_reduce(gradient)\n        start",
        "        dist.all_reduce(gradient)\n        gradient = gradient / dist.get_world_size()\n        start",
        GRADIENT,
        0,
        "gradient = gradient / dist.get_world_size()",
    ),
    Mutant(
        "merged results are accumulated in bfloat16, an error for each rank",
        "ring-flash-attention",
        RING,
        "out = out * old + block_out * new",
        "out = (out * old + block_out * new).bfloat16().to(out.dtype)",
        OUTPUT,
        0,
        "out = (out * old",
    ),
    Mutant(
        "the log-sum-exp of merged results is that of their mean",
        "ring attention by hand",
        RING,
        "merged = torch.logaddexp(lse, block_lse)",
        "merged = torch.maximum(lse, block_lse)",
        OUTPUT,
        1,
        "merged = torch.maximum",
    ),
    Mutant(
        "partial results are added without the weights of their log-sum-exp",
        "ring attention by hand",
        RING,
        "out = out * old + block_out * new",
        "out = out * old + block_out",
        OUTPUT,
        1,
        "out = out * old + block_out",
    ),
    Mutant(
        "gradients travel on in the direction of the keys instead of back",
        "ring attention by hand",
        RING,
        "return exchange(gradient, -1)",
        "return exchange(gradient, 1)",
        GRADIENT,
        0,
        "return exchange(gradient, 1)",
        3,
    ),
    Mutant(
        "keys that arrive are taken for those of the rank after, not before",
        "ring attention by hand",
        RING,
        "owner = (rank - step) % ranks",
        "owner = (rank + step) % ranks",
        OUTPUT,
        1,
        "lse = scores.logsumexp",
        3,
    ),
    Mutant(
        "the second chunk of a zigzag counts from the same end as the first",
        "zigzag rings",
        ZIGZAG,
        "torch.tensor([[rank], [last - rank]])",
        "torch.tensor([[rank], [rank + dist.get_world_size()]])",
        OUTPUT,
        0,
        "chunks.flatten()",
    ),
    Mutant(
        "the bias of a row-parallel layer is added on every rank",
        "tensor parallelism by hand",
        PARALLEL,
        "        partial = F.linear(x, self.weight)\n        return SumOverRanks.apply(partial) + self.bias",
        "        partial = F.linear(x, self.weight, self.bias)\n        return SumOverRanks.apply(partial)",
        OUTPUT,
        0,
        "partial = F.linear",
    ),
    Mutant(
        "the partial results of a row-parallel layer are not summed",
        "tensor parallelism by hand",
        PARALLEL,
        "return SumOverRanks.apply(partial) + self.bias",
        "return partial + self.bias",
        OUTPUT,
        0,
        "return partial + self.bias",
    ),
    Mutant(
        "the gradient of the tokens is not summed over the ranks that read them",
        "tensor parallelism by hand",
        PARALLEL,
        "        x = CopyToRanks.apply(x)\n",
        "",
        GRADIENT,
        0,
        "q, k, v = self.heads",
    ),
    Mutant(
        "the gradient of an all-reduce is another all-reduce, so that it grows with the ranks",
        "loss scaling of Megatron's tensor parallelism",
        PARALLEL,
        "    def backward(ctx, gradient):\n        return gradient\n",
        "    def backward(ctx, gradient):\n        gradient = gradient.clone()\n"
        "        dist.all_reduce(gradient)\n        return gradient\n",
        GRADIENT,
        0,
        "dist.all_reduce(gradient)",
    ),
    Mutant(
        "every rank draws its own dropout of a tensor that all of them have",
        "tensor parallelism with a seed for each rank",
        PARALLEL,
        "        return self.dropout(self.o_proj(context.transpose(1, 2).flatten(2)))",
        "        torch.manual_seed(dist.get_rank())\n"
        "        return self.dropout(self.o_proj(context.transpose(1, 2).flatten(2)))",
        "ranks-dropout-differs",
        1,
        "return self.dropout",
        arguments=(("dropout", "0.5"),),
    ),
    Mutant(
        "fewer key heads than ranks: copies of all heads one after another, not of each",
        "Ulysses with grouped heads",
        ULYSSES,
        "k, v = k.repeat_interleave(copies, dim=1), v.repeat_interleave(copies, dim=1)",
        "k, v = k.repeat(1, copies, 1, 1), v.repeat(1, copies, 1, 1)",
        OUTPUT,
        1,
        "scores = q @ k",
        4,
    ),
    Mutant(
        "one rank takes part in a sum that the others do not know of",
        "collectives under a condition of the rank",
        ULYSSES,
        "        context = AllToAll.apply(weights @ v, 2, 1)",
        "        if dist.get_rank() == 1:\n            dist.all_reduce(weights)\n"
        "        context = AllToAll.apply(weights @ v, 2, 1)",
        "ranks-collectives-differ",
        1,
        "dist.all_reduce(weights)",
    ),
)
