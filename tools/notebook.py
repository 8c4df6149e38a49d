"""Run a notebook of the documentation and save it with its outputs: python tools/notebook.py FILE.ipynb

Every code cell is run in one namespace, as Jupyter does it: what is printed, the value of the last line and the figures
that were drawn become the outputs. Commands of IPython (`%...`, `!...`) are not Python, and are an error.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Output = Mapping[str, Any]


def run(notebook: Mapping[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs its cells have now."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [dict(cell) for cell in notebook["cells"]]
    for number, cell in enumerate(filter(_is_code, cells), 1):
        cell["execution_count"] = number
        cell["outputs"] = list(_outputs("".join(cell["source"]), names, number))
    return {**notebook, "cells": cells}


def _is_code(cell: Mapping[str, Any]) -> bool:
    return bool(cell["cell_type"] == "code")


def _outputs(source: str, names: dict[str, Any], number: int) -> Iterator[Output]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        value = _execute(source, names)
    if printed.getvalue():
        yield {"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())}
    for svg in _figures():
        yield {"output_type": "display_data", "metadata": {}, "data": {"image/svg+xml": _lines(svg)}}
    if value is not None and not source.rstrip().endswith(";"):
        result = {"output_type": "execute_result", "execution_count": number, "metadata": {}}
        yield {**result, "data": {"text/plain": _lines(repr(value))}}


def _execute(source: str, names: dict[str, Any]) -> Any:
    """Run a cell, and return the value of its last line, if it has one."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)


def _figures() -> Iterator[str]:
    """The figures a cell has drawn, closed afterwards; none where nothing was drawn."""
    if "matplotlib.pyplot" not in sys.modules:
        return
    from matplotlib import pyplot

    for number in pyplot.get_fignums():
        image = io.StringIO()
        pyplot.figure(number).savefig(image, format="svg", metadata={"Date": None}, bbox_inches="tight")
        yield image.getvalue()[image.getvalue().index("<svg") :]
    pyplot.close("all")


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main(path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "artesian"  # the same figure is the same file
    notebook = run(json.loads(path.read_text()))
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
