"""The page's contents."""

from __future__ import annotations

import re

from joulewise.report.html import render
from joulewise.report.summary import summarise
from sample_run import sample_run


def test_its_contents_lead_to_what_is_there() -> None:
    page = render(summarise(sample_run()))
    contents = re.search(r'<nav class="contents".*?</nav>', page, re.DOTALL)
    assert contents is not None
    targets = re.findall(r'href="#([^"]+)"', contents[0])
    assert targets[:2] == ["run-1-what", "run-1-trust"]
    assert set(targets) <= set(re.findall(r' id="([^"]+)"', page))
    assert len(set(targets)) == len(targets)
