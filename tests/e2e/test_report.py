"""attnload's page: its figures are the rows', in a browser too, and nothing comes from elsewhere."""

import html.parser
import json
import os
import re
import shutil
import subprocess

import pytest

from attnd_process import PATIENCE_S, tool

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")


@pytest.fixture(scope="module")
def report(server, tmp_path_factory):
    """(path of the page, the rows that were printed) of a sweep with failures in it."""
    folder = tmp_path_factory.mktemp("report")
    mix = folder / "mix"
    mix.write_text("weight=9 q_len=32\nweight=1 kv_heads=3  # refused: not a divisor\n")
    page = folder / "report.html"
    done = tool("attnload", "--server", server.address, "--mix", mix, "--rate=50,100%,200", "--concurrency=2", "--duration=500ms", "--window=100ms",
                "--warmup=1ms", "--html", page, "--json")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 4 and sum(row["failed"] for row in rows) > 0
    return page, rows


class Page(html.parser.HTMLParser):
    """What a test asks of a page: its elements as (tag, attributes, ids and classes above), its table, its data."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.cells, self.data = [], [], ""
        self._above, self._in_data = [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.elements.append((tag, attrs, list(self._above)))
        if tag in ("figure", "g"):
            self._above.append(attrs.get("id") or attrs.get("data-name"))
        if tag == "tr":
            self.cells.append({})
        if tag == "td" and "data-field" in attrs:
            self.cells[-1][attrs["data-field"]] = float(attrs["data-value"])
        self._in_data = tag == "script" and attrs.get("id") == "data"

    def handle_endtag(self, tag):
        if tag in ("figure", "g"):
            self._above.pop()

    def handle_data(self, data):
        if self._in_data:
            self.data += data
            self._in_data = False

    def dots(self, figure, curve):
        return [(float(a["data-x"]), float(a["data-y"])) for tag, a, above in self.elements if tag == "circle" and above == [figure, curve]]

    def bars(self, figure):
        return [(a["data-name"], float(a["data-value"])) for tag, a, above in self.elements if tag == "rect" and above == [figure]]


def open_in_chromium(path, profile):
    """(the document once its script has run, what came to the console)."""
    flags = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr",
             "--virtual-time-budget=5000", f"--user-data-dir={profile}"]  # fmt: skip
    if os.geteuid() == 0:
        flags.append("--no-sandbox")
    done = subprocess.run([CHROMIUM, *flags, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


def test_holds_the_rows_and_needs_nobody(report):
    path, rows = report
    text = path.read_text()
    page = Page(text)
    data = json.loads(page.data)
    assert data["rows"] == rows
    assert len(data["offered"]) == len(data["cdf"]) == len(data["windows"]) == len(rows)
    for row, cdf, windows in zip(rows, data["cdf"], data["windows"]):
        by_percent = dict(map(tuple, cdf))
        for percent, field in ((50, "p50_us"), (90, "p90_us"), (99, "p99_us"), (99.9, "p999_us"), (100, "max_us")):
            assert by_percent[percent] == row[field]
        assert sum(window["answered"] for window in windows) == row["answered"]
        assert sum(window["failed"] for window in windows) == row["failed"]
    assert not [a for _, a, _ in page.elements if "src" in a or ("href" in a and not a["href"].startswith("data:"))]
    assert set(re.findall(r"https?://[^\"'\s)]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert "url(" not in text and "import" not in text and "fetch(" not in text


@needs_chromium
def test_shows_the_rows_figures_in_a_browser(report, tmp_path):
    path, rows = report
    dom, console = open_in_chromium(path, tmp_path)
    assert console == []
    page = Page(dom)
    assert any(tag == "body" and attrs.get("data-drawn") == "yes" for tag, attrs, _ in page.elements)
    cells = [line for line in page.cells if line]
    assert len(cells) == len(rows)
    for line, row in zip(cells, rows):
        assert line == {field: row[field] for field in line} and {"sent", "answered", "failed", "lost", "wrong", "p50_us", "p999_us"} <= set(line)
    opened = sorted((row for row in rows if row["mode"] == "open"), key=lambda row: row["offered_per_s"])
    assert page.dots("throughput", "answered/s") == [(row["offered_per_s"], row["answered_per_s"]) for row in opened]
    for field in ("p50_us", "p90_us", "p99_us", "p999_us"):
        assert page.dots("latency", field) == [(row["offered_per_s"], row[field] / 1000) for row in opened]
    data = json.loads(page.data)
    for i, row in enumerate(rows):
        name = data["offered"][i]
        assert page.dots("cdf", name) == [(us / 1000, percent) for percent, us in data["cdf"][i]]
        assert [y for _, y in page.dots("time", name)] == [w["p99_us"] / 1000 for w in data["windows"][i] if w["answered"]]
        batches = {size: y * row["answered"] / 100 for size, y in page.dots("batches", name)}
        assert batches == pytest.approx({int(size): count for size, count in row["answered_by_batch_size"].items()})
    assert page.bars("stages") == [(stage, us / 1000) for row in rows for stage, us in row["stage_mean_us"].items()]


@needs_chromium
def test_a_broken_page_is_seen(report, tmp_path):
    """Of the test above: an error in the page's script comes to the console."""
    broken = tmp_path / "broken.html"
    broken.write_text(report[0].read_text().replace('"rows":', '"rowz":'))
    dom, console = open_in_chromium(broken, tmp_path / "profile")
    assert console and 'data-drawn="yes"' not in dom
