"""The page: structure without a browser, and in Chromium at 390 px where there is one."""

import base64
import hashlib
import json
import re
import shutil
from collections import Counter
from html.parser import HTMLParser

import pytest

from joulewise.analysis.tradeoffs import Wishes
from joulewise.ledger import load
from joulewise.report.html import render
from joulewise.report.summary import cells_of, summarise, to_json
from joulewise.report.text import figure, short_model
from joulewise.report.trials import trial_blocks
from sample_run import sample_run
from sample_sweep import sample_sweep
from sample_tradeoff import sample_tradeoff, script
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
        if not {"style", "script"} & set(self.open) and data.strip():
            self.texts.append((data.strip(), "svg" in self.open))


def page_of(run, **options):
    """The page with its table of Trials."""
    cells = cells_of(run)
    summary = summarise(run, cells=cells, **options)
    return render(summary, trial_blocks(cells, summary, run.folders))


@pytest.fixture(scope="module")
def summary():
    return summarise(sample_run(), price_per_kwh=0.3, currency="EUR")


@pytest.fixture(scope="module")
def html(summary):
    return render(summary)


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def test_it_is_one_well_formed_file_with_one_script_of_its_own_and_nothing_from_outside(html, page):
    assert html.startswith("<!doctype html>")
    assert len(page.ids) == len(set(page.ids))
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert f'http-equiv="Content-Security-Policy" content="{policy};' in html
    assert not {"link", "iframe", "object", "embed", "img", "base", "form"} & set(page.tags)
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert not re.search(r"https?:|url\((?!#)|@import|javascript:", html)
    assert 'name="viewport"' in html
    assert 'lang="en"' in html


def test_there_is_a_chart_a_task_with_a_title_and_a_description(page):
    assert page.tags.count("svg") == 3 + 3
    assert page.tags.count("desc") == 3 + 3
    # A scatter, the break-even and the bars of energy per answer a task; a histogram a cell that speculated.
    assert page.tags.count("figcaption") == 3 + 3 + 3 + 9


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
        # As it is, in per cent (what is lost without its sign), thousandths and millions, and a chance.
        yield from (f"{value:,}", *(figure(f * value) for f in (1, 100, -100, 1000, 1e-6)), f"{value:.2f}")


def test_every_number_on_the_page_is_in_the_json(summary, page):
    data = json.loads(json.dumps(to_json(summary)))
    known = {n.rstrip(".,") for n in numbers_of(data)}
    for a in data["acceptance"]:
        known |= {str(i) for i in range(len(a["histogram"]))}
    known |= {figure(100 * r["polluted"] / r["ok"]) for r in data["runs"]}
    verdicts = Counter({name: sum(v[name] for v in data["lossless"]) for name in ("identical", "tie", "different")})
    known |= {f"{n:,}" for n in (*verdicts.values(), verdicts.total())}
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
        "Compared with vanilla's: ",
        "near-tie",
        "not lossless",
        "Acceptance length",
        "tokens a round to save time",
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
    html = page_of(run, price_per_kwh=1.0, currency=HOSTILE)
    tags = set(Page(html).tags)
    assert "img" not in tags
    assert html.count("<script") == 1
    assert html.count("&lt;script&gt;") > 20


def test_a_run_without_figures_says_so():
    empty = table([], plans={"r": {}})
    assert "This run has no Trials yet" in page_of(empty)
    failed = page_of(table([row(status="failed", error="boom")]))
    assert "No Trial of this run succeeded (1 failed)" in failed
    polluted = table([row(polluted=True, energy=[part("gpu", 1.0)])])
    assert "All Trials that succeeded (1) are polluted" in render(summarise(polluted, without_polluted=True))


def test_what_nothing_scores_is_not_scored_and_never_0():
    rows = [row(question=f"q{i}", energy=[part("gpu", 1.0)], metric="unscored") for i in range(6)]
    html = page_of(table(rows))
    assert "not scored" in html
    assert "energy and time only" in html
    shown = Page(html)
    assert not [t for t in shown.texts if not isinstance(t, str) and t[0] in ("0", "0 %")]


def test_a_model_that_is_a_path_is_a_heading_by_its_last_part_alone():
    path = "/home/somebody/models/a/deep/folder/Llama-3.2-1B-Q4_0.gguf"
    html = page_of(table([row("vanilla", "q1", model=path), row("coga-5", "q1", model=path)]))
    (heading,) = re.findall(r"<h3>(<span.*)</h3>", html)
    assert heading.startswith(f'<span title="{path}">Llama-3.2-1B-Q4_0.gguf</span> (')
    assert f'<strong><span title="{path}">' in html


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("default", "default"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("models/smol.gguf", "smol.gguf"),
        ("./smol", "smol"),
        ("/srv/models/smol/", "smol"),
        ("a/b/smol", "smol"),
    ],
)
def test_the_short_name_of_a_model(name, short):
    assert short_model(name) == short


def test_how_answers_failed_is_counted():
    rows = [row(question=f"q{i}", correct=i > 2, score=float(i > 2), score_note=None if i > 2 else "timed out")
            for i in range(6)]  # fmt: skip
    assert "3 x timed out" in page_of(table(rows))


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
    assert page.tags.count("svg") == 2 * 6


@pytest.fixture(scope="module")
def ways():
    """Two models, direct, with steps, budgets and votes; 120 questions of MMLU."""
    return summarise(sample_tradeoff(120), wishes=Wishes(reach=0.5))


@pytest.fixture(scope="module")
def ways_html(ways):
    return render(ways)


def test_ways_of_answering_have_a_section_with_charts_and_tables(ways_html):
    page = Page(ways_html)
    assert page.tags.count("svg") == 1 + 2  # MMLU's frontier, tokens to think, votes; nothing judges MT-Bench
    assert page.tags.count("desc") == 3
    text = " ".join(t if isinstance(t, str) else t[0] for t in page.texts)
    for words in (
        "every way of answering",
        "What thinking longer costs, and what it buys",
        "On the frontier of accuracy against joules per answer, over 120 questions",
        "direct, llama-8b beats budget-1024, llama-1b: it takes 0.00",
        "subcategories, less in none",
        "The cheapest that reaches 50.0 %",
        "mmlu: by subcategory",
        "left out of the tables, as nothing can be told of fewer than 10 questions: 57 of 57 subjects.",
        "not scored",
    ):
        assert words in text


def test_every_number_about_ways_of_answering_is_in_the_json(ways, ways_html):
    data = json.loads(json.dumps(to_json(ways)))
    known = {n.rstrip(".,") for n in numbers_of(data)}

    def plain(value):
        if isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                yield from plain(item)
        elif isinstance(value, float):
            yield value

    for value in plain(data["tradeoffs"]):  # a factor of a change, a change without its sign, a share in whole per cent
        known |= {figure(1 + value), figure(abs(value)), figure(100 * abs(value)), f"{100 * value:.0f}"}
    known |= {str(g["questions"]) for one in data["tradeoffs"] for g in one["groups"]}
    known |= {str(d[n]) for one in data["tradeoffs"] for d in one["dominances"] for n in ("ahead", "even", "behind")}
    for one in data["tradeoffs"]:  # groups of a level, and how many of them are left out
        for of in (one["groups"], [g for g in one["groups"] if g["questions"] < 10]):
            known |= {str(n) for n in Counter(g["level"] for g in of).values()}
    dominances = [d for one in data["tradeoffs"] for d in one["dominances"]]
    known |= {str(d["ahead"] + d["even"] + d["behind"]) for d in dominances} | {str(len(dominances) - 5)}
    known |= {"95", "1,000", "2602.09113", "50", "2", "5", "99", "0", "1"}  # of sentences that are always the same
    shown = [t if isinstance(t, str) else t[0] for t in Page(ways_html).texts if isinstance(t, str) or not t[1]]
    found = [n.rstrip(".,") for text in shown for n in re.findall(r"\d[\d,.]*", text)]
    assert len(found) > 2000
    assert sorted({n for n in found if n not in known}) == []


def test_modelled_ways_of_answering_are_hollow_and_have_no_frontier():
    html = page_of(table(script(provenance="modelled")))
    assert "Hollow points are modelled, and have no frontier." in html
    assert "J per answer (modelled)" in html
    assert "On the frontier" not in html
    assert "optimal" not in re.sub(r"<p class=.note.>.*?</p>", "", html, flags=re.S)


def test_names_of_ways_of_answering_are_escaped():
    ways = {"direct": ({0}, 1.0, 9), f"budget-16{HOSTILE}": ({1}, 2.0, 9), f"budget-64{HOSTILE}": ({2, 3}, 3.0, 9)}
    rows = [
        r | {"category": HOSTILE + r["category"]} for r in script(ways, task=HOSTILE, engine=HOSTILE, model=HOSTILE)
    ]
    html = page_of(table(rows))
    assert "img" not in Page(html).tags
    assert html.count("<script") == 1


@pytest.fixture(scope="module")
def curve_html():
    return render(summarise(sample_sweep(noise=0.05)))


def test_a_sweep_has_a_curve_with_charts_and_tables(curve_html):
    page = Page(curve_html)
    assert page.tags.count("svg") == page.tags.count("desc") == 6
    text = " ".join(t if isinstance(t, str) else t[0] for t in page.texts)
    for words in (
        "Operating curves: joules over tokens and load",
        "Held-out error (each point predicted from the others): median",
        "Successive output tokens: behind 1,280 prompt tokens number 1 costs",
        "Residuals against requests at a time",
        "each output token, shared over sqrt(B)",
        "J of one more such request",
    ):
        assert words in text


def test_names_of_curves_are_escaped():
    run = sample_sweep(names=HOSTILE)
    html = page_of(run)
    assert "img" not in Page(html).tags
    assert html.count("<script") == 1
    assert "Residuals against" in html


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
@pytest.mark.parametrize("which", ["html", "ways_html", "curve_html"])
def test_no_sideways_scroll_and_no_request_in_a_browser(browser, request, which, width, scheme):
    html = request.getfixturevalue(which)
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    requests = []
    page.on("request", lambda asked: requests.append(asked.url))
    page.set_content(html)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    beyond = "[...document.body.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
    assert page.evaluate(f"{beyond}.map(e => e.outerHTML.slice(0, 80))") == []
    assert requests == []
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 720, 980, 1280])
@pytest.mark.parametrize("which", ["html", "ways_html", "curve_html"])
def test_no_heading_and_no_figure_of_a_table_breaks_within_a_word(browser, request, which, width):
    html = request.getfixturevalue(which)
    page = browser.new_page(viewport={"width": width, "height": 844})
    page.set_content(html)
    broken = """
        [...document.querySelectorAll('.cards :is(thead th, td.n, td b, td .figure)')].filter(e => {
            if (e.matches('thead th') && getComputedStyle(e.closest('thead')).position === 'absolute') return false;
            const range = document.createRange();
            range.selectNodeContents(e);
            const lines = new Set([...range.getClientRects()].map(r => Math.round(r.top / 8)));
            return lines.size > e.textContent.trim().split(' ').length;
        }).map(e => e.textContent)
    """
    assert page.evaluate(broken) == []
    page.close()


@pytest.mark.slow
def test_an_opened_trial_does_not_scroll_sideways_on_a_phone(browser, recorded_file):
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(recorded_file.as_uri())
    box = page.locator(".box")
    page.locator("tr.trial summary").first.click()
    assert page.locator("tr.trial .ledger").first.is_visible()
    assert box.evaluate("box => box.scrollWidth <= box.clientWidth")
    page.get_by_role("button", name="J", exact=True).click()
    shown = page.locator("tr.trial:visible td:nth-child(4)").evaluate_all("cells => cells.map(c => +c.dataset.v)")
    assert shown == sorted(shown)
    assert box.evaluate("box => box.scrollWidth <= box.clientWidth")
    page.close()


@pytest.fixture(scope="module")
def recorded(repository):
    return load(repository / "results" / "h200" / "demo")


@pytest.fixture(scope="module")
def recorded_file(recorded, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(page_of(recorded), encoding="utf-8")
    return file


@pytest.mark.slow
@pytest.mark.parametrize("scripts", [True, False])
def test_two_clicks_lead_from_a_figure_to_its_ledger_lines(browser, recorded, recorded_file, repository, scripts):
    page = browser.new_page(viewport={"width": 1200, "height": 900}, java_script_enabled=scripts)
    page.goto(recorded_file.as_uri())
    figure_ = page.locator("tr:has(th:text-is('coga-5')) a.figure").first
    figure_.click()
    block = page.locator("tbody:target")
    assert "starter-choice, coga-5: 6 Trials" in block.inner_text()
    assert page.locator("tbody.cell:visible").count() == 1  # the others make way
    trial = block.locator("tr.trial").first
    trial.locator("summary").click()
    told = trial.locator(".ledger").inner_text()
    number = int(re.search(r"line (\d+)", told)[1])
    line = (repository / "results" / "h200" / "demo" / "ledger.jsonl").read_text().splitlines()[number - 1]
    record = json.loads(line)
    assert record["cell_id"] == "default@transformers/coga-5/direct/starter-choice"
    assert record["question_id"] == trial.locator("summary").inner_text()
    for reading in record["readings_start"]:
        assert f"{reading['source_id']}: {reading['energy_j']} to" in told
    page.close()


@pytest.mark.slow
def test_the_table_of_trials_sorts_over_all_cells_and_within_one(browser, recorded_file):
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    told, requests = [], []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(recorded_file.as_uri())

    def joules():
        cells = page.locator("tr.trial:visible td:nth-child(4)")
        return [float(cell) for cell in cells.evaluate_all("cells => cells.map(c => c.dataset.v)")]

    heading = page.get_by_role("columnheader", name="J", exact=True)
    heading.get_by_role("button").click()
    assert joules() == sorted(joules())
    assert len(joules()) == 64
    heading.get_by_role("button").click()
    assert joules() == sorted(joules(), reverse=True)
    assert heading.get_attribute("aria-sort") == "descending"
    page.locator("a.figure").first.click()
    page.wait_for_function("document.querySelectorAll('tbody:target tr.trial').length == 6")
    assert len(joules()) == 6
    heading.get_by_role("button").click()
    assert joules() == sorted(joules())
    assert told == []
    assert requests == [recorded_file.as_uri()]
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_of_a_recorded_run_has_no_sideways_scroll_and_prints_without_its_trials(browser, recorded_file, width):
    page = browser.new_page(viewport={"width": width, "height": 844})
    page.goto(recorded_file.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.emulate_media(media="print")
    assert page.locator(".box").first.is_hidden()
    assert page.get_by_text("not on paper").is_visible()
    page.close()
