"""Damage to files: to bytes of any kind, to the structure of each format, and to what is found under a name."""

import io
import json
import os
import pickle
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Damage = Callable[[np.random.Generator, bytes], bytes]

BIG_FILE = 10 << 30  # bytes of a sparse file, which takes no space
# Values in JSON that are wrong wherever they stand, or nearly so.
JSON_VALUES = (
    *(
        "0",
        "-1",
        "1",
        "2",
        "1.5",
        "1e308",
        "1e999",
        "NaN",
        "Infinity",
        "-Infinity",
        "null",
        "true",
        "false",
    ),
    *(str(2**31), str(2**63), str(2**64), str(10**18), "1" * 4000, "9" * 5000, "1e-320"),
    *(
        '""',
        '"1"',
        '"x"',
        r'"\u0000\u001b[2J\n"',
        r'"\ud800"',
        '"' + "long " * 20_000 + '"',
        '"../../x"',
        '"gpt2"',
    ),
    *(
        "[]",
        "{}",
        "[[]]",
        "[null]",
        '{"type": "x"}',
        '{"": 0}',
        "[1, 2, 3, 4, 5, 6, 7, 8]",
        "[1000000000, 1000000000]",
    ),
    *("[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "0" + "}" * 100_000),
    *("}", '"', "\0", "// no value"),
)
# Parts of a tokenizer.json that other programs would not write.
TOKENIZER_PARTS: tuple[tuple[str, Any], ...] = (
    *(
        ("normalizer", {"type": "Replace", "pattern": {"Regex": regex}, "content": content})
        for regex, content in (
            ("", "aaaa"),
            ("(a+)+$", "b"),
            ("(", ""),
            (".", "x" * 10_000),
            ("(?:(?:a*)*)*$", "y"),
        )
    ),
    (
        "normalizer",
        {
            "type": "Sequence",
            "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40,
        },
    ),
    ("normalizer", {"type": "Prepend", "prepend": "x" * 1_000_000}),
    ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"}),
    ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "/////w=="}),
    (
        "normalizer",
        {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
    ),
    (
        "pre_tokenizer",
        {"type": "Split", "pattern": {"Regex": "(a|a)*$"}, "behavior": "Isolated", "invert": True},
    ),
    (
        "pre_tokenizer",
        {"type": "Split", "pattern": {"Regex": ""}, "behavior": "Removed", "invert": False},
    ),
    ("pre_tokenizer", {"type": "FixedLength", "length": 0}),
    ("pre_tokenizer", {"type": "FixedLength", "length": 2**63}),
    (
        "pre_tokenizer",
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    ),
    (
        "post_processor",
        {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
            "pair": [],
            "special_tokens": {"x": {"id": "x", "ids": [2**32 - 1], "tokens": ["x"]}},
        },
    ),
    (
        "post_processor",
        {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 1000,
            "pair": [],
            "special_tokens": {},
        },
    ),
    ("post_processor", {"type": "BertProcessing", "sep": ["x", 2**32 - 1], "cls": ["y", 7]}),
    ("decoder", {"type": "Replace", "pattern": {"Regex": ""}, "content": "grown " * 200}),
    ("decoder", {"type": "Strip", "content": "a", "start": 2**63, "stop": 2**63}),
    ("decoder", {"type": "WordPiece", "prefix": "", "cleanup": True}),
    ("decoder", {"type": "ByteFallback"}),
    ("decoder", {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True}),
    (
        "added_tokens",
        [
            {
                "id": 2**32 - 1,
                "content": "a",
                "single_word": False,
                "lstrip": True,
                "rstrip": True,
                "normalized": True,
                "special": False,
            }
        ],
    ),
    (
        "added_tokens",
        [
            {
                "id": number,
                "content": "",
                "single_word": True,
                "lstrip": True,
                "rstrip": True,
                "normalized": True,
                "special": True,
            }
            for number in (0, 0)
        ],
    ),
    (
        "padding",
        {
            "strategy": {"Fixed": 10**9},
            "direction": "Left",
            "pad_to_multiple_of": 0,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "x",
        },
    ),
    (
        "truncation",
        {"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 5},
    ),
    ("model", {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "none"}),
    ("model", {"type": "WordLevel", "vocab": {"a": 2**32 - 1}, "unk_token": "a"}),
    (
        "model",
        {
            "type": "WordPiece",
            "unk_token": "x",
            "continuing_subword_prefix": "",
            "max_input_chars_per_word": 0,
            "vocab": {},
        },
    ),
    ("model", {"type": "Unigram", "unk_id": 5, "vocab": [["a", 0.0]]}),
    ("model", {"type": "Unigram", "unk_id": None, "vocab": [["a", -1e308], ["", 1e308]]}),
    ("model", {"type": "Unigram", "unk_id": 0, "vocab": []}),
    ("model", {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}),
    (
        "model",
        {
            "type": "BPE",
            "vocab": {"a": 0, "aa": 2**31},
            "merges": [["a", "a"]],
            "dropout": 2.0,
            "fuse_unk": True,
            "unk_token": "none",
        },
    ),
)
NPY_HEADERS: dict[str, tuple[Any, ...]] = {
    "descr": (
        *(
            "|O",
            "<f8",
            ">f4",
            "<f2",
            "<i8",
            "|b1",
            "|S10",
            "<U1000000000",
            "<M8[s]",
            "<c16",
            "<f16",
            "|V0",
            "|u1",
        ),
        *([("a", "<f4")], 7, ""),
    ),
    "shape": (
        *(
            (),
            (0, 3),
            (-1, 3),
            (2**62, 4),
            (10**9, 10**9),
            (6,),
            (1,) * 70,
            (1.0, 2),
            (True, 18),
            6,
            (2**64, 0),
        ),
        (10**30, 1),
    ),
    "fortran_order": (True, 1, None, "x"),
}
CELLS = (
    "nan",
    "inf",
    "-1e400",
    "1_000",
    "٣",
    "0x10",
    '"',
    "−1",
    "1" * 100_000,
    "",
    "\0",
    " 1 ",
    "1e-400",
    "a,b",
    '"1\n2"',
    "\x1b[2J",
    "'",
    ";",
)
TOML_VALUES = (
    *(
        "0",
        "-1",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "true",
        '""',
        "'x'",
        "[]",
        "{}",
        str(10**18),
        str(2**63),
        "9" * 5000,
        "2020-01-01",
        "{a = 1}",
    ),
    *(
        "[" * 100_000 + "]" * 100_000,
        "{a=" * 5_000 + "1" + "}" * 5_000,
        '"\\u001b[2J"',
        '"' + "long " * 20_000 + '"',
        "0x1p3",
        "",
    ),
)


class Payload:
    """An object whose unpickling runs a program; the audit hook of `isolation` notices it."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a call."""
        return os.system, ("touch executed",)


def hurt(rng: np.random.Generator, path: Path, others: list[Path]) -> str:
    """Damage a file in one to three ways, and return their names.

    Args:
        rng: Draws the damage.
        path: The file.
        others: Files to take pieces from.
    """
    if path.suffix == ".so":  # only its length and its header are verified
        return _hurt_library(rng, path)
    if rng.random() < 0.1:
        replace = REPLACEMENTS[rng.integers(len(REPLACEMENTS))]
        path.unlink()
        replace(path)
        return replace.__name__
    content, names = path.read_bytes(), []
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        own = BY_SUFFIX.get(path.suffix, ())
        own = (*own, grafted) if path.name == "tokenizer.json" else own
        choices = own if own and rng.random() < 0.7 else (*BYTES, spliced)
        damage = choices[rng.integers(len(choices))]
        names.append(damage.__name__)
        try:
            if damage is spliced:
                content = spliced(rng, content, others[rng.integers(len(others))].read_bytes())
            else:
                content = damage(rng, content)
        except Exception:  # noqa: BLE001 - parsers fail in many ways on content without a structure
            names[-1] += " (not possible)"
    path.write_bytes(content)
    return ", ".join(names)


def _hurt_library(rng: np.random.Generator, path: Path) -> str:
    choices = (truncated, header_flipped, *REPLACEMENTS)
    damage = choices[rng.integers(len(choices))]
    if damage in REPLACEMENTS:
        path.unlink()
        damage(path)  # pyright: ignore[reportCallIssue]
    else:
        path.write_bytes(damage(rng, path.read_bytes()))  # pyright: ignore[reportCallIssue]
    return damage.__name__


# Bytes of any format


def _slice(rng: np.random.Generator, content: bytes) -> slice:
    first = int(rng.integers(len(content) + 1))
    return slice(first, first + int(rng.choice([1, 2, 8, 100, 5000])))


def bits_flipped(rng: np.random.Generator, content: bytes) -> bytes:
    changed = bytearray(content or b"\0")
    for _ in range(int(rng.choice([1, 1, 2, 16]))):
        changed[rng.integers(len(changed))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def header_flipped(rng: np.random.Generator, content: bytes) -> bytes:
    return bits_flipped(rng, content[:64]) + content[64:]


def bytes_swapped(rng: np.random.Generator, content: bytes) -> bytes:
    changed = bytearray(content or b"\0")
    one, other = rng.integers(len(changed), size=2)
    changed[one], changed[other] = changed[other], changed[one]
    return bytes(changed)


def truncated(rng: np.random.Generator, content: bytes) -> bytes:
    return content[: int(rng.integers(len(content) + 1))]


def duplicated(rng: np.random.Generator, content: bytes) -> bytes:
    piece = _slice(rng, content)
    return (
        content[: piece.stop]
        + content[piece] * int(rng.choice([1, 1, 1000]))
        + content[piece.stop :]
    )


def noise_inserted(rng: np.random.Generator, content: bytes) -> bytes:
    piece = _slice(rng, content)
    return content[: piece.start] + rng.bytes(piece.stop - piece.start) + content[piece.start :]


def removed(rng: np.random.Generator, content: bytes) -> bytes:
    piece = _slice(rng, content)
    return content[: piece.start] + content[piece.stop :]


def filled(rng: np.random.Generator, content: bytes) -> bytes:
    piece = _slice(rng, content)
    fill = bytes([int(rng.choice([0, 0x20, 0xFF]))])
    return content[: piece.start] + fill * (piece.stop - piece.start) + content[piece.stop :]


def invalid_text(rng: np.random.Generator, content: bytes) -> bytes:
    first = _slice(rng, content).start
    piece = [
        b"\xff",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"\0",
        b"\x1b[2J",
        b"\r",
        b"\xe2\x80\xa8",
        b"\xff\xfe",
    ]
    return content[:first] + piece[rng.integers(len(piece))] + content[first:]


def program(rng: np.random.Generator, content: bytes) -> bytes:
    return pickle.dumps(Payload(), protocol=int(rng.integers(6)))


def spliced(rng: np.random.Generator, content: bytes, other: bytes) -> bytes:
    cut, other_cut = int(rng.integers(len(content) + 1)), int(rng.integers(len(other) + 1))
    return content[:cut] + other[other_cut:]


BYTES: tuple[Damage, ...] = (
    *(
        bits_flipped,
        header_flipped,
        bytes_swapped,
        truncated,
        duplicated,
        noise_inserted,
        removed,
        filled,
    ),
    *(invalid_text, program),
)

# The structure of each format


def json_changed(rng: np.random.Generator, content: bytes) -> bytes:
    """Replace or remove a value at any depth, or give its key twice."""
    root: Any = {"": json.loads(content)}
    parent, key = root, ""
    while (
        isinstance(parent[key], dict | list)
        and parent[key]
        and (parent is root or rng.random() < 0.7)
    ):
        parent = parent[key]
        keys = list(parent) if isinstance(parent, dict) else range(len(parent))
        key = keys[rng.integers(len(keys))]
    if rng.random() < 0.1 and parent is not root:
        del parent[key]
        return json.dumps(root[""]).encode()
    value = JSON_VALUES[rng.integers(len(JSON_VALUES))]
    if rng.random() < 0.1 and isinstance(parent, dict):
        value = f"{json.dumps(parent[key])}, {json.dumps(key)}: {value}"
    parent[key] = "PLACE"
    return json.dumps(root[""]).replace('"PLACE"', value).encode()


def grafted(rng: np.random.Generator, content: bytes) -> bytes:
    """Replace a part of a tokenizer.json."""
    name, part = TOKENIZER_PARTS[rng.integers(len(TOKENIZER_PARTS))]
    return json.dumps(json.loads(content) | {name: part}).encode()


def tensor_header_changed(rng: np.random.Generator, content: bytes) -> bytes:
    """Change the JSON before the tensors of a safetensors file, or its length."""
    (length,) = struct.unpack_from("<Q", content)
    header, data = content[8 : 8 + length], content[8 + length :]
    if rng.random() < 0.15:
        length = [0, 1, length + 1, len(content), 2**31, 2**63, 2**64 - 1][rng.integers(7)]
        return struct.pack("<Q", length) + header + data
    header = json_changed(rng, header)
    return struct.pack("<Q", len(header)) + header + data


def tensor_changed(rng: np.random.Generator, content: bytes) -> bytes:
    """Change what a safetensors file says about one tensor, often without a contradiction."""
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    names = [name for name in header if name != "__metadata__"]
    name, other = (names[index] for index in rng.integers(len(names), size=2))
    tensor = header[name]
    match rng.integers(6):
        case 0:
            dtypes = (
                "F32",
                "I32",
                "U32",
                "F16",
                "BF16",
                "BOOL",
                "I64",
                "F64",
                "U8",
                "F8_E4M3",
                "F4",
                "C64",
                "F6_E2M3",
            )
            tensor["dtype"] = dtypes[rng.integers(len(dtypes))]
        case 1:
            tensor["shape"] = tensor["shape"][::-1]
        case 2:
            tensor["shape"] = [[10**9, 10**9], [0], [2**32, 2**32], [1] * 100, [2**63], []][
                rng.integers(6)
            ]
        case 3:
            tensor["data_offsets"] = header[other]["data_offsets"]
        case 4:
            header[name], header[other] = header[other], header[name]
        case _:
            header["superfluous" if rng.random() < 0.5 else "\x1b[2J\n"] = header.pop(name)
    changed = json.dumps(header).encode()
    return struct.pack("<Q", len(changed)) + changed + content[8 + length :]


def array_header_changed(rng: np.random.Generator, content: bytes) -> bytes:
    """Change the header of a .npy file."""
    file = io.BytesIO(content)
    np.lib.format.read_magic(file)
    shape, order, dtype = np.lib.format.read_array_header_1_0(file)
    fields: dict[str, Any] = {"descr": dtype.str, "fortran_order": order, "shape": shape}
    name = list(fields)[rng.integers(3)]
    fields[name] = NPY_HEADERS[name][rng.integers(len(NPY_HEADERS[name]))]
    text = repr(fields)
    if rng.random() < 0.15:
        text = [
            "(" * 5000,
            "{}",
            "__import__('os').system('touch executed')",
            "{'descr': 9**9**9}",
            "-" * 9000 + "1",
        ][rng.integers(5)]
    return (
        b"\x93NUMPY\x01\0" + struct.pack("<H", len(text) + 1) + text.encode() + b"\n" + file.read()
    )


def archive_changed(rng: np.random.Generator, content: bytes) -> bytes:
    """Change an entry of a .pt file; the archive around it is intact."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    name = (
        list(entries)[rng.integers(len(entries))]
        if rng.random() < 0.5
        else next(name for name in entries if name.endswith("data.pkl"))
    )
    damage = BYTES[rng.integers(len(BYTES))]
    entries[name] = damage(rng, entries[name])
    if rng.random() < 0.2:
        del entries[list(entries)[rng.integers(len(entries))]]
    file = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if rng.random() < 0.1 else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, entry in entries.items():
            archive.writestr(name, entry)
    return file.getvalue()


def cell_changed(rng: np.random.Generator, content: bytes) -> bytes:
    """Change a cell of a .csv file."""
    pieces = re.split(r"([,\n])", content.decode())
    pieces[2 * int(rng.integers(len(pieces) // 2))] = CELLS[rng.integers(len(CELLS))]
    return "".join(pieces).encode()


def setting_changed(rng: np.random.Generator, content: bytes) -> bytes:
    """Change a value of a .toml file, or a key."""
    settings = list(re.finditer(rb"^(\S+) = (.*)$", content, re.MULTILINE))
    first, last = settings[rng.integers(len(settings))].span(2 if rng.random() < 0.8 else 1)
    return content[:first] + TOML_VALUES[rng.integers(len(TOML_VALUES))].encode() + content[last:]


def syntax_broken(rng: np.random.Generator, content: bytes) -> bytes:
    """Break the syntax or the encoding of Python source."""
    breaks = (
        b"\0",
        b"(" * 100_000,
        b"\n  unindented",
        b"'''",
        b"\xff",
        b"f'{",
        b"-" * 100_000 + b"(",
        b"\\",
        b"1__0",
        b"\n\t \tx=(",
        b"a." * 5_000 + b"(",
    )
    if rng.random() < 0.2:
        return (
            b"# -*- coding: "
            + [b"rot13", b"utf-16", b"none", b"idna", b"\xff"][rng.integers(5)]
            + b" -*-\n("
            + content
        )
    first = int(rng.integers(len(content) + 1))
    return content[:first] + breaks[rng.integers(len(breaks))] + content[first:]


BY_SUFFIX: dict[str, tuple[Damage, ...]] = {
    ".json": (json_changed,),
    ".safetensors": (tensor_header_changed, tensor_changed),
    ".npy": (array_header_changed,),
    ".pt": (archive_changed,),
    ".csv": (cell_changed,),
    ".toml": (setting_changed,),
    ".py": (syntax_broken,),
    ".txt": (invalid_text,),
}

# What is found under the name of a file


def missing(path: Path) -> None:
    """Leave nothing under the name."""


def empty(path: Path) -> None:
    path.touch()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def link_to_nothing(path: Path) -> None:
    path.symlink_to("nothing")


def link_to_endless_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_its_folder(path: Path) -> None:
    path.symlink_to(".")


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, BIG_FILE)


REPLACEMENTS: tuple[Callable[[Path], None], ...] = (
    *(
        missing,
        empty,
        fifo,
        folder,
        link_to_itself,
        link_to_nothing,
        link_to_endless_zeros,
        link_to_its_folder,
        huge,
    ),
)
