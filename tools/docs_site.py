"""What `make docs` adds to the Markdown in docs/ (hooks of MkDocs).

* The navigation is read from docs/README.md: its titles, and the links below each.
* A notebook becomes a page, with the outputs it was saved with.
* The page of the public names is filled from `src/artesian/__init__.pyi`.
* A file of the repository that a page links to becomes a page of its own, so that every link works on the site, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from os.path import normpath, relpath
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
INDEX = Path("docs/README.md")
API = Path("docs/reference/api.md")
NAMES = Path("src/artesian/__init__.pyi")
ALGORITHMS = Path("src/artesian/algorithms/__init__.py")
ANY = re.compile(r"(\[[^\]]*\]\()([^)#\s]+)(#[^)\s]*)?\)")  # pictures are among them
LINK = re.compile(rf"(?<!!){ANY.pattern}")
LANGUAGES = {".py": "python", ".pyi": "python", ".mjs": "javascript", ".toml": "toml", ".cff": "yaml"}


# the hooks


def on_config(config: Any) -> Any:
    """Fill the navigation."""
    config.nav = navigation((ROOT / INDEX).read_text())
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not Markdown files in docs/."""
    from mkdocs.structure.files import File, InclusionLevel

    for path in [*notebooks(), *linked_files()]:
        listed = InclusionLevel.INCLUDED if _in_docs(path) else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, str(place(path)), content=page_of(path), inclusion=listed))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill the page of the public names, and turn links to files of the repository into links to their pages."""
    path = Path("docs") / page.file.src_uri
    if page.file.generated_by or not (ROOT / path).exists():
        return markdown  # done already
    return relinked(f"{markdown}\n{public_names()}" if path == API else markdown, path)


# the navigation


def navigation(index: str) -> list[Mapping[str, Any]]:
    """The titles of the index, each with the pages linked below it, in their order."""
    nav: list[Mapping[str, Any]] = [{"Start": INDEX.name}]
    for section in index.split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        pages = [{_words(link[1]): str(place(path))} for link, path in _links(text, INDEX) if _in_docs(path)]
        if pages:
            nav.append({title.strip(): pages})
    return nav


def _words(link: str) -> str:
    return " ".join(link.removeprefix("[").removesuffix("](").split())


# links


def place(path: Path) -> Path:
    """Where a file of the repository is on the site, as the Markdown file its page is made of."""
    if _in_docs(path):
        return path.relative_to("docs").with_suffix(".md") if path.suffix == ".ipynb" else path.relative_to("docs")
    return Path("repository") / (path if path.suffix == ".md" else path.with_name(path.name + ".md"))


def relinked(markdown: str, path: Path) -> str:
    """The text of a file with its links and pictures as they must be at its place on the site."""

    def new(link: re.Match[str]) -> str:
        target = _target(link, path)
        if target is None:
            return link[0]
        return f"{link[1]}{relpath(place(target), place(path).parent)}{link[3] or ''})"

    return ANY.sub(new, markdown)


def linked_files() -> list[Path]:
    """Every file outside docs/ that a page links to, or that such a file links to."""
    found: dict[Path, None] = {}
    waiting = [path.relative_to(ROOT) for path in sorted((ROOT / "docs").rglob("*.md"))]
    while waiting:
        path = waiting.pop(0)
        if path.suffix != ".md":
            continue
        outside = {target for _, target in _links((ROOT / path).read_text(), path) if not _in_docs(target)}
        waiting += sorted(outside - set(found))
        found |= dict.fromkeys(sorted(outside))
    return list(found)


def _links(markdown: str, path: Path) -> Iterator[tuple[re.Match[str], Path]]:
    """Every link of a file to a file of the repository."""
    for link in LINK.finditer(markdown):
        target = _target(link, path)
        if target is not None:
            yield link, target


def _target(link: re.Match[str], path: Path) -> Path | None:
    """The file a link leads to, if it is one of the repository: anything else is left for MkDocs to judge."""
    if link[2].startswith(("http:", "https:", "mailto:", "/")):
        return None
    target = Path(normpath(path.parent / link[2]))
    return target if ".." not in target.parts and (ROOT / target).is_file() else None


def _in_docs(path: Path) -> bool:
    return path.parts[0] == "docs"


# pages


def page_of(path: Path) -> str:
    """The Markdown of a file that is not in docs/, or of a notebook."""
    text = (ROOT / path).read_text()
    if path.suffix == ".ipynb":
        return relinked(from_notebook(json.loads(text)), path)
    if path.suffix == ".md":
        return relinked(text, path)
    return f"# {path}\n\n{_fenced(text, LANGUAGES.get(path.suffix, 'text'))}"


def notebooks() -> list[Path]:
    """The notebooks in docs/."""
    return [path.relative_to(ROOT) for path in sorted((ROOT / "docs").rglob("*.ipynb"))]


def from_notebook(notebook: Mapping[str, Any]) -> str:
    """A notebook as Markdown, with its outputs."""
    return "\n\n".join(part for cell in notebook["cells"] for part in _parts(cell))


def _parts(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    yield source if cell["cell_type"] == "markdown" else _fenced(source, "python")
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        if "image/svg+xml" in data:
            yield f'<div class="output">{"".join(data["image/svg+xml"])}</div>'
        else:
            yield _fenced("".join(output.get("text", data.get("text/plain", ""))), "text")


def _fenced(text: str, language: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````"


def public_names() -> str:
    """A title for every group of public names, and below it a heading for every name, to be filled from docstrings."""
    groups = re.split(r"^## (.+)$", (ROOT / NAMES).read_text(), flags=re.M)
    texts = dict(zip(groups[1::2], groups[2::2], strict=True))
    algorithms = (ROOT / ALGORITHMS).read_text()
    sections = [_section(title, _listed(text), "") for title, text in texts.items()]
    return "\n".join([*sections, _section("", _listed(algorithms), "    options: {members: false}\n")])


def _section(title: str, names: list[str], options: str) -> str:
    head = f"## {title}\n\n" if title else ""
    return head + "\n".join(f"::: artesian.{name}\n{options}" for name in names)


def _listed(text: str) -> list[str]:
    return re.findall(r"^from \S+ import (\w+) as \1$", text, re.M)
