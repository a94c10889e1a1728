"""Averages the weights along a training: what ``average_weights`` means in every framework.

The average at any iteration weighs recent weights more, with ``ETA`` of polynomial-decay averaging
(Shamir and Zhang 2013, doi:10.48550/arXiv.1212.1824), so it needs not know when training ends. It
removes the noise of a high learning rate, as a rate that falls to zero would, at every iteration.

Imports nothing of the host; Python 2.7 to 3.13, NumPy 1.16 to 2.
"""

from __future__ import division

import numpy as np

ETA = 8  # the last tenth of the weights makes up six tenths of the average
EVERY = 10  # iterations between two weights of the average


def same(array):
    """Read a variable that is an array of NumPy, or shares its memory with one."""
    return array


def fill(array, values):
    """Write such a variable."""
    array[...] = values


def averaged(trial, step, evaluate, variables, read=same, write=fill):
    """Return ``step`` and ``evaluate`` of a network whose averaged weights are judged.

    Training goes on from the weights themselves. Without ``average_weights`` both stay the same.

    Args:
        trial: The trial; one without the param averages nothing.
        step: Trains so many iterations and returns the last loss.
        evaluate: Judges the network over a split.
        variables: What training changes.
        read: Returns the values of a variable as an array, which is not changed.
        write: Sets a variable to the values of an array.
    """
    if not getattr(trial, "average_weights", False):
        return step, evaluate
    average = Average(step, evaluate, list(variables), read, write)
    return average.step, average.evaluate


class Average(object):
    """The average of a network's weights, kept up to date as they are trained."""

    def __init__(self, step, evaluate, variables, read, write):
        self._train, self._judge = step, evaluate
        self._variables, self._read, self._write = variables, read, write
        self._means = self._copies()
        self._apart = [np.empty_like(each) for each in self._means]
        self._iteration = 0

    def step(self, count):
        """Train so many iterations; returns the last loss."""
        while count:
            part = min(count, EVERY - self._iteration % EVERY)
            loss = self._train(part)
            self._iteration += part
            count -= part
            if self._iteration % EVERY == 0:
                self._add_weights()
        return loss

    def evaluate(self, split):
        """Judge the averaged weights over a split."""
        if self._iteration < EVERY:
            return self._judge(split)
        weights = self._copies()
        self._set(self._means)
        try:
            return self._judge(split)
        finally:
            self._set(weights)

    def _add_weights(self):
        share = (ETA + 1) / (self._iteration // EVERY + ETA)
        for variable, mean, apart in zip(self._variables, self._means, self._apart):
            np.subtract(self._read(variable), mean, out=apart)
            apart *= share
            mean += apart

    def _copies(self):
        return [np.array(self._read(each)) for each in self._variables]

    def _set(self, arrays):
        for variable, values in zip(self._variables, arrays):
            self._write(variable, values)
