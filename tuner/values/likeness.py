"""Defaults for data of the user's own, taken over from a shipped data set of the same form.

A framework's default is written for a data set. On other images of the same shape it is the same,
trained for as many epochs: the iterations follow the number of images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.values.errors import ConfigError
from tuner.values.params import Params, ParamValue, batch_size_of, iterations_of

TRAINING_IMAGES = {"mnist": 55_000, "cifar10": 45_000}
"""Training images of the shipped data sets that others may be like."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """A data set of the user's, and the shipped one that it is like.

    Attributes:
        name: Name of the user's data set.
        like: Name of the shipped data set; one of ``TRAINING_IMAGES``.
        images: Training images of the user's data set.
    """

    name: str
    like: str
    images: int

    def fitted(
        self, params: Params, entries: Mapping[str, Mapping[str, Any]]
    ) -> tuple[dict[str, ParamValue], str]:
        """Return a default's params for the user's data, and in words how they follow.

        Args:
            params: The default for the shipped data set.
            entries: Entries of the search space: the iterations stay at or above their lowest.
        """
        batch, iterations = batch_size_of(params), iterations_of(params)
        epochs = batch * iterations / TRAINING_IMAGES[self.like]
        cut = min(batch, self.images)
        same = round(epochs * self.images / cut)
        own = max(same, int(entries["iterations"]["low"]))
        many = f"{epochs:,.0f}" if epochs >= 100 else f"{epochs:.3g}"
        words = f"as for {self.like}"
        if cut < batch:
            words += f", with all {self.images} training images in a batch in place of {batch}"
        if own > same:
            words += (
                f", and {own:,} iterations, the minimum of the search; as many epochs ({many}) "
                f"would be {same:,}"
            )
        elif own != iterations:
            words += f", for as many epochs ({many}): {own:,} iterations, not {iterations:,}"
        return {**params, "batch_size": cut, "iterations": own}, words

    def ranges(
        self, params: Params, entries: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """Return ends of ranges that hold a fitted default, and no batch beyond the images.

        Raises:
            ConfigError: If the smallest batch is larger than that.
        """
        least, most = entries["batch_size"]["low"], entries["batch_size"]["high"]
        if self.images < least:
            raise ConfigError(
                f"{self.name} has {self.images:,} images to train on, fewer than the smallest "
                f"batch that is searched ({least})"
            )
        longest = max(entries["iterations"]["high"], params["iterations"])
        return {
            "batch_size": {"high": min(most, self.images)},
            "iterations": {"high": longest},
        }
