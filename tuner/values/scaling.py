"""How fast groups of more processes would train than were measured, each on a host of its own.

An iteration takes the time to compute and the time to exchange all gradients, at once, and the two
do not overlap::

    t(n, batch) = own + image * ceil(batch / n) + step * steps(n) + byte * volume(n)

``n`` is the number of workers. ``own`` is what no thread shortens (Amdahl 1967,
doi:10.1145/1465482.1465560), and ``image`` has a value for each number of threads. ``step`` and
``byte`` are what software takes, as groups were measured on one host without a link. All of them
are fitted to measured times, by least squares of the relative errors, and none is below 0. A link
adds its latency to each step, and the time that it takes to carry the bytes (the alpha-beta model,
Hockney 1994, doi:10.1016/S0167-8191(06)80021-9).

``steps`` and ``volume`` follow from how gradients are exchanged. In a ring, each of n members
sends 2(n-1)/n of the gradients in 2(n-1) steps (Patarasuk and Yuan 2009,
doi:10.1016/j.jpdc.2008.09.002). A server of parameters receives the gradients of all, and sends as
much back: 2n times the gradients in two steps. It is on the first worker's host, so that its link
carries those of the n-1 others. Of the frameworks' papers, Jäger et al.
(doi:10.1145/3286490.3286561) name that link as the limit of such a server.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tuner.values.errors import ConfigError, TunerError
from tuner.values.params import Params, ParamValue, nodes_of
from tuner.values.runtime_map import RuntimeMap
from tuner.values.trial import Interval

BANDWIDTH = r"^([1-9][0-9]{0,4}(?:\.[0-9]{1,3})?)([kmgt]?)bit$"
"""What a bandwidth looks like, in the units of tc(8): ``100mbit``, ``2.5gbit``."""
MAX_LATENCY_MS = 1e4
_SCALE = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_DRAWS = 400  # of the bootstrap
_TAIL = 2.5  # percent of the draws beyond each end of an interval
_Z = 2.2  # of the intervals that a runtime map gives, see there
_TURNS = 1000  # of the least squares, which take about one for each coefficient
_MIN_S = 1e-15
_MIN_SPREAD = 0.01  # relative; a few points that happen to fit do not prove a better precision
_MOST = 10.0  # logarithm of the largest error, so that no interval is infinite
_Array = npt.NDArray[np.float64]


class TooFewLayouts(TunerError):
    """What was measured does not determine the time of the group that was asked for."""

    exit_code = 4


class Topology(enum.Enum):
    """How the members of a group exchange gradients."""

    RING = "ring"
    SERVER = "server"

    def steps(self, workers: int) -> int:
        """Return how many messages follow one another in an iteration."""
        if workers == 1:
            return 0
        return 2 * (workers - 1) if self is Topology.RING else 2

    def volume(self, workers: int) -> float:
        """Return what the busiest process sends and receives one after the other, in gradients.

        Of a ring, whose members send and receive at the same time, it is what each sends.
        """
        if workers == 1:
            return 0.0
        return 2 * (workers - 1) / workers if self is Topology.RING else 2.0 * workers

    def carried(self, workers: int) -> float:
        """Return how much of it the busiest link carries, with a worker on each host.

        The first worker reaches the server on its own host.
        """
        if workers > 1 and self is Topology.SERVER:
            return 2.0 * (workers - 1)
        return self.volume(workers)

    def sent(self, workers: int) -> float:
        """Return what all processes together send in an iteration, in gradients."""
        return self.volume(workers) * (workers if self is Topology.RING else 1)


def read_topology(text: str) -> Topology:
    """Return the topology of that name. Raises ``ConfigError`` if there is none."""
    try:
        return Topology(text)
    except ValueError:
        known = ", ".join(each.value for each in Topology)
        raise ConfigError(f"framework.topology must be one of {known}, got {text!r}") from None


@dataclass(frozen=True, slots=True)
class Link:
    """The network between the hosts of a group.

    Attributes:
        bandwidth: Bits a second, in each direction.
        latency_s: Seconds that a message takes one way, however short it is.
    """

    bandwidth: float
    latency_s: float

    @classmethod
    def read(cls, bandwidth: str, latency_ms: float) -> Link:
        """Return a link of a bandwidth such as ``10gbit``.

        Raises:
            ConfigError: If one of the two is no such value.
        """
        match = re.fullmatch(BANDWIDTH, bandwidth)
        if not match:
            raise ConfigError(f"bandwidth must be such as 100mbit or 10gbit, got {bandwidth!r}")
        if not 0 <= latency_ms <= MAX_LATENCY_MS:
            raise ConfigError(
                f"latency_ms must be from 0 to {MAX_LATENCY_MS:g}, got {latency_ms:g}"
            )
        return cls(float(match[1]) * _SCALE[match[2]], latency_ms / 1e3)


@dataclass(frozen=True, slots=True)
class Pace:
    """The measured time of an iteration.

    Attributes:
        setting: The runtime params; ``workers`` and ``threads`` (of each) say the layout.
        batch_size: Images an iteration, of all workers together.
        iteration_s: Seconds, with the interval of the measurement.
    """

    setting: Params
    batch_size: int
    iteration_s: Interval

    @property
    def workers(self) -> int:
        """Processes that train together."""
        return int(self.setting.get("workers") or 1)

    @property
    def threads(self) -> ParamValue:
        """Threads of each, or ``unset``."""
        return self.setting.get("threads")


def paces(known: RuntimeMap) -> list[Pace]:
    """Return what was measured, without interpolated times."""
    return [
        Pace(setting, size, known.iteration_s(setting, size))
        for setting in known.settings_of(None)
        if nodes_of(setting) == 1
        for size in known.batch_sizes
        if known.was_probed(setting, size)
    ]


def fastest(measured: Iterable[Pace]) -> list[Pace]:
    """Return the pace of the fastest setting of each layout and batch size."""
    found: dict[tuple[int, ParamValue, int], Pace] = {}
    for each in sorted(measured, key=lambda each: each.iteration_s.value):
        found.setdefault((each.workers, each.threads, each.batch_size), each)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class _Fit:
    """The model with one choice of what exchanging costs.

    Attributes:
        costs: What exchanging costs, by the number of workers; a coefficient each.
        design: A row of the model for each measured layout.
        coefficients: As fitted.
        drawn: As fitted in each draw of the bootstrap.
        noise: Factor of one more measurement, in each draw.
    """

    costs: Sequence[Callable[[int], float]]
    design: _Array
    coefficients: _Array
    drawn: _Array
    noise: _Array


class Scaling:
    """The model, fitted to measured paces.

    Where all groups that were measured have as many workers, it cannot be told whether exchanging
    takes its time by step or by byte, which matters for larger groups. Then both are fitted, the
    value is halfway between them (in logarithms), and the interval includes both.

    Args:
        measured: Measured paces. Of each layout, only the fastest setting counts.
        topology: How the members of the groups exchange gradients.
        gradient_bytes: Bytes of all gradients; needed for a link.
    """

    def __init__(
        self, measured: Iterable[Pace], topology: Topology, gradient_bytes: float = 0.0
    ) -> None:
        self.measured = fastest(measured)
        self.topology, self.gradient_bytes = topology, gradient_bytes
        self.threads = list(dict.fromkeys(each.threads for each in self.measured))

    def iteration_s(
        self, workers: int, threads: ParamValue, batch_size: int, link: Link | None = None
    ) -> Interval:
        """Predict the seconds of an iteration, with the interval (95 %) of one measurement of it.

        The interval is that of a parametric bootstrap: times are drawn around the fitted ones, by
        the spread of the residuals, and the model is fitted again.

        Args:
            workers: Processes that train together.
            threads: Threads of each, one of ``threads``.
            batch_size: Images an iteration, of all of them together.
            link: What connects them; ``None`` for one host, as measured.

        Raises:
            TooFewLayouts: If what was measured does not determine that time.
        """
        if not 1 <= workers <= batch_size:
            raise TooFewLayouts(f"{workers} workers cannot share a batch of {batch_size}")
        if threads not in self.threads:
            raise TooFewLayouts(f"nothing was measured with {threads} threads")
        rows = [self._row(fit.costs, workers, threads, batch_size) for fit in self._fits]
        for fit, row in zip(self._fits, rows, strict=True):
            rank = np.linalg.matrix_rank(fit.design)
            if rank < np.linalg.matrix_rank(np.vstack([fit.design, row])):
                raise TooFewLayouts(_NEEDED)
        wire_s = self._wire_s(workers, link) if link else 0.0
        values, lows, highs = list[float](), list[float](), list[float]()
        for fit, row in zip(self._fits, rows, strict=True):
            values.append(max(wire_s + float(row @ fit.coefficients), _MIN_S))
            drawn = (wire_s + fit.drawn @ row) * fit.noise
            lows.append(float(np.percentile(drawn, _TAIL)))
            highs.append(float(np.percentile(drawn, 100 - _TAIL)))
        value = math.exp(sum(map(math.log, values)) / len(values))
        return Interval(value, min(*lows, value), max(*highs, value))

    def _wire_s(self, workers: int, link: Link) -> float:
        if workers > 1 and not self.gradient_bytes:
            raise TooFewLayouts("how many bytes an iteration sends was not measured")
        sent_bits = 8 * self.gradient_bytes * self.topology.carried(workers)
        return sent_bits / link.bandwidth + self.topology.steps(workers) * link.latency_s

    def _row(
        self,
        costs: Sequence[Callable[[int], float]],
        workers: int,
        threads: ParamValue,
        batch: int,
    ) -> _Array:
        images = [math.ceil(batch / workers) * (each == threads) for each in self.threads]
        return np.array([1.0, *images, *(each(workers) for each in costs)])

    @cached_property
    def _fits(self) -> list[_Fit]:
        costs = [self.topology.steps, self.topology.volume]
        sizes = {each.workers for each in self.measured} - {1}
        return [
            self._fit(each) for each in ([costs] if len(sizes) > 1 else zip(costs, strict=False))
        ]

    def _fit(self, costs: Sequence[Callable[[int], float]]) -> _Fit:
        rows = [
            self._row(costs, each.workers, each.threads, each.batch_size) for each in self.measured
        ]
        design = np.array(rows)
        freedom = len(rows) - int(np.linalg.matrix_rank(design))
        if not freedom:
            raise TooFewLayouts(f"{_NEEDED}, and one more to check the model by")
        times = np.array([each.iteration_s.value for each in self.measured])
        coefficients = _least_squares(design, times)
        fitted = np.maximum(design @ coefficients, times * math.exp(-_MOST))
        factors = self._factors(np.log(times / fitted), freedom)
        drawn = [_least_squares(design, fitted * each) for each in factors[:, 1:]]
        return _Fit(costs, design, coefficients, np.array(drawn), factors[:, 0])

    def _factors(self, errors: _Array, freedom: int) -> _Array:
        """Draw factors on times: a row per draw, for one more measurement and for each measured.

        The spread is drawn too, as few residuals do not tell it well.

        Args:
            errors: Residuals, as logarithms.
            freedom: Their degrees of freedom.
        """
        of_probes = [
            math.log(each.iteration_s.high / each.iteration_s.low) / (2 * _Z)
            for each in self.measured
        ]
        square = max(
            float(errors @ errors) / freedom,
            sum(each**2 for each in of_probes) / len(of_probes),
            _MIN_SPREAD**2,
        )
        random = np.random.default_rng(1)  # the same answer whenever it is asked for
        spread = np.sqrt(square * freedom / random.chisquare(freedom, (_DRAWS, 1)))
        logs = spread * random.standard_normal((_DRAWS, len(errors) + 1))
        return np.exp(np.clip(logs, -_MOST, _MOST))


_NEEDED = (
    "too few layouts were measured: it takes a single process and a group of processes, both at "
    "several batch sizes"
)


def _least_squares(design: _Array, times: _Array) -> _Array:
    """Return the coefficients, none below 0, with the least relative errors.

    Raises:
        TooFewLayouts: If that does not converge.
    """
    from scipy import optimize  # takes longer to import than all the rest

    try:
        found, _ = optimize.nnls(design / times[:, None], np.ones(len(times)), maxiter=_TURNS)
    except RuntimeError:
        raise TooFewLayouts("the measured paces do not fit the model") from None
    return np.asarray(found)
