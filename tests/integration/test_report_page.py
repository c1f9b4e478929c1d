"""The page: structure without a browser, and in Chromium at 390 px where there is one."""

import json
import re
import shutil
from collections import Counter
from html.parser import HTMLParser

import pytest

from joulewise.report.html import render
from joulewise.report.summary import summarise, to_json
from joulewise.report.text import figure
from sample_run import sample_run
from synthetic_table import part, row, table

VOID = {"meta", "br", "img", "input", "link", "hr"}
HOSTILE = '"><script>alert(1)</script>&amp;<img src=x onerror=alert(2)>'


class Page(HTMLParser):
    """Tags in balance, ids, references and the text of each element outside the style sheet."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.ids, self.links, self.texts = [], [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        values = dict(attributes)
        assert not [name for name in values if name.startswith("on")], f"a handler in <{tag}>"
        if "id" in values:
            self.ids.append(values["id"])
        self.links += [values[name] for name in ("href", "src", "action", "srcset") if name in values]
        self.texts += [values[name] for name in ("aria-label", "title") if name in values]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> without a start"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open and data.strip():
            self.texts.append((data.strip(), "svg" in self.open))


@pytest.fixture(scope="module")
def summary():
    return summarise(sample_run(), price_per_kwh=0.3, currency="EUR")


@pytest.fixture(scope="module")
def html(summary):
    return render(summary)


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def test_it_is_one_well_formed_file_without_scripts_or_anything_from_outside(html, page):
    assert html.startswith("<!doctype html>")
    assert len(page.ids) == len(set(page.ids))
    assert not {"script", "link", "iframe", "object", "embed", "img", "base", "form"} & set(page.tags)
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert not re.search(r"https?:|url\((?!#)|@import|javascript:", html)
    assert 'name="viewport"' in html
    assert 'lang="en"' in html


def test_there_is_a_chart_a_task_with_a_title_and_a_description(page):
    assert page.tags.count("svg") == 3
    assert page.tags.count("desc") == 3
    assert page.tags.count("figcaption") == 3


def numbers_of(value):
    """Every number in the JSON as the page may print it, and every number inside its texts."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from re.findall(r"\d[\d,.]*", key)
            yield from numbers_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from numbers_of(item)
    elif isinstance(value, str):
        yield from re.findall(r"\d[\d,.]*", value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from (f"{value:,}", figure(value), figure(100 * value), figure(value / 1e6))


def test_every_number_on_the_page_is_in_the_json(summary, page):
    data = json.loads(json.dumps(to_json(summary)))
    known = {n.rstrip(".,") for n in numbers_of(data)}
    for a in data["acceptance"]:
        known |= {str(i) for i in range(len(a["histogram"]))}
    known |= {figure(100 * r["polluted"] / r["ok"]) for r in data["runs"]}
    known |= {str(len(data["savings"]))}  # "9 comparisons"
    for name in ("time", "gpu", "total"):  # how many savings have each verdict
        verdicts = Counter(s[name]["verdict"] or s[name]["ratio"]["provenance"] for s in data["savings"])
        known |= {str(n) for n in verdicts.values()}
    known |= {"95", "1,000", "2602.09113"}  # the interval's level, a unit, a paper
    shown = [t if isinstance(t, str) else t[0] for t in page.texts if isinstance(t, str) or not t[1]]
    found = [n.rstrip(".,") for text in shown for n in re.findall(r"\d[\d,.]*", text)]
    assert len(found) > 300
    assert sorted({n for n in found if n not in known}) == []


def test_it_says_what_a_reader_needs(page):
    text = " ".join(t if isinstance(t, str) else t[0] for t in page.texts)
    for words in (
        "NVIDIA H200",
        "SmolLM2-135M-Instruct",
        "a correctness fixture, not a fair draft",
        "2026-11-30 10:00 UTC",
        "modelled, not measured",
        "cannot show the paradox of arXiv 2602.09113",
        "1 of 300 Trials failed",
        "12 of 299 Trials (4.01 %) are polluted",
        "near-tie",
        "not lossless",
        "Acceptance length",
        "a line was torn",
        "EUR",
    ):
        assert words in text


def test_everything_from_outside_is_escaped():
    rows = [
        row(d, f"q{i}", energy=[part("gpu", 1.0)], task=HOSTILE, engine=HOSTILE, model=HOSTILE, run=HOSTILE,
            check_status="different", check_note=HOSTILE, metric=HOSTILE, score=0.5)
        for d in ("vanilla", HOSTILE)
        for i in range(6)
    ]  # fmt: skip
    rows.append(row("coga-5", "q0", status="failed", error=HOSTILE, run=HOSTILE))
    environment = {
        "started_at": HOSTILE,
        "machine": {"cpu": HOSTILE, "gpus": [{"name": HOSTILE}]},
        "engines": [{"label": HOSTILE, "model": HOSTILE, "notes": [HOSTILE], "drafts": {HOSTILE: HOSTILE}}],
        "sources": [{"component": "gpu", "device": HOSTILE, "method": HOSTILE, "note": HOSTILE}],
        "absent": [{"component": "dram", "present": True, "reason": HOSTILE, "remedy": HOSTILE}],
        "packages": {HOSTILE: HOSTILE},
        "git": {"commit": HOSTILE},
        "idle": [{"component": HOSTILE, "power_w": 1.0}],
    }
    run = table(
        rows,
        plans={HOSTILE: {"name": HOSTILE, "description": HOSTILE}},
        environments={HOSTILE: environment},
        warnings=(HOSTILE,),
    )
    html = render(summarise(run, price_per_kwh=1.0, currency=HOSTILE))
    tags = set(Page(html).tags)
    assert not {"script", "img"} & tags
    assert "<script" not in html
    assert html.count("&lt;script&gt;") > 20


@pytest.mark.parametrize("rows", [[], [row("coga-5", "q1")], [row("vanilla", "q1", status="failed", error="boom")]])
def test_odd_runs_have_a_page(rows):
    html = render(summarise(table(rows, plans={"r": {}})))
    Page(html)
    assert "<svg" not in html


def test_two_runs_of_the_same_plan_are_told_apart():
    import pyarrow as pa

    from joulewise.table import RunTable

    runs = [sample_run(6, name=name) for name in ("a", "a-2")]
    page = Page(render(summarise(RunTable(pa.concat_tables([r.arrow for r in runs])))))
    assert len(page.ids) == len(set(page.ids))
    assert {"run-1", "run-2"} <= set(page.ids)
    assert page.tags.count("svg") == 6


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="no browser check: playwright is not installed")
    chromium = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
    if chromium is None:
        pytest.skip("no browser check: chromium is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_no_sideways_scroll_and_no_request_in_a_browser(browser, html, width, scheme):
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    page.set_content(html)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    beyond = "[...document.body.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
    assert page.evaluate(f"{beyond}.map(e => e.outerHTML.slice(0, 80))") == []
    assert requests == []
    page.close()
