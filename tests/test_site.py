"""The site that Sphinx builds from docs/ is whole: every page within reach, nothing broken, nothing loaded from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(page.stem for page in DOCS.glob("*.md"))
ELSEWHERE = re.compile(r"\s*(https?:)?//")
LOADING = {"src", "srcset", "data", "poster"}  # attributes; a `link` loads its `href`, unless it only names another page:
NAMING = {"index", "search", "next", "prev"}
FAULTS = {
    "a link to no page": ("ranks.md", "[gone](nowhere.md)", "'nowhere.md'"),
    "a link to no heading": ("serve.md", "[gone](ranks.md#no-such-heading)", "'no-such-heading'"),
    "a picture that is not there": ("words.md", "![gone](figures/nowhere.png)", "figures/nowhere.png"),
    "a page outside the navigation": ("alone.md", "# Alone", "alone.md"),
}


def build(docs, out):
    """Build a site as docs/conf.py says, and return how that ended."""
    return subprocess.run([sys.executable, "-m", "sphinx", "-q", "-W", docs, out], capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    done = build(DOCS, out)
    assert (done.stderr, done.returncode) == ("", 0)
    return out


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    docs = shutil.copytree(DOCS, tmp_path_factory.mktemp("broken") / "docs")
    for page, text, _ in FAULTS.values():
        with (docs / page).open("a", encoding="utf-8") as file:
            file.write(f"\n{text}\n")
    return build(docs, docs / "out")


def test_the_navigation_lists_every_page_once(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    listed = re.findall(r'<li class="toctree-l\d"><a class="reference internal" href="([^"#]+)\.html"', text)
    assert sorted([*listed, "index"]) == PAGES


class Loaded(HTMLParser):
    """The addresses from which a page loads something."""

    def __init__(self, text):
        super().__init__()
        self.addresses = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.addresses += [given[name] for name in LOADING & given.keys()]
        if tag == "link" and given["rel"] not in NAMING:
            self.addresses.append(given["href"])


@pytest.mark.parametrize("page", PAGES)
def test_a_page_loads_nothing_from_another_host_and_nothing_that_is_missing(site, page):
    addresses = Loaded((site / f"{page}.html").read_text(encoding="utf-8")).addresses
    assert any(address.startswith("_static/") for address in addresses)
    assert not [address for address in addresses if ELSEWHERE.match(address)]
    assert all((site / address.partition("?")[0]).is_file() for address in addresses)


def test_a_style_sheet_loads_nothing_from_another_host(site):
    sheets = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    addresses = [address for sheet in sheets for address in re.findall(r"""(?:url\(|@import)\s*["']?([^"')]+)""", sheet)]
    assert addresses
    assert not [address for address in addresses if ELSEWHERE.match(address)]


def test_a_broken_link_makes_the_build_fail(broken):
    assert broken.returncode == 1


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(broken, fault):
    page, _, what = FAULTS[fault]
    assert [line for line in broken.stderr.splitlines() if f"{page}" in line and "WARNING" in line and what in line]
