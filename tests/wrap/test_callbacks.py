"""Callbacks report what their library hands over, and end the training when told to.

The libraries are no requirement of the tests, so their base classes stand in for them here; the
arguments are those that Keras 3, transformers 5 and Lightning 2 call with.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "tuner_report"


@pytest.fixture
def callbacks(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setenv("TUNER_REPORT", str(tmp_path / "report.jsonl"))
    for name, base in (
        ("keras.callbacks", "Callback"),
        ("transformers", "TrainerCallback"),
        ("lightning.pytorch", "Callback"),
    ):
        parent = name.partition(".")[0]
        monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        setattr(sys.modules[name], base, type(base, (), {"model": types.SimpleNamespace()}))
    yield importlib.import_module("tuner_report_callbacks")
    for name in ("tuner_report", "tuner_report_callbacks"):
        sys.modules.pop(name, None)


def reports(tmp_path) -> list[dict]:
    lines = (tmp_path / "report.jsonl").read_text().splitlines()
    names = ("step", "split", "metrics")
    return [
        {name: each[name] for name in names if name in each} for each in map(json.loads, lines)
    ]


def test_keras(callbacks, tmp_path):
    made = callbacks.keras()
    made.on_train_batch_end(0, logs={"loss": 2.0})
    made.on_epoch_end(0, logs={"accuracy": 0.5, "val_accuracy": 0.4, "val_loss": 1.5})
    made.on_epoch_end(1, logs={"accuracy": 0.5})
    assert not hasattr(made.model, "stop_training")
    (tmp_path / "stop").touch()
    made.on_train_batch_end(1)
    assert made.model.stop_training is True
    assert reports(tmp_path) == [
        {"step": 1},
        {"step": 1, "split": "val", "metrics": {"accuracy": 0.4, "loss": 1.5}},
        {"step": 2},
    ]


def test_hugging_face(callbacks, tmp_path):
    made = callbacks.hugging_face()
    state, control = types.SimpleNamespace(global_step=7), types.SimpleNamespace()
    made.on_step_end(None, state, control, model=None)
    made.on_evaluate(
        None, state, control, metrics={"eval_accuracy": 0.9, "eval_name": "x", "step": 3}
    )
    (tmp_path / "stop").touch()
    made.on_step_end(None, state, control)
    assert control.should_training_stop is True
    assert reports(tmp_path)[:2] == [
        {"step": 7},
        {"step": 7, "split": "val", "metrics": {"accuracy": 0.9}},
    ]


def test_steps_never_go_back_where_one_training_follows_another(callbacks, tmp_path):
    for _ in range(3):
        made = callbacks.keras()
        made.on_train_batch_end(0)
        made.on_train_batch_end(1)
        made.on_epoch_end(0, logs={"val_loss": 1.0})
    assert [each["step"] for each in reports(tmp_path)] == [1, 2, 2, 3, 4, 4, 5, 6, 6]


def test_lightning(callbacks, tmp_path):
    made = callbacks.lightning()
    trainer = types.SimpleNamespace(
        global_step=3,
        sanity_checking=True,
        callback_metrics={"val_acc": 0.8, "val_list": [1], "acc": 0.9, "step": 1.0},
    )
    made.on_validation_end(trainer, None)
    trainer.sanity_checking = False
    made.on_train_batch_end(trainer, None, {}, None, 2)
    made.on_validation_end(trainer, None)
    (tmp_path / "stop").touch()
    made.on_train_batch_end(trainer, None, {}, None, 3)
    assert trainer.should_stop is True
    assert reports(tmp_path)[:2] == [
        {"step": 3},
        {"step": 3, "split": "val", "metrics": {"acc": 0.8}},
    ]
