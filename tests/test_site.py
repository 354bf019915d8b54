"""The site of the documents: it builds without a warning, leads nowhere wrong, asks no other host, and has every public name."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt

from tests.services.browser import browser
from tests.test_docs import PUBLIC

ROOT = Path(__file__).parent.parent
PAGES = "build/docs"
COUNTED = ("h1", "h2", "h3", "h4", "li", "tr", "td", "pre", "strong", "em", "blockquote", "img")


class Read(HTMLParser):
    """What a page has, where it leads, and what a browser fetches for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.fetched: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        fetches = tag != "a" and not (tag == "link" and given.get("rel") in {"canonical", "next", "prev"})
        self.fetched |= {given[name] for name in ("src", "srcset", "href", "data", "poster") if fetches and name in given}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages in `pages`, the site in `site`: what `make docs` does, in another place."""
    at = tmp_path_factory.mktemp("docs")
    subprocess.run([sys.executable, "docs/assemble.py", str(at / "pages")], cwd=ROOT, check=True)
    (at / "mkdocs.yml").write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: pages\nsite_dir: site\n", encoding="utf-8")
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=at,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert build.returncode == 0, build.stderr
    assert "WARNING" not in build.stderr, build.stderr
    return at


@pytest.fixture(scope="module")
def read(built: Path) -> dict[Path, Read]:
    return {path: Read(path.read_text(encoding="utf-8")) for path in sorted((built / "site").rglob("*.html"))}


def test_it_is_built_as_make_does_it() -> None:
    makefile, settings = ((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "mkdocs.yml"))
    assert f"docs/assemble.py {PAGES}\n" in makefile
    assert f"docs_dir: {PAGES}\n" in settings


def test_every_link_and_anchor_leads_somewhere(built: Path, read: dict[Path, Read]) -> None:
    assert len(read) > 100
    for path, page in read.items():
        if path.name == "404.html":  # its links count from the root of a server
            continue
        for target in page.links | page.fetched:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = there / "index.html" if there.is_dir() else there
            assert there.is_relative_to(built.resolve()), f"{path.name}: {target} leads out of the site"
            assert there.is_file(), f"{path.name}: {target} is not there"
            if parts.fragment and there.suffix == ".html":
                assert unquote(parts.fragment) in read[there].anchors, f"{path.name}: {there.name} has no anchor {parts.fragment}"


def test_no_page_and_no_style_names_another_host(built: Path, read: dict[Path, Read]) -> None:
    for path, page in read.items():
        assert [target for target in page.fetched if urlsplit(target).netloc] == [], path.name
    for path in (built / "site").rglob("*.css"):
        fetched = re.findall(r"(?:url\(|@import\s*)[\"']?((?:https?:)?//[^)\"']+)", path.read_text(encoding="utf-8"))
        assert fetched == [], path.name


def test_every_public_name_is_in_the_reference(built: Path, read: dict[Path, Read]) -> None:
    there = {anchor for path, page in read.items() if path.parent == built / "site" / "reference" for anchor in page.anchors}
    for module in PUBLIC:
        for name in importlib.import_module(module).__all__:
            assert there & {f"{module}.{name}", f"{module}.{name}.{name}"}, f"{module}.{name} is not there"


@contextmanager
def served(folder: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_browser_asks_no_other_host_and_the_search_finds(built: Path) -> None:
    with browser() as found, served(built / "site") as address:
        page = found.new_page()
        asked: set[str] = set()
        said: list[str] = []
        page.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        for name in (
            "guide/windows.html",
            "architecture.html",
            "reference/window.html",
            "pictures/index.html",
            "tutorial.html",
            "index.html",
        ):
            page.goto(f"{address}/{name}")
            page.wait_for_load_state("networkidle")
        page.locator(".md-search__input").click()
        page.get_by_text("Type to start searching").wait_for()
        page.locator(".md-search__input").press_sequentially("hopping")
        links = page.locator(".md-search-result__link")
        links.first.wait_for()
        assert any("guide/windows.html" in (link.get_attribute("href") or "") for link in links.all())
        assert asked == {urlsplit(address).netloc}
        assert said == []


def test_a_page_has_on_github_what_it_has_in_the_site(built: Path) -> None:
    """Two readings of Markdown differ in lists, tables and emphasis."""
    github = MarkdownIt("commonmark").enable("table")
    for path in sorted((built / "pages").rglob("*.md")):
        place = path.relative_to(built / "pages")
        text = path.read_text(encoding="utf-8")
        if place.parts[0] in {"source", "reference"}:  # what is made from docstrings is there in the site only
            continue
        page = built / "site" / (place.with_name("index.html") if place.name == "README.md" else place.with_suffix(".html"))
        article = re.search(r"<article.*?</article>", page.read_text(encoding="utf-8"), re.DOTALL)
        assert article is not None
        there, here = Read(github.render(text)).tags, Read(article[0]).tags
        assert {tag: here[tag] for tag in COUNTED} == {tag: there[tag] for tag in COUNTED}, place
        assert r"\|" not in article[0], place


def test_the_pictures_are_what_the_code_draws() -> None:
    folder = ROOT / "docs" / "pictures"
    spec = importlib.util.spec_from_file_location("pictures_of_event_time", folder / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        assert sorted(module.PICTURES) == sorted(path.name for path in folder.glob("*.svg"))
        for name, draw in module.PICTURES.items():
            assert draw() == (folder / name).read_text(encoding="utf-8"), f"{name} is old; run python docs/pictures/make.py"
    finally:
        del sys.modules[spec.name]
