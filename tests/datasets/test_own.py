"""The user's own images: real files of Pillow and NumPy, found, checked, drawn and split."""

from __future__ import annotations

import gzip
import os
import pickle
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.fuzzing import examples
from tuner.config.own_data import named
from tuner.config.schema import DatasetConfig
from tuner.datasets.images import decode_idx, encode_idx
from tuner.datasets.provide import (
    SPLITS,
    Dataset,
    check_dataset,
    list_cached,
    load_dataset,
    remove_dataset,
)
from tuner.values.errors import ConfigError, DatasetUnavailable

pytestmark = pytest.mark.timeout(20)
CLASSES = ("daisy", "rose", "tulip")
_rng = np.random.default_rng(3)


def own(path: Path, name: str = "", **settings: int) -> DatasetConfig:
    return named(DatasetConfig(name, path=str(path), **{"validation": 0, **settings}))


def load(path: Path, **settings: int) -> Dataset:
    return load_dataset(own(path, **settings), path.parent / "home")


def refusal(path: Path, **settings: int) -> str:
    """The one line that the data are refused with."""
    with pytest.raises(ConfigError) as refused:
        load(path, **settings)
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)
    return str(refused.value)


def read(dataset: Dataset, split: str) -> tuple[np.ndarray, np.ndarray]:
    images, labels = dataset.images(split), dataset.labels(split)
    return decode_idx(images.read_bytes()), decode_idx(labels.read_bytes())


def picture(label: int, size: tuple[int, int] = (28, 28), mode: str = "L") -> Image.Image:
    """Noise whose brightness is that of its class."""
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    dark = 60 * (label % 4)
    return Image.fromarray(_rng.integers(dark, dark + 60, shape, np.uint8))


def put(folder: Path, counts: dict[str, int], kind: str = "png", **words: object) -> Path:
    for label, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            exact = {"lossless": True} if kind == "webp" else {}
            picture(label, **words).save(folder / name / f"{number:03}.{kind}", **exact)
    return folder


@pytest.fixture
def flowers(tmp_path) -> Path:
    return put(tmp_path / "flowers", dict.fromkeys(CLASSES, 20))


# --- class folders


def test_class_folders_are_split_by_class_and_described(flowers):
    seen: list[tuple[str, float | None]] = []
    dataset = load_dataset(
        own(flowers), flowers.parent / "home", lambda task, part: seen.append((task, part))
    )
    assert (dataset.name, dataset.requested, dataset.like) == ("flowers", "flowers", "mnist")
    assert dataset.sizes == {"train": 45, "validation": 6, "test": 9}
    assert dataset.class_names == CLASSES
    for split, count in dataset.sizes.items():
        images, labels = read(dataset, split)
        assert images.shape == (count, 28, 28)
        assert Counter(labels.tolist()) == dict.fromkeys(range(3), count // 3)
        # each image still has its label
        assert (images.mean(axis=(1, 2)) // 60).astype(int).tolist() == labels.tolist()
    assert len(set(read(dataset, "train")[1][:15].tolist())) == 3, "not class by class"
    assert dataset.facts() == {
        "name": "flowers",
        "images": "45 train, 6 validation, 9 test; 28x28x1",
        "classes": "3: daisy, rose, tulip",
        "split": "6 validation and 9 test images drawn by class, seed 0; "
        "training images shuffled, seed 0",
        "digest": dataset.digest,
        "source": str(flowers),
        "prepared": "as they are, 28x28 in grey",
        "defaults_of": "mnist",
    }
    assert ("checking your images", 1.0) in seen
    assert ("reading your images", 1.0) in seen
    assert pickle.loads(pickle.dumps(dataset)) == dataset


def test_no_image_is_lost_or_in_two_splits(flowers):
    dataset = load(flowers)
    drawn = [image.tobytes() for split in SPLITS for image in read(dataset, split)[0]]
    given = [np.asarray(Image.open(path)).tobytes() for path in sorted(flowers.rglob("*.png"))]
    assert sorted(drawn) == sorted(given)


def test_many_classes_are_named_in_part_in_reports(tmp_path):
    folder = put(tmp_path / "many", {f"c{number:02}": 3 for number in range(30)})
    dataset = load(folder)
    assert dataset.classes == 30
    assert dataset.facts()["classes"].endswith("c18, c19, …")


@pytest.mark.parametrize("validation", ["validation", "val", "VAL", None])
def test_given_splits_are_kept(tmp_path, validation):
    folder = tmp_path / "given"
    put(folder / "train", dict.fromkeys(CLASSES, 20))
    put(folder / "test", {"rose": 4})
    if validation:
        put(folder / validation, dict.fromkeys(CLASSES, 5))
    dataset = load(folder)
    assert dataset.sizes["test"] == 4
    assert set(read(dataset, "test")[1].tolist()) == {CLASSES.index("rose")}
    kept = (60, 15) if validation else (54, 6)
    assert (dataset.sizes["train"], dataset.sizes["validation"]) == kept
    assert len(set(read(dataset, "train")[1][:15].tolist())) == 3, "not class by class"
    said = [
        "train and test as given; 6 validation images d",
        "train, validation and test as given",
    ]
    assert dataset.split.startswith(said[validation is not None])


def test_a_class_may_be_called_like_a_split(tmp_path):
    dataset = load(put(tmp_path / "vehicles", {"car": 6, "train": 6, "test": 6}))
    assert dataset.class_names == ("car", "test", "train")


def test_what_is_hidden_or_no_image_beside_the_folders_is_ignored(flowers):
    plain = load(flowers)
    (flowers / ".cache").mkdir()
    (flowers / "LICENSE.txt").write_text("free")
    for name in (".DS_Store", "Thumbs.db", "._0.png"):
        (flowers / "rose" / name).write_bytes(b"litter")
    assert load(flowers).digest == plain.digest


def test_linked_classes_and_images_are_followed(flowers, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (flowers / "rose").rename(elsewhere)
    (flowers / "rose").symlink_to(elsewhere)
    assert load(flowers).sizes["train"] == 45


@pytest.mark.parametrize(
    ("counts", "sizes"),
    [
        ({"a": 3, "b": 3}, {"train": 2, "validation": 2, "test": 2}),
        ({"a": 500, "b": 3}, {"train": 378, "validation": 50, "test": 75}),
    ],
)
def test_each_split_has_each_class(tmp_path, counts, sizes):
    dataset = load(put(tmp_path / "rare", counts))
    assert dataset.sizes == sizes
    for split in SPLITS:
        assert set(read(dataset, split)[1].tolist()) == {0, 1}


def test_sizes_may_be_set(flowers):
    dataset = load(flowers, validation=12, test=3)
    assert dataset.sizes == {"train": 45, "validation": 12, "test": 3}
    assert dataset.digest != load(flowers).digest


# --- what may change


def test_the_same_files_come_from_the_cache_and_changed_ones_do_not(flowers):
    first = load(flowers)
    assert (load(flowers).source, first.source) == ("cache", str(flowers))
    path = flowers / "rose" / "000.png"
    before = path.stat()
    picture(1).save(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    second = load(flowers)
    assert second.source != "cache"
    assert second.digest != first.digest


def test_a_renamed_class_is_prepared_again_with_its_name(flowers):
    load(flowers)
    (flowers / "rose").rename(flowers / "rosa")
    assert load(flowers).class_names == ("daisy", "rosa", "tulip")


def test_other_data_of_the_same_name_are_refused_until_the_former_are_forgotten(flowers, tmp_path):
    load(flowers)
    other = put(tmp_path / "other" / "flowers", dict.fromkeys(CLASSES, 5))
    home = tmp_path / "home"
    with pytest.raises(
        ConfigError, match=rf"already belongs to your data in {flowers}; .*remove flowers"
    ):
        load_dataset(own(other), home)
    assert load_dataset(own(other, "others"), home).name == "others"
    assert sorted(each.name for each in list_cached(home)) == ["flowers", "others"]
    assert check_dataset("flowers", home) == []
    assert remove_dataset("flowers", home) > 0
    assert load_dataset(own(other), home).origin == str(other)
    assert len(list(flowers.rglob("*.png"))) == 60, "the user's own files stay"


# --- drawing


@pytest.mark.parametrize("kind", ["png", "jpg", "bmp", "gif", "webp", "tiff"])
def test_formats_are_read(tmp_path, kind):
    dataset = load(put(tmp_path / kind, {"a": 4, "b": 4}, kind=kind))
    assert (dataset.channels, dataset.height, dataset.width) == (1, 28, 28)


@pytest.mark.parametrize("kind", ["png", "bmp", "tiff"])
def test_grey_in_three_channels_is_grey(tmp_path, kind):
    folder = put(tmp_path / kind, {"a": 4, "b": 4}, kind=kind)
    for path in folder.rglob("*.*"):
        Image.open(path).convert("RGB").save(path)
    assert load(folder).like == "mnist"


def test_one_image_in_colour_makes_all_so(flowers):
    picture(2, (90, 30), "RGB").save(flowers / "tulip" / "999.png")
    dataset = load(flowers)
    assert (dataset.channels, dataset.height, dataset.width) == (3, 32, 32)
    assert dataset.like == "cifar10"
    assert dataset.prepared == (
        "all resized from 28x28 to 90x30 to 32x32 in colour, their proportions kept, on black"
    )
    assert read(dataset, "train")[0].shape[1:] == (3, 32, 32)


def test_a_resized_image_keeps_its_proportions_and_lies_in_the_middle_on_black(tmp_path):
    folder = put(tmp_path / "wide", {"a": 3, "b": 3})
    for path in folder.rglob("*.png"):
        Image.new("RGB", (320, 160), "red").save(path)
    images, _ = read(load(folder), "train")
    red = images[0, 0]
    assert (red[8:24] == 255).all()
    assert red.sum() == 255 * 16 * 32, "16 rows of it, black above and below"
    assert images[0, 1:].sum() == 0


@pytest.mark.parametrize(
    ("mode", "colour", "grey"),
    [
        ("RGBA", (0, 0, 0, 0), 255),
        ("LA", (0, 0), 255),
        ("RGBA", (9, 9, 9, 255), 9),
        ("1", 1, 255),
        ("I;16", 77 << 8, 77),
        ("CMYK", (0, 0, 0, 0), 255),
    ],
)
def test_modes_become_bytes(tmp_path, mode, colour, grey):
    folder = put(tmp_path / "modes", {"a": 3, "b": 3})
    for path in (folder / "a").iterdir():
        path.unlink()
        kind = "tiff" if mode == "CMYK" else "png"
        Image.new(mode, (28, 28), colour).save(path.with_suffix(f".{kind}"))
    images, labels = read(load(folder), "test")
    assert (images[labels == 0] == grey).all()


def test_photographs_are_turned_as_their_camera_was_held(tmp_path):
    folder = put(tmp_path / "turned", {"a": 3, "b": 3}, size=(28, 28))
    for path in (folder / "a").iterdir():
        image = Image.new("L", (28, 28))
        image.paste(255, (0, 0, 28, 14))  # light above
        exif = Image.Exif()
        exif[0x0112] = 3  # upside down
        image.save(path, exif=exif)
    images, labels = read(load(folder), "test")
    assert images[labels == 0][0, :14].max() == 0


# --- what is refused


def test_a_missing_path_is_one_line(tmp_path):
    assert refusal(tmp_path / "gone").startswith(f"dataset.path={tmp_path}/gone does not exist;")
    (tmp_path / "flowers.zip").write_bytes(b"PK")
    assert "is a file of another kind" in refusal(tmp_path / "flowers.zip")


def test_links_that_go_round_are_one_line(flowers):
    loop = flowers.parent / "loop"
    loop.symlink_to(loop)
    assert "does not exist" in refusal(loop)
    (flowers / "round").symlink_to(flowers / "round")
    assert "leads nowhere, or to itself" in refusal(flowers)
    (flowers / "round").unlink()
    (flowers / "above").symlink_to(flowers)
    assert f"{flowers}/above/above is a folder in a class folder" in refusal(flowers)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda at: None, "has no folders of images; there must be one for each class"),
        (lambda at: put(at, {"a": 5}), "has 1 class folder (a); 2 to 256 are needed"),
        (
            lambda at: [(at / f"{number:03}").mkdir(parents=True) for number in range(257)],
            "has 257 class folders; 2 to 256 are needed",
        ),
        (lambda at: put(at, {"a": 5, "b": 0}), "class folder {at}/b has no image"),
        (
            lambda at: put(at, {"a": 5, "b": 2}),
            "class b has 2 images, but train, validation and test need one each",
        ),
        (
            lambda at: [put(at, {"a": 5, "b": 5}), (at / "a" / "notes.txt").write_text("-")],
            "{at}/a/notes.txt is no image that can be read (png, jpeg,",
        ),
        (
            lambda at: [put(at, {"a": 5, "b": 5}), (at / "a" / "x.png").write_bytes(b"\x89PNG")],
            "{at}/a/x.png is no image",
        ),
        (
            lambda at: [put(at, {"a": 5, "b": 5}), picture(0).save(at / "loose.png")],
            "{at}/loose.png lies in no class folder",
        ),
        (
            lambda at: [put(at, {"a": 5, "b": 5}), picture(0).save(at / "loose.tiff")],
            "{at}/loose.tiff lies in no class folder",
        ),
        (
            lambda at: [put(at, {"a": 5, "b": 5}), picture(0, (900, 9)).save(at / "a" / "0.png")],
            "{at}/a/0.png has 900x9 pixels, too long and narrow to be drawn at 28x28",
        ),
        (
            lambda at: [put(at, {"a": 5, "b": 5}), os.mkdir(os.fsencode(at) + b"/caf\xe9")],
            "caf\\udce9' is not in UTF-8; rename it",
        ),
        (
            lambda at: [put(at / "train", {"a": 5, "b": 5}), (at / "val").mkdir()],
            "its validation split has no class folder",
        ),
        (
            lambda at: [put(at / "train", {"a": 5, "b": 5}), put(at / "extra", {"a": 5})],
            "{at}/extra lies beside train/",
        ),
        (
            lambda at: [put(at / "train", {"a": 5, "b": 5}), put(at / "test", {"c": 5})],
            "{at}/test/c is the folder of a class that train/ does not have",
        ),
        (lambda at: put(at / "test", {"a": 5, "b": 5}), "has test/, but no train/"),
        (
            lambda at: [
                put(at / each, {"a": 5, "b": 5}) for each in ("train", "val", "validation")
            ],
            "are both the validation split",
        ),
        (
            lambda at: [
                Image.new("F", (28, 28)).save(path.with_suffix(".tiff"))
                for path in put(at, {"a": 5, "b": 5}).rglob("*.png")
            ],
            "has pixels of 32 bits",
        ),
        (
            lambda at: [
                Image.new("L", (28, 28)).save(path)
                for path in put(at, {"a": 5, "b": 5}).rglob("*.png")
            ],
            "all images are black",
        ),
    ],
)
def test_folders_that_cannot_be_used_are_one_line(tmp_path, make, said):
    at = tmp_path / "wrong"
    at.mkdir()
    make(at)
    assert said.format(at=at) in refusal(at)


def test_a_damaged_image_is_named(flowers):
    path = flowers / "rose" / "007.png"
    path.write_bytes(path.read_bytes()[:200])
    assert f"{path} cannot be read as an image" in refusal(flowers)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_named(flowers):
    path = flowers / "rose" / "007.png"
    path.chmod(0)
    assert f"{path} cannot be read: Permission denied" in refusal(flowers)


def test_an_image_that_would_fill_the_memory_is_named(flowers, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5_000)
    for size in ((90, 90), (200, 200)):  # Pillow warns of the one, and refuses the other
        path = flowers / "tulip" / "bomb.png"
        picture(2, size).save(path)
        assert f"{path} has more than the 5,000 pixels that are read" in refusal(flowers)


def test_a_programs_format_is_not_read(flowers):
    (flowers / "rose" / "x.eps").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    assert "x.eps is no image that can be read" in refusal(flowers)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"test": 58}, "must leave an image of each of 3 classes to train on, of 60 images"),
        ({"validation": 2}, "dataset.validation=2 must be at least 3, an image of each class"),
        ({"test": -1}, "dataset.test must be at least 1, or 0 for a share, got -1"),
    ],
)
def test_splits_that_do_not_fit_are_one_line(flowers, settings, said):
    assert said in refusal(flowers, **settings)


def test_a_size_of_a_given_split_is_refused(tmp_path):
    folder = tmp_path / "given"
    put(folder / "train", {"a": 9, "b": 9})
    put(folder / "test", {"a": 3, "b": 3})
    assert "dataset.test=4, but " in refusal(folder, test=4)


def test_without_pillow_its_extra_is_named(flowers, monkeypatch):
    monkeypatch.setattr("tuner.datasets.pictures.missing_extra", lambda *_: "PIL: pip install it")
    with pytest.raises(DatasetUnavailable, match="PIL: pip install it") as missing:
        load(flowers)
    assert missing.value.exit_code == 3


# --- arrays


def arrays(count: int, *shape: int, classes: int = 3) -> dict[str, np.ndarray]:
    images = _rng.integers(0, 256, (count, *(shape or (28, 28))), np.uint8)
    return {"x": images, "y": np.arange(count) % classes}


@pytest.mark.parametrize(
    ("shape", "like", "drawn"),
    [
        ((28, 28), "mnist", (28, 28)),
        ((28, 28, 1), "mnist", (28, 28)),
        ((1, 28, 28), "mnist", (28, 28)),
        ((8, 8), "mnist", (28, 28)),
        ((32, 32, 3), "cifar10", (3, 32, 32)),
        ((3, 32, 32), "cifar10", (3, 32, 32)),
        ((3, 20, 10), "cifar10", (3, 32, 32)),
    ],
)
def test_arrays_of_all_orders_are_taken(tmp_path, shape, like, drawn):
    given = arrays(30, *shape)
    np.savez(tmp_path / "mine.npz", **given)
    dataset = load(tmp_path / "mine.npz")
    assert (dataset.name, dataset.like) == ("mine", like)
    images, labels = read(dataset, "train")
    assert images.shape[1:] == drawn
    assert dataset.class_names == ("0", "1", "2")
    if drawn[-1] in shape:  # as it is: each image has its label still
        pixels = given["x"].reshape(30, -1) if like == "mnist" else given["x"]
        if shape == (32, 32, 3):
            pixels = np.moveaxis(pixels, 3, 1)
        known = {image.tobytes(): label for image, label in zip(pixels, given["y"], strict=True)}
        assert [known[image.tobytes()] for image in images] == labels.tolist()


@pytest.mark.parametrize(
    "names",
    [
        ("x_train", "y_train", "x_test", "y_test", "x_val", "y_val"),
        ("x_train", "y_train", "x_test", "y_test", "x_validation", "y_validation"),
        ("train_images", "train_labels", "test_images", "test_labels", "val_images", "val_labels"),
    ],
)
def test_splits_of_arrays_are_kept(tmp_path, names):
    parts = [part for count in (30, 9, 6) for part in arrays(count).values()]
    parts[1] = parts[1][:, None]  # labels of Keras' CIFAR-10 and of MedMNIST are columns
    np.savez_compressed(tmp_path / "mine.npz", **dict(zip(names, parts, strict=True)))
    dataset = load(tmp_path / "mine.npz")
    assert dataset.sizes == {"train": 30, "validation": 6, "test": 9}
    assert dataset.split.startswith("train, validation and test as given; training images shuff")
    np.testing.assert_array_equal(read(dataset, "test")[0], parts[2])


def test_floats_from_0_to_1_become_bytes(tmp_path):
    given = arrays(12)
    np.savez(tmp_path / "a.npz", **given)
    np.savez(tmp_path / "b.npz", images=(given["x"] / 255).astype("f4"), labels=given["y"])
    assert load(tmp_path / "b.npz").digest == load(tmp_path / "a.npz").digest


@pytest.mark.parametrize("zipped", [True, False])
def test_idx_files_as_of_mnist(tmp_path, zipped):
    folder = tmp_path / "idx"
    folder.mkdir()
    for split, count in (("train", 40), ("t10k", 8)):
        given = arrays(count, classes=4)
        for kind, array, rank in (("images", given["x"], 3), ("labels", given["y"], 1)):
            contents = encode_idx(array.astype(np.uint8))
            path = folder / f"{split}-{kind}-idx{rank}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(contents) if zipped else contents)
    dataset = load(folder)
    assert dataset.sizes == {"train": 36, "validation": 4, "test": 8}
    assert dataset.split.startswith("train and test as given; 4 validation images drawn by class")
    prepared = load_dataset(own(dataset.folder, "again"), tmp_path / "home")
    assert prepared.sizes == dataset.sizes, "what is prepared can be given again"


def test_an_idx_file_that_is_none_is_named(tmp_path):
    folder = tmp_path / "idx"
    folder.mkdir()
    for kind in ("images", "labels"):
        (folder / f"train-{kind}-idx3-ubyte.gz").write_bytes(b"no gzip")
    assert f"{folder}/train-images-idx3-ubyte.gz is no idx file" in refusal(folder)
    (folder / "train-images.idx").write_bytes(encode_idx(arrays(9)["x"]))
    (folder / "train-images-idx3-ubyte.gz").unlink()
    (folder / "train-labels-idx3-ubyte.gz").unlink()
    assert "the train split has no labels; its files are: train-images.idx" in refusal(folder)
    (folder / "emnist-train-images.idx").write_bytes(encode_idx(arrays(9)["x"]))
    assert "are both the images of the train split" in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"y": np.arange(1, 31)}, "no image to train on has the label 0, though labels go up"),
        ({"y": np.arange(30) % 3 * 2}, "no image to train on has the label 1"),
        ({"y": np.arange(30) % 3 - 1}, "y has labels from -1 to 1; they must count from 0"),
        ({"y": np.arange(30) * 9}, "y has labels from 0 to 261"),
        ({"y": (np.arange(30) % 3).astype("f8")}, "y is of float64 with the shape (30,); whole"),
        ({"y": np.eye(30)}, "y is of float64 with the shape (30, 30)"),
        ({"y": np.array(["a"] * 30)}, "y is of <U1"),
        ({"y": np.zeros(30, int)}, "all labels are 0; two classes are the least"),
        ({"y": np.arange(29) % 3}, "x has 30 images, but y has 29 labels"),
        ({"y": np.arange(30)}, "class 0 has 1 image, but train, validation and test need one"),
        ({"x": np.zeros((30, 784), np.uint8)}, "x has the shape (30, 784); images (n, height"),
        ({"x": np.zeros((30, 9, 9, 4), np.uint8)}, "x has the shape (30, 9, 9, 4)"),
        ({"x": np.zeros((30, 3, 9, 3), np.uint8)}, "x has the shape (30, 3, 9, 3)"),
        ({"x": np.zeros((0, 9, 9), np.uint8)}, "x has the shape (0, 9, 9)"),
        ({"x": np.ones((30, 28, 28), np.uint8)}, "x is of uint8 from 1 to 1, which is black"),
        ({"x": np.full((30, 9, 9), 255)}, "x is of int64 from 255 to 255; bytes (uint8)"),
        ({"x": np.full((30, 9, 9), 255.0)}, "x is of float64 from 255 to 255"),
        ({"x": np.full((30, 9, 9), -0.5)}, "x is of float64 from -0.5 to -0.5"),
        ({"x": np.full((30, 9, 9), np.nan)}, "x is of float64 from nan to nan"),
        ({"x": np.array([None] * 30)}, "it holds Python objects"),
        ({"images": np.zeros((30, 9, 9), np.uint8)}, "both the images of the train split"),
        ({"x_test": np.zeros((3, 9, 9), np.uint8) + 9}, "the test split has no labels"),
    ],
)
def test_arrays_that_cannot_be_used_are_one_line(tmp_path, changes, said):
    np.savez(tmp_path / "bad.npz", **{**arrays(30), **changes})
    assert said in refusal(tmp_path / "bad.npz")


def test_files_that_only_look_like_npz_are_one_line(tmp_path):
    path = tmp_path / "bad.npz"
    np.savez(path, a=np.zeros(3))
    assert "no images to train on; its arrays are: a; x and y, or" in refusal(path)
    path.write_bytes(pickle.dumps([1]))
    assert "is no .npz file of plain arrays: it is no zip archive" in refusal(path)
    np.savez(path, x=np.array([{}]), y=np.zeros(1))
    assert "is no .npz file of plain arrays: it holds Python objects" in refusal(path)
    for contents in (b"", b"PK\x03\x04 no zip", b"some words"):
        path.write_bytes(contents)
        assert "is no .npz file of plain arrays" in refusal(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    assert "holds one array" in refusal(path)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.datasets.own_arrays._MAX_BYTES", 1_000)
    np.savez_compressed(tmp_path / "big.npz", **arrays(30))
    assert "more than the" in refusal(tmp_path / "big.npz")


def pairs(images: np.ndarray, labels: np.ndarray) -> list[tuple[bytes, int]]:
    return [(image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True)]


@pytest.mark.timeout(60 + examples(0))
@settings(max_examples=examples(25), deadline=None, derandomize=True)
@given(
    counts=st.lists(st.integers(3, 40), min_size=2, max_size=8),
    seed=st.integers(0, 2**32 - 1),
    given_test=st.booleans(),
)
def test_every_image_is_in_one_split_with_its_label(tmp_path_factory, counts, seed, given_test):
    """Arrays of any classes, split and written as idx files, come back whole and as they were."""
    folder = tmp_path_factory.mktemp("any")
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    images = rng.integers(0, 256, (len(labels), 28, 28), np.uint8)
    named_parts = {"x_train": images, "y_train": labels}
    if given_test:
        named_parts |= {"x_test": images[:5], "y_test": labels[:5]}
    np.savez(folder / "any.npz", **named_parts)
    dataset = load(folder / "any.npz")
    drawn = [split for split in SPLITS if not (given_test and split == "test")]
    found: list[tuple[bytes, int]] = []
    for split in drawn:
        part, its = read(dataset, split)
        assert set(its.tolist()) == set(range(len(counts)))
        found += [
            (image.tobytes(), label) for image, label in zip(part, its.tolist(), strict=True)
        ]
    assert sorted(found) == sorted(
        (image.tobytes(), label) for image, label in zip(images, labels.tolist(), strict=True)
    )
    if given_test:
        np.testing.assert_array_equal(read(dataset, "test")[0], images[:5])


def test_pillow_warns_of_nothing_to_the_user(flowers):
    image = Image.new("P", (28, 28))
    image.putpalette([0, 0, 0, 250, 250, 250])
    image.save(flowers / "rose" / "palette.png", transparency=b"\x00\x80")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(flowers).sizes["train"] == 46
