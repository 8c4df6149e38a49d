"""The documentation site: what `make docs` adds to the Markdown, and the notebook, run as it is printed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import artesian

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import docs_site  # noqa: E402

DOCS = ROOT / "docs"
NOTEBOOKS = sorted(DOCS.rglob("*.ipynb"))
WORDS_AT_MOST = 20


def pages(nav) -> list[str]:
    return [page for item in nav for page in _pages(*item.values())]


def _pages(value) -> list[str]:
    return pages(value) if isinstance(value, list) else [value]


# the navigation


def test_every_page_is_in_the_navigation_by_kind() -> None:
    nav = docs_site.navigation((DOCS / "README.md").read_text())
    titles = [title for item in nav for title in item]
    assert titles == [
        "Start",
        "Words",
        "Tutorials",
        "How-to",
        "Explanation",
        "Reference",
        "Algorithms",
        "Drift detectors",
        "Decisions",
    ]
    found = pages(nav)
    there = {str(docs_site.place(path.relative_to(ROOT))) for path in [*DOCS.rglob("*.md"), *NOTEBOOKS]}
    assert set(found) == there and len(found) == len(there)


def test_the_glossary_comes_first_and_is_short() -> None:
    first, *_ = re.findall(r"\]\(([^)]+)\)", (DOCS / "README.md").read_text())
    assert first == "glossary.md"
    rows = [line.strip("| ").split(" | ") for line in (DOCS / "glossary.md").read_text().splitlines() if "|" in line]
    words = [row[0] for row in rows[2:]]
    assert 10 < len(words) <= WORDS_AT_MOST and len(set(words)) == len(words)
    for word, meaning, example in rows[2:]:
        assert meaning.endswith("."), word
        assert example, word


# links


def test_links_to_files_of_the_repository_lead_to_their_pages() -> None:
    text = (
        "[a](../../examples/own_model.py) [b](errors.md#norun) [c](../tutorials/simulate-and-compare.ipynb) [d](no.md)"
    )
    told = docs_site.relinked(text, Path("docs/reference/api.md"))
    page, notebook = "../repository/examples/own_model.py.md", "../tutorials/simulate-and-compare.md"
    assert told == f"[a]({page}) [b](errors.md#norun) [c]({notebook}) [d](no.md)"


def test_links_of_a_file_outside_the_documentation_lead_back_into_it() -> None:
    text = (
        "[a](docs/why.md#limits) [b](SECURITY.md) [c](https://example.org/x.md) [d](examples/client.mjs) `x[0](docs)`"
    )
    told = docs_site.relinked(text, Path("README.md"))
    assert told == (
        "[a](../why.md#limits) [b](SECURITY.md) [c](https://example.org/x.md) [d](examples/client.mjs.md) `x[0](docs)`"
    )


def test_whatever_a_page_links_to_is_on_the_site() -> None:
    found = docs_site.linked_files()
    assert {Path("README.md"), Path("SECURITY.md"), Path("examples/client.mjs"), Path("CITATION.cff")} <= set(found)
    assert len(found) == len(set(found))
    assert docs_site.page_of(Path("examples/client.mjs")).startswith("# examples/client.mjs\n\n````javascript\n")


# the public names


def test_every_public_name_is_in_the_generated_reference() -> None:
    named = re.findall(r"^::: artesian\.(\w+)$", docs_site.public_names(), re.M)
    assert sorted(named) == sorted(set(artesian.__all__) - {"__version__"})


# the notebook


def text_of(output) -> str:
    return "".join(output.get("text", output.get("data", {}).get("text/plain", "an image")))


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]


@pytest.mark.heavy
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_gives_the_outputs_it_shows(path, tmp_path) -> None:
    for package in ("pandas", "matplotlib", "sklearn"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    copy = tmp_path / path.name
    copy.write_text(path.read_text())
    subprocess.run([sys.executable, ROOT / "tools" / "notebook.py", copy], check=True, cwd=tmp_path, timeout=300)
    shown, ran = (json.loads(file.read_text())["cells"] for file in (path, copy))
    assert len(shown) == len(ran) > 5
    for before, after in zip(shown, ran, strict=True):
        assert before["source"] == after["source"]
        old, new = ([text_of(output) for output in cell.get("outputs", ())] for cell in (before, after))
        assert [re.sub(r"[\d.\s]+", " ", text) for text in old] == [re.sub(r"[\d.\s]+", " ", text) for text in new]
        assert numbers(" ".join(new)) == pytest.approx(numbers(" ".join(old)), abs=0.05)  # another processor


def test_a_notebook_becomes_a_page_with_its_outputs() -> None:
    code = {"cell_type": "code", "source": ["1 + 1"], "outputs": [{"data": {"text/plain": ["2"]}}]}
    figure = {"cell_type": "code", "source": ["draw()"], "outputs": [{"data": {"image/svg+xml": ["<svg/>"]}}]}
    notebook = {"cells": [{"cell_type": "markdown", "source": ["# Sums\n", "Of two."]}, code, figure]}
    assert docs_site.from_notebook(notebook) == (
        "# Sums\nOf two.\n\n````python\n1 + 1\n````\n\n````text\n2\n````\n\n"
        '````python\ndraw()\n````\n\n<div class="output"><svg/></div>'
    )


def test_a_cell_is_run_as_jupyter_runs_it() -> None:
    import notebook

    cells = [
        {"cell_type": "code", "source": ["x = 2\n", "print('two')\n", "x * 3"]},
        {"cell_type": "markdown", "source": ["words"]},
        {"cell_type": "code", "source": ["x + 1;"]},
        {"cell_type": "code", "source": ["None"]},
    ]
    ran = notebook.run({"cells": cells, "nbformat": 4})["cells"]
    assert [text_of(output) for output in ran[0]["outputs"]] == ["two\n", "6"]
    assert (ran[2]["outputs"], ran[3]["outputs"]) == ([], [])
    assert [cell.get("execution_count") for cell in ran] == [1, None, 2, 3]
    with pytest.raises(SyntaxError):
        notebook.run({"cells": [{"cell_type": "code", "source": ["%matplotlib inline"]}]})
    with pytest.raises(ZeroDivisionError):
        notebook.run({"cells": [{"cell_type": "code", "source": ["1 / 0"]}]})
