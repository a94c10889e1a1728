"""Placement of labels in a crowded picture."""

from __future__ import annotations

from collections.abc import Sequence

_LETTER, _LINE = 0.0115, 0.05  # size of a letter, as fractions of the picture
_MARK = 0.02
_VITAL = 4  # penalty of covering a mark, as a multiple of covering the same area of a line
_OUTSIDE = 8  # penalty of leaving the picture, as a multiple of covering the same area
_SIDES = ("top left", "bottom right", "top right", "bottom left", "top center", "bottom center")

Spot = tuple[float, float]
"""A place as fractions (0–1) of the picture's width and height."""

_Box = tuple[float, float, float, float]


def place_labels(
    spots: Sequence[Sequence[Spot]],
    texts: Sequence[str],
    covers: Sequence[Spot],
    marks: Sequence[Spot] = (),
) -> list[tuple[int, str]]:
    """Place each text so that it covers other texts and the marks as little as possible.

    Args:
        spots: For each text, the spots where it may be attached, best first, as fractions (0–1)
            of the picture.
        texts: The texts to place.
        covers: Spots that should remain visible.
        marks: Spots whose visibility matters most.

    Returns:
        For each text, the index of its spot and its side: "top left", "bottom center" …
    """
    taken = [
        (x - _MARK, y - _MARK, x + _MARK, y + _MARK) for x, y in (*covers, *_VITAL * (*marks,))
    ]
    places = []
    for own, text in zip(spots, texts, strict=True):
        boxes = {
            (index, side): _box(spot, text, side)
            for index, spot in enumerate(own)
            for side in _SIDES
        }
        place = min(boxes, key=lambda each: _covered(boxes[each], taken))
        taken.append(boxes[place])
        places.append(place)
    return places


def _box(spot: Spot, text: str, side: str) -> _Box:
    """Return left, bottom, right and top of a text on one side of its spot."""
    vertical, _, horizontal = side.partition(" ")
    width = _LETTER * len(text)
    x = {"left": spot[0] - _MARK - width, "right": spot[0] + _MARK}.get(
        horizontal, spot[0] - width / 2
    )
    y = spot[1] + _MARK if vertical == "top" else spot[1] - _MARK - _LINE
    return x, y, x + width, y + _LINE


def _covered(box: _Box, taken: Sequence[_Box]) -> float:
    """Return the area of ``taken`` under the box, plus the weighted area outside the picture."""
    left, bottom, right, top = box
    area = (right - left) * (top - bottom)
    inside = _overlap(box, (0.0, 0.0, 1.0, 1.0))
    return sum(_overlap(box, each) for each in taken) + _OUTSIDE * (area - inside)


def _overlap(one: _Box, other: _Box) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, width) * max(0.0, height)
