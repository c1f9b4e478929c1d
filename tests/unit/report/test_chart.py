"""The chart: real text, a description, unique ids, the page's colours, and nothing from outside."""

from xml.etree import ElementTree

import pytest

from joulewise.analysis.intervals import Quantity
from joulewise.report.chart import Point, reach, scatter


def point(label="coga-5", speed=1.5, energy=0.8, modelled=False):
    quantities = (Quantity(v, v / 1.1, v * 1.1, 25, 25, "measured") for v in (speed, energy))
    return Point(label, 0, *quantities, modelled)


def drawn(points, prefix="c1"):
    return scatter(points, title="<gsm8k>", energy_name="GPU energy", limit=reach(points), prefix=prefix)


def test_it_is_a_well_formed_element_with_a_title_and_a_description():
    root = ElementTree.fromstring(drawn([point()]))
    assert root.tag == "svg"
    assert root.find("title").text == "<gsm8k>"
    assert root.find("desc").text == (
        "coga-5: speed 1.50 (1.36 – 1.65), GPU energy 0.800 (0.727 – 0.880), 25 questions."
    )
    assert root.get("aria-labelledby") == "c1-title c1-desc"


def test_labels_are_text_and_are_escaped():
    labels = ["<script>", "a & b", "$x^2$", "γ"]
    root = ElementTree.fromstring(drawn([point(label) for label in labels]))
    texts = [element.text for element in root.iter("text")]
    assert set(labels) <= set(texts)


def test_ids_are_unique_over_charts_and_all_references_resolve():
    svg = "<div>" + drawn([point()], "c1") + drawn([point()], "c2") + "</div>"
    elements = list(ElementTree.fromstring(svg).iter())
    ids = [e.get("id") for e in elements if e.get("id")]
    assert len(ids) == len(set(ids))
    references = [e.get("href") for e in elements if e.get("href")]
    references += [e.get("clip-path")[4:-1] for e in elements if e.get("clip-path")]
    assert references
    assert {r.removeprefix("#") for r in references} <= set(ids)


def test_nothing_comes_from_outside_and_colours_are_the_pages():
    svg = drawn([point()])
    assert "http" not in svg
    assert "<style" not in svg
    assert "#11" not in svg
    assert "#01" not in svg
    assert "var(--series-1)" in svg


def test_modelled_points_are_hollow():
    hollow, filled = (drawn([point(modelled=modelled)]).count("fill: var(--paper)") for modelled in (True, False))
    assert (hollow, filled) == (2, 1)  # one is behind the name


def test_the_same_points_give_the_same_file():
    assert drawn([point()]) == drawn([point()])


@pytest.mark.parametrize(("speed", "energy"), [(1.0, 1.0), (0.05, 30.0), (1.001, 0.999)])
def test_every_point_lies_within_the_axes(speed, energy):
    limit = reach([point(speed=speed, energy=energy)])
    assert 1 / limit < min(speed, energy) <= max(speed, energy) < limit
    assert drawn([point(speed=speed, energy=energy)])


def test_open_intervals_are_drawn():
    open_ended = Quantity(1.2, 0.5, None, 25, 25, "measured", unbounded=True)
    no_interval = Quantity(0.9, None, None, 2, 2, "measured")
    assert drawn([Point("x", 7, open_ended, no_interval, False)])


def test_every_name_has_paper_behind_it_and_no_leader_above_it():
    root = ElementTree.fromstring(drawn([point(f"dec-{i}") for i in range(5)]))
    order = [e for e in root.iter() if e.tag in ("text", "path")]
    names = [i for i, e in enumerate(order) if e.tag == "text" and (e.text or "").startswith("dec-")]
    papers = [order[i - 1] for i in names]
    assert all(e.tag == "path" and "var(--paper)" in e.get("style", "") for e in papers)
    leaders = [
        i for i, e in enumerate(order) if "stroke-width: 0.8" in e.get("style", "") and e.get("clip-path") is None
    ]
    assert leaders
    assert max(i for i in leaders if "var(--faint)" in order[i].get("style", "")) < min(names)


def test_many_points_at_one_place_get_labels_at_different_places():
    labels = [f"dec-{i}" for i in range(5)]
    root = ElementTree.fromstring(drawn([point(label) for label in labels]))
    places = {(e.get("x"), e.get("y"), e.get("transform")) for e in root.iter("text") if e.text in labels}
    assert len(places) == 5
