"""Examples of each command, which its help shows, and what `heedful` alone prints."""

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "tour": (
        ("heedful tour", "every rung, and the same as a page"),
        ("heedful tour --rung causal-weights", "one rung; --rung 4 is the same"),
        ('heedful tour --input m.csv --labels "a b c"', "your own matrix of three tokens"),
    ),
    "show": (
        ("heedful show my.py:Attention", "a page with every step"),
        ("heedful show --what-if", "a small attention to change in the page"),
        (
            'heedful show --model gpt --text "To be, or not to be"',
            "the heads of a model that heedful train made",
        ),
    ),
    "info": (("heedful info", "what a report of a defect needs"),),
    "bench": (
        ("heedful bench --quick", "check the results of every case"),
        ("heedful bench --list", "the names of the cases"),
        ("heedful bench --case causal --plot speed.svg", "time some cases, and draw them"),
    ),
    "plan": (
        (
            "heedful plan --tokens 8K --heads 8 --head-size 64 --ranks 4 --bandwidth 1G",
            "with the speed of this machine",
        ),
        (
            "heedful plan --tokens 1M --heads 32 --key-heads 8 --head-size 128 --ranks 64 --bandwidth 50GB/s "
            "--flops 300T --mask documents:32K",
            "on other machines, for packed documents",
        ),
    ),
    "check": (
        ("heedful check my.py:Attention", "which bug it has, and on which line"),
        ("heedful check my.py:Attention --with heads=4 --causal", "with what cannot be guessed"),
        ("heedful check my.py --fix", "a diff for each bug that has a mechanical remedy"),
        ("heedful check my.py:RingAttention --ranks 2", "two processes beside one"),
        ("heedful check --explain scale-missing", "what a finding means"),
    ),
    "grade": (
        ("heedful grade submissions --entry Attention --csv table.csv", "one row for each student"),
    ),
    "practise": (
        ("heedful practise", "the first exercise, in the folder practise"),
        ("heedful practise --hint", "one hint more for it"),
        ("heedful practise --check", "whether you found the bug"),
    ),
    "train": (
        ("heedful train", "a small model on sonnets, in one or two minutes"),
        ("heedful train books --out gpt --minutes 15", "on your own books"),
        ("heedful train --out gpt --resume", "continue after Ctrl-C"),
    ),
    "generate": (
        ('heedful generate --prompt "Shall I"', "with the model in the folder gpt"),
        ("heedful generate --from gpt2 --tokens 50 --seed 1", "with a GPT-2 of transformers"),
    ),
}

FIRST_STEPS: tuple[tuple[str, str, str], ...] = (
    ("read", "heedful tour", "attention step by step, in numbers and pictures"),
    ("check", "heedful check my.py:Attention", "which bug a module has, and on which line"),
    ("", "heedful practise", "a module with one bug, for you to find"),
    ("see", "heedful show my.py:Attention", "a page that explains every number"),
    ("run", "heedful bench --quick", "our kernels beside PyTorch's"),
    ("", "heedful train", "a small GPT, in one or two minutes"),
)
MORE: str = (
    "`heedful COMMAND --help` has the options of a command, and examples. `heedful --help` lists all commands. "
    "`heedful --install-completion` lets your shell complete them."
)
