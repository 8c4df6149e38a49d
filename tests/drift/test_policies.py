"""Rules, their composition, and policies as text."""

import sys

import pytest

from artesian.drift.detector import Drift
from artesian.drift.policy import Policy, Situation, all_of, any_of
from artesian.drift.policy_text import FORMS, RULES, policy, seconds_in
from artesian.drift.rules import (
    DAY,
    Again,
    Allowed,
    Always,
    AtLeastApart,
    Budget,
    Confirmed,
    Every,
    Never,
    OnAge,
    OnCallback,
    OnDrift,
    OnRequest,
    OnSamples,
    spoken,
    written,
)
from artesian.errors import SettingError

DRIFT = Drift("ks", 0.001, 0.01, 700, "the features changed")


def at(now: float = 100.0, **known) -> Situation:
    return Situation(now, **known)


@pytest.mark.parametrize(
    ("rule", "yes", "no", "reason", "refusal"),
    [
        (OnDrift(), at(drift=DRIFT), at(), "ks found drift: the features changed", "no drift was found"),
        (
            OnAge(7200),
            at(7300.0, refreshed_at=100.0),
            at(7299.0, refreshed_at=100.0),
            "the last refresh was 2 h ago",
            "the last refresh was 2 h ago, not 2 h",
        ),
        (OnAge(60), at(), at(refreshed_at=70.0), "it never refreshed", "the last refresh was 30 s ago, not 1 min"),
        (OnSamples(5), at(samples=5), at(samples=4), "5 samples are new", "4 samples are new, not 5"),
        (
            Again(3),
            at(answers=2),
            at(answers=3),
            "the newest drift was answered by 2 of 3 refreshes",
            "no drift waits for another refresh",
        ),
        (
            Again(3),
            at(answers=1),
            at(),
            "the newest drift was answered by 1 of 3 refreshes",
            "no drift waits for another refresh",
        ),
        (Every(2), at(batches=2), at(batches=1), "2 batches came in", "1 batch came in, not 2"),
        (OnRequest(), at(asked=True), at(), "it was asked for", "nobody asked for it"),
        (
            Budget(refreshes=2, per=50),
            at(refreshes=(50.0, 99.0)),
            at(refreshes=(51.0, 99.0)),
            "within the budget of 2 per 50 s",
            "the budget of 2 per 50 s is used up",
        ),
        (
            Budget(bytes_=3000, per=DAY),
            at(sent=((90.0, 2999),)),
            at(sent=((90.0, 1500), (95.0, 1500))),
            "within the budget of 3kB per 1 d",
            "the budget of 3kB per 1 d is used up",
        ),
        (
            AtLeastApart(seconds=50),
            at(refreshed_at=50.0),
            at(refreshed_at=51.0),
            "long enough after the last refresh",
            "the last refresh is less than 50 s ago",
        ),
        (
            AtLeastApart(batches=3),
            at(refreshed_at=0.0, batches=3),
            at(refreshed_at=0.0, batches=2),
            "long enough after the last refresh",
            "the last refresh is less than 3 batches ago",
        ),
        (
            Confirmed(2, within=4),
            at(batches=9, alarms=(1, 6, 9)),
            at(batches=10, alarms=(1, 6, 9)),
            "drift was found 2 times",
            "drift was found once, and must be 2 times",
        ),
        (
            Confirmed(3),
            at(batches=99, alarms=(1, 6, 9)),
            at(batches=99, alarms=(1, 6)),
            "drift was found 3 times",
            "drift was found 2 times, and must be 3 times",
        ),
        (
            ~OnDrift(),
            at(),
            at(drift=DRIFT),
            "no drift was found",
            "ks found drift: the features changed",
        ),
    ],
)
def test_rules_by_hand(rule, yes, no, reason, refusal) -> None:
    assert rule.wants(yes) == reason
    assert rule.wants(no) is None
    assert rule.declines(no) == refusal


def test_always_never_and_functions_of_ones_own() -> None:
    assert Always().wants(at()) and Never().wants(at()) is None
    wifi = [False]
    allowed = Allowed(lambda: wifi[0], "wifi")
    assert (allowed.wants(at()), allowed.declines(at())) == (None, "wifi does not allow it")
    wifi[0] = True
    assert allowed.wants(at()) == "wifi allows it"
    callback = OnCallback(lambda known: f"{known.samples} rows" if known.samples > 3 else None)
    assert (callback.wants(at(samples=4)), callback.wants(at())) == ("4 rows", None)


def test_a_rule_of_ones_own_composes_with_the_others() -> None:
    class FullMoon(Policy):
        def wants(self, situation):
            return "the moon is full" if situation.now % 28 == 0 else None

    either = FullMoon() | OnDrift()
    assert either.wants(at(28.0)) == "the moon is full"
    assert either.declines(at(29.0)) == "nothing calls for a refresh, and no drift was found"
    assert (FullMoon() & Never()).declines(at(28.0)) == "the moon is full, but it never refreshes"


def test_any_of_tells_all_reasons_and_all_of_what_is_missing() -> None:
    rule = (OnDrift() | Every(3)) & Budget(refreshes=1)
    assert rule == all_of(any_of(OnDrift(), Every(3)), Budget(refreshes=1))
    assert rule.wants(at(drift=DRIFT, batches=3)) == (
        "ks found drift: the features changed and 3 batches came in; within the budget of 1 per 1 d"
    )
    spent = at(drift=DRIFT, refreshes=(99.0,))
    assert rule.wants(spent) is None
    assert rule.declines(spent) == "ks found drift: the features changed, but the budget of 1 per 1 d is used up"
    assert rule.declines(at()) == "no drift was found, and 0 batches came in, not 3"
    assert all_of().wants(at()) is None and any_of().wants(at()) is None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: OnAge(0),
        lambda: OnSamples(0),
        lambda: Every(0),
        lambda: Budget(),
        lambda: Budget(refreshes=0),
        lambda: Budget(refreshes=1001),
        lambda: Budget(bytes_=1, per=0),
        lambda: AtLeastApart(),
        lambda: Confirmed(0),
        lambda: Confirmed(3, within=2),
    ],
)
def test_amounts_that_cannot_be_are_refused(wrong) -> None:
    with pytest.raises(ValueError, match=r"^(seconds|samples|batches|refreshes|bytes_|per|times|within) "):
        wrong()


# as text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("drift", OnDrift()),
        ("drift or age 7d", OnDrift() | OnAge(7 * DAY)),
        ("(drift or again 3) and budget 10/day", (OnDrift() | Again(3)) & Budget(refreshes=10)),
        ("(drift or age 7d) and budget 10/day", (OnDrift() | OnAge(7 * DAY)) & Budget(refreshes=10)),
        ("drift or age 7d and budget 10/day", OnDrift() | (OnAge(7 * DAY) & Budget(refreshes=10))),
        ("not drift and every 5 batches", ~OnDrift() & Every(5)),
        ("not (drift or request)", ~(OnDrift() | OnRequest())),
        ("samples 500 and apart 3 batches and apart 1.5h", OnSamples(500) & AtLeastApart(0, 3) & AtLeastApart(5400)),
        ("drift and confirmed 2 of 10 or confirmed 3", (OnDrift() & Confirmed(2, 10)) | Confirmed(3)),
        ("always and budget 1.5MB/12h", Always() & Budget(bytes_=1_500_000, per=43200)),
        ("never or budget 3/50", Never() | Budget(refreshes=3, per=50)),
    ],
)
def test_texts_become_policies_and_texts_again(text, expected) -> None:
    found = policy(text)
    assert found == expected
    assert policy(str(found)) == expected


def test_every_rule_of_the_table_can_be_written_as_it_says(tmp_path, monkeypatch) -> None:
    (tmp_path / "own_guard.py").write_text("def on_wifi():\n    return True\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, form in FORMS.items():
        for text in form.replace("MODULE:NAME", "own_guard:on_wifi").split(" or "):
            assert str(policy(text)).startswith(name)
    assert set(FORMS) == set(RULES)
    assert policy("allowed own_guard:on_wifi").wants(at()) == "own_guard:on_wifi allows it"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "The policy '' is not understood: a rule is missing."),
        ("drfit", "there is no rule 'drfit'. Did you mean 'drift'?"),
        ("drift or", "a rule is missing. Rules are again, age, allowed, always"),
        ("drift or and age 7d", "a rule is missing before 'and'"),
        ("(drift", "a closing bracket is missing"),
        ("drift) or age 7d", "')' comes where and, or, or nothing is expected"),
        ("drift 7", "'drift 7' ('7' is one word too many). Write it as drift."),
        ("age", "'age' (it lacks an amount). Write it as age 7d."),
        ("age 7y", "'age 7y' ('7y' is not time in w, d, h, min, s). Write it as age 7d."),
        ("age 0", "'age 0' (seconds must be above 0, not 0.0)"),
        ("samples many", "'many' is not a whole number"),
        ("every 5 minutes", "'minutes' is not batches"),
        ("every", "'' is not a whole number"),
        ("budget 10", "'10' does not say per what"),
        ("budget ten/day", "'ten' is not bytes in GB, MB, kB, B"),
        ("budget 10/month", "'month' is not time in"),
        ("apart 3 days", "it takes one word"),
        ("confirmed 2 in 10", "it takes one word"),
        ("allowed wifi", "'wifi' does not say where the function is"),
    ],
)
def test_what_is_not_understood_is_named(text, words) -> None:
    with pytest.raises(SettingError) as raised:
        policy(text)
    assert words in str(raised.value)


def test_a_policy_that_is_no_text_is_refused() -> None:
    with pytest.raises(SettingError, match="A policy is a text, not 7"):
        policy(7)


def test_times_are_read_and_written() -> None:
    assert [seconds_in(text) for text in ("7d", "12h", "30min", "90s", "90", "1.5")] == [
        604800,
        43200,
        1800,
        90,
        90,
        1.5,
    ]
    assert [written(seconds) for seconds in (604800, 86400, 5400, 90, 0.5)] == ["1w", "1d", "90min", "90", "0.5"]
    assert [spoken(seconds) for seconds in (604800, 5400, 90, 0.5, -3)] == ["7 d", "1.5 h", "1.5 min", "0.5 s", "-3 s"]
