from __future__ import annotations

import dataclasses
import functools
import io
import json
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from tests.report_samples import (
    HOSTILE,
    make_answered,
    make_factored,
    make_failed,
    make_measurement,
    make_part,
    make_result,
    make_study,
    make_trials,
    make_unproven,
    with_recorded_default,
)
from tuner.report import front_json, print_summary, write_report
from tuner.report.axes import choose_axes, log_ticks
from tuner.report.growth import view_growth
from tuner.report.view import limit, view_front
from tuner.values.errors import StorageError
from tuner.values.pareto import find_objective
from tuner.values.results import StudyResult
from tuner.values.runtime_map import PaceProbe, RuntimeMap
from tuner.values.trial import TrialStatus

# drawing imports plotly and matplotlib, whose first import builds a font cache
pytestmark = pytest.mark.timeout(60)


def objectives(*names: str) -> tuple[object, ...]:
    return tuple(find_objective(name) for name in names)


def make_unverified() -> StudyResult:
    return make_study(verified=(), complete=False)


def make_recorded() -> StudyResult:
    return with_recorded_default(make_study())


def make_hopeless() -> StudyResult:
    return make_study(
        trials=(make_failed(0, TrialStatus.TIMEOUT, "killed after 3,600 s"),), verified=()
    )


def make_hostile() -> StudyResult:
    params = {"blas": HOSTILE, HOSTILE: HOSTILE}
    trials = (make_result(0, 0.99, 190.0, **params), make_result(1, 0.98, 10.0, **params))
    points = tuple(
        dataclasses.replace(each, params=trials[0].params, name=f"{each.name} {HOSTILE}")
        for each in make_study().verified
    )
    return make_study(
        trials=(*trials, *make_trials()[15:]),
        verified=points,
        title=f"Caffe {HOSTILE}",
        warnings=(HOSTILE,),
        machine={HOSTILE: HOSTILE, "cores": "2"},
        command=f"python {HOSTILE}",
    )


STUDIES = {
    "verified": make_study,
    "unverified": make_unverified,
    "recorded": make_recorded,
    "part": make_part,
    "answered": make_answered,
    "unproven": make_unproven,
    "factored": make_factored,
    "hopeless": make_hopeless,
    "empty": lambda: make_study(trials=(), verified=(), verifications=()),
    "hostile": make_hostile,
    "no default": lambda: make_study(trials=make_trials()[1:], verified=()),
    "one objective": lambda: make_study(objectives=objectives("accuracy")),
    "no accuracy": lambda: make_study(objectives=objectives("peak_memory_mb", "train_time_s")),
    "three objectives": lambda: make_study(
        objectives=objectives("accuracy", "train_time_s", "peak_memory_mb")
    ),
    "zero costs": lambda: make_study(
        objectives=objectives("accuracy", "cpu_system_s"),
        trials=tuple(
            dataclasses.replace(each, measurement=make_measurement(9.0, cpu_system_s=0.0))
            for each in make_trials()[:3]
        ),
        verified=(),
    ),
}


SLOW = ("recorded", "part", "unproven", "no default", "no accuracy", "zero costs")
RENDERED = [pytest.param(each, marks=pytest.mark.slow if each in SLOW else ()) for each in STUDIES]
"""Drawing a report takes half a second; summary and JSON are checked for all studies anyway."""


@pytest.fixture(params=STUDIES)
def any_study(request):
    return STUDIES[request.param]()


def summary(study: StudyResult, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_summary(study, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


class Page(HTMLParser):
    """What a browser would load and run, and what a reader would read."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def count(self, tag: str) -> int:
        return sum(1 for each, _ in self.tags if each == tag)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Callable[[str], list[Path]]:
    """The report of each of ``STUDIES``, written once for all tests that only read it."""

    @functools.cache
    def write(name: str) -> list[Path]:
        return write_report(STUDIES[name](), tmp_path_factory.mktemp("report"))

    return write


@pytest.fixture
def page_of(written) -> Callable[[str], Page]:
    return lambda name: Page(written(name)[0].read_text())


# the terminal


@pytest.mark.parametrize("width", [30, 80, 100, 140])
def test_the_summary_fits_every_terminal(any_study, width):
    printed = summary(dataclasses.replace(any_study, command="tune"), width)
    assert max(map(len, printed.splitlines())) <= width


@pytest.mark.parametrize("width", [60, 100, 140])
def test_the_summary_says_what_is_gained(width):
    words = " ".join(summary(make_study(), width).split())
    assert "Caffe 1.0 · mnist · model lenet · cores 2 of 2" in words
    assert (
        "No loss: trial 8 trains 3.3x faster than the default of Caffe 1.0 (58.3 s instead of "
        "190 s) at 99.05 % test accuracy against 99.10 %; a loss of more than 0.2 points"
    ) in words
    for figure in (
        "99.05",
        "98.86–99.22",
        "57.4–59.5",
        "3.20–3.32",
        "-0.19",
        "93.9",
        "7.00",
        "264",
    ):
        assert figure in words
    assert "time from its rate over 10 % of the iterations, in 2 interleaved runs" in words
    assert "14 COMPLETE, 1 STOPPED, 1 DIVERGED, 1 CRASHED, 1 INVALID" in words
    assert "1 disturbed measurement discarded" in words
    assert "not significant" in words  # fmt: skip


def test_the_default_is_the_first_row():
    lines = summary(make_study(), 100).splitlines()
    rows = [line for line in lines if line.startswith(("default", "trial "))]
    assert [" ".join(row.split()[:2]) for row in rows] == [
        "default 99.10", "trial 4", "trial 9", "trial 8",
    ]  # fmt: skip
    assert rows[0].rstrip().endswith("reference")


def test_warnings_stand_above_the_table():
    study = make_study(warnings=("mnist was replaced by mnist_5k",), complete=False)
    printed = summary(study, 100)
    assert printed.index("mnist was replaced") < printed.index("trial 8 trains")
    assert "Interrupted" in printed
    assert printed.index("WARNING") < printed.index("mnist was replaced")
    assert printed.endswith("repeat or resume: python -m tuner framework=caffe dataset=mnist\n")


def test_without_verification_nothing_is_claimed():
    printed = summary(make_unverified(), 100)
    assert "Not verified: nothing may be claimed" in printed
    assert "faster" not in printed
    assert "trial 8    99.02 %" in printed


def test_a_time_from_the_rate_is_said_to_be_one():
    study = make_recorded()
    words = " ".join(summary(study, 100).split())
    assert "(58.3 s instead of 190 s)" in words
    assert "Training time of the default: from its rate over 3 %" in words
    assert "The default's accuracy is that of a reference of 5 seeds" in words
    unverified = " ".join(summary(dataclasses.replace(study, verified=()), 100).split())
    assert "Training time of the default: from its rate over 10 % of its" in unverified


def test_a_default_of_which_a_part_is_known_is_said_to_be_one():
    words = " ".join(summary(make_part(), 100).split())
    assert "Same accuracy: trial 3 trains 1.4x faster" in words
    assert "default 97.90" in words
    assert "first part" in words
    assert "No loss:" not in words


def test_composed_figures_stand_beside_the_verified_ones():
    study = make_factored()
    words = " ".join(summary(study, 100).split())
    assert "Trial 2 at 300: 10.7 s and 97.00 % predicted, 21.4 s and 98.58 %" in words
    assert "the predicted time is refuted; the verified one counts" in words
    assert "2 runtime settings raced in 4 probes; 1 setting could not be measured" in words
    assert {each["trial_number"] for each in front_json(study)["front"]} & {
        each.trial.number for each in study.derived
    }
    assert len(front_json(study)["runtimes"]) == 2


def test_no_accuracy_is_predicted_of_what_trains_for_longer_than_its_trial():
    study = make_factored()
    point = next(each for each in study.verified if each.composed)
    longer = dataclasses.replace(point, composed=(point.train_time_s.value, None))
    known = [longer if each is point else each for each in study.verified]
    study = dataclasses.replace(study, verified=tuple(known))
    words = " ".join(summary(study, 100).split())
    assert "Trial 2 at 300: 21.4 s predicted, 21.4 s verified." in words
    assert longer.refuted == ""
    verified = front_json(study)["verified"]
    assert [each["composed"] for each in verified if each["composed"]] == [[21.4, None]]


def test_a_group_stands_beside_the_fastest_process(tmp_path):
    study = make_factored()
    batch = study.default.params["batch_size"]
    alone = {"blas": "mkl", "workers": 1, "threads": 1}
    group = PaceProbe({**alone, "workers": 2}, batch, 0.05, sent_bytes=2 * 2**20)
    runtimes = RuntimeMap([PaceProbe(alone, batch, 0.08), group])
    study = dataclasses.replace(study, runtimes=runtimes)
    words = " ".join(summary(study, 100).split())
    assert "2 workers of 1 thread each train 1.60 times as fast as the fastest single" in words
    two, one = front_json(study)["groups"]
    figures = two["workers"], two["speedup"], two["efficiency"]
    assert figures == pytest.approx((2, 1.6, 0.8))
    assert (one["workers"], one["against_one"]) == (1, 1.0)
    page = write_report(study, tmp_path)[0].read_text()
    row = page.partition('<th scope="row">2 × 1</th>')[2].partition("</tr>")[0]
    assert [f">{figure}<" in row for figure in ("1.60", "0.80", "2.00")] == [True] * 3
    assert "Workers and threads" not in write_report(make_factored(), tmp_path)[0].read_text()


def test_a_lossy_exchange_is_said_to_change_what_is_learned(tmp_path):
    study = make_factored()
    batch = study.default.params["batch_size"]
    exact = {"blas": "mkl", "workers": 1, "exchange": "exact", "threads": 1}
    rough = {**exact, "workers": 2, "exchange": "fp16"}
    probes = [PaceProbe(exact, batch, 0.08), PaceProbe(rough, batch, 0.079)]
    *others, last = study.verified
    lossless = dataclasses.replace(last, params={**last.params, **rough})
    study = dataclasses.replace(study, runtimes=RuntimeMap(probes), verified=(*others, lossless))
    words = " ".join(summary(study, 100).split())
    changed = "fp16 exchange of 2 workers changes what is learned"
    assert f"{changed}, and trains 1.01 times as fast as the fastest setting that does" in words
    assert "so it was not searched" in words
    assert f"Its {changed}; the accuracy is that of 3 such runs." in words
    data = front_json(study)
    assert [each["changes_learning"] for each in data["verified"]] == [False, False, False, True]
    assert data["verified"][3]["verdict"].endswith(f"; {changed}")
    assert [each["exchange"] for each in data["groups"]] == ["fp16", "exact"]
    page = write_report(study, tmp_path)[0].read_text()
    assert '<th scope="row">2 × 1, fp16</th>' in page
    assert "it changes what is learned" in page
    fast = RuntimeMap([*probes[:1], PaceProbe(rough, batch, 0.01)])
    kept = " ".join(summary(dataclasses.replace(study, runtimes=fast), 100).split())
    assert "so it was not searched" not in kept
    first, second, *rest = study.trials
    tried = dataclasses.replace(second.trial, params={**second.trial.params, **rough})
    trials = (first, dataclasses.replace(second, trial=tried), *rest)
    searched = " ".join(summary(dataclasses.replace(study, trials=trials), 100).split())
    assert "so it was not searched" not in searched, "it was worth it at another batch size"


def test_a_group_on_several_nodes_says_so(tmp_path):
    study = make_factored()
    batch = study.default.params["batch_size"]
    alone = {"blas": "mkl", "workers": 1, "threads": "unset", "nodes": 1}
    both = PaceProbe({**alone, "nodes": 2}, batch, 0.05)
    study = dataclasses.replace(study, runtimes=RuntimeMap([PaceProbe(alone, batch, 0.08), both]))
    words = " ".join(summary(study, 100).split())
    assert "2 workers on 2 nodes train 1.60 times as fast as the fastest single" in words
    assert [each["nodes"] for each in front_json(study)["groups"]] == [2, 1]
    assert "2 × unset on 2 nodes" in write_report(study, tmp_path)[0].read_text()


def test_the_summary_reads_no_markup_and_obeys_no_control_characters():
    study = make_study(title="[red]Caffe\x1b[2J[/red]", warnings=("[bold]\x1b]0;x\x07",))
    printed = summary(study, 100)
    assert "\x1b" not in printed
    assert "[red]Caffe" in printed
    assert "[bold]" in printed


def test_a_terminal_of_another_encoding_gets_question_marks():
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    print_summary(make_study(), Console(file=file, width=100))
    file.flush()
    assert b"trial 8 trains 3.3x faster" in raw.getvalue()


# the files


@pytest.mark.slow
def test_a_report_is_three_whole_files(tmp_path):
    paths = write_report(make_study(), tmp_path / "new" / "report")
    assert [path.name for path in paths] == ["report.html", "front.png", "front.json"]
    assert sorted(path.name for path in paths[0].parent.iterdir()) == sorted(
        path.name for path in paths
    )
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    assert paths[0].read_text().rstrip().endswith("</html>")
    again = write_report(make_study(), tmp_path / "new" / "report")
    assert again == paths


@pytest.mark.slow
@pytest.mark.parametrize("name", RENDERED)
def test_any_study_can_be_reported(written, name):
    for path in written(name):
        assert path.stat().st_size > 500


@pytest.mark.slow
def test_the_picture_is_large_enough_for_a_readme(written):
    _, picture, _ = written("verified")
    header = picture.read_bytes()[16:24]
    assert (int.from_bytes(header[:4]), int.from_bytes(header[4:])) == (1600, 1000)


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written to"):
        write_report(make_hopeless(), tmp_path / "file")


@pytest.mark.slow
def test_a_failed_write_leaves_the_old_report(tmp_path, monkeypatch):
    write_report(make_hopeless(), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(StorageError, match="disk full"):
        write_report(make_unverified(), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


# the JSON


def test_the_json_is_plain_and_strict(any_study):
    document = front_json(any_study)
    text = json.dumps(document, allow_nan=False)
    assert json.loads(text) == document
    assert set(document) == set(front_json(make_study()))


def test_the_json_has_the_figures_with_their_units():
    document = front_json(make_study())
    assert document["schema"] == 1
    default, *_, last = document["verified"]
    assert default["comparison"] is None
    assert default["params"]["threads"] == "unset"
    assert last["name"] == "trial 8"
    assert last["train_time_s"] == {
        "value": 58.3, "low": pytest.approx(57.4255), "high": pytest.approx(59.466),
    }  # fmt: skip
    assert last["test_accuracy"]["value"] == 0.9905
    assert last["comparison"]["speedup"]["value"] == 3.26
    assert last["comparison"]["accuracy_kept"] is last["comparison"]["no_loss"] is True
    assert last["comparison"]["no_loss_looks"] == 1
    assert [each["role"] for each in document["verified"]] == [
        "default", "trade-off", "no loss", "no loss",
    ]  # fmt: skip
    assert document["accuracy_margin"] == 0.002
    assert document["answers"] == {
        "no_loss": "trial 8", "runtime_only": None, "most_accurate": None, "same_accuracy": None,
    }  # fmt: skip
    assert last["runs"] == ["verify-0008", "verify-0009", "verify-0010"]
    assert document["front"][0]["metrics"]["val_accuracy"] == 0.9908
    assert document["objectives"][1] == {
        "name": "train_time_s", "metric": "train_time_s", "direction": "minimize",
    }  # fmt: skip
    assert document["trials"]["DIVERGED"] == 1
    assert document["discarded_measurements"] == 1


def test_the_json_says_where_an_accuracy_comes_from():
    document = front_json(make_answered())
    assert document["verified"][0]["accuracy_from"] == "reference of 5 seeds"
    assert document["reference"].startswith("The default's accuracy is that of a reference")
    assert document["default_part"] == ""
    assert document["notes"] == ["The budget was extended by 120 s for the proof of no loss"]
    assert set(document["answers"].values()) == {"trial 8", "runtime only", "trial 11", None}


def test_the_json_answers_for_a_part_of_the_default_with_the_same_accuracy_alone():
    document = front_json(make_part())
    assert document["default_part"] == "the first 1,000 of 10,000 iterations"
    assert document["answers"] == {
        "no_loss": None, "runtime_only": None, "most_accurate": None, "same_accuracy": "trial 3",
    }  # fmt: skip


def test_the_json_has_null_for_what_is_no_number():
    trials = (make_result(0, 0.99, 190.0), make_result(1, 0.98, 10.0, learning_rate=float("nan")))
    document = front_json(make_study(trials=trials, verified=()))
    assert document["front"][1]["params"]["learning_rate"] is None


# the pictures


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["accuracy", "train_time_s"], ("train_time_s", "accuracy")),
        (["train_time_s", "accuracy"], ("train_time_s", "accuracy")),
        (["accuracy", "peak_memory_mb", "train_time_s"], ("peak_memory_mb", "accuracy")),
        (["accuracy"], (None, "accuracy")),
        (["wall_time_s", "peak_memory_mb"], ("peak_memory_mb", "wall_time_s")),
    ],
)
def test_accuracy_points_upwards(names, wanted):
    x, y = choose_axes(objectives(*names))
    assert (x.name if x else None, y.name) == wanted


def test_the_view_shows_the_front_in_percent_and_counts_what_it_leaves_out():
    view = view_front(make_study())
    assert [each.result.trial.number for each in view.line] == [1, 3, 4, 6, 9, 8, 0]
    assert view.default is not None
    assert (view.default.x, view.default.y) == (190.2, pytest.approx(99.08))
    assert view.log_x
    assert view.hidden == 4
    assert {each.label for each in view.verified} == {
        "default", "trial 4: 8.9x faster", "trial 9: 4.7x faster", "no loss: 3.3x faster",
    }  # fmt: skip
    assert view.lossless == (pytest.approx(98.9), pytest.approx(99.1))


def test_the_answers_are_labelled_by_what_they_answer():
    labels = {each.label for each in view_front(make_answered()).verified}
    assert {
        "no loss: 3.3x faster", "runtime only: 1.7x faster", "most accurate: +0.21 points",
    } < labels  # fmt: skip


def test_the_first_part_of_a_default_is_drawn_as_one():
    view = view_front(make_part())
    assert {each.label for each in view.verified} == {
        "default, first part", "trial 1: 2.4x faster", "same accuracy: 1.4x faster",
        "trial 9: 2.1x slower",
    }  # fmt: skip
    assert limit(view) == "same accuracy: at most 0.2 points below the default"


def test_no_two_labels_are_fastened_at_one_place_on_one_side():
    placed = [
        (each.x.value, each.label_y, each.side) for each in view_front(make_answered()).verified
    ]
    assert len(set(placed)) == len(placed) == 7


def test_what_makes_five_times_the_default_s_errors_is_no_front():
    poor = make_result(20, 0.9545, 2.0)  # the verified default makes 0.9 % errors
    fair = make_result(21, 0.9555, 3.0)
    view = view_front(make_study(trials=(*make_trials(), poor, fair)))
    assert [each.result.trial.number for each in view.line][:2] == [21, 1]
    assert view.floor == pytest.approx(95.5)
    drawn = {each.result.trial.number: each for each in view.points}
    assert not drawn[20].on_front
    assert view.y_range[0] > drawn[20].y
    assert view.y_range[0] < drawn[21].y
    assert view.hidden == 3


def test_a_default_without_a_single_error_is_drawn_at_the_top():
    trials = (make_result(0, 1.0, 100.0), make_result(1, 1.0, 20.0))
    view = view_front(make_study(trials=trials, verified=()))
    assert view.floor == 99.5
    assert [view.spot(each.x, each.y)[1] for each in view.points] == pytest.approx([1.0, 1.0])
    assert view.spot(view.points[0].x, view.floor)[1] < 0.5


def test_what_is_no_accuracy_is_drawn_as_it_is():
    view = view_front(make_study(objectives=objectives("peak_memory_mb", "train_time_s")))
    assert view.scale.is_linear
    assert view.floor is view.lossless is None


def test_memory_is_drawn_in_mib_with_its_verified_value():
    view = view_front(make_study(objectives=objectives("accuracy", "peak_memory_mb")))
    assert view.default is not None
    assert view.default.x == pytest.approx(264)
    assert view.reference is not None
    assert view.reference.x.value == pytest.approx(264.2)


def test_what_verification_does_not_measure_has_no_verified_points():
    assert view_front(make_study(objectives=objectives("accuracy", "wall_time_s"))).verified == []


def test_the_hypervolume_grows_with_time_and_names_its_reference():
    growth = view_growth(make_study())
    assert growth is not None
    assert growth.share == sorted(growth.share)
    assert growth.elapsed_s == sorted(growth.elapsed_s)
    assert 0 < growth.share[-1] <= 100
    assert "train time 209.2 s" in growth.reference
    assert view_growth(make_hopeless()) is None


def test_ticks_are_round_numbers():
    assert log_ticks([8.1, 190.2]) == [5, 10, 20, 50, 100, 200]


# the page


@pytest.mark.slow
@pytest.mark.parametrize("name", RENDERED)
def test_the_page_loads_nothing(page_of, name):
    page = page_of(name)
    for tag, attributes in page.tags:
        assert "src" not in attributes, (tag, attributes)
        assert tag not in ("link", "iframe", "object", "embed", "base")
        assert attributes.get("href", "#").startswith("#")
    assert page.count("script") == expected_scripts(page)


def drawn_plots(page: Page) -> list[str]:
    ids = [attributes.get("id") or "" for tag, attributes in page.tags if tag == "div"]
    return [each for each in ids if each.startswith("plot-")]


def expected_scripts(page: Page) -> int:
    """Sorting, and where there are plots: plotly and one script a plot."""
    plots = len(drawn_plots(page))
    return 1 + (1 + plots if plots else 0)


@pytest.mark.slow
def test_the_page_says_which_trials_ran_for_their_accuracy_alone(tmp_path):
    study = make_study()
    *others, last = study.trials
    beside = dataclasses.replace(
        last, trial=dataclasses.replace(last.trial, accuracy_only=True, pace_s=0.01)
    )
    page = write_report(dataclasses.replace(study, trials=(*others, beside)), tmp_path)[0]
    assert "its times are not used" in Page(page.read_text()).text


@pytest.mark.slow
def test_the_page_tells_everything(page_of):
    page = page_of("verified")
    for words in (
        "No loss 3.3x Trial 8 trains 3.3x faster",
        "Runtime only not proven",
        "Most accurate the default",
        "trial 9 tried for no loss",
        "98.86–99.22",
        "not significant",
        "exit 134",
        "asked for mkl, but openblas-pthread was loaded",
        "cannot reach the front",
        "others used 41 %; discarded and repeated",
        "others used 41 %; kept and marked",
        "AMD EPYC 7B13",
        "0.3.13",
        "55,000 train",
        "peak_memory_mb<=2048",
        "1,800 s",
        "python -m tuner framework=caffe dataset=mnist",
        "Reference point: accuracy 90.07 %, train time 209.2 s",
    ):
        assert words in page.text
    plots = ["front", "growth", "curves", "cpu", "memory"]
    assert drawn_plots(page) == [f"plot-{name}" for name in plots]


@pytest.mark.slow
def test_the_page_can_be_used_without_seeing_it(page_of):
    page = page_of("verified")
    assert page.count("h1") == 1
    assert page.count("caption") == page.count("table")
    assert page.count("figcaption") == page.count("figure") == 5
    pictures = [attributes for _, attributes in page.tags if attributes.get("role") == "img"]
    assert all(len(each["aria-label"] or "") > 20 for each in pictures)
    assert all(attributes.get("scope") for tag, attributes in page.tags if tag == "th")
    assert ("html", {"lang": "en"}) in page.tags


@pytest.mark.slow
def test_the_page_says_what_it_leaves_out(page_of):
    text = page_of("three objectives").text
    assert "Of the 3 objectives (accuracy, train_time_s, peak_memory_mb) the first two" in text
    text = page_of("unverified").text
    assert "Not verified: nothing may be claimed." in text
    assert "Interrupted: everything shown was measured; resume with python -m tuner" in text
    text = page_of("hopeless").text
    assert "There is nothing to draw" in text
    assert "killed after 3,600 s" in text


@pytest.mark.slow
def test_untrusted_text_stays_text(written):
    html = written("hostile")[0].read_text()
    assert HOSTILE not in html
    assert "alert('x')</script>" not in html
    page = Page(html)
    assert page.count("script") == expected_scripts(page)
    assert HOSTILE in page.text


CHROMIUM = shutil.which("chromium")


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("name", ["verified", "hostile", "one objective"])
def test_a_browser_draws_every_plot(name, tmp_path):
    path, *_ = write_report(STUDIES[name](), tmp_path)
    argv = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=5000", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=50, check=True)
    page = Page(done.stdout)
    drawn = [
        attributes
        for tag, attributes in page.tags
        if tag == "svg" and "main-svg" in (attributes.get("class") or "").split()
    ]
    assert len(drawn) >= 2 * len(drawn_plots(page)) > 0
    assert not [attributes for _, attributes in page.tags if attributes.get("onclick")]


def test_a_picture_of_one_trial_draws_without_a_warning(tmp_path):
    only = make_result(0, 0.99, 200.0)
    result = dataclasses.replace(
        make_study(), trials=(only,), verified=(), verifications=(), complete=False
    )
    assert len(write_report(result, tmp_path)) == 3
