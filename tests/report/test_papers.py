"""Theirs beside ours: ratios, trends, claims, and the files that show them."""

from __future__ import annotations

import dataclasses
import io
import json
import math

import pytest
from rich.console import Console

from tests.paper_samples import claiming, make_paper, make_result, make_run, series
from tuner.config.paper import PaperRow
from tuner.report.papers import FIGURES, paper_headline, print_paper_summary, write_paper_report
from tuner.report.papers.comparison import (
    AGREES,
    DIFFERS,
    FAILS,
    HOLDS,
    PARTLY,
    UNKNOWN,
    cells,
    figure_text,
    judged_claims,
    trends,
)


def test_ratios_are_to_the_first_row_that_both_sides_have():
    paper = make_paper()
    other, slow, fast = paper.rows[2], paper.rows[0], paper.rows[1]
    result = make_result(
        paper, dataclasses.replace(make_run(other, 1.0), result=None, reason="nobody has it"),
        make_run(slow, 8.0), make_run(fast, 2.0),
    )  # fmt: skip
    found = cells(result, "train_time_s")
    assert [each.their_ratio for each in found] == [0.5, 1.0, 0.1]
    assert [each.our_ratio for each in found] == [None, 1.0, 0.25]


def test_without_figures_of_theirs_ours_are_to_our_first_row():
    rows = [PaperRow("A", "synthetic"), PaperRow("B", "synthetic")]
    result = make_result(make_paper(rows=rows), make_run(rows[0], 4.0), make_run(rows[1], 6.0))
    assert [each.our_ratio for each in cells(result, "train_time_s")] == [1.0, 1.5]


@pytest.mark.parametrize(
    ("theirs", "ours", "verdict", "same_best", "alike", "rank"),
    [
        ([10, 20, 40], [1, 3, 5], AGREES, True, 3, 1.0),
        ([10, 20, 40], [5, 3, 1], DIFFERS, False, 0, -1.0),
        ([10, 20, 40, 80], [1, 9, 5, 3], PARTLY, True, 3, 0.2),
        ([10, 20, 40], [2.0, 2.0, 2.0], PARTLY, True, 0, None),  # all alike here: best, but flat
        ([10.0, 10.1, 10.2], [3.0, 2.9, 2.95], AGREES, True, 3, -0.5),  # flat on both sides
        ([10, 20], [1, 3], AGREES, True, 1, None),
    ],
)
def test_a_trend_is_judged_by_its_best_row_and_by_pairs_of_rows(
    theirs, ours, verdict, same_best, alike, rank
):
    (trend,) = trends(series(theirs, ours))
    assert (trend.verdict, trend.same_best, trend.alike) == (verdict, same_best, alike)
    assert trend.rank == (None if rank is None else pytest.approx(rank))
    assert trend.pairs == math.comb(len(theirs), 2)


def test_what_differs_is_explained_by_the_declaration_and_by_the_cores():
    paper = {"sweeps": ["threads"], "why": {"train_time_s": "The library is newer."}}
    (trend,) = trends(series([10, 20, 40], [5, 3, 1], **paper))
    assert trend.why == (
        "The library is newer. A trial here has 2 cores; the paper's machine had 24."
    )
    (agreeing,) = trends(series([10, 20, 40], [1, 3, 5], **paper))
    assert agreeing.why == ""


def test_each_series_has_a_trend_and_all_rows_have_one():
    rows = [
        PaperRow(of, "synthetic", {"threads": n, "blas": of}, theirs={"train_time_s": 10.0 * n})
        for of in ("A", "B")
        for n in (1, 2)
    ]
    times = [1.0, 2.0, 2.0, 1.0]
    result = make_result(make_paper(rows=rows), *map(make_run, rows, times))
    found = {each.scope: each.verdict for each in trends(result)}
    assert found == {"A": AGREES, "B": DIFFERS, "": PARTLY}


def test_rows_of_one_training_are_not_compared_with_each_other():
    rows = [
        PaperRow(of, "synthetic", {"threads": n}, theirs={"train_time_s": factor * n})
        for of, factor in (("A", 10.0), ("B", 7.0))
        for n in (1, 2)
    ]
    result = make_result(make_paper(rows=rows), *map(make_run, rows, [1.0, 2.0, 1.0, 2.0]))
    assert {each.scope: each.verdict for each in trends(result)} == {"A": AGREES, "B": AGREES}


def test_a_training_that_diverges_on_both_sides_agrees():
    rows = [
        PaperRow("A", "synthetic", {"learning_rate": rate}, theirs={"accuracy_pct": accuracy})
        for rate, accuracy in ((0.01, 99.0), (0.1, math.nan))
    ]
    paper = make_paper(rows=rows, metrics=["accuracy_pct"])
    result = make_result(paper, make_run(rows[0], 1.0, 0.98), make_run(rows[1], None))
    (trend,) = trends(result)
    assert trend.verdict == AGREES
    assert math.isnan(result.ours(result.runs[1], "accuracy_pct"))
    assert paper_headline(result)[0].startswith("Measured: 2 of 2 rows")


@pytest.mark.parametrize(
    ("ours", "order", "verdict"),
    [
        ([1, 2, 3], ([1], [2], [3]), HOLDS),
        ([1, 3, 2], ([1], [2, 3]), HOLDS),
        ([1, 3, 2], ([1], [2], [3]), FAILS),
        ([2, 2.01, 3], ([1], [2]), FAILS),  # no more than noise
    ],
)
def test_a_claim_in_words_is_an_order_of_rows(ours, order, verdict):
    result = series([1, 1, 1], ours, claims=[claiming(*order)])
    (judged,) = judged_claims(result)
    assert judged.verdict == verdict
    assert bool(judged.words) == (verdict == FAILS)


@pytest.mark.parametrize(
    ("ours", "verdict", "words"),
    [
        ([1, 2.1], HOLDS, ""),
        ([1, 1.97], HOLDS, ""),  # about twice
        ([1, 1.5], FAILS, "A: threads 2 has 1.5, less than 2 times A: threads 1 with 1"),
    ],
)
def test_a_claim_of_a_factor_needs_more_than_the_order(ours, verdict, words):
    claim = dataclasses.replace(claiming([1], [2]), times=[2.0])
    (judged,) = judged_claims(series([1, 1], ours, claims=[claim]))
    assert judged.verdict == verdict
    assert judged.order == "A: threads 1 × 2 ≤ A: threads 2"
    assert judged.words.startswith(words)
    assert bool(judged.words) == bool(words)


def test_a_claim_about_rows_that_are_missing_cannot_be_told():
    paper = make_paper(claims=[claiming([1], [3])])
    runs = [make_run(row, 1.0) for row in paper.rows[:2]]
    result = make_result(
        paper, *runs, dataclasses.replace(runs[0], row=paper.rows[2], result=None)
    )
    (judged,) = judged_claims(result)
    assert (judged.verdict, judged.words) == (UNKNOWN, "not measured here: Other")


def test_every_figure_comes_from_the_measurement():
    (row, *_) = make_paper().rows
    run = make_run(row, 5.0, 0.9)
    result = make_result(make_paper(), run)
    found = {name: result.ours(run, name) for name in FIGURES if name != "efficiency_pct"}
    assert found["iteration_time_s"] == 0.1
    assert found["images_per_s"] == 1000
    assert found["train_time_per_epoch_s"] == 1.0  # 5,000 images in 5 s, of 1,000
    assert found["accuracy_pct"] == 90
    assert found["test_images_per_s"] == 200
    assert found["cpu_total_pct"] == pytest.approx(
        sum(found[f"cpu_{each}_pct"] for each in ("user", "system", "iowait"))
    )
    assert found["memory_max_mb"] >= found["memory_avg_mb"] > 0


def test_the_accuracy_of_a_part_is_not_that_of_the_row():
    (row, *_) = make_paper().rows
    run = make_run(row, 5.0, 0.9)
    part = dataclasses.replace(run, result=run.result.projected("its limit was reached"))
    part = dataclasses.replace(
        part, result=dataclasses.replace(
            part.result, trial=dataclasses.replace(part.result.trial, share=0.1)
        ),
    )  # fmt: skip
    result = make_result(make_paper(), part)
    assert result.ours(part, "accuracy_pct") is None
    assert result.ours(part, "train_time_s") == 5.0


def test_efficiency_is_throughput_over_that_of_as_many_single_workers():
    rows = [PaperRow("A", "synthetic", {"workers": n, "batch_size": 50 * n}) for n in (1, 4)]
    runs = [make_run(rows[0], 1.0), make_run(rows[1], 2.0)]
    result = make_result(make_paper(rows=rows), *runs)
    assert [result.ours(each, "efficiency_pct") for each in runs] == [100.0, 50.0]
    other = make_run(dataclasses.replace(rows[0], params={**rows[0].params, "threads": 4}), 1.0)
    unlike = make_result(make_paper(rows=rows), other, runs[1])
    assert unlike.ours(runs[1], "efficiency_pct") is None, "its one worker has other threads"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("train_time_s", 11555.43, "11,555"), ("train_time_s", 512.18, "512.2"),
        ("iteration_time_s", 0.03612, "0.0361"), ("accuracy_pct", 99.1, "99.10"),
        ("accuracy_pct", math.nan, "NaN"), ("memory_max_mb", None, "-"),
    ],
)  # fmt: skip
def test_figures_are_printed_with_the_digits_that_they_have(name, value, text):
    assert figure_text(FIGURES[name], value) == text


def test_terminal_page_section_and_data_say_the_same(tmp_path):
    paper = make_paper(why={"train_time_s": "<b>newer</b>"}, claims=[claiming([2], [1])])
    runs = [make_run(paper.rows[0], 1.0), make_run(paper.rows[1], 3.0)]
    last = dataclasses.replace(runs[0], row=paper.rows[2], result=None, reason="nobody has it")
    result = make_result(paper, *runs, last)
    out = io.StringIO()
    print_paper_summary(result, Console(file=out, width=200))
    paths = write_paper_report(result, tmp_path)
    assert [path.name for path in paths] == ["report.html", "report.md", "paper.json"]
    page, section, data = (path.read_text(encoding="utf-8") for path in paths)
    for shown in (out.getvalue(), section):
        assert "Wu et al., table X" in shown
        assert "differs (another best row, 0 of 1 pair of rows the same way)" in shown
        assert "(training time, s: Synthetic: blas fast < Synthetic: blas slow): does not" in shown
        assert "does not hold here" in shown
        assert "nobody has it" in shown
        assert "Not run: GPUs: none here." in shown
    assert "<b>newer</b>" not in page
    assert "&lt;b&gt;newer" in page
    assert "nobody has it" in page
    document = json.loads(data)
    assert document["rows"][1]["figures"]["train_time_s"] == {
        "theirs": 10.0, "ours": 3.0, "their_ratio": 0.1, "our_ratio": 3.0,
    }  # fmt: skip
    assert document["rows"][2]["remarks"] == "nobody has it"
    assert document["trends"][0]["verdict"] == DIFFERS
    assert document["claims"][0]["verdict"] == FAILS


def test_an_interrupted_experiment_says_so(tmp_path):
    paper = make_paper()
    result = make_result(paper, make_run(paper.rows[0], 1.0), complete=False)
    _, section, _ = write_paper_report(result, tmp_path)
    assert "It was interrupted" in section.read_text(encoding="utf-8")
    assert "Compared: nothing" in section.read_text(encoding="utf-8")
