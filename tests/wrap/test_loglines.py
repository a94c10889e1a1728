"""Lines of MLPerf logging and of Syne Tune's reporter are understood as they are."""

from __future__ import annotations

import pytest

from tuner.wrap.loglines import LogLine, read_log_line

MLPERF = (
    ':::MLLOG {"namespace": "", "time_ms": 1550861371620, "event_type": "POINT_IN_TIME", '
    '"key": "eval_accuracy", "value": 0.97, "metadata": {"file": "train.py", "lineno": 1, '
    '"samples_count": 6000}}'
)
SYNE_TUNE = (
    '[tune-metric]: {"epoch": 3, "accuracy": 0.97, "st_worker_timestamp": 1650000000.5, '
    '"st_worker_time": 2.5, "st_worker_iter": 2}'
)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            MLPERF,
            LogLine("MLPerf logging, samples_count", 6000, 1550861371.62, {"eval_accuracy": 0.97}),
        ),
        (
            f"0: {MLPERF}",
            LogLine("MLPerf logging, samples_count", 6000, 1550861371.62, {"eval_accuracy": 0.97}),
        ),
        (
            ':::MLLOG {"key": "seed", "value": 3, "time_ms": 1000, "metadata": null}',
            LogLine("MLPerf logging", None, 1.0),
        ),
        (SYNE_TUNE, LogLine("Syne Tune's reporter", 3, 2.5, {"epoch": 3, "accuracy": 0.97})),
        (
            '[tune-metric]: {"loss": 0.5}',
            LogLine("Syne Tune's reporter", None, None, {"loss": 0.5}),
        ),
    ],
)
def test_lines_of_other_tools_are_read(line, told):
    assert read_log_line(line) == told


@pytest.mark.parametrize(
    "line",
    [
        "epoch 3: accuracy 0.97",
        ":::MLLOG",
        ":::MLLOG {",
        ":::MLLOG []",
        ":::MLLOG {}",
        ':::MLLOG {"time_ms": "x"}',
        ':::MLLOG {"time_ms": 1, "metadata": 3}',
        "[tune-metric]: nonsense",
        "[tune-metric]: [1]",
        "[tune-metric]: [[1, 2]]",
        ':::MLLOG {"time_ms": NaN, "metadata": {"step_num": Infinity}}',
        "[tune-metric]: " + "[" * 100_000,
    ],
)
def test_other_lines_and_damaged_ones_tell_nothing(line):
    assert read_log_line(line) is None
