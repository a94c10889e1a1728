"""Drawing of the user's images as the built-in networks take them: the only user of Pillow.

Networks take 28x28 in grey, as of MNIST, or 32x32 in colour, as of CIFAR-10. Images are grey if
every pixel of every one of them is. An image of another size is shrunk or enlarged until its
longer side fits, its proportions kept, and laid on black in the middle, as MNIST's makers did
(LeCun et al. 1998, doi:10.1109/5.726791): cropping would cut off what is near the edge.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.values.errors import ConfigError, DatasetUnavailable
from tuner.values.extras import missing_extra

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from tuner.datasets.images import Bytes

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""Formats that are read; others of Pillow's start programs, or are no images."""
_DRAFT = 4  # times the side drawn; below it, a JPEG file is decoded at a part of its size


@dataclass(frozen=True, slots=True)
class Form:
    """What networks take.

    Attributes:
        like: The shipped data set of this form.
        side: Height and width, pixels.
        channels: Values per pixel.
        words: Its name in reports.
    """

    like: str
    side: int
    channels: int
    words: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image: (height, width), or (channels, height, width)."""
        return (self.side, self.side) if self.channels == 1 else (3, self.side, self.side)


GREY = Form("mnist", 28, 1, "28x28 in grey")
COLOUR = Form("cifar10", 32, 3, "32x32 in colour")


@dataclass(frozen=True, slots=True)
class Drawn:
    """Images of one form, (n, 28, 28) or (n, 3, 32, 32), and how they came to it, in words."""

    images: Bytes
    form: Form
    words: str


Opener = Callable[[Form], "Image.Image"]
"""Opens one image, in grey ("L") or colour ("RGB")."""


class _InColour(Exception):
    """One of the images is in colour, so all are drawn so."""


def draw_files(paths: Sequence[Path], tell: Callable[[float], None]) -> Drawn:
    """Draw image files.

    Args:
        paths: The files, in the order of the result.
        tell: Told the fraction that is drawn.

    Raises:
        ConfigError: If one of them cannot be read; names it.
        DatasetUnavailable: If Pillow is not installed.
    """

    def opener(path: Path) -> Opener:
        return lambda form: _open_file(path, form)

    return _draw([opener(path) for path in paths], tell)


def draw_arrays(arrays: Sequence[Bytes], tell: Callable[[float], None]) -> Drawn:
    """Draw arrays of bytes, each (n, height, width) or (n, 3, height, width).

    Args:
        arrays: They are drawn one after the other.
        tell: Told the fraction that is drawn.

    Raises:
        DatasetUnavailable: If they must be resized, and Pillow is not installed.
    """
    import numpy as np

    plain = [each[:, 0] if each.ndim == 4 and _is_grey(each, 1) else each for each in arrays]
    for form in (GREY, COLOUR):
        if all(each.shape[1:] == form.shape for each in plain):
            return Drawn(np.concatenate(plain), form, f"as they are, {form.words}")

    def opener(pixels: Bytes) -> Opener:
        return lambda _: _from_array(pixels)

    return _draw([opener(pixels) for each in plain for pixels in each], tell)


def _is_grey(images: Bytes, axis: int) -> bool:
    import numpy as np

    first, second, third = np.moveaxis(images, axis, 0)
    return bool(np.array_equal(first, second) and np.array_equal(second, third))


def _draw(openers: Sequence[Opener], tell: Callable[[float], None]) -> Drawn:
    if missing := missing_extra("datasets", "PIL"):
        raise DatasetUnavailable(f"images of your own are read and resized by {missing}")
    try:
        return _draw_as(GREY, openers, tell)
    except _InColour:
        return _draw_as(COLOUR, openers, tell)


def _draw_as(form: Form, openers: Sequence[Opener], tell: Callable[[float], None]) -> Drawn:
    import numpy as np
    from PIL import Image, ImageOps

    images = np.empty((len(openers), *form.shape), np.uint8)
    sizes: list[tuple[int, int]] = []
    for number, opener in enumerate(openers):
        with _quiet():
            image = opener(form)
        if form is GREY and image.mode == "RGB" and not _is_grey(np.asarray(image), 2):
            raise _InColour
        sizes.append(image.info.get(_WHOLE, image.size))
        drawn = image.convert("L" if form is GREY else "RGB")
        if drawn.size != (form.side, form.side):
            drawn = ImageOps.pad(drawn, (form.side, form.side), Image.Resampling.BICUBIC)
        pixels = np.asarray(drawn)
        images[number] = pixels if form is GREY else np.moveaxis(pixels, 2, 0)
        tell((number + 1) / len(openers))
    return Drawn(images, form, _describe(form, sizes))


_WHOLE = "tuner-whole-size"  # of a JPEG file that was decoded at a part of its size


def _describe(form: Form, sizes: Sequence[tuple[int, int]]) -> str:
    others = sorted({size for size in sizes if size != (form.side, form.side)}, key=_area)
    if not others:
        return f"as they are, {form.words}"
    changed = sum(size != (form.side, form.side) for size in sizes)
    which = "all" if changed == len(sizes) else f"{changed:,} of {len(sizes):,}"
    ends = dict.fromkeys(f"{width}x{height}" for width, height in (others[0], others[-1]))
    return (
        f"{which} resized from {' to '.join(ends)} to {form.words}, their proportions kept, "
        "on black"
    )


def _area(size: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    return size[0] * size[1], size


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Pillow from warnings about odd files, but for those of a decompression bomb."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _open_file(path: Path, form: Form) -> Image.Image:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path, formats=FORMATS) as image:
            whole = image.size
            image.draft(image.mode, (_DRAFT * form.side, _DRAFT * form.side))
            opened = _plain(ImageOps.exif_transpose(image), path)
    except ConfigError:
        raise
    except UnidentifiedImageError:
        known = ", ".join(each.lower() for each in FORMATS)
        raise ConfigError(
            f"dataset.path: {path} is no image that can be read ({known}); "
            "remove it from the class folder, or convert it"
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ConfigError(
            f"dataset.path: {path} has more than the {Image.MAX_IMAGE_PIXELS or 0:,} pixels that "
            "are read; make it smaller"
        ) from None
    except Exception as error:  # decoders raise whatever a broken file makes of them
        said = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"dataset.path: {path} cannot be read as an image: {said}") from error
    if max(whole) > form.side * min(whole):
        raise ConfigError(
            f"dataset.path: {path} has {whole[0]}x{whole[1]} pixels, too long and narrow to be "
            f"drawn at {form.side}x{form.side}; cut it"
        )
    opened.info = {_WHOLE: whole}
    return opened


def _plain(image: Image.Image, path: Path) -> Image.Image:
    """Return an image in 8 bits, grey or in colour; what is transparent is laid on white."""
    import numpy as np
    from PIL import Image

    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ConfigError(
            f"dataset.path: {path} has pixels of 32 bits, whose black and white cannot be known; "
            "convert it to 8 bits"
        )
    if image.has_transparency_data:
        above = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", above.size, "white"), above)
    return image.convert("L" if image.mode in ("1", "L") else "RGB")


def _from_array(pixels: np.ndarray) -> Image.Image:
    import numpy as np
    from PIL import Image

    return Image.fromarray(pixels if pixels.ndim == 2 else np.moveaxis(pixels, 0, 2).copy())
