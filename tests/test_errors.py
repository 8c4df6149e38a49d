"""Errors say what happened, then what to do."""

from dataclasses import dataclass

import pytest

from artesian.errors import SettingError, check, nearest


@dataclass(frozen=True)
class Range:
    low: int = 3
    high: int = 2
    name: str = ""


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("low is at most 1", "low must be at most 1, not 3"),
        ("low and high are above 9", "low and high must be above 9, but low = 3 and high = 2"),
        ("low is at most high", "low must be at most high, but low = 3 and high = 2"),
        ("there are no more low than high", "there must be no more low than high, but low = 3 and high = 2"),
        ("name must not be empty", "name must not be empty, but name = ''"),
        ("name has an effect only with high = 1", "name has an effect only with high = 1, but name = '' and high = 2"),
        ("nothing holds", "nothing holds"),
    ],
)
def test_a_broken_rule_says_what_must_be_and_what_is(rule: str, words: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        check(Range(), {"high is above 1": True, rule: False})
    assert str(error.value) == words


def test_an_unknown_name_gets_the_nearest_one_or_all_of_them() -> None:
    assert nearest("digit-4", ["digits-2", "digits-4"]) == "Did you mean 'digits-4'?"
    assert nearest("moon", ["b", "a"]) == "Choose one of: a, b"


def test_an_error_is_sentences() -> None:
    assert str(SettingError("No such file: exp.toml", "Did you mean 'exp2.toml'?")) == (
        "No such file: exp.toml. Did you mean 'exp2.toml'?"
    )
    assert str(SettingError("rate must be above 0, not -1")) == "rate must be above 0, not -1."
