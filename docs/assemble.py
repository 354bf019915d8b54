"""Lays out the pages that the site is built from: `python docs/assemble.py build/docs`.

On GitHub pages link to each other and to source files where these lie. A site has pages only, so here the README, the changelog
and whatever else lies outside of `docs/` get pages of their own, and links lead there. No generator has to know of it.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
FENCED = re.compile(r"^(?P<mark><!-- not run: .*? -->\n)?(?P<fence>```+).*?^(?P=fence)$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?P<text>\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^)\s]+)\)")
CODE_IN_A_TABLE = re.compile(r"`[^`\n]*\\\|[^`\n]*`")  # GitHub wants a bar in it escaped, Python-Markdown does not
LANGUAGES = {".py": "python", ".toml": "toml", ".js": "js", ".sh": "sh"}


class Site:
    """Pages as they are laid out below `out`."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.sources: set[Path] = set()

    def lay_out(self) -> None:
        shutil.rmtree(self.out, ignore_errors=True)
        for path in sorted(DOCS.rglob("*")):
            if path.suffix == ".md":
                self.write(path, path.read_text(encoding="utf-8"))
            elif path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts:
                there = self.out / path.relative_to(DOCS)
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, there)
        for name in PAGES:
            self.write(ROOT / name, (ROOT / name).read_text(encoding="utf-8"))
        self.write(ROOT / "README.md", benchmarks((ROOT / "README.md").read_text(encoding="utf-8")), place=PurePosixPath("benchmarks.md"))
        for path in sorted(self.sources):
            there = self.out / place_of(path)
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_text(shown(path), encoding="utf-8")

    def write(self, path: Path, text: str, *, place: PurePosixPath | None = None) -> None:
        """A page, with its links as they are in the site."""
        place = place or place_of(path)
        there = self.out / place
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(outside_of_code(text, lambda prose: self.relink(prose, path, place)), encoding="utf-8")

    def relink(self, prose: str, path: Path, place: PurePosixPath) -> str:
        def lead(match: re.Match[str]) -> str:
            target, mark, anchor = match["target"].partition("#")
            if not target or re.match(r"[a-z]+:", target):
                return match[0]
            there = (path.parent / target).resolve()
            if there.is_dir() and (there / "README.md").exists():
                there = there / "README.md"
            new = place_of(there)
            if new.parts[0] == "source":
                self.sources.add(there)
                mark = anchor = ""
            return f"{match['text']}({os.path.relpath(new, place.parent)}{mark}{anchor})"

        return CODE_IN_A_TABLE.sub(lambda match: match[0].replace(r"\|", "|"), LINK.sub(lead, prose))


def place_of(path: Path) -> PurePosixPath:
    """Where a file of the project is in the site."""
    inside = path.relative_to(ROOT)
    if inside.as_posix() in PAGES:
        return PurePosixPath(PAGES[inside.as_posix()])
    if path.is_relative_to(DOCS) and path.suffix in {".md", ".svg", ".png", ".css"}:
        return PurePosixPath(path.relative_to(DOCS).as_posix())
    return PurePosixPath("source", f"{inside.as_posix()}.md")


def outside_of_code(text: str, change: Callable[[str], str]) -> str:
    """Fenced code stays as it is; only the mark that it is not run goes."""
    pieces, end = [], 0
    for match in FENCED.finditer(text):
        pieces += [change(text[end : match.start()]), match[0].removeprefix(match["mark"] or "")]
        end = match.end()
    return "".join([*pieces, change(text[end:])])


def benchmarks(readme: str) -> str:
    """What the README says of figures, as a page."""
    start = readme.index("## Figures\n") + len("## Figures\n")
    return "# Benchmarks\n" + readme[start : readme.index("\n## ", start)]


def shown(path: Path) -> str:
    """A source file or a folder of them as a page, which a search passes over."""
    title = path.relative_to(ROOT).as_posix()
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {title}\n\n"
    if path.is_dir():
        return head + "".join(f"- `{each.relative_to(path).as_posix()}`{first_line(each)}\n" for each in sorted(path.rglob("*.py")))
    return f"{head}````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text(encoding='utf-8').rstrip()}\n````\n"


def first_line(path: Path) -> str:
    found = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return f": {found.splitlines()[0]}" if found else ""


if __name__ == "__main__":
    Site(Path(sys.argv[1])).lay_out()
