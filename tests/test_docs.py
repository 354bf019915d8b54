"""The documents say what is so: their maps match the tree, their links lead somewhere, and their code runs."""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "millstream"
README = ROOT / "README.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
PAGES = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
COOKBOOK = sorted(set((ROOT / "docs" / "cookbook").glob("*.md")) - {ROOT / "docs" / "cookbook" / "README.md"})
REFERENCE_PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
TUTORIAL = ROOT / "docs" / "tutorial.md"

FENCED = re.compile(r"^(?P<mark><!-- not run: .*? -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\((?P<target>[^)\s]+)\)")
REFERENCE = re.compile(r"\[`(?P<file>[^`]+)`\]\((?P<target>[^)]+)\)(?P<names>(?:,? `[\w.]+`)*)")


@dataclass(frozen=True)
class Block:
    """A piece of Python in a page."""

    page: Path
    number: int
    code: str
    runs: bool  # without Spark

    def compile(self) -> Any:
        return compile(self.code, f"{self.page.relative_to(ROOT)}, block {self.number}", "exec")


def blocks(page: Path) -> list[Block]:
    found = [match for match in FENCED.finditer(page.read_text(encoding="utf-8")) if match["language"] == "python"]
    return [Block(page, number, match["code"], match["mark"] is None) for number, match in enumerate(found, 1)]


def prose(page: Path) -> str:
    """A page without its code."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def section(page: Path, title: str) -> str:
    text = page.read_text(encoding="utf-8")
    start = text.index(f"## {title}\n")
    end = re.compile(r"^## ", re.MULTILINE).search(text, start + 3)
    return text[start : end.start() if end else None]


def anchors(page: Path) -> set[str]:
    """What a `#` may lead to."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# What is said of the tree.


def test_the_module_map_lists_every_module_once() -> None:
    listed = [match["file"] for match in REFERENCE.finditer(section(ARCHITECTURE, "Module map"))]
    packages = {path.parent for path in PACKAGE.rglob("__init__.py")} - {PACKAGE}
    modules = [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py" or path.parent == PACKAGE]
    assert sorted(listed) == sorted(str(path.relative_to(PACKAGE)) for path in modules)
    assert {package.name for package in packages} == set(re.findall(r"^### `(\w+)`:", section(ARCHITECTURE, "Module map"), re.MULTILINE))


def test_what_the_architecture_names_is_in_the_file_it_links_to() -> None:
    references = list(REFERENCE.finditer(section(ARCHITECTURE, "What happens, and where")))
    assert len(references) > 20
    for reference in references:
        path = (ARCHITECTURE.parent / reference["target"]).resolve()
        assert path == PACKAGE / reference["file"]
        for name in re.findall(r"`([\w.]+)`", reference["names"]):
            assert name in definitions(path), f"{reference['file']} has no {name}"


def definitions(path: Path) -> set[str]:
    """Functions and classes of a module, and the methods of these."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in (match["target"] for match in LINK.finditer(prose(page))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{target} is not there"
        assert there.is_relative_to(ROOT), f"{target} leads out of the project"
        assert not anchor or anchor in anchors(there), f"{there.name} has no heading {anchor}"


def test_the_guide_has_every_field_of_the_status() -> None:
    from millstream.core.epoch import Tally
    from millstream.log.status import ComputationStatus, InjectorStatus, Status, StreamStatus

    text = (ROOT / "docs" / "guide" / "operations.md").read_text(encoding="utf-8")
    titles: dict[str, Any] = {
        "`ms.Status`": Status,
        "of an injector": InjectorStatus,
        "of a computation": ComputationStatus,
        "of a stream": StreamStatus,
        "of a tally": Tally,
    }
    for title, kind in titles.items():
        table = text[text.index(f"| {title} | |\n") :].split("\n\n")[0]
        properties = [name for name, value in vars(kind).items() if isinstance(value, property)]
        assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [*kind.__struct_fields__, *properties], title


def test_the_index_lists_every_decision() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\(([\w.-]+)\)", (folder / "README.md").read_text(encoding="utf-8"))
    assert listed == sorted(path.name for path in folder.glob("*.md") if path.name != "README.md")


# What is shown.


def test_every_python_block_is_python() -> None:
    shown = [block for page in PAGES for block in blocks(page)]
    assert len(shown) > 20
    for block in shown:
        block.compile()


def test_the_readme_shows_the_example() -> None:
    example = (ROOT / "examples" / "readme.py").read_text(encoding="utf-8")
    assert blocks(README)[0].code.split() == example[example.index("from dataclasses import") :].split()


def test_the_guide_shows_the_example_by_hand() -> None:
    example = (ROOT / "examples" / "by_hand.py").read_text(encoding="utf-8")
    shown = blocks(ROOT / "docs" / "guide" / "computations.md")[0].code
    assert (
        shown[shown.index("class PerSecond") :].split() == example[example.index("class PerSecond") : example.index("topology = ")].split()
    )


def test_the_guide_shows_the_target() -> None:
    example = (ROOT / "examples" / "sqlite_target.py").read_text(encoding="utf-8")
    shown = [block.code for block in blocks(ROOT / "docs" / "guide" / "deliveries.md") if "class SQLite(" in block.code]
    assert [code[code.index("TABLES = ") : code.index("\n\n\ntopology.deliver")].split() for code in shown] == [
        example[example.index("TABLES = ") :].split()
    ]


def test_the_guide_shows_the_source() -> None:
    example = (ROOT / "examples" / "sqlite_source.py").read_text(encoding="utf-8")
    shown = [block.code for block in blocks(ROOT / "docs" / "guide" / "injectors.md") if "class Table(" in block.code]
    assert [code[code.index("V = ") : code.index("\n\n\nsold = topology.inject")].split() for code in shown] == [
        example[example.index("V = ") :].split()
    ]


@pytest.fixture
def new_module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Modules that can be imported, until the test is over."""

    def make(name: str) -> ModuleType:
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return make


def run(block: Block, module: ModuleType) -> None:
    exec(block.compile(), vars(module))


def run_tests(module: ModuleType) -> int:
    found = [value for name, value in vars(module).items() if name.startswith("test_") and callable(value)]
    for test in found:
        test()
    return len(found)


def test_the_readme_test_passes(new_module: Callable[[str], ModuleType]) -> None:
    run(blocks(README)[0], new_module("readme"))
    shown = blocks(README)[1]
    assert len([line for line in shown.code.splitlines() if line.strip()]) < 10
    module = new_module("readme_test")
    run(shown, module)
    assert run_tests(module) == 1


def test_the_readme_opens_the_tables(
    new_module: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from millstream.core.parts import Columns
    from millstream.journal.disk import LocalDisk
    from millstream.log.history import History
    from millstream.log.rows import Rows
    from millstream.timestamp import Timestamp

    monkeypatch.chdir(tmp_path)
    noon = 1_714_564_801_000_000
    log, rows = History(LocalDisk(tmp_path / "mill" / "log"), now=lambda: Timestamp(noon)), Rows()
    log.create()
    text = b'{"key":"spark","start":1714564800000000,"end":1714564801000000,"value":2}'
    rows.add(1, "per-second.results", 1, Columns(["spark"], [text], [Timestamp(noon - 1)], [0]))
    log.commit([log.stage("per-second.results", rows)], after=log.position(), to=1)
    at = pa.array([noon - 1], pa.timestamp("us", "UTC"))
    window = {"key": "spark", "start": noon - 1_000_000, "end": noon, "value": 2}
    write_deltalake(tmp_path / "counts", pa.table({"key": ["spark"], "value": [window], "timestamp": at, "id": ["per-second.results/1/0"]}))

    module = new_module("readme_tables")
    for block in blocks(README)[2:]:
        run(block, module)
    printed = capfd.readouterr().out
    assert "per-second.results" in printed
    assert "spark" in printed


@pytest.mark.parametrize("page", GUIDE, ids=name_of)
def test_the_guide_runs(page: Path, new_module: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream.core.graph import compile_topology

    monkeypatch.chdir(tmp_path)
    module = new_module(f"guide_{page.stem}")
    for block in blocks(page):
        if block.runs:
            run(block, module)
    if hasattr(module, "topology"):
        compile_topology(module.topology)
    assert run_tests(module) == (2 if page.stem == "testing" else 0)
    assert os.listdir(tmp_path) == []


# Pages that teach.


def test_the_cookbook_lists_every_recipe() -> None:
    listed = re.findall(r"\(([\w-]+\.md)\)", (ROOT / "docs" / "cookbook" / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == [path.name for path in COOKBOOK]
    assert len(listed) >= 10


@pytest.mark.parametrize("page", COOKBOOK, ids=name_of)
def test_a_recipe_runs(page: Path, new_module: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream.core.graph import compile_topology

    monkeypatch.chdir(tmp_path)
    module = new_module(f"cookbook_{page.stem.replace('-', '_')}")
    for block in blocks(page):
        assert block.runs
        run(block, module)
    compile_topology(module.topology)
    assert run_tests(module) == 1
    assert os.listdir(tmp_path) == []
    assert "## What it keeps and costs" in page.read_text(encoding="utf-8")


def files_of(page: Path) -> list[tuple[str, Block]]:
    """Blocks that are files: their first line is the name."""
    named = [(re.match(r"# (\w+)\.py\n", block.code), block) for block in blocks(page)]
    return [(match[1], block) for match, block in named if match is not None]


def test_the_tutorial_runs(
    new_module: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from millstream.core.graph import compile_topology
    from millstream.testing import Driver

    monkeypatch.chdir(tmp_path)
    files = files_of(TUTORIAL)
    assert len(files) == len(blocks(TUTORIAL))
    tests = 0
    for name, block in files:
        if name == "look":
            write_tables_of_the_tutorial()
        module = new_module(name)
        run(block, module)
        tests += run_tests(module)
    assert [name for name, _ in files] == ["shop", "customers", "test_shop", "shop", "test_unpaid", "look"]
    assert tests == 4
    assert "tea" in capfd.readouterr().out

    shop, customers = sys.modules["shop"], sys.modules["customers"]
    compile_topology(shop.topology)
    for folder in ("orders", "payments"):
        Path(folder).mkdir()
    customers.one_second(datetime(2026, 5, 1, 12, tzinfo=UTC))
    driver = Driver(shop.topology)
    for stream in (shop.orders, shop.payments):
        (written,) = Path(stream.name).iterdir()  # what the customers write is what the shop reads
        driver.feed(stream, written.read_bytes().splitlines())
    assert driver.tally("revenue").applied > 0


def write_tables_of_the_tutorial() -> None:
    at = pa.array([1_777_636_809_999_999], pa.timestamp("us", "UTC"))
    window = {"key": "tea", "start": datetime(2026, 5, 1, 12, tzinfo=UTC), "value": 550}
    order = {"id": "2", "product": "tea", "cents": 250}
    write_deltalake("revenue", pa.table({"key": ["tea"], "value": [window], "timestamp": at}))
    write_deltalake("unpaid", pa.table({"key": ["2"], "value": [order], "timestamp": at}))


def test_the_page_for_those_who_come_from_elsewhere_runs(new_module: Callable[[str], ModuleType]) -> None:
    from millstream.core.graph import compile_topology

    module = new_module("coming_from")
    shown = blocks(ROOT / "docs" / "coming-from.md")
    assert [block.runs for block in shown] == [True, False, False, False]
    run(shown[0], module)
    compile_topology(module.topology)


# The reference.

PUBLIC = (
    "millstream",
    "millstream.aggregate",
    "millstream.join",
    "millstream.sketch",
    "millstream.table",
    "millstream.testing",
    "millstream.window",
)


@pytest.mark.parametrize("page", REFERENCE_PAGES, ids=name_of)
def test_the_reference_runs(page: Path, new_module: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = new_module(f"reference_{page.stem}")
    for block in blocks(page):
        assert block.runs
        run(block, module)
    assert os.listdir(tmp_path) == []


def test_every_public_name_stands_below_an_example_that_uses_it() -> None:
    shown: dict[str, str] = {}
    for page in REFERENCE_PAGES:
        for part in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            code = re.sub(r"^(from|import) .*$", "", "".join(match["code"] for match in FENCED.finditer(part)), flags=re.MULTILINE)
            for found in re.findall(r"^::: ([\w.]+)$", part, re.MULTILINE):
                assert found not in shown, f"{found} is there twice"
                shown[found] = code
    for module in PUBLIC:
        for name in importlib.import_module(module).__all__:
            code = shown.get(f"{module}.{name}") or shown.get(f"{module}.{name}.{name}")  # a module may have the name, too
            assert code is not None, f"{module}.{name} is not in docs/reference"
            assert re.search(rf"\b{name}\b", code), f"{module}.{name} has no example"
