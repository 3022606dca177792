"""The published benchmark: the page is what the raw data says, and documents quote only figures that are in it."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cdc.model.errors import StackError
from tests.bench.public.charts import BAR_X, CHARACTER, LABEL_X, Bars, chart
from tests.bench.public.evaluation import CONTROL, DEBEZIUM, READER, WATERSHED, figures, results
from tests.bench.public.quotes import is_rounded, wrong_quotes
from tests.bench.public.raw_data import RawData, read_all
from tests.bench.public.report import CASES, FOLDER, published, rendered, shown, take
from tests.bench.public.workloads import BACKLOGS
from tests.test_docs import DOCUMENTS, ROOT

ENVIRONMENT = {
    "date": "2026-11-27",
    "command": "python -m tests.bench.public",
    "commit": "0123456789ab",
    "rounds": 3,
    "size": {"rounds": 5},
    "machine": {"processor": "Some CPU", "cores": 2},
    "versions": {"PostgreSQL": "18.4"},
    "settings": {"kafka": {"num.io.threads": "2"}},
}


def raw(folder: Path, control: float = 91_000.0, **environment: object) -> RawData:
    """Three runs of each arm of one case."""
    data = RawData(folder / "catchup.jsonl", {**ENVIRONMENT, **environment})
    for arm, rate in ((WATERSHED, 89_649.0), (DEBEZIUM, 30_000.0), (CONTROL, control), (READER, 120_000.0)):
        for number in (1, 2, 3):
            values = {"rows_per_s": rate, "peak_pss_mb": 90.0, "surplus_records": 0.0, "foreign_share": 0.01}
            data.add("narrow", arm, number, values)
    return data


# ---- what is committed


def test_the_page_and_its_charts_are_made_from_the_raw_data() -> None:
    files = rendered(published(FOLDER / "data"))
    found = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir() if path.is_file()}
    assert found == files, "run `python -m tests.bench.public.report`"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_quote_figures_that_are_in_the_raw_data(document: Path) -> None:
    quotable = figures(results(read_all(FOLDER / "data")))
    assert list(wrong_quotes(document.read_text(encoding="utf-8"), quotable)) == []


# ---- quotes


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("It reads 89,600 rows/s<!-- bench:catchup.narrow.watershed.rows_per_s -->.", []),
        ("| 90,000 <!-- bench:catchup.narrow.watershed.rows_per_s --> |", []),
        (
            "3.0<!-- bench:catchup.narrow.ratio --> times, 0<!-- bench:catchup.narrow.watershed.surplus_records -->",
            [],
        ),
        (
            "2.9<!-- bench:catchup.narrow.ratio --> times",
            ["catchup.narrow.ratio: 2.9 is quoted, 2.9883 was measured"],
        ),
        (
            "5.1<!-- bench:latency.100_per_s.ratio -->",
            ["latency.100_per_s.ratio: not in the raw data, or not to be quoted"],
        ),
        ("fast<!-- bench:catchup.narrow.ratio -->", ["catchup.narrow.ratio: no number stands before the mark"]),
        ("2.9 times\n<!-- bench:catchup.narrow.ratio -->", ["catchup.narrow.ratio: no number stands before the mark"]),
    ],
)
def test_a_quoted_figure_that_is_not_in_the_raw_data_is_found(tmp_path: Path, text: str, wrong: list[str]) -> None:
    assert list(wrong_quotes(text, figures(results({"catchup": raw(tmp_path)})))) == wrong


def test_a_case_whose_control_differs_must_not_be_quoted(tmp_path: Path) -> None:
    quotable = figures(results({"catchup": raw(tmp_path, control=120_000.0)}))
    assert list(wrong_quotes("3.0<!-- bench:catchup.narrow.ratio -->", quotable)) == [
        "catchup.narrow.ratio: not in the raw data, or not to be quoted"
    ]


@pytest.mark.parametrize(
    ("quoted", "value", "is_right"),
    [
        *(("89,600", 89_649.0, True), ("89,700", 89_649.0, False), ("90,000", 89_649.0, True), ("100", 104.0, True)),
        *(("100", 106.0, False), ("2.9", 2.94, True), ("2.9", 2.96, False), ("3", 2.96, True), ("3", 3.2, False)),
        *(("0", 0.0, True), ("0", 0.4, False), ("0.5", 0.46, False), ("16.8", 16.84, True), ("291", 291.0, True)),
    ],
)
def test_a_quoted_figure_is_the_measured_one_rounded(quoted: str, value: float, is_right: bool) -> None:
    assert is_rounded(quoted, value) is is_right


# ---- the report


def test_the_report_has_medians_ratio_share_machine_and_settings(tmp_path: Path) -> None:
    files = rendered({"catchup": raw(tmp_path)})
    page = files["index.md"]
    assert (
        "| 10 columns, 1,000 rows a transaction<br>**3.0 times** Debezium; 75 % of the limit; "
        "the control differs by 1.5% | Watershed | 89,600"
    ) in page
    assert "| 3 of 3 |" in page
    assert "](catchup.svg)" in page
    assert "| processor | Some CPU | all |" in page
    assert '"num.io.threads": "2"' in page
    assert "[Raw data](data/catchup.jsonl)" in page
    assert "0123456789ab" in page


def test_the_report_says_what_is_not_quoted_and_what_was_thrown_away(tmp_path: Path) -> None:
    data = raw(tmp_path, control=120_000.0)
    data.add("narrow", WATERSHED, 4, {"rows_per_s": 1.0, "foreign_share": 0.31})
    files = rendered({"catchup": data})
    assert "*not quoted: the control differs by 29%, 10% at most*" in files["index.md"]
    assert "Watershed, round 4: thrown away, because other programs used 31% of the machine." in files["index.md"]
    assert "89,649" not in files["catchup.svg"], "a chart shows only what may be quoted"


def test_the_report_names_what_was_not_measured(tmp_path: Path) -> None:
    page = rendered({"catchup": raw(tmp_path)})["index.md"]
    left_out = page.partition("## Left out of this run\n\n")[2].partition("\n\n")[0].splitlines()
    assert left_out == [
        *(f"- Catching up with a backlog: {one.title}" for one in BACKLOGS if one.name != "narrow"),
        *("- Latency", "- Existing rows", "- After kill -9", "- Stores", "- Views"),
    ]


def test_without_data_the_report_says_so() -> None:
    assert "No run has been published yet" in rendered({})["index.md"]


def test_only_data_of_a_commit_whose_control_holds_is_published(tmp_path: Path) -> None:
    target = tmp_path / "published"
    for data, message in (
        (raw(tmp_path / "noisy", control=120_000.0), "no figure of catchup may be quoted: the control differs by 29%"),
        (raw(tmp_path / "quick", size={"rounds": 1}), "catchup is of a quick run"),
        (raw(tmp_path / "changed", commit="0123456789ab+"), "with changes that are not committed"),
    ):
        with pytest.raises(StackError, match=message):
            take(data.path.parent, target)
    with pytest.raises(StackError, match="has no raw data"):
        take(tmp_path / "nowhere", target)
    assert not target.exists()
    good = raw(tmp_path / "good")
    take(good.path.parent, target)
    assert json.dumps(read_all(target)["catchup"].environment) == json.dumps(good.environment)
    (target / "other.jsonl").write_bytes(good.path.read_bytes())
    with pytest.raises(StackError, match="is of no part"):
        published(target)


def test_a_chart_is_well_formed_and_to_scale() -> None:
    text = chart("a < b", ["one", "two"], [Bars("first", (100.0, 50.0)), Bars("second", (None, 25.0))])
    root = ElementTree.fromstring(text)  # noqa: S314  our own text
    bars = [int(bar.attrib["width"]) for bar in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert [width / max(bars) for width in bars[2:]] == pytest.approx([1.0, 0.5, 0.25], abs=0.01)


def test_labels_end_before_the_bars() -> None:
    labels = [title for cases in CASES.values() for title in cases.values()]
    assert LABEL_X + CHARACTER * max(map(len, labels)) < BAR_X


def test_figures_are_shown_with_three_digits() -> None:
    assert [shown(value) for value in (89_649.0, 16.84, 0.0, 2.0, 0.1234, None)] == [
        "89,600",
        "16.8",
        "0",
        "2",
        "0.123",
        "–",
    ]
