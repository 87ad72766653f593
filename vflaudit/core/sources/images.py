"""Image datasets in IDX files: the format of MNIST and of everything that imitates it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vflaudit.core.dataset import Array, Column, Table
from vflaudit.core.sources.frames import choose_rows
from vflaudit.core.sources.local import Files, fetch_openml_table, find_all, missing, open_bytes, reading
from vflaudit.errors import InputError

DIGITS = tuple("0123456789")
HIRAGANA = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
# The balanced split merges the lower-case letters that look like their capitals.
CHARACTERS = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt")

MNIST_FILES: Files = (
    ("train-images-idx3-ubyte", "train-images.idx3-ubyte"),
    ("train-labels-idx1-ubyte", "train-labels.idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-images.idx3-ubyte"),
    ("t10k-labels-idx1-ubyte", "t10k-labels.idx1-ubyte"),
)
EMNIST_FILES: Files = tuple(
    f"emnist-balanced-{part}-{kind}-ubyte" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")
)


def read_idx(dataset: str, path: Path, dimensions: int) -> Array:
    """An IDX file of bytes: two zeros, the type 8, the number of dimensions, their sizes, then the bytes."""
    with reading(dataset, path), open_bytes(path) as file:
        content = file.read()
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes((0, 0, 8, dimensions)):
        raise InputError(f"dataset {dataset!r}: the file {path} is not an IDX file of bytes in {dimensions} dimensions")
    shape = tuple(int(size) for size in np.frombuffer(content, dtype=">u4", count=dimensions, offset=4))
    expected, found = int(np.prod(shape, dtype=object)), len(content) - start
    if expected != found:
        raise InputError(
            f"dataset {dataset!r}: the file {path} announces {expected} bytes in {shape} but holds {found}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _from_files(dataset: str, paths: list[Path]) -> tuple[Array, Array]:
    """Training images, then test images, with their labels, in file order."""
    images = [read_idx(dataset, path, 3) for path in paths[::2]]
    labels = [read_idx(dataset, path, 1) for path in paths[1::2]]
    for part, answers, path in zip(images, labels, paths[1::2], strict=True):
        if len(part) != len(answers):
            raise InputError(f"dataset {dataset!r}: {path} has {len(answers)} labels for {len(part)} images")
    if images[0].shape[1:] != images[1].shape[1:]:
        raise InputError(f"dataset {dataset!r}: training and test images differ in size")
    return np.concatenate(images), np.concatenate(labels)


def _from_openml(dataset: str, data_id: int, where: str) -> tuple[Array, Array]:
    frame = fetch_openml_table(dataset, data_id=data_id, files=MNIST_FILES, where=where)
    if frame.shape[1] != 785 or "class" not in frame.columns:
        raise InputError(f"dataset {dataset!r}: the download has not 784 pixel columns and the column 'class'")
    labels = frame.pop("class").astype(int).to_numpy()
    return frame.to_numpy(dtype=np.uint8).reshape(-1, 28, 28), labels


def _table(name: str, images: Array, labels: Array, classes: tuple[str, ...], rows: int | None, seed: int) -> Table:
    # The sample is drawn while pixels are still single bytes; the table holds eight times as much.
    chosen = choose_rows(name, labels, rows, seed, stratify=True)
    height, width = images.shape[1:]
    values = images[chosen].reshape(len(chosen), height * width) / 255.0
    columns = tuple(Column(f"pixel_{r}_{c}") for r in range(height) for c in range(width))
    return Table(name, columns, values, labels[chosen], "classification", classes, image=(height, width), ids=chosen)


def _mnist_like(name: str, data_id: int, where: str, classes: tuple[str, ...], rows: int | None, seed: int) -> Table:
    paths = find_all(name, MNIST_FILES)
    images, labels = _from_files(name, paths) if paths is not None else _from_openml(name, data_id, where)
    return _table(name, images, labels, classes, rows, seed)


def mnist(*, rows: int | None = None, seed: int = 0) -> Table:
    """MNIST digits: 70,000 images of 28 by 28 pixels from 0 to 1, 10 classes (FedOnce)."""
    return _mnist_like("mnist", 554, "the MNIST database", DIGITS, rows, seed)


def kmnist(*, rows: int | None = None, seed: int = 0) -> Table:
    """Kuzushiji-MNIST: 70,000 images of cursive Japanese, 28 by 28 pixels, 10 classes (FedOnce)."""
    return _mnist_like("kmnist", 41982, "the Center for Open Data in the Humanities", HIRAGANA, rows, seed)


def fashion_mnist(*, rows: int | None = None, seed: int = 0) -> Table:
    """Fashion-MNIST: 70,000 images of clothes, 28 by 28 pixels from 0 to 1, 10 classes (vFedSec, FedOnce)."""
    return _mnist_like("fashion-mnist", 40996, "Zalando Research", CLOTHES, rows, seed)


def emnist(*, rows: int | None = None, seed: int = 0) -> Table:
    """EMNIST balanced: 131,600 images of characters, 28 by 28 pixels from 0 to 1, 47 classes (vFedSec).

    The published images are stored column by column; they are turned here to stand upright, as those of MNIST
    do.
    """
    where = "NIST's EMNIST archive"
    paths = find_all("emnist", EMNIST_FILES)
    if paths is None:
        raise missing("emnist", EMNIST_FILES, where)
    images, labels = _from_files("emnist", paths)
    return _table("emnist", images.transpose(0, 2, 1), labels, CHARACTERS, rows, seed)
