"""The user's own images: found, identified by their contents, checked, drawn and split.

A split that is given is used. One that is not is drawn by class from the training images, always
the same way (see ``images.draw_by_class``), with at least one image of each class. Training images
are shuffled: files come class by class, and a network that takes them so learns nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.config.schema import DatasetConfig
from tuner.datasets.class_folders import ClassFolders, find_class_folders
from tuner.datasets.downloads import file_sha256
from tuner.datasets.images import SPLIT_SEED, Obtained, draw_by_class
from tuner.datasets.own_arrays import find_idx_files, read_idx, read_npz
from tuner.datasets.pictures import Drawn, draw_arrays, draw_files
from tuner.progress import ProgressCallback, no_progress
from tuner.values.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tuner.datasets.images import Bytes, Splits

    Drawing = dict[str, npt.NDArray[np.intp]]

SHARES = {"test": 0.15, "validation": 0.1}
"""Part of the images for a split that is neither given nor sized, in the order of drawing."""


@dataclass(frozen=True, slots=True)
class OwnData:
    """Data of the user's, found but not read.

    Attributes:
        path: Their file or folder.
        files: What is read, by name.
        folders: What the files are, if they lie in class folders.
    """

    path: Path
    files: tuple[Path, ...]
    folders: ClassFolders | None = None

    def digest(self, progress: ProgressCallback = no_progress) -> str:
        """Return a SHA-256 over the names, sizes and contents of all files.

        Raises:
            ConfigError: If one cannot be read.
        """
        whole = hashlib.sha256()
        for number, path in enumerate(self.files):
            try:
                facts = path.relative_to(self.path), path.stat().st_size, file_sha256(path)
            except OSError as error:
                why = error.strerror
                raise ConfigError(f"dataset.path: {path} cannot be read: {why}") from error
            whole.update("\n".join(map(str, [*facts, ""])).encode("utf-8", "surrogateescape"))
            progress("checking your images", (number + 1) / len(self.files))
        return whole.hexdigest()


def find_own_data(config: DatasetConfig) -> OwnData:
    """Find the files of ``dataset.path``, and what they are.

    Raises:
        ConfigError: If it is no data set.
    """
    path = Path(config.path)
    if path.is_file() and path.suffix.lower() == ".npz":
        return OwnData(path, (path,))
    if not path.is_dir():
        state = "is a file of another kind" if path.exists() else "does not exist"
        raise ConfigError(
            f"dataset.path={path} {state}; a folder of class folders, a folder of idx files or "
            "an .npz file is needed"
        )
    if files := find_idx_files(path):
        return OwnData(path, tuple(files))
    folders = find_class_folders(path)
    paths = [file for split in sorted(folders.files) for file, _ in folders.files[split]]
    return OwnData(path, tuple(paths), folders)


def obtain_own(
    config: DatasetConfig, found: OwnData, progress: ProgressCallback = no_progress
) -> Obtained:
    """Read the user's data, and return the images and labels of each split.

    Args:
        config: The sizes of the splits.
        found: Where the data are.
        progress: Told how much is done.

    Raises:
        ConfigError: If something of the data cannot be used.
        DatasetUnavailable: If Pillow is needed and not installed.
    """

    def tell(fraction: float) -> None:
        progress("reading your images", fraction)

    if found.folders:
        parts, drawn, names = _read_folders(found.folders, tell)
    else:
        given = read_npz(found.path) if found.path.is_file() else read_idx([*found.files])
        drawn = draw_arrays([images for images, _ in given.values()], tell)
        parts = _divided(drawn.images, [(name, labels) for name, (_, labels) in given.items()])
        names = _number_classes(parts)
    splits, words = _split(parts, config, names)
    return Obtained(
        splits,
        str(found.path),
        class_names=names,
        split=words,
        prepared=drawn.words,
        like=drawn.form.like,
    )


def _read_folders(
    folders: ClassFolders, tell: Callable[[float], None]
) -> tuple[Splits, Drawn, tuple[str, ...]]:
    import numpy as np

    drawn = draw_files([path for files in folders.files.values() for path, _ in files], tell)
    labels = [
        (split, np.array([label for _, label in files], np.uint8))
        for split, files in folders.files.items()
    ]
    if drawn.images.max() <= 1:
        raise ConfigError("dataset.path: all images are black")
    return _divided(drawn.images, labels), drawn, folders.names


def _divided(images: Bytes, labels: Sequence[tuple[str, Bytes]]) -> Splits:
    """Return the splits of images that come one split after the other."""
    parts, start = {}, 0
    for split, each in labels:
        parts[split] = images[start : start + len(each)], each
        start += len(each)
    return parts


def _number_classes(parts: Splits) -> tuple[str, ...]:
    """Return the labels as names; refuse labels that are not those of the training images."""
    import numpy as np

    trained = np.bincount(parts["train"][1])
    classes = max(int(labels.max()) for _, labels in parts.values()) + 1
    if classes < 2:
        raise ConfigError("dataset.path: all labels are 0; two classes are the least")
    for label in range(classes):
        if label >= len(trained) or not trained[label]:
            raise ConfigError(
                f"dataset.path: no image to train on has the label {label}, though labels go up "
                f"to {classes - 1}; they must count from 0 without a gap"
            )
    return tuple(map(str, range(classes)))


def _split(parts: Splits, config: DatasetConfig, names: Sequence[str]) -> tuple[Splits, str]:
    """Return all three splits, and in words how they were made."""
    for split in SHARES:
        if split in parts and (wanted := getattr(config, split)):
            raise ConfigError(
                f"dataset.{split}={wanted:,}, but {config.path} has a {split} split of its own, "
                f"of {len(parts[split][1]):,} images; leave dataset.{split} out"
            )
    images, labels = parts["train"]
    sizes = _sizes(config, labels, [split for split in SHARES if split not in parts], names)
    drawn = _draw(labels, sizes, len(names))
    splits = {split: (images[part], labels[part]) for split, part in drawn.items()}
    splits |= {split: part for split, part in parts.items() if split != "train"}
    given = [split for split in ("train", "validation", "test") if split in parts]
    words = [f"{_joined(given)} as given"] if given[1:] else []
    if counted := [f"{size:,} {split}" for split, size in reversed(sizes.items())]:
        words.append(f"{_joined(counted)} images drawn by class, seed {SPLIT_SEED}")
    words.append(f"training images shuffled, seed {SPLIT_SEED}")
    ordered = {split: splits[split] for split in ("train", "validation", "test")}
    return ordered, "; ".join(words)


def _joined(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _sizes(
    config: DatasetConfig, labels: Bytes, missing: Sequence[str], names: Sequence[str]
) -> dict[str, int]:
    """Return how many images each missing split gets: as asked for, else its share."""
    import numpy as np

    for name, count in zip(names, np.bincount(labels, minlength=len(names)), strict=True):
        if count <= len(missing):
            splits = _joined(["train", *missing[::-1]])
            raise ConfigError(
                f"dataset.path={config.path}: class {name} has {count} "
                f"image{'' if count == 1 else 's'}, but {splits} need one each"
            )
    sizes = {
        split: getattr(config, split) or max(len(names), round(SHARES[split] * len(labels)))
        for split in missing
    }
    for split, size in sizes.items():
        if size < len(names):
            raise ConfigError(
                f"dataset.{split}={size:,} must be at least {len(names):,}, an image of each class"
            )
    if sum(sizes.values()) > len(labels) - len(names):
        asked = " and ".join(f"dataset.{split}={size:,}" for split, size in sizes.items())
        raise ConfigError(
            f"{asked} must leave an image of each of {len(names):,} classes to train on, of "
            f"{len(labels):,} images"
        )
    return sizes


def _draw(labels: Bytes, sizes: Mapping[str, int], classes: int) -> Drawing:
    """Return the indices of the training images and of the splits drawn from them.

    One image of each class goes to each split before the others are dealt out.
    """
    import numpy as np

    rng = np.random.default_rng(SPLIT_SEED)
    shuffled = rng.permutation(len(labels))
    by_class = [shuffled[labels[shuffled] == label] for label in range(classes)]
    names = [*sizes, "train"]
    first = {
        name: np.array([members[place] for members in by_class])
        for place, name in enumerate(names)
    }
    others = np.concatenate([members[len(names) :] for members in by_class])
    dealt = draw_by_class(
        labels[others], **{split: size - classes for split, size in sizes.items()}
    )
    return {name: rng.permutation([*first[name], *others[dealt[name]]]) for name in names}
