"""Callbacks that report the progress of Keras, Hugging Face and Lightning to ``tuner wrap``.

    model.fit(..., callbacks=[tuner_report_callbacks.keras()])
    transformers.Trainer(..., callbacks=[tuner_report_callbacks.hugging_face()])
    lightning.Trainer(..., callbacks=[tuner_report_callbacks.lightning()])

Each reports the steps, and what is evaluated beside them without the ``val_`` or ``eval_`` of its
name, so that ``--maximize accuracy`` fits all. Training ends once the tuner has seen enough.
The libraries are imported when a callback is made. Nothing happens when not wrapped. Tried with
Keras 3.15, transformers 5.24 and Lightning 2.6.
"""

import tuner_report

__all__ = ["hugging_face", "keras", "lightning"]


_counted = {"before": 0, "last": 0}  # steps of earlier trainings in this process, and of this one


def _total(step):
    """Return the steps of this process, given those of this training: each begins at 0 again."""
    if step < _counted["last"]:
        _counted["before"] += _counted["last"]
    _counted["last"] = step
    return _counted["before"] + step


def _validated(figures, prefix):
    """Return the numbers whose names begin with a prefix, without it; a tensor may be one."""
    found = {}
    for whole, value in (figures or {}).items():
        name = whole[len(prefix) :]
        if not whole.startswith(prefix) or name in ("step", "samples", "split"):
            continue  # a report has its own step
        try:  # noqa: SIM105 - as Python 2.7 has it
            found[name] = float(value)
        except (TypeError, ValueError, RuntimeError):
            pass
    return found


def keras():
    """Return a callback for ``fit`` of Keras 2 or 3."""
    from keras.callbacks import Callback

    class Reports(Callback):
        steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if not tuner_report.report(step=_total(self.steps)):
                self.model.stop_training = True

        def on_epoch_end(self, epoch, logs=None):
            found = _validated(logs, "val_")
            if found:
                tuner_report.report(step=_total(self.steps), split="val", **found)

    return Reports()


def hugging_face():
    """Return a callback for the ``Trainer`` of Hugging Face's transformers."""
    from transformers import TrainerCallback

    class Reports(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if not tuner_report.report(step=_total(state.global_step)):
                control.should_training_stop = True

        def on_evaluate(self, args, state, control, metrics=None, **_):
            found = _validated(metrics, "eval_")
            tuner_report.report(step=_total(state.global_step), split="val", **found)

    return Reports()


def lightning():
    """Return a callback for the ``Trainer`` of Lightning 2, or of pytorch_lightning."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class Reports(Callback):
        def on_train_batch_end(self, trainer, *_):
            if not tuner_report.report(step=_total(trainer.global_step)):
                trainer.should_stop = True

        def on_validation_end(self, trainer, *_):
            if not trainer.sanity_checking:
                found = _validated(trainer.callback_metrics, "val_")
                tuner_report.report(step=_total(trainer.global_step), split="val", **found)

    return Reports()
