"""What people read when something goes wrong: two plain sentences, and the same ones in the documentation."""

import ast
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import artesian
from artesian import errors
from artesian.storage.files import COMPLAINTS

SOURCE = Path(artesian.__file__).parent
DOCS = SOURCE.parents[1] / "docs"
KINDS = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.ArtesianError) and kind is not errors.MissingExtra
}
STIFF = ("mend ", "so-manieth", "are others", " told", "is got", ": got ", "looks at", "see the how-to")


@dataclass(frozen=True)
class Message:
    """One place where an error is made: its words, with `None` for what is filled in."""

    place: str
    parts: tuple[tuple[str | None, ...], ...]

    @property
    def pattern(self) -> str:
        """A regular expression for the whole message."""
        sentences = ["".join(".+?" if word is None else re.escape(word) for word in part) for part in self.parts]
        return r"\.? ".join(sentence.removesuffix(r"\.") for sentence in sentences) + r"[.?!]?"

    @property
    def words(self) -> str:
        return " ".join("".join(word or "..." for word in part) for part in self.parts)


def words_of(node: ast.expr) -> tuple[str | None, ...]:
    """The literal pieces of an expression that makes a text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return (node.value,)
    if isinstance(node, ast.JoinedStr):
        return tuple(word for value in node.values for word in words_of(value))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (*words_of(node.left), *words_of(node.right))
    return (None,)


def calls(names: set[str]) -> Iterator[tuple[Path, str, ast.Call]]:
    """Every call of one of these names in the package that has arguments: where it is, and the name."""
    called = re.compile(rf"\b(?:{'|'.join(sorted(names))})\(")
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        lines = [number for number, line in enumerate(text.splitlines(), 1) if called.search(line)]
        for node in spanning(ast.parse(text), lines) if lines else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                yield path, node.func.id, node


def spanning(tree: ast.AST, lines: list[int]) -> Iterator[ast.AST]:
    """A tree and what is in it, in the order of ast.walk, without the parts that are on none of these lines."""
    left = deque([tree])
    while left:
        node = left.popleft()
        first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
        if first is None or any(first <= line <= last for line in lines):
            left.extend(ast.iter_child_nodes(node))
            yield node


def messages(*wanted: set[str]) -> list[list[Message]]:
    """Every place where an error or a warning is made, for each of these sets of classes."""
    found: list[list[Message]] = [[] for _ in wanted]
    for path, name, node in calls(set().union(*wanted)):
        for kinds, places in zip(wanted, found, strict=True):
            if name in kinds:
                place = f"{path.relative_to(SOURCE)}:{node.lineno} {name}"
                places.append(Message(place, tuple(words_of(part) for part in node.args)))
    return found


MESSAGES, WARNINGS = messages(KINDS, {"ChangedSince", "FellBack", "StartedAfresh"})


def test_there_are_messages() -> None:
    assert len(MESSAGES) > 150


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.place)
def test_an_error_says_what_happened_and_what_to_do(message) -> None:
    assert len(message.parts) <= 2, f"{message.place}: {message.words}"
    opening = message.words.split(" ")[0]  # a capital letter, or the name of a setting
    assert opening not in ("a", "an", "the", "every", "one", "this", "what", "where", "no", "only"), message.words
    assert not any(stiff in f" {message.words} " for stiff in STIFF), message.words
    assert "docs/" not in message.words, "the wheel does not hold the documentation"


def quotes(text: str) -> list[str]:
    """The quoted paragraphs of a page."""
    blocks = re.findall(r"(?:^> .*\n?)+", text, re.M)
    return [" ".join(line.removeprefix("> ").strip() for line in block.splitlines()) for block in blocks]


ERRORS = (DOCS / "reference" / "errors.md").read_text()
QUOTES = quotes(ERRORS)


@pytest.mark.parametrize("quote", QUOTES)
def test_a_message_that_the_documentation_quotes_is_a_real_one(quote) -> None:
    templates = [m.pattern for m in MESSAGES if len(re.sub(r"\W", "", m.words)) >= 12]
    extra = re.escape(str(errors.MissingExtra("PACKAGE", "EXTRA"))).replace("PACKAGE", ".+").replace("EXTRA", ".+")
    rule = r"\S.* must .*, not .+"  # those of settings, made by errors.check
    system = [rf"{problem}: .+\. {remedy}\." for problem, remedy in COMPLAINTS.values()]
    warned = [message.pattern for message in WARNINGS]
    assert any(re.fullmatch(pattern, quote) for pattern in (*templates, *system, *warned, extra, rule)), quote


def test_every_message_on_the_page_of_errors_is_quoted_and_so_checked() -> None:
    spans = re.findall(r"`([^`]+)`", ERRORS)
    assert [span for span in spans if len(span.split()) > 3] == []


def test_the_page_of_errors_quotes_messages() -> None:
    assert len(QUOTES) > 20
