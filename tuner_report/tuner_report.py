"""Report the progress of a training to ``tuner wrap``; do nothing when not wrapped.

    import tuner_report
    for step, batch in enumerate(batches, 1):
        loss = train(batch)
        if not tuner_report.report(step=step):
            break
    tuner_report.report(split="val", accuracy=evaluate())

One file, the standard library alone, Python 2.7 to 3.14. Each call appends one line of JSON to the
file that ``TUNER_REPORT`` names; the tuner's docs/wrap.md describes it (version 1).
"""

import json
import os
import time

__version__ = "1.0"
__all__ = ["report"]

_clock = getattr(time, "monotonic", time.time)  # only differences count


def report(step=None, samples=None, split=None, **metrics):
    """Report what was reached.

    Args:
        step: Steps done so far by this process; never less than before.
        samples: Training examples used so far.
        split: What the metrics were measured on, such as ``"val"``.
        **metrics: Figures by name; ``accuracy`` is a fraction, or per cent.

    Returns:
        Whether to train on. ``False`` means that the tuner has seen enough.
    """
    path = os.environ.get("TUNER_REPORT")
    if not path:
        return True
    line = {"v": 1, "t": _clock(), "pid": os.getpid()}
    for name, value in (("step", step), ("samples", samples)):
        if value is not None:
            line[name] = int(value)
    if split is not None:
        line["split"] = str(split)
    if metrics:
        line["metrics"] = {name: float(value) for name, value in metrics.items()}
    with open(path, "a") as target:  # one write, so lines of several processes do not mix
        target.write(json.dumps(line) + "\n")
    return not os.path.exists(os.path.join(os.path.dirname(path), "stop"))
