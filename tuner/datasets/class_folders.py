"""Folders of images, one for each class, as torchvision's ImageFolder and Keras take them.

The classes are the names of the folders, sorted; their labels count from 0. On top there may be
``train/`` and ``test/``, and ``validation/`` or ``val/``, each with the class folders. Hidden
files are ignored. Links to folders and files are followed, but a folder in a class folder is
refused, so a loop of links ends there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.values.errors import ConfigError

SPLIT_NAMES = {
    "train": "train", "test": "test",
    "validation": "validation", "val": "validation", "valid": "validation",
}  # fmt: skip
"""The splits by the names that people give them."""
MAX_CLASSES = 256  # a label is a byte
_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"),
    *(".tif", ".tiff", ".ppm", ".pgm", ".pbm"),
)
_LITTER = ("thumbs.db", "desktop.ini", "__macosx")  # of Windows and macOS, not hidden by a dot


@dataclass(frozen=True, slots=True)
class ClassFolders:
    """The image files of a data set.

    Attributes:
        names: The classes, by label.
        files: Path and label of each image, by split; without splits all are in ``train``.
    """

    names: tuple[str, ...]
    files: Mapping[str, Sequence[tuple[Path, int]]]


def find_class_folders(root: Path) -> ClassFolders:
    """List the images of a folder of class folders.

    Raises:
        ConfigError: If there are none, or something lies where only they may.
    """
    classes = {split: _classes(folder) for split, folder in _splits(root).items()}
    names = tuple(classes["train"])
    if not names:
        raise ConfigError(
            f"dataset.path={root} has no folders of images; there must be one for each class, "
            f"such as {root}/daisy, or idx files as of MNIST"
        )
    if not 2 <= len(names) <= MAX_CLASSES:
        which = f" ({names[0]})" if len(names) == 1 else ""
        raise ConfigError(
            f"dataset.path={root} has {len(names):,} class folder{'s'[: len(names) - 1]}{which}; "
            f"2 to {MAX_CLASSES} are needed"
        )
    for split, folders in classes.items():
        if not folders:
            raise ConfigError(f"dataset.path={root}: its {split} split has no class folder")
        for name, folder in folders.items():
            if name not in names:
                raise ConfigError(
                    f"dataset.path: {folder} is the folder of a class that train/ does not have; "
                    f"its classes are {', '.join(names)}"
                )
    labels = {name: label for label, name in enumerate(names)}
    files = {
        split: [(path, labels[name]) for name, each in folders.items() for path in _images(each)]
        for split, folders in classes.items()
    }
    return ClassFolders(names, files)


def entries(folder: Path) -> list[Path]:
    """List what a folder holds by name, without hidden files. Raises ``ConfigError``."""
    try:
        found = sorted(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"dataset.path: {folder} cannot be read: {error.strerror}") from error
    return [each for each in found if each.name[0] != "." and each.name.lower() not in _LITTER]


def _splits(root: Path) -> dict[str, Path]:
    """Return the folders of the splits; without splits, the whole folder is ``train``.

    A class may be called "train" too: only a folder of folders is a split.
    """
    folders = {each.name.lower(): each for each in entries(root) if each.is_dir()}
    named = {name: path for name, path in folders.items() if name in SPLIT_NAMES}
    if not any(each.is_dir() for path in named.values() for each in entries(path)):
        return {"train": root}
    if others := [path for name, path in folders.items() if name not in named]:
        raise ConfigError(
            f"dataset.path: {others[0]} lies beside {next(iter(named.values())).name}/, where "
            f"only {', '.join(f'{each}/' for each in SPLIT_NAMES)} may; put it into one of them"
        )
    found: dict[str, Path] = {}
    for name, path in named.items():
        split = SPLIT_NAMES[name]
        if split in found:
            raise ConfigError(
                f"dataset.path: {found[split]} and {path} are both the {split} split"
            )
        found[split] = path
    if "train" not in found:
        raise ConfigError(
            f"dataset.path={root} has {', '.join(f'{path.name}/' for path in named.values())}, "
            "but no train/"
        )
    return found


def _classes(folder: Path) -> dict[str, Path]:
    """Return the class folders by name; loose files beside them, such as a licence, are no matter.

    Loose images would be missed by whoever put them there.
    """
    found = {}
    for each in entries(folder):
        if each.is_dir():
            if not _is_utf8(each.name):
                raise ConfigError(
                    f"dataset.path: the name of {str(each)!a} is not in UTF-8; rename it"
                )
            found[each.name] = each
        elif each.is_symlink() and not each.exists():
            raise ConfigError(f"dataset.path: {each} is a link that leads nowhere, or to itself")
        elif each.suffix.lower() in _SUFFIXES:
            raise ConfigError(
                f"dataset.path: {each} lies in no class folder; put it into that of its class"
            )
    return found


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # Python keeps other bytes as lone surrogates
        return False
    return True


def _images(folder: Path) -> list[Path]:
    found = entries(folder)
    if not found:
        raise ConfigError(f"dataset.path: the class folder {folder} has no image")
    for each in found:
        if each.is_dir():
            raise ConfigError(
                f"dataset.path: {each} is a folder in a class folder; put its images directly "
                f"into {folder}"
            )
    return found
