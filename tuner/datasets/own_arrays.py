"""Arrays of images and labels: an ``.npz`` file of NumPy, or a folder of idx files.

An ``.npz`` file has ``x`` and ``y``, or ``images`` and ``labels``; or a pair for each split, named
``x_train`` (Keras) or ``train_images`` (MedMNIST, doi:10.1038/s41597-022-01721-8). Objects are
never unpickled. Idx files are named as MNIST's (``train-images-idx3-ubyte.gz``), or as prepared
data sets here (``train-images.idx``).
"""

from __future__ import annotations

import gzip
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.datasets.class_folders import MAX_CLASSES, SPLIT_NAMES, entries
from tuner.datasets.images import decode_idx
from tuner.values.errors import ConfigError

if TYPE_CHECKING:
    import numpy.typing as npt

    from tuner.datasets.images import Bytes, Labelled

    Array = npt.NDArray[Any]
    Pair = dict[str, tuple[str, Array]]
    """Name and array of the images and of the labels of a split."""

_SPLITS = {**SPLIT_NAMES, "t10k": "test"}
_SPLIT = "|".join(_SPLITS)
_KINDS = {"x": "images", "images": "images", "y": "labels", "labels": "labels"}
_KIND = "|".join(_KINDS)
_KEYS = (
    re.compile(rf"(?P<kind>{_KIND})(?:_(?P<split>{_SPLIT}))?"),
    re.compile(rf"(?P<split>{_SPLIT})_(?P<kind>{_KIND})"),
)
_IDX = re.compile(
    rf"(?:.*[-_.])?(?P<split>{_SPLIT})[-_](?P<kind>images|labels)[-.]idx(?:\d-ubyte)?(?:\.gz)?"
)
_MAX_BYTES = 16 * 2**30


def find_idx_files(folder: Path) -> list[Path]:
    """List the idx files of a folder by name. Raises ``ConfigError`` if it cannot be read."""
    return [each for each in entries(folder) if _IDX.fullmatch(each.name) and each.is_file()]


def read_npz(path: Path) -> dict[str, Labelled]:
    """Read the images and labels of each split; without splits, all are ``train``.

    Returns:
        Images, bytes of shape (n, height, width) or (n, 3, height, width), and labels, bytes (n,).

    Raises:
        ConfigError: If the file has no such arrays.
    """
    import numpy as np

    try:
        # opened here, as NumPy leaves a file that is no archive open
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ConfigError(f"dataset.path={path} holds one array; np.savez writes more")
            members = archive.zip.infolist() if archive.zip else []
            whole = sum(each.file_size for each in members)
            if whole > _MAX_BYTES:
                raise ConfigError(
                    f"dataset.path={path} holds {whole / 2**30:,.0f} GiB, more than the "
                    f"{_MAX_BYTES // 2**30} that are read"
                )
            parts: dict[str, Pair] = {}
            for name in archive.files:
                found = next(filter(None, [each.fullmatch(name) for each in _KEYS]), None)
                if found:
                    _add(parts, _SPLITS[found["split"] or "train"], _KINDS[found["kind"]], name,
                         archive[name])  # fmt: skip
            known = ", ".join(archive.files) or "none"
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, ConfigError):
            raise
        known_zip = zipfile.is_zipfile(path)
        said = " ".join(str(error).split())
        why = "it holds Python objects" if known_zip and "pickle" in said else said
        why = why if known_zip else "it is no zip archive"
        raise ConfigError(f"dataset.path={path} is no .npz file of plain arrays: {why}") from error
    wanted = "x and y, or x_train, y_train, x_test and y_test are wanted"
    return _labelled(parts, f"its arrays are: {known}; {wanted}")


def read_idx(files: list[Path]) -> dict[str, Labelled]:
    """Read idx files, gzipped or not; see ``read_npz``. Raises ``ConfigError``."""
    parts: dict[str, Pair] = {}
    for path in files:
        found = _IDX.fullmatch(path.name)
        assert found
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                array = decode_idx(file.read(_MAX_BYTES + 1))
        except (OSError, zlib.error, EOFError, ValueError) as error:
            raise ConfigError(f"dataset.path: {path} is no idx file: {error}") from error
        _add(parts, _SPLITS[found["split"]], found["kind"], path.name, array)
    names = ", ".join(each.name for each in files)
    return _labelled(parts, f"its files are: {names}")


def _add(parts: dict[str, Pair], split: str, kind: str, name: str, array: Array) -> None:
    pair = parts.setdefault(split, {})
    if kind in pair:
        raise ConfigError(
            f"dataset.path: {pair[kind][0]} and {name} are both the {kind} of the {split} split"
        )
    pair[kind] = name, array


def _labelled(parts: Mapping[str, Pair], found: str) -> dict[str, Labelled]:
    if "train" not in parts:
        raise ConfigError(f"dataset.path: no images to train on; {found}")
    return {split: _checked(split, pair, found) for split, pair in parts.items()}


def _checked(split: str, pair: Pair, found: str) -> Labelled:
    if missing := {"images", "labels"} - set(pair):
        raise ConfigError(f"dataset.path: the {split} split has no {missing.pop()}; {found}")
    images, labels = _images(*pair["images"]), _labels(*pair["labels"])
    if len(images) != len(labels):
        raise ConfigError(
            f"dataset.path: {pair['images'][0]} has {len(images):,} images, but "
            f"{pair['labels'][0]} has {len(labels):,} labels"
        )
    return images, labels


def _images(name: str, images: Array) -> Bytes:
    """Return images as bytes, channels first, where there is only one way to take them."""
    import numpy as np

    if images.ndim == 4:
        places = [axis for axis in (1, 3) if images.shape[axis] in (1, 3)]
        if len(places) == 1:
            images = np.moveaxis(images, places[0], 1)
            images = images[:, 0] if images.shape[1] == 1 else images
        else:
            places = []
    else:
        places = [1] if images.ndim == 3 else []
    if not places or 0 in images.shape:
        raise ConfigError(
            f"dataset.path: {name} has the shape {images.shape}; images (n, height, width), "
            "or with 1 or 3 channels (n, height, width, c) or (n, c, height, width), are needed"
        )
    return np.ascontiguousarray(_bytes(name, images))


def _bytes(name: str, images: Array) -> Bytes:
    import numpy as np

    low, high = images.min(), images.max()
    seen = f"dataset.path: {name} is of {images.dtype} from {low:g} to {high:g}"
    if images.dtype == np.uint8:
        if high <= 1:
            raise ConfigError(f"{seen}, which is black; bytes from 0 to 255 are needed")
        return images
    # "not" refuses NaN too
    if images.dtype.kind != "f" or not (low >= 0 and 0 < high <= 1):
        raise ConfigError(f"{seen}; bytes (uint8) from 0 to 255 or floats from 0 to 1 are needed")
    return np.rint(images * np.float32(255)).astype(np.uint8)


def _labels(name: str, labels: Array) -> Bytes:
    import numpy as np

    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ConfigError(
            f"dataset.path: {name} is of {labels.dtype} with the shape {labels.shape}; "
            "whole numbers (n,) are needed, one for each image"
        )
    if len(labels) and not (labels.min() >= 0 and labels.max() < MAX_CLASSES):
        raise ConfigError(
            f"dataset.path: {name} has labels from {labels.min()} to {labels.max()}; they must "
            f"count from 0, up to {MAX_CLASSES - 1}"
        )
    return labels.astype(np.uint8)
