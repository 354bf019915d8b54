"""Imports run one way, and the core does nothing but compute."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import millstream as ms

PACKAGE = Path(ms.__file__).parent
MODULES = {
    ".".join(("millstream", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
CORE = [name for name in MODULES if name.startswith("millstream.core")]
PUBLIC = [name for name in MODULES if name.count(".") == 1 and MODULES[name].name != "__init__.py"]


def subsystem(name: str) -> str:
    """The folder of a module; the public nouns are one."""
    part = name.split(".")[1] if "." in name else ""
    return part if part in FOLDERS else "public"


FOLDERS = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def outer(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for other in node.orelse:
                yield other
                yield from outer(other)
            continue
        yield node
        yield from outer(node)


def imported(name: str) -> set[str]:
    """What a module imports when it runs, inside its functions too."""
    found: set[str] = set()
    for node in outer(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            assert node.module is not None
            found |= {f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in MODULES else node.module for alias in node.names}
    return found


def test_modules_were_found() -> None:
    some = {"core.turn", "journal.commits", "mill.planner", "log.history", "targets.delivery", "spark.run", "testing.driver", "topology"}
    assert {f"millstream.{name}" for name in some} <= set(MODULES)
    assert imported("millstream.core.turn") >= {"traceback", "millstream.core.codec", "millstream.core.graph"}
    assert "millstream.core.turn" not in imported("millstream.computation")


# What may be imported by whom: a subsystem knows itself and those named here.
MAY_IMPORT = {
    "public": set(),
    "aggregate": {"public"},
    "clients": {"public"},
    "core": {"public"},
    "journal": {"core", "public"},
    "shipping": {"core", "public"},
    "join": {"public"},
    "table": {"aggregate", "join", "public"},
    "mill": {"journal", "core", "public"},
    "log": {"journal", "core", "public"},
    "sources": {"clients", "log", "mill", "journal", "core", "public"},
    "targets": {"clients", "log", "journal", "core", "public"},
    "sketch": {"aggregate", "public"},
    "window": {"aggregate", "public"},
    "writer": {"targets", "log", "mill", "journal", "core", "public"},
    "spark": {"writer", "targets", "sources", "log", "mill", "journal", "shipping", "core", "public"},
    "dashboard": {"log", "mill", "journal", "core", "public"},
    "command": {"clients", "dashboard", "spark", "log", "mill", "public", "zeitgeist"},
    "testing": {"sources", "mill", "shipping", "core", "public"},
    "zeitgeist": {"public"},
}
OPERATORS = [name for name in MODULES if subsystem(name) in ("join", "table")]
NO_SPARK = [
    name
    for name in MODULES
    if subsystem(name)
    in (
        "public",
        "aggregate",
        "clients",
        "core",
        "dashboard",
        "journal",
        "mill",
        "log",
        "sources",
        "targets",
        "writer",
        "shipping",
        "sketch",
        "testing",
        "window",
    )
]


def test_every_folder_has_its_rule() -> None:
    assert set(MAY_IMPORT) == FOLDERS | {"public"}


@pytest.mark.parametrize("name", MODULES)
def test_imports_run_one_way(name: str) -> None:
    allowed = MAY_IMPORT[subsystem(name)] | {subsystem(name)}
    wrong = {other for other in imported(name) if other.startswith("millstream") and subsystem(other) not in allowed}
    assert wrong == set()


def test_the_driver_of_tests_takes_nothing_of_the_mill_but_the_rows_that_a_lane_holds() -> None:
    taken = {other for name in MODULES if subsystem(name) == "testing" for other in imported(name) if subsystem(other) == "mill"}
    assert taken == {"millstream.mill.held"}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_computations_and_know_no_more_than_a_user_does(name: str) -> None:
    assert {other for other in imported(name) if other.startswith("millstream") and subsystem(other) == "public"} <= {
        "millstream",
        "millstream.arguments",
        "millstream.change",
        # What they are given is checked as `reads` checks it.
        "millstream.accepting",
        "millstream.fields",
        "millstream.stream",
    }


@pytest.mark.parametrize("name", NO_SPARK)
def test_only_the_last_rooms_know_spark(name: str) -> None:
    assert {other.split(".")[0] for other in imported(name)} & {"pyspark", "py4j"} == set()


@pytest.mark.parametrize("name", CORE)
def test_the_core_has_no_clock_no_chance_and_no_outside(name: str) -> None:
    outside = {
        "time",
        "os",
        "io",
        "socket",
        "random",
        "secrets",
        "uuid",
        "threading",
        "multiprocessing",
        "asyncio",
        "subprocess",
        "pathlib",
    }
    heavy = {"pyspark", "deltalake", "pyarrow", "pandas", "numpy", "rich", "typer"}
    assert {other.split(".")[0] for other in imported(name)} & (outside | heavy) == set()
    calls = [node.func for node in ast.walk(ast.parse(MODULES[name].read_text())) if isinstance(node, ast.Call)]
    named = {func.id for func in calls if isinstance(func, ast.Name)}
    methods = {func.attr for func in calls if isinstance(func, ast.Attribute)}
    assert named & {"open", "print", "input", "exec", "eval"} == set()
    assert methods & {"now", "utcnow", "today", "fromtimestamp"} == set()


@pytest.mark.parametrize("name", ["millstream", "millstream.testing", *PUBLIC, *OPERATORS, *CORE])
def test_what_builds_and_tests_a_topology_imports_nothing_heavy(name: str) -> None:
    reached, ahead = set(), [name]
    while ahead:
        module = ahead.pop()
        if module in MODULES and module not in reached:
            reached.add(module)
            if module == "millstream":
                ahead += [f"millstream.{noun.removeprefix('millstream.')}" for noun in PUBLIC]
                continue  # what it imports late is tried below
            ahead += imported(module)
        reached.add(module)
    assert {module.split(".")[0] for module in reached} & {"pyspark", "deltalake", "pyarrow", "pandas", "numpy"} == set()
    assert not [module for module in reached if module.startswith(("millstream.spark", "millstream.log"))]


def test_nothing_heavy_is_loaded_in_a_fresh_process() -> None:
    program = f"""
import importlib, sys
for name in {["millstream", "millstream.testing", *CORE]!r}:
    importlib.import_module(name)
print(*sorted(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert set(CORE) <= set(loaded)
    heavy = ("pyspark", "deltalake", "pyarrow", "pandas", "numpy", "millstream.spark", "millstream.log", "millstream.command")
    assert [name for name in loaded if name.startswith(heavy)] == []


# One name, one thing.


def test_no_two_classes_share_a_name() -> None:
    """Nor a class and an alias of a type: a reader who meets the name must not have to look at the imports first."""
    owners: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            for name in named_by(node):
                owners.setdefault(name, []).append(module)
    assert {"Source", "Injection", "WriterMachine"} <= set(owners)
    shared = {name: modules for name, modules in owners.items() if len(modules) > 1 and name not in SHARED}
    assert shared == {}


# What the planner's machine, the writer's and a delivery's each return; nobody imports two of them.
SHARED = {"Action"}


def named_by(node: ast.stmt) -> Iterator[str]:
    """The class that a statement defines, or the type that it gives a name to; type variables and what begins with _ do not count."""
    names = [node.name] if isinstance(node, ast.ClassDef) else []
    if isinstance(node, ast.Assign) and not (isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "TypeVar"):
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
    return (name for name in names if name[0].isupper() and not name.isupper())


# The one name space.


def test_all_is_what_the_package_takes_from_its_modules_and_nothing_else() -> None:
    taken = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse((PACKAGE / "__init__.py").read_text()))
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("millstream")
        for alias in node.names
    }
    assert sorted(ms.__all__) == sorted(taken)
    assert len(ms.__all__) == len(set(ms.__all__))


def late() -> dict[str, str]:
    """The names that come from modules which are loaded at their first use, as the type checker sees them."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    return {alias.name: node.module or "" for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}


@pytest.mark.parametrize("name", late())
def test_a_late_name_comes_from_the_module_that_the_type_checker_sees(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert late()[name] in MODULES
    monkeypatch.setattr("importlib.import_module", lambda module: SimpleNamespace(**{name: f"{name} of {module}"}))
    assert ms.__getattr__(name) == f"{name} of {late()[name]}"
    body = ast.parse(MODULES[late()[name]].read_text()).body
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert name in defined | {
        target.id for node in body if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)
    }


def test_every_other_name_is_there_at_once() -> None:
    assert set(ms.__all__) - set(late()) <= set(vars(ms))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'millstream' has no attribute 'nothing'$"):
        ms.nothing  # noqa: B018
