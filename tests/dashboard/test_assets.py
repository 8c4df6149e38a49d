"""The files of the page: they are all there, and nothing in them is fetched from elsewhere or runs inline."""

import re
from html.parser import HTMLParser

import pytest

from artesian.dashboard.assets import HEADERS, assets, page_of_runs


class Tags(HTMLParser):
    """Every tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes) -> None:
        self.found.append((tag, dict(attributes)))


PAGE = Tags(assets()[""].body.decode()).found
SCRIPTS = {path: asset.body.decode() for path, asset in assets().items() if path.endswith(".js")}


def test_what_the_page_names_is_there() -> None:
    named = [told.get("src") or told.get("href") for _, told in PAGE]
    files = [name for name in named if name and not name.startswith("#")]
    assert len(files) >= 3
    assert set(files) <= set(assets())


@pytest.mark.parametrize("path", SCRIPTS)
def test_a_script_imports_only_its_neighbours(path) -> None:
    for name in re.findall(r'from "\./([\w.]+)"', SCRIPTS[path]):
        assert f"page/{name}" in assets()


@pytest.mark.parametrize("path", SCRIPTS)
def test_a_script_makes_no_markup_of_text(path) -> None:
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "DOMParser",
    ):
        assert word not in SCRIPTS[path], word


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    assert not [told for tag, told in PAGE if "style" in told or any(name.startswith("on") for name in told)]
    assert all("src" in told for tag, told in PAGE if tag == "script")
    for asset in assets().values():
        urls = re.findall(rb"https?://[^\s\"')]+", asset.body)
        assert {url for url in urls if not url.startswith(b"http://www.w3.org/")} == set()


def test_the_rules_allow_nothing_but_the_pages_own_files() -> None:
    rules = HEADERS["content-security-policy"].split("; ")
    assert rules[0] == "default-src 'none'"
    assert "frame-ancestors 'none'" in rules
    assert not [rule for rule in rules if "unsafe" in rule or "*" in rule or "data:" in rule or "http" in rule]


def test_every_field_has_a_label_and_every_section_a_title() -> None:
    labelled = {told.get("for") for tag, told in PAGE if tag == "label"}
    ids = {told["id"] for _, told in PAGE if told.get("id")}
    fields = [told for tag, told in PAGE if tag in ("input", "select")]
    assert fields
    assert {told["id"] for told in fields} <= labelled
    assert all(told["aria-labelledby"] in ids for tag, told in PAGE if tag == "section")
    assert {"header", "main", "footer"} <= {tag for tag, _ in PAGE}


def test_the_page_of_runs_has_no_login() -> None:
    assert b'name="artesian" content="runs"' in page_of_runs().body
    assert b'name="artesian" content="server"' in assets()[""].body
    assert page_of_runs().tag != assets()[""].tag
