from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from irregulars.infra.showing.found import Found, gather
from irregulars.infra.showing.html_page import page_of
from irregulars.messages.judgements import Suspect
from tests.infra.showing.made_up_verdicts import HOSTILE, found_in, verdict_of

VOID = ("meta",)


class Balanced(HTMLParser):
    """Fails where a tag is not closed, and notes all tags and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.mark.parametrize("name", ["gloo-slow-nic", "torch-slow-rank"])
def test_a_page_fetches_nothing_and_runs_nothing(name: str) -> None:
    parsed = Balanced(page_of(gather(found_in(name))))
    assert not parsed.tags & {"script", "link", "img", "iframe", "object", "use", "a", "form"}
    assert not parsed.attributes & {"src", "href", "xlink:href", "style", "onload", "onclick"}


def test_rates_are_marked_where_the_verdict_began_and_ended_and_heat_maps_have_their_scale() -> None:
    page = page_of(gather(found_in("gloo-slow-nic")))
    assert len(re.findall('class="odd"><title>it (began|ended)</title>', page)) == 2
    assert "Yellow lines: where it began and ended." in page
    found = found_in("gloo-slow-nic")
    page = page_of(gather(replace(found, verdict=replace(found.verdict, state="open", close_reason=None))))
    assert re.findall('class="odd"><title>it (began|ended)</title>', page) == ["began"]
    assert "Yellow line: where it began." in page
    page = page_of(gather(found_in("torch-slow-rank")))
    (scale,) = re.findall(r'<p class="dim">([^<]*) <svg[^>]*>(.*?)</svg> ([^<]*)</p>', page)
    assert re.findall(r"heat\d", scale[1]) == [f"heat{level}" for level in range(6)]
    assert all("ms" in scale[end] or "s" in scale[end] for end in (0, 2))


def test_all_four_charts_are_drawn_as_sound_svg_with_irregular_iterations_marked_in_the_reader_s_colours() -> None:
    page = page_of(gather(found_in("gloo-slow-nic")))
    assert len(re.findall('class="cause"><title>iteration (6|7|80)', page)) == 21
    assert "prefers-color-scheme:dark" in page
    charts = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(charts) == 4
    for chart in charts:
        assert "nan" not in re.sub("<title>.*?</title>", "", chart)
        ElementTree.fromstring(chart)


@pytest.mark.parametrize("field", ["job", "verdict_id", "evidence", "communicator"])
def test_hostile_texts_are_escaped(field: str) -> None:
    found = found_in("gloo-slow-nic")
    page = page_of(gather(replace(found, verdict=replace(found.verdict, **{field: HOSTILE}))))
    assert "<script" not in Balanced(page).tags
    assert "\x1b" not in page


def test_a_hostile_host_is_escaped_and_a_page_without_anything_stored_is_sound() -> None:
    found = found_in("gloo-slow-nic")
    places = {rank: place._replace(host=HOSTILE, nic=HOSTILE) for rank, place in found.places.items()}
    suspect = Suspect("nic", 1, (1,), 0.9, host=HOSTILE, nic=HOSTILE)
    rates = [one._replace(device=HOSTILE) for one in found.rates]
    verdict = replace(found.verdict, suspects=(suspect,))
    page = page_of(gather(replace(found, places=places, rates=rates, verdict=verdict)))
    assert "script" not in Balanced(page).tags
    Balanced(page_of(gather(Found(verdict_of(suspects=())))))
