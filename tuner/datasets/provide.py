"""Data sets: found or fetched, checked, split, and kept as the plain files that workers read.

A prepared data set is a folder of six uncompressed idx files (the format of MNIST, LeCun et al.
1998, doi:10.1109/5.726791), which ``tuner.datasets.images`` describes, and a record,
``dataset.json``, with the SHA-256 of each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.config.catalogue import load_dataset_config, tuner_home
from tuner.config.own_data import OWN
from tuner.config.schema import DatasetConfig
from tuner.datasets.downloads import file_sha256
from tuner.datasets.images import (
    PACKAGES,
    check_name,
    check_source,
    describe_split,
    encode_idx,
    obtain,
)
from tuner.datasets.own import OwnData, find_own_data, obtain_own
from tuner.progress import ProgressCallback, no_progress
from tuner.values.errors import ConfigError, DatasetUnavailable, StorageError
from tuner.values.likeness import Likeness
from tuner.values.quality import ACCURACY, Quality, perplexity

if TYPE_CHECKING:
    from tuner.datasets.images import Obtained, Values

SPLITS = ("train", "validation", "test")
_FORMAT = 1
_OWN_FORMAT = 1  # changes with whatever draws and splits the user's own images
_RECORD = "dataset.json"
_NAMES_SHOWN = 20  # of classes, in a report

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set on disk, ready for workers.

    Attributes:
        name: The data set actually used; not the requested one after a fallback.
        requested: The data set asked for.
        folder: Holds the six idx files.
        height: Of an image, in pixels; 0 for a text.
        width: Of an image, in pixels; 0 for a text.
        channels: Values per pixel, each 0–255; 0 for a text.
        classes: Labels are 0 to ``classes - 1``.
        sizes: Number of images of each split; of a text, of words to be predicted.
        split: How the splits were made, in words.
        digest: SHA-256 over the six files, so over the data and the split: two studies with the
            same digest used the same images in the same order.
        origin: Where the data came from when it was prepared.
        source: ``cache`` if it had been prepared before, else as ``origin``:
            ``TUNER_DATA_MIRROR``, a mirror's address, or a package and its version.
        warning: One line about a fallback or about faults of the data; empty if there are none.
        class_names: Name of each label of the user's own data; the words of a text.
        prepared: How the user's own images were drawn, or words numbered, in words.
        like: The shipped data set whose form the user's own images have; empty for a shipped one.
    """

    name: str
    requested: str
    folder: Path
    height: int
    width: int
    channels: int
    classes: int
    sizes: Mapping[str, int]
    split: str
    digest: str
    origin: str
    source: str
    warning: str = ""
    class_names: tuple[str, ...] = ()
    prepared: str = ""
    like: str = ""

    @property
    def likeness(self) -> Likeness | None:
        """What its defaults are taken over from; ``None`` for a shipped data set."""
        return Likeness(self.name, self.like, self.sizes["train"]) if self.like else None

    @property
    def is_text(self) -> bool:
        """Whether it consists of words, of which the next one is to be predicted."""
        return not self.channels

    @property
    def quality(self) -> Quality:
        """The figure of merit of what is learnt from it."""
        return perplexity(self.classes) if self.is_text else ACCURACY

    def images(self, split: str) -> Path:
        """Return the idx file of a split's images; of a text, of its words."""
        return self.folder / f"{split}-images.idx"

    def labels(self, split: str) -> Path:
        """Return the idx file of a split's labels; of a text, of the words that follow."""
        return self.folder / f"{split}-labels.idx"

    def facts(self) -> dict[str, str]:
        """Return what a report says about the data, as printable text by name."""
        sizes = ", ".join(f"{self.sizes[split]:,} {split}" for split in SPLITS)
        cached = " (cached)" if self.source == "cache" != self.origin else ""
        facts = {
            "name": self.name,
            **self._contents(sizes),
            "split": self.split,
            "digest": self.digest,
            "source": f"{self.origin}{cached}",
        }
        own = {"prepared": self.prepared, "defaults_of": self.like, "warning": self.warning}
        return facts | {name: fact for name, fact in own.items() if fact}

    def _contents(self, sizes: str) -> dict[str, str]:
        if self.is_text:
            return {"words": sizes, "vocabulary": self._classes()}
        shape = f"{self.height}x{self.width}x{self.channels}"
        return {"images": f"{sizes}; {shape}", "classes": self._classes()}

    def _classes(self) -> str:
        shown = list(self.class_names[:_NAMES_SHOWN])
        if len(self.class_names) > len(shown):
            shown.append("…")
        return f"{self.classes}{': ' if shown else ''}{', '.join(shown)}"


def load_dataset(
    config: DatasetConfig, home: Path | None = None, progress: ProgressCallback = no_progress
) -> Dataset:
    """Return the data set, prepared on first use and checked on every use.

    Several processes may call this at once. A corrupt cache is logged as a warning and prepared
    again.

    Args:
        config: Which data set, its sources and the sizes of its splits.
        home: The cache folder; ``TUNER_HOME`` by default.
        progress: Told what is being fetched or prepared.

    Raises:
        ConfigError: If ``config`` cannot be used, such as a split larger than the data.
        DatasetUnavailable: If no source has it and there is no fallback.
        StorageError: If the cache folder cannot be written.
    """
    check_source(config)
    try:
        return _load(config, home or tuner_home(), progress)
    except DatasetUnavailable as error:
        if config.on_unavailable != "fallback" or not config.fallback:
            raise
        reason = str(error)
    # its own fallback is not followed: two data sets could name each other
    other = dataclasses.replace(load_dataset_config(config.fallback), on_unavailable="error")
    used = load_dataset(other, home, progress)
    warning = (
        f"{used.name} ({sum(used.sizes.values()):,} images) is used in place of {config.name}: "
        f"{reason}, or set dataset.on_unavailable=error to stop here"
    )
    warning = "; ".join(filter(None, [warning, used.warning]))
    return dataclasses.replace(used, requested=config.name, warning=warning)


def list_cached(home: Path | None = None) -> list[Dataset]:
    """Return the prepared data sets by name, one for each split; skip those without a record."""
    found = []
    for folder in _folders("*", home or tuner_home()):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found.append(_read_record(folder)[0])
    return found


def check_dataset(name: str, home: Path | None = None) -> list[Path]:
    """Hash the prepared files of a data set in all its splits; return the corrupt ones.

    Raises:
        ConfigError: If ``name`` cannot be the name of a data set.
        DatasetUnavailable: If it was never prepared.
    """
    check_name("data set", name)
    folders = _folders(name, home or tuner_home())
    if not folders:
        raise DatasetUnavailable(
            f"data set {name} is not cached; python -m tuner datasets get {name} prepares it"
        )
    return [path for folder in folders for path in _corrupt_files(folder)]


def remove_dataset(name: str, home: Path | None = None) -> int:
    """Remove a data set's prepared files and downloads; return the bytes freed.

    Raises:
        ConfigError: If ``name`` cannot be the name of a data set.
        StorageError: If they cannot be removed.
    """
    check_name("data set", name)
    home = home or tuner_home()
    freed = 0
    with _writing(home), _lock(name, home):
        for folder in [*_folders(name, home), home / "downloads" / name]:
            freed += sum(path.stat().st_size for path in folder.glob("*"))
            if folder.exists():
                shutil.rmtree(folder)
    return freed


def _load(config: DatasetConfig, home: Path, progress: ProgressCallback) -> Dataset:
    own = find_own_data(config) if config.source == OWN else None
    if own:
        _require_own_name(config, home)
    recipe = _recipe(config, own.digest(progress) if own else "")
    folder = home / "datasets" / f"{config.name}-{recipe[:12]}"
    if not _corrupt_files(folder):
        return _read_record(folder)[0]
    progress(f"preparing {config.name}", None)
    with _writing(home), _lock(config.name, home):
        corrupt = _corrupt_files(folder)
        if not corrupt:  # another process was first
            return _read_record(folder)[0]
        if folder.exists():
            for path in corrupt:
                logger.warning("%s is corrupt or missing; the data set is prepared again", path)
        obtained = _obtain(config, own, home, progress)
        _store(folder, config, obtained)
        return dataclasses.replace(_read_record(folder)[0], source=obtained.origin)


def _obtain(
    config: DatasetConfig, own: OwnData | None, home: Path, progress: ProgressCallback
) -> Obtained:
    if own:
        return obtain_own(config, own, progress)
    return obtain(config, home / "downloads" / config.name, progress)


def _require_own_name(config: DatasetConfig, home: Path) -> None:
    """Refuse the name of data of the user's that came from elsewhere: results would be mixed."""
    origins = set()
    for folder in _folders(config.name, home):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            origins.add(_read_record(folder)[0].origin)
    if others := origins - {config.path}:
        raise ConfigError(
            f"dataset.name={config.name} already belongs to your data in {others.pop()}; set "
            f"another dataset.name= for {config.path}, or forget the others with "
            f"python -m tuner datasets remove {config.name}"
        )


def _recipe(config: DatasetConfig, contents: str) -> str:
    """Return a digest of what determines the six files, known before they exist.

    Args:
        config: The data set.
        contents: Digest of the user's own files; empty for a shipped data set.
    """
    test = config.test if config.source in (OWN, *PACKAGES) else 0
    recipe = [_FORMAT, config.source, list(config.files.values()), config.validation, test]
    recipe += [_OWN_FORMAT, contents] if contents else []
    return hashlib.sha256(json.dumps(recipe).encode()).hexdigest()


@contextlib.contextmanager
def _writing(home: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"data sets cannot be kept in {home}: {error.strerror or error}; "
            "set TUNER_HOME to a folder that can be written and has room"
        ) from error


def _lock(name: str, home: Path) -> contextlib.AbstractContextManager[Any]:
    from filelock import FileLock  # 40 ms

    (home / "datasets").mkdir(parents=True, exist_ok=True)
    return FileLock(home / "datasets" / f".{name}.lock")


def _folders(name: str, home: Path) -> list[Path]:
    return sorted((home / "datasets").glob(f"{name}-{'[0-9a-f]' * 12}"))


# --- the prepared folder


def _read_record(folder: Path) -> tuple[Dataset, dict[str, str]]:
    """Return the data set of a folder, and the expected SHA-256 of each of its files."""
    record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
    files = record.pop("files")
    record["class_names"] = tuple(record.get("class_names", ()))
    # six exact names, in order: a record cannot point the checks elsewhere
    files = {path: files[path] for path in _file_names()}
    name = record["name"]
    return Dataset(**record, requested=name, folder=folder, source="cache"), files


def _file_names() -> list[str]:
    return [f"{split}-{kind}.idx" for split in SPLITS for kind in ("images", "labels")]


def _corrupt_files(folder: Path) -> list[Path]:
    try:
        dataset, files = _read_record(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [folder / _RECORD]
    corrupt = [folder / name for name, sha256 in files.items() if not _fits(folder / name, sha256)]
    return corrupt or ([] if dataset.digest == _digest(files) else [folder / _RECORD])


def _fits(path: Path, sha256: str) -> bool:
    try:
        return file_sha256(path) == sha256
    except OSError:
        return False


def _digest(files: Mapping[str, str]) -> str:
    return hashlib.sha256(
        "".join(f"{files[name]}\n" for name in _file_names()).encode()
    ).hexdigest()


def _store(folder: Path, config: DatasetConfig, obtained: Obtained) -> None:
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
    try:
        partial.mkdir()
        record = _write_files(partial, obtained.splits)
        record |= {"name": config.name, "split": obtained.split or describe_split(config)}
        record |= {"origin": obtained.origin, "warning": obtained.warning}
        record |= {name: getattr(obtained, name) for name in ("class_names", "prepared", "like")}
        (partial / _RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_files(folder: Path, splits: Mapping[str, tuple[Values, Values]]) -> dict[str, Any]:
    files = {}
    for split, arrays in splits.items():
        for kind, array in zip(("images", "labels"), arrays, strict=True):
            contents = encode_idx(array)
            (folder / f"{split}-{kind}.idx").write_bytes(contents)
            files[f"{split}-{kind}.idx"] = hashlib.sha256(contents).hexdigest()
    shape = splits["train"][0].shape
    height, width = shape[-2:] if len(shape) > 1 else (0, 0)
    channels = shape[1] if len(shape) == 4 else 1
    return {
        "height": height,
        "width": width,
        "channels": channels if height else 0,
        "classes": 1 + max(int(labels.max()) for _, labels in splits.values()),
        "sizes": {split: len(labels) for split, (_, labels) in splits.items()},
        "digest": _digest(files),
        "files": files,
    }
