"""For the generated reference: the comment behind a field describes it, where it has no docstring (for griffe)."""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Docstring, Extension

COMMENT = re.compile(r"\s#\s(?!type:|noqa|fmt:)(?P<words>.+)$")


class FieldComments(Extension):
    """Turns `size: int = 3  # of a round` into a description of `size`."""

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        """Describe one field, unless it describes itself."""
        if attr.docstring is None and (comment := COMMENT.search(attr.source)):
            attr.docstring = Docstring(described(comment["words"]), parent=attr, lineno=attr.lineno)


def described(comment: str) -> str:
    """A comment as a sentence."""
    return comment[0].upper() + comment[1:].rstrip(".") + "."
