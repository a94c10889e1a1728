"""The report across frameworks: its ledger, its pictures and what it leaves out."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import math

import pytest
from rich.console import Console

from tests.cross_samples import make_cross, rival, with_costs
from tests.report.test_report import Page, drawn_plots
from tests.report_samples import (
    HOSTILE,
    make_answered,
    make_failed,
    make_part,
    make_part_at_a_faster_setting,
    make_study,
    make_unproven,
    with_recorded_default,
)
from tuner.report import front_json, print_cross_summary, write_cross_report
from tuner.report.cross.files import cross_json
from tuner.report.cross.ledger import (
    WORTH,
    cost_cell,
    cross_headline,
    cross_notes,
    ledger,
    mean_line,
    no_loss_mean,
    p_text,
    shortfalls,
)
from tuner.report.cross.view import view_cross, view_gains
from tuner.report.labels import place_labels
from tuner.values.pareto import find_objective
from tuner.values.results import CrossResult, Outcome, StudyResult
from tuner.values.trial import Interval, TrialStatus
from tuner.values.verified import Comparison, CostRatio

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


def make_one() -> CrossResult:
    return make_cross(outcomes=make_cross().outcomes[:1])


def make_of(*studies: StudyResult) -> CrossResult:
    return make_cross(
        outcomes=tuple(Outcome(each.framework, each.title, each) for each in studies)
    )


def make_unverified() -> CrossResult:
    bare = make_study(verified=())
    return make_cross(
        outcomes=(Outcome("caffe", "Caffe 1.0", bare, "nothing was verified"),), complete=False
    )


def make_hopeless() -> CrossResult:
    bare = make_study(
        trials=(make_failed(0, TrialStatus.TIMEOUT, "killed after 3,600 s"),), verified=()
    )
    return make_cross(outcomes=(Outcome("caffe", "Caffe 1.0", bare, "its default failed"),))


def make_hostile() -> CrossResult:
    study = dataclasses.replace(with_costs(make_study()), title=HOSTILE, framework=HOSTILE)
    return make_cross(
        outcomes=(Outcome(HOSTILE, HOSTILE, study), Outcome("absent", HOSTILE, None, HOSTILE)),
        warnings=(HOSTILE,),
        machine={HOSTILE: HOSTILE},
        command=f"python {HOSTILE}",
    )


def make_twins() -> CrossResult:
    """Two frameworks of one title, on the same spot."""
    study = with_costs(make_study())
    twin = dataclasses.replace(study, framework="twin")
    return make_cross(
        outcomes=(Outcome("caffe", "Caffe 1.0", study), Outcome("twin", "Caffe 1.0", twin))
    )


def make_one_objective() -> CrossResult:
    goals = (find_objective("accuracy"),)
    outcomes = tuple(
        dataclasses.replace(each, study=dataclasses.replace(each.study, objectives=goals))
        if each.study
        else each
        for each in make_cross().outcomes
    )
    return make_cross(objectives=goals, outcomes=outcomes)


def make_mixed() -> CrossResult:
    """One framework whose default is known, one of which its first part is."""
    part = dataclasses.replace(with_costs(make_part()), framework="part", title="Part 3")
    return make_of(with_costs(make_answered()), part)


CROSSES = {
    "two": make_cross,
    "mixed": make_mixed,
    "one": make_one,
    "unverified": make_unverified,
    "hopeless": make_hopeless,
    "hostile": make_hostile,
    "twins": make_twins,
    "one objective": make_one_objective,
}


@pytest.fixture(params=CROSSES)
def any_cross(request) -> CrossResult:
    return CROSSES[request.param]()


def summary(result: CrossResult, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_cross_summary(result, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# the ledger


def test_a_row_holds_the_best_point_against_the_default_of_its_framework():
    rows = ledger(make_cross())
    assert [each.title for each in rows] == ["Caffe 1.0", "Brisk 2.0"]
    assert rows[1].best.point.name == "trial 8"
    assert rows[1].cells == (
        ("3.26", "3.20–3.32", "p <0.001"),
        ("not proven", "", ""),
        ("not proven", "", ""),
        ("17.5", "from 57.1", ""),
        ("98.95", "from 99.00", ""),
        ("-69.0", "-70.0 to -68.0", "p <0.001"),
        ("-10.0", "no interval", ""),
    )


def test_each_answer_of_the_ledger_is_of_its_own_configuration():
    (row,) = ledger(make_of(with_costs(make_answered())))
    assert row.best.point.name == "trial 8"
    assert row.cells[:4] == (
        ("3.26", "3.20–3.32", "p <0.001"),
        ("1.70", "1.67–1.73", "p <0.001"),
        ("+0.21", "+0.08 to +0.34", "p 0.004"),
        ("58.3", "from 190", ""),
    )


def test_what_is_not_proven_says_how_close_it_came():
    (row,) = ledger(make_of(with_costs(make_unproven())))
    assert row.best.point.name == "trial 9"
    assert row.cells[0] == ("not proven", "-0.24 points", "")


def test_the_mean_counts_what_is_not_proven_as_no_gain():
    assert no_loss_mean(make_cross()) == pytest.approx(3.26)
    both = make_of(make_study(), dataclasses.replace(make_unproven(), framework="lossy"))
    assert no_loss_mean(both) == pytest.approx(math.sqrt(3.26))
    assert "2 frameworks: 1.81x; not proven of Caffe 1.0 (lossy), which counts as 1.0" in (
        mean_line(both)
    )
    assert no_loss_mean(make_unverified()) is None
    assert mean_line(make_unverified()) == ""


def test_a_framework_that_falls_short_says_why():
    (_, faster), (_, unproven) = shortfalls(
        make_of(make_study(), dataclasses.replace(make_unproven(), framework="lossy"))
    )
    assert faster == (
        "3.3x without loss, as what is faster may lose accuracy: trial 9, 4.7x faster at -0.24 "
        "points (not significant)."
    )
    assert unproven.startswith("no faster configuration is proven to keep the accuracy. The best")
    quick = make_study()
    default, *_, last = quick.verified
    alone = dataclasses.replace(quick, verified=(default, last))
    ((_, why),) = shortfalls(make_of(alone))
    assert why == "3.3x without loss, as nothing faster that was verified is worth its price."
    enough = dataclasses.replace(
        last.against_default, speedup=Interval(WORTH, WORTH - 0.1, WORTH + 0.1)
    )
    study = dataclasses.replace(
        alone, verified=(default, dataclasses.replace(last, against_default=enough))
    )
    assert shortfalls(make_of(study)) == []


def test_what_has_no_interval_says_why():
    (gap,) = [each for each in cross_notes(make_cross()) if each.startswith("No interval")]
    assert gap == (
        "No interval for Caffe 1.0 (memory), Brisk 2.0 (memory): "
        "only one full run of it or of the default."
    )


@pytest.mark.parametrize(
    ("cost", "cell"),
    [
        (None, ("-", "", "")),
        (CostRatio(math.nan, gap="too small"), ("-", "", "")),
        (CostRatio(0.25, gap="one run"), ("-75.0", "no interval", "")),
        (CostRatio(1.5, 1.2, 3.25, 0.031), ("+50.0", "+20.0 to +225", "p 0.031")),
    ],
)
def test_a_cost_is_a_difference_in_percent(cost, cell):
    assert cost_cell(cost) == cell


def test_p_values_have_two_digits():
    said = [p_text(p) for p in (None, 0.0, 0.0009, 0.0123, 0.4, 1.0)]
    assert said == ["", "p <0.001", "p <0.001", "p 0.012", "p 0.4", "p 1"]


def test_a_framework_that_beats_nothing_still_has_its_row():
    study = with_costs(make_study())
    default, first, *_ = study.verified
    equal = Comparison(Interval(1.1, 0.8, 1.4), 0.4, Interval(0.0, -0.01, 0.01), 0.9, False)
    points = (default, dataclasses.replace(first, against_default=equal))
    study = dataclasses.replace(study, verified=points)
    result = make_cross(outcomes=(Outcome("caffe", "Caffe 1.0", study),))
    assert [each.best.tone for each in ledger(result)] == ["none"]
    assert cross_headline(result) == [
        "None of 1 framework is proven to train faster without loss than with its own default."
    ]


def test_the_headline_names_every_gain_and_the_best_of_all():
    assert cross_headline(make_cross()) == [
        "2 of 2 compared frameworks train faster than with their own defaults and lose no "
        "accuracy: Caffe 1.0 3.3x, Brisk 2.0 3.3x.",
        "Of these, Brisk 2.0 is fastest (17.5 s at 98.95 %), Caffe 1.0 is most accurate (58.3 s "
        "at 99.05 %).",
    ]
    assert cross_headline(make_one()) == [
        "Caffe 1.0 trains 3.3x faster than with its own default and loses no accuracy."
    ]
    assert "nothing may be claimed" in cross_headline(make_unverified())[0]


def test_the_headline_of_many_names_the_ends():
    rivals = [rival(f"rival{place}", f"Rival {place}", 1.0, 0.0) for place in range(5)]
    outcomes = [Outcome(each.framework, each.title, each) for each in rivals]
    said, *_ = cross_headline(make_cross(outcomes=(*make_cross().outcomes[:1], *outcomes)))
    assert "6 of 6 compared frameworks train faster" in said
    assert "accuracy: from 3.3x (Caffe 1.0) to 3.3x (" in said
    assert "Rival 1" not in said


def test_a_framework_of_which_a_part_of_the_default_is_known_proves_the_same_accuracy_only():
    part = dataclasses.replace(make_part(), framework="part", title="Part 3")
    result = make_of(make_study(), part)
    row = ledger(result)[1]
    assert row.best.point.name == "trial 3"
    assert row.cells[:5] == (
        ("not proven", "same accuracy", "1.37×"),
        ("not proven", "", ""),
        ("not proven", "", ""),
        ("13.9", "from 19.0", "(first part)"),
        ("98.23", "from 97.90", "(first part)"),
    )
    assert cross_headline(result)[-1] == (
        "Same accuracy only, as only the first part of the default was trained: Part 3 (1.4x)."
    )
    assert no_loss_mean(result) == pytest.approx(math.sqrt(3.26))
    assert shortfalls(result)[1][1].startswith(
        "not proven: only the first part of the default was trained. Same accuracy: trial 3"
    )
    assert cross_json(result)["ledger"][1]["answers"]["same_accuracy"] == "trial 3"
    assert [each.title for each in view_gains(make_of(part))] == []
    view = view_cross(result)
    assert view is not None
    assert [each.label for each in view.entrants] == ["Caffe 1.0 3.3x", "Part 3 1.4x (first part)"]


def test_a_faster_setting_counts_even_if_only_a_part_of_the_default_is_known():
    part = dataclasses.replace(make_part_at_a_faster_setting(), framework="part", title="Part 3")
    result = make_of(make_study(), part)
    row = ledger(result)[1]
    assert row.best.point.name == "runtime only"
    assert row.cells[0] == row.cells[1] == ("1.80", "1.70–1.90", "p <0.001")
    assert row.cells[2] == ("not proven", "", "")
    assert no_loss_mean(result) == pytest.approx(math.sqrt(3.26 * 1.8))
    headline = " ".join(cross_headline(result))
    assert "2 of 2 compared frameworks train faster" in headline
    assert "Of these" not in headline, "the time of a part is not compared with whole ones"
    assert shortfalls(result)[1][1].startswith(
        "1.8x by the runtime setting alone: only the first part of the default was trained. Same"
    )


def test_a_part_that_nothing_reaches_sooner_has_no_answer():
    default, lossy, *_ = make_part().verified
    (row,) = ledger(make_of(dataclasses.replace(make_part(), verified=(default, lossy))))
    assert row.cells[0] == ("not proven", "same accuracy", "not proven")


def test_times_from_a_rate_are_said_to_be_such():
    notes = " ".join(cross_notes(make_of(make_study(), with_recorded_default(make_study()))))
    assert "Training time from the measured rate: Caffe 1.0" in notes
    assert "Training time from" not in " ".join(cross_notes(make_cross()))


def test_frameworks_of_one_title_are_told_apart():
    assert [each.title for each in ledger(make_twins())] == [
        "Caffe 1.0 (caffe)", "Caffe 1.0 (twin)",
    ]  # fmt: skip


# the terminal


@pytest.mark.parametrize("width", [30, 80, 100, 110, 140])
def test_the_summary_fits_every_terminal(any_cross, width):
    printed = summary(dataclasses.replace(any_cross, command="tune"), width)
    assert max(map(len, printed.splitlines())) <= width


@pytest.mark.parametrize("width", [60, 100, 110])
def test_the_summary_leaves_no_framework_out(width):
    words = " ".join(summary(make_cross(), width).split())
    assert "Frameworks compared · mnist · model lenet · cores 2 of 2" in words
    for said in (
        "Brisk 2.0",
        "from 57.1",
        "not proven",
        "3.20–3.32",
        "p <0.001",
        "-69.0",
        "no interval",
    ):
        assert said in words
    assert "Geometric mean of the no-loss speed-up over 2 frameworks: 3.26x." in words
    assert "below 5x without loss: Caffe 1.0 3.3x without loss" in words
    ledger_words, _, missing = words.partition("not in the ledger:")
    assert "Absent" not in ledger_words
    for said in ("Absent", "/no/such was not found", "Other", "has no default for mnist"):
        assert said in missing
    assert "without a p-value" in words


def test_an_interrupted_comparison_says_how_to_go_on():
    printed = summary(make_unverified(), 100)
    assert "Interrupted" in printed
    assert printed.index("WARNING") < printed.index("Not verified")


# the pictures


def test_the_front_over_all_is_of_all():
    view = view_cross(make_cross())
    assert view is not None
    assert list(view.frame.groups) == ["Caffe 1.0", "Brisk 2.0"]
    owners = [
        title
        for point in view.frame.line
        for title, points in view.frame.groups.items()
        if point in points
    ]
    assert owners == ["Brisk 2.0"] * 7 + ["Caffe 1.0"] * 2
    heights = [each.y for each in view.frame.line]
    assert heights == sorted(heights)
    assert view_cross(make_hopeless()) is None


def test_the_gains_are_those_of_the_ledger():
    titled = dataclasses.replace(make_answered(), framework="rich", title="Torch 7")
    everything = (*make_cross().outcomes, *make_of(titled).outcomes)
    gains = {each.title: each for each in view_gains(make_cross(outcomes=everything))}
    assert list(gains) == [
        "no-loss speed-up, ×", "runtime only, ×", "accuracy gain, points", "CPU, %",
        "peak memory, %",
    ]  # fmt: skip
    assert gains["accuracy gain, points"].rows[0][1].value == pytest.approx(0.21)
    name, figure = gains["CPU, %"].rows[0]
    assert (name, round(figure.low, 6), round(figure.high, 6)) == ("Caffe 1.0", -70.0, -68.0)
    assert gains["peak memory, %"].rows[0][1].low == pytest.approx(-10.0)
    assert gains["no-loss speed-up, ×"].neutral == 1
    assert view_gains(make_unverified()) == []


def test_a_figure_that_no_framework_has_is_not_drawn():
    study = make_study()  # nothing in it was compared but time and accuracy
    assert [each.title for each in view_gains(make_of(study))] == ["no-loss speed-up, ×"]


def test_labels_cover_neither_marks_nor_each_other():
    spots = [(0.4 + 0.03 * index, 0.7 - 0.02 * index) for index in range(5)]
    texts = [f"Framework {index} 3.3x" for index in range(5)]
    places = place_labels([[each] for each in spots], texts, spots)
    assert len(set(places)) > 2
    assert place_labels([[(0.01, 0.99)]], ["at the edge"], []) == [(0, "bottom right")]


def test_a_label_rather_covers_a_line_than_a_mark():
    spot, text = [(0.5, 0.5)], "a label"
    places = [(x, y) for x in (0.44, 0.5, 0.56) for y in (0.455, 0.545)]  # on every side of it
    assert place_labels([spot], [text], places) == [(0, "top left")]
    assert place_labels([spot], [text], places, [(0.44, 0.545)]) == [(0, "bottom right")]


# the files


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=pytest.mark.slow if each in ("one", "twins") else ())
        for each in CROSSES
    ],
)
def test_any_comparison_can_be_reported(tmp_path, name):
    result = CROSSES[name]()
    page, picture, data = write_cross_report(result, tmp_path / "new")
    assert [each.name for each in (page, picture, data)] == [
        "report.html", "front.png", "front.json",
    ]  # fmt: skip
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads(data.read_text())["cross_id"] == "77aa01bc"
    html = page.read_text()
    assert HOSTILE not in html
    drawn = Page(html)
    for tag, attributes in drawn.tags:
        assert "src" not in attributes
        assert tag not in ("link", "iframe", "object", "embed", "base")
        assert attributes.get("href", "#").startswith("#")
    plots = len(drawn_plots(drawn))
    assert drawn.count("script") == (1 + plots if plots else 0)
    assert drawn.count("h1") == 1
    assert drawn.count("caption") == drawn.count("table")
    assert drawn.count("figcaption") == drawn.count("figure") == plots


def test_the_page_tells_everything(tmp_path):
    page = Page(write_cross_report(make_cross(), tmp_path)[0].read_text())
    assert drawn_plots(page) == ["plot-fronts", "plot-gains"]
    for words in (
        "2 of 2 compared frameworks train faster",
        "17.5 from 57.1",
        "Geometric mean of the no-loss speed-up over 2 frameworks: 3.26x.",
        "Below 5× without loss Caffe 1.0 3.3x without loss",
        "-70.0 to -68.0",
        "Not in the ledger Absent absent: /no/such was not found",
        "other has no default for mnist with model=lenet",
        "3.3x faster, no loss of accuracy",
        "3,600 s for all frameworks together",
        "id-brisk",
        "AMD EPYC 7B13",
        "python -m tuner experiment=cross_framework dataset=mnist",
    ):
        assert words in page.text
    assert all(attributes.get("scope") for tag, attributes in page.tags if tag == "th")


def test_the_json_is_plain_and_strict(any_cross):
    document = cross_json(any_cross)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert set(document) == set(cross_json(make_cross()))


def test_the_json_holds_the_ledger_the_front_and_the_studies():
    result = make_cross()
    document = cross_json(result)
    brisk = document["ledger"][1]
    assert brisk["framework"] == "brisk"
    assert brisk["best"]["comparison"]["cpu_ratio"]["value"] == 0.31
    assert brisk["best"]["comparison"]["memory_ratio"]["low"] is None
    assert brisk["default"]["comparison"] is None
    assert brisk["answers"]["no_loss"] == brisk["best"]["name"] == "trial 8"
    assert document["no_loss_geometric_mean"] == pytest.approx(3.26)
    assert [each["framework"] for each in document["left_out"]] == ["absent", "other"]
    assert document["studies"]["caffe"] == json.loads(json.dumps(front_json(result.studies[0])))
    times = [each["metrics"]["train_time_s"] for each in document["front"]]
    assert all(later < earlier for earlier, later in itertools.pairwise(times))
    assert {each["framework"] for each in document["front"]} == {"caffe", "brisk"}


def test_six_frameworks_are_told_apart_in_the_picture():
    studies = [rival(f"f{place}", f"Framework {place}", 1 + place, 0.001) for place in range(6)]
    view = view_cross(
        make_cross(outcomes=tuple(Outcome(each.framework, each.title, each) for each in studies))
    )
    assert view is not None
    assert len({(each.label_y, each.side) for each in view.entrants}) > 1
    assert view.entrants[0].label == "Framework 0 3.3x"
