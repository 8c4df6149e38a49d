"""Bounded influence by hand: usual changes, clips, refusals, budgets, samples, rises; and the same bits in a replay."""

from dataclasses import replace
from math import inf, sqrt

import numpy as np
import pytest
from tiers import some_heavy

from artesian.algorithms import ALGORITHMS, CDFL, Confluence, FedAsync, FedAvg, FedBuff
from artesian.core import Event, Ledger, Member, Receipt, Seen, Step, Task, Upload
from artesian.engine.coordinator import Coordinator
from artesian.engine.defence import (
    NO_BUDGET,
    REMEMBERED,
    Defence,
    active_of,
    bounded,
    judged,
    lower_median,
    noted,
    size_of,
    usual_habit,
    usual_length,
    usual_rise,
)
from artesian.engine.folding import stretched
from artesian.engine.judge import Judge
from artesian.errors import StorageError, TooFar
from artesian.params import Layout, combine, distance, seal
from artesian.storage.codec import with_defaults, with_fields
from artesian.testing import ToyFederation, ToyModel

LAYOUT = ToyModel().layout  # three weights, one running mean, one counter
PLAIN = Layout.of({"weight": np.zeros(3, np.float32)})
ALL = Defence(budget=6.0)  # by which the numbers here were worked out
APART = replace(ALL, newcomer=0.0)  # uploads of a fold do not count for one another


def plain(*numbers: float) -> np.ndarray:
    return seal(np.array(numbers, np.float32))


def ledger(*lengths: float, uploads: int = 0, samples: int = 10) -> Ledger:
    return Ledger(uploads, tuple(Seen(f"c{i}", samples, length) for i, length in enumerate(lengths)))


def sent(change, start=(0, 0, 2), delta: bool = False) -> tuple[Upload, Task]:
    """An upload with this change, and its task, whose model is 2 long."""
    given = plain(*start)
    task = Task({"k0": given}, settings={"delta": delta}, number=1)
    return Upload("c9", 1, 10, {"k0": plain(*change) if delta else seal(given + plain(*change))}), task


def within(change, known: Ledger, member: Member | None = None, present: int = 3, defence=ALL, **how):
    upload, task = sent(change, **how)
    return bounded(defence, PLAIN, upload, task, known, member or Member(10), present)


def test_the_lower_median_by_hand() -> None:
    assert lower_median([]) is None
    assert lower_median([7]) == 7
    assert lower_median([9, 1]) == 1  # one of two cannot raise it
    assert lower_median([5, 1, 3]) == 3
    assert lower_median([4, 1, 3, 2]) == 2


def test_a_member_has_one_voice_however_often_it_uploads() -> None:
    known = ledger(1, 2, 3)
    for _ in range(200):
        known = noted(known, "flood", 5, 1e6)
    assert usual_length(known) == 2
    assert [seen.client for seen in known.seen] == ["c0", "c1", "c2", "flood"]


def test_only_the_newest_members_are_remembered_and_a_join_forgets_no_length() -> None:
    known = Ledger()
    for i in range(REMEMBERED + 9):
        known = noted(known, f"c{i}", 1, 1.0)
    assert (len(known.seen), known.seen[0].client) == (REMEMBERED, "c9")
    known = noted(known, "c9", 7)
    assert known.seen[-1] == Seen("c9", 7, 1.0)


def test_a_change_is_clipped_to_three_usual_ones() -> None:
    known = ledger(0.1, 0.2, 0.3)  # 0.2 is usual: 0.6 at the most
    assert within((0.5, 0, 0), known).upload.params[0] == np.float32(0.5)
    found = within((3, 4, 0), known)  # 5 long: 0.6 / 5 of it
    np.testing.assert_allclose(found.upload.params, [0.36, 0.48, 2], rtol=1e-6)
    assert (found.length, found.spent) == (pytest.approx(0.6), pytest.approx(3))
    found = within((3, 4, 0), known, delta=True)
    np.testing.assert_allclose(found.upload.params, [0.36, 0.48, 0], rtol=1e-6)


def test_the_changes_of_one_member_are_bounded_in_the_mean_by_hand() -> None:
    known = ledger(0.1, 0.2, 0.3)

    def longest(stride: float | None, **how) -> float:
        return within((3, 4, 0), known, Member(10, stride=stride), **how).length

    assert longest(None) == pytest.approx(0.6)  # its first: three usual ones
    assert longest(3.0) == pytest.approx(0.2)  # 3 + 4 (1.5 - 3) is below 1, and one is always allowed
    assert longest(1.6) == pytest.approx(0.2 * 1.2)  # 1.6 + 4 (1.5 - 1.6)
    assert longest(1.5) == pytest.approx(0.2 * 1.5)  # the mean may be so much, and stays there
    assert longest(1.0) == pytest.approx(0.6)  # a calm member may bring one long change: as much as the clip allows
    assert longest(1.0, defence=replace(ALL, clip=0.0, stride=2.0)) == pytest.approx(1.0)  # 1 + 4 (2 - 1)
    assert longest(3.0, defence=replace(ALL, stride=0.0)) == pytest.approx(0.6)
    assert within((3, 4, 0), known, Member(10, stride=3.0)).shortened == pytest.approx(3)  # from 0.6 to 0.2
    assert within((0.3, 0, 0), known, Member(10, stride=3.0)).shortened == pytest.approx(1.5)  # from 0.3
    assert within((3, 4, 0), known, Member(10)).shortened == 1  # by the clip alone
    assert within((0.1, 0, 0), known, Member(10, stride=3.0)).shortened == 1


def test_the_first_change_is_no_longer_than_the_model() -> None:
    found = within((3, 4, 0), Ledger())
    np.testing.assert_allclose(found.upload.params, [1.2, 1.6, 2], rtol=1e-6)
    assert (found.length, found.spent) == (2, 1)
    found = within((3, 4, 0), Ledger(), start=(0, 0, 0))  # nothing to compare with: as if every entry were 1
    assert found.length == pytest.approx(sqrt(3))
    assert size_of(PLAIN, sent((1, 0, 0), start=(0, 0, 0))[1]) == pytest.approx(sqrt(3))


@pytest.mark.parametrize("delta", [True, False])
def test_an_absurd_change_is_refused_in_a_sentence(delta) -> None:
    assert within((199, 0, 0), Ledger(), delta=delta).length == 2  # the model is 2 long
    with pytest.raises(TooFar, match="The change is 201 long, more than 100 times the model and the usual change"):
        within((201, 0, 0), Ledger(), delta=delta)
    assert within((201, 0, 0), ledger(3, 3, 3), delta=delta).length == 9  # 300 is the most where 3 is usual
    with pytest.raises(TooFar):
        within((301, 0, 0), ledger(3, 3, 3), delta=delta)


def test_running_statistics_are_bounded_too() -> None:
    given = LAYOUT.pack({"weight": np.float32([1, 0, 0]), "mean": np.float32([2]), "steps": np.array(7)})
    near = LAYOUT.pack({"weight": np.float32([1, 0, 0]), "mean": np.float32([190]), "steps": np.array(8)})
    far = LAYOUT.pack({"weight": np.float32([1, 0, 0]), "mean": np.float32([203]), "steps": np.array(8)})
    task = Task({"k0": given}, number=1)
    assert bounded(ALL, LAYOUT, Upload("c", 1, 1, {"k0": near}), task, Ledger(), Member(1), 2).length == 0
    with pytest.raises(TooFar, match="running statistics"):
        bounded(ALL, LAYOUT, Upload("c", 1, 1, {"k0": far}), task, Ledger(), Member(1), 2)


def test_a_budget_is_spent_and_comes_back_as_others_upload() -> None:
    known = ledger(1, 1, 1, uploads=10)
    spent = Member(10, spent=5.0, spent_at=10)
    assert ALL.left(known, spent, present=4) == 1  # 6 - 5
    assert within((0, 3, 0), known, spent, present=4).length == 1  # scaled down to what is left
    known = replace(known, uploads=11)  # one of three others uploaded: a third of 2 comes back
    assert ALL.left(known, spent, present=4) == pytest.approx(1 + 2 / 3)
    assert ALL.left(replace(known, uploads=13), spent, present=4) == 3
    assert ALL.left(replace(known, uploads=99), spent, present=4) == 6  # never more than the whole
    assert ALL.left(known, spent, present=1) == inf  # nobody to protect
    few = replace(known, uploads=11, active=2)  # of the four, two uploaded in the last turn: all of 2 comes back
    assert ALL.left(few, spent, present=4) == 3
    assert ALL.left(replace(few, came=3), spent, present=4) == 2  # and three in this one: a half of 2
    assert replace(ALL, pace=0.0).left(few, spent, present=4) == 3  # a third of the budget


def test_active_members_are_counted_in_turns_by_hand() -> None:
    known = ALL.turned(Ledger(), Member(10), present=3, spent=0.5)
    assert (known.uploads, known.came, known.active) == (0.5, 1, 0)  # half of an upload, by the first member
    known = ALL.turned(known, Member(10, spent_at=0.5), 3, 2.0)
    assert (known.uploads, known.came) == (1.5, 1)  # its second: never more than one
    known = ALL.turned(known, Member(10), 3, 0.0)
    assert (known.uploads, known.came) == (1.5, 1)  # one that changes nothing
    known = ALL.turned(replace(known, uploads=3.0), Member(10), 3, 0.9)
    assert (known.uploads, known.came, known.turn) == (3.9, 2, 0)  # two came: a turn is 4 uploads
    known = ALL.turned(known, Member(10, spent_at=3.0), 3, 1.0)
    assert (known.turn, known.came, known.active) == (4.9, 0, 3)  # a quarter more than came, whole members
    many = ALL.turned(Ledger(98.5), Member(10), 100, 1.0)  # of a hundred only one came since the start
    assert (many.active, many.came) == (0, 1)
    many = ALL.turned(replace(many, uploads=99.0), Member(10, spent_at=1.0), 100, 1.0)
    assert (many.turn, many.active) == (100.0, 50)  # half of those before, at the least
    assert active_of(many, 100) == 50 and active_of(replace(many, active=25), 100) == 34  # or a third of all
    assert active_of(Ledger(), 100) == 100 and active_of(replace(many, came=70), 60) == 60
    assert replace(ALL, pace=0.0).turned(Ledger(3), Member(10), 3, 0.5) == Ledger(4)


def test_with_less_than_a_usual_change_left_an_upload_is_set_aside() -> None:
    known = ledger(1, 1, 1, uploads=10)
    assert within((0, 3, 0), known, Member(10, spent=5.0, spent_at=10), present=4).length == 1
    found = within((0, 3, 0), known, Member(10, spent=5.1, spent_at=10), present=4)
    assert (found.aside, found.length, found.spent) == (NO_BUDGET, 0, 0)
    small = replace(ALL, budget=0.5)
    assert within((0, 3, 0), known, Member(10), present=4, defence=small).length == 0.5  # the whole of a small budget
    found = within((0, 1, 0), known, Member(10, spent=6.0, spent_at=10), present=4)
    assert (found.aside, found.length, found.spent) == (NO_BUDGET, 0, 0)
    assert within((0, 0, 0), known, Member(10, spent=6.0, spent_at=10), present=4).aside == ""  # it changes nothing


@pytest.mark.parametrize("part", ["clip", "refuse", "budget", "samples", "rise"])
def test_0_turns_a_part_off(part) -> None:
    off = replace(ALL, **{part: 0.0})
    known, spent = ledger(1, 1, 1, uploads=10), Member(10, spent=6.0, spent_at=10)
    assert within((0, 50, 0), known, defence=off).length == (6 if part == "clip" else 3)  # the whole budget, or a clip
    assert (off.left(known, spent, 4) == inf) == (part == "budget")
    assert (off.counted(10**9, known, "c9") == 10**9) == (part == "samples")
    absurd = within((0, 1e9, 0), known, defence=off) if part == "refuse" else None
    assert absurd is None or absurd.length == 3


def test_claimed_samples_count_up_to_three_usual_ones() -> None:
    known = Ledger(0, (Seen("a", 10), Seen("b", 20), Seen("c", 30), Seen("evil", 1 << 52)))
    assert ALL.counted(80, known, "a") == 80
    assert ALL.counted(1 << 52, known, "evil") == 60  # three times 20, whatever it said before
    assert ALL.counted(1 << 52, Ledger(), "first") == 1 << 52  # nobody to compare with
    assert replace(ALL, weights="equal").counted(150, known, "a") == 1
    assert replace(ALL, weights="equal").counted(0, known, "a") == 0


def test_rises_are_judged_by_hand() -> None:
    seen = tuple(Seen(f"c{i}", 10, 1.0, rise) for i, rise in enumerate((0.01, 0.02, 0.03, 0.04, 0.05)))
    known = Ledger(5, seen)
    assert usual_rise(known) == 0.03
    after, refused = judged(APART, known, {"c0/7": ("c0", 0.29), "c1/3": ("c1", 0.31), "c2/9": ("c2", -0.5)})
    assert refused == {"c1/3": "it would raise a held-back loss by 0.31 of it, and 0.3 is the most"}
    assert [entry.rise for entry in after.seen] == [0.29, 0.3, 0.3, 0.04, 0.05]  # none counts for more than the most
    assert [entry.habit for entry in after.seen] == [0.29, 0.3, 0.0, None, None]  # the first of each is its mean
    assert judged(APART, known, {"c0/7": ("c0", 0.0)})[0] == known  # nothing changed: nothing learnt
    few = Ledger(4, seen[:4])
    assert judged(APART, few, {"c0/7": ("c0", 9.0)})[1] == {}  # too few are known
    assert list(judged(APART, few, {"c0/7": ("c0", 1e7)})[1]) == ["c0/7"]
    calm = Ledger(5, tuple(replace(entry, rise=1e-6) for entry in seen))
    assert judged(APART, calm, {"c0/7": ("c0", 0.049)})[1] == {}  # a rise of less than 0.05 harms nobody


def test_a_member_whose_uploads_raise_the_loss_again_and_again_is_judged_by_hand() -> None:
    habits = (0.01, 0.02, 0.03, 0.04, 0.09)
    known = Ledger(5, tuple(Seen(f"c{i}", 10, 1.0, 0.02, habit) for i, habit in enumerate(habits)))
    assert usual_habit(known) == 0.03  # so 0.075 is the most
    rises = {"c0/7": ("c0", 0.19), "c3/7": ("c3", 0.19), "c4/7": ("c4", 0.07), "c9/1": ("c9", 0.19)}
    after, refused = judged(APART, known, rises)
    assert list(refused) == ["c3/7"]  # 0.04 + (0.19 - 0.04) / 4 = 0.0775; c4 does better than it did, c9 is new
    assert "0.19 of it, and uploads of its member do so by 0.0775 in the mean, where 0.075 is" in refused["c3/7"]
    assert [seen.habit for seen in after.seen] == pytest.approx([0.055, 0.02, 0.03, 0.0775, 0.085])
    twice = {"c0/7": ("c0", 0.19), "c0/8": ("c0", 0.19)}  # one after the other, also in the same fold
    assert list(judged(APART, known, twice)[1]) == ["c0/8"]
    shaken = Ledger(5, tuple(replace(seen, rise=0.05) for seen in known.seen))
    assert usual_habit(shaken) == 0.05  # where rises and falls are large, means are small by luck
    off = replace(APART, habit=0.0)
    assert judged(off, known, rises) == (replace(known, seen=judged(off, known, rises)[0].seen), {})
    assert [seen.habit for seen in judged(off, known, rises)[0].seen] == list(habits)


def test_uploads_of_a_fold_are_judged_by_one_another_by_hand() -> None:
    strangers = Ledger(6, tuple(Seen(f"c{i}", 10, 1.0) for i in range(6)))
    rises = (0.1, 0.2, 0.3, -0.4, 1.19, 1.21)  # 0.3 is usual: 1.2 is the most for a first upload
    fold = {f"c{i}/1": (f"c{i}", rise) for i, rise in enumerate(rises)}
    after, refused = judged(ALL, strangers, fold)
    assert refused == {"c5/1": "it would raise a held-back loss by 1.21 of it, and 1.2 is the most"}
    assert [seen.habit for seen in after.seen] == [0.1, 0.2, 0.3, 0.0, 1.19, 1.21]
    assert list(judged(ALL, strangers, {**fold, "c5/2": ("c5", 1.3)})[1]) == ["c5/1", "c5/2"]  # nothing is known yet
    assert judged(APART, strangers, fold)[1] == {}

    again = {"c0/2": ("c0", 0.1), "c5/2": ("c5", 1.0)}
    assert "do so by 1.16 in the mean, where 0.75 is" in judged(ALL, after, again)[1]["c5/2"]  # set aside, remembered


def test_what_may_be_bad_luck_of_a_member_may_not_be_a_newcomers() -> None:
    members = tuple(Seen(f"c{i}", 10, 1.0, 0.3, 0.3) for i in range(7))
    known = Ledger(8, (*members, Seen("new", 10)))
    fold = {"c0/2": ("c0", 1.21), "new/1": ("new", 1.21), "c1/2": ("c1", 0.1)}  # four times 0.3 is the most for one
    assert list(judged(ALL, known, fold)[1]) == ["new/1"]
    assert judged(APART, known, fold)[1] == {}
    assert judged(ALL, known, {"new/1": ("new", 1.21)})[1] == {}  # alone: the next is judged by what it did
    assert judged(ALL, known, {**fold, "new/1": ("new", 1.19)})[1] == {}


def test_settings_from_before_there_were_habits_judge_as_they_did() -> None:
    newer = ("habit", "newcomer", "harmless")
    told = {name: value for name, value in Defence(rise=5.0).tree.items() if name not in newer}
    older = with_fields(Defence(), with_defaults(Defence(), told))
    assert (older.rise, older.habit, older.newcomer, older.harmless) == (5.0, 0.0, 0.0, 0.02)
    known = Ledger(5, tuple(Seen(f"c{i}", 10, 1.0, 1e-6) for i in range(5)))
    assert list(judged(older, known, {"c0/7": ("c0", 0.021), "c1/7": ("c1", 0.019)})[1]) == ["c0/7"]
    assert {seen.habit for seen in judged(older, known, {"c1/7": ("c1", 0.019)})[0].seen} == {None}


def test_settings_from_before_there_was_a_pace_give_back_the_budget() -> None:
    older = {key: value for key, value in ALL.tree.items() if key != "pace"}
    assert with_fields(ALL, with_defaults(ALL, older)) == replace(ALL, pace=0.0)


def test_settings_from_before_there_were_strides_bound_none() -> None:
    told = {name: value for name, value in ALL.tree.items() if name != "stride"}
    assert with_fields(Defence(), with_defaults(Defence(), told)) == replace(ALL, stride=0.0)


def test_what_cannot_be_is_refused() -> None:
    for wrong in ({"clip": -1.0}, {"stride": 0.5}, {"budget": inf}, {"weights": "size"}, {"rise_samples": 0}):
        with pytest.raises(ValueError, match="must be"):
            Defence(**wrong)


# in the engine


def joined(algorithm, clients: int = 4, defence: Defence | None = ALL, **options) -> ToyFederation:
    federation = ToyFederation(algorithm, clients, **options)
    federation.coordinator.defence = defence
    federation.join_all()
    return federation


def turned(federation: ToyFederation, client: str, times: float) -> Upload:
    """The upload of a client, its change multiplied."""
    upload, task = federation.upload_of(client), federation.tasks[client]
    ((name, params),) = upload.models.items()
    given = 0 * params if task.settings.get("delta") else task.models[name]
    return replace(upload, models={name: seal((given + np.float32(times) * (params - given)).astype(np.float32))})


def test_an_absurd_upload_changes_nothing_and_its_task_stays_open() -> None:
    federation = joined(FedAsync())
    before = federation.coordinator.digest()
    with pytest.raises(TooFar):
        federation.coordinator.receive(turned(federation, "c0", 1e6))
    assert federation.coordinator.digest() == before
    assert federation.coordinator.receive(federation.upload_of("c0"))


def test_a_boosted_upload_is_clipped_and_its_retry_is_still_known() -> None:
    federation = joined(FedAsync())
    for _ in range(8):
        federation.step()
    usual = usual_length(federation.coordinator.desk.ledger)
    given = federation.tasks["c0"].models["k0"]
    upload = turned(federation, "c0", 50)
    measured = federation.coordinator.measure(upload, federation.coordinator.admit(upload))
    assert distance(LAYOUT, measured.upload.params, given) == pytest.approx(3 * usual, rel=1e-3)
    replies = federation.coordinator.upload(measured)
    assert federation.coordinator.receive(upload) == replies  # a retry of what was sent


@pytest.mark.parametrize("stride", [1.5, 0.0])
def test_long_changes_again_and_again_are_shortened_until_their_mean_is_sound(stride) -> None:
    federation = joined(FedAsync(), 6, replace(ALL, stride=stride, budget=0.0, rise=0.0))
    strides, lengths = [], []
    for client in ("c1", "c2", "c3", "c4", "c5", *["c0"] * 6):
        upload = turned(federation, client, 50 if client == "c0" else 1)
        measured = federation.coordinator.measure(upload, federation.coordinator.admit(upload))
        (reply,) = federation.coordinator.upload(measured)
        federation.tasks[client] = reply.task
        strides.append(federation.coordinator.state.members[client].stride)
        lengths.append(measured.spent)
    assert lengths[5:] == pytest.approx([3, 1, 1, 1, 1, 1.1015625] if stride else [3] * 6)
    assert strides[5:] == (pytest.approx([3, 2.5, 2.125, 1.84375, 1.6328125, 1.5]) if stride else [None] * 6)


def test_a_flood_is_set_aside_and_answered() -> None:
    seen: list[Event] = []
    federation = joined(FedAsync(), record=None)
    for client in ("c1", "c2", "c3"):
        federation.take(federation.coordinator.receive(federation.upload_of(client)))
    federation.coordinator.record = seen.append
    for _ in range(30):
        (reply,) = federation.coordinator.receive(turned(federation, "c0", -3))
        federation.tasks["c0"] = reply.task
    aside = [event for event in seen if event.set_aside]
    assert len(aside) > 15
    assert set(aside[-1].set_aside.values()) == {NO_BUDGET}
    assert federation.coordinator.state.members["c0"].set_aside == len(aside)
    version = federation.coordinator.state.version
    assert version == 33 - len(aside)
    for client in ("c1", "c2", "c3"):  # all others upload once: enough comes back
        federation.take(federation.coordinator.receive(federation.upload_of(client)))
    federation.coordinator.receive(federation.upload_of("c0"))
    assert federation.coordinator.state.version == version + 4


def test_an_upload_after_others_set_aside_is_as_late_as_the_first_of_them() -> None:
    federation = joined(CDFL(), defence=replace(ALL, rise=0.0))
    lateness = []
    for client in ("c1", "c2", "c3", *["c0"] * 12, "c1", "c2", "c0", "c0"):
        (reply,) = federation.coordinator.receive(federation.upload_of(client))
        federation.tasks[client] = reply.task
        if client == "c0":
            lateness.append(federation.coordinator.notes.get("staleness", 0))  # of what is set aside, none
    assert federation.coordinator.state.members["c0"].set_aside == 7
    assert lateness == [4, *[1] * 5, *[0] * 6, 3, 0]  # after six set aside: two others came since the first of them
    assert (
        federation.coordinator.state.members["c0"].since == 9
    )  # the one folded since brought less than a usual change


@pytest.mark.parametrize("tiny", [0.0, 1e-3])
def test_a_tiny_upload_does_not_make_the_next_one_fresh(tiny) -> None:
    federation = joined(CDFL(), defence=replace(ALL, rise=0.0))
    for client in ("c1", "c2", "c3", *["c0"] * 12, "c1", "c2"):
        (reply,) = federation.coordinator.receive(federation.upload_of(client))
        federation.tasks[client] = reply.task
    since = federation.coordinator.state.members["c0"].since
    (reply,) = federation.coordinator.receive(turned(federation, "c0", tiny))
    assert federation.coordinator.state.members["c0"].since == since
    federation.tasks["c0"] = reply.task
    federation.coordinator.receive(turned(federation, "c0", 3))
    assert federation.coordinator.notes["staleness"] > 2  # not 1, as of one made from the newest model
    assert federation.coordinator.state.members["c0"].since is None


def folds(federation: ToyFederation, clients) -> list[str]:
    """Whose uploads were folded, of these clients, each with an upload in this order."""
    found = []
    for client in clients:
        before = federation.coordinator.state.version
        (reply,) = federation.coordinator.receive(federation.upload_of(client))
        federation.tasks[client] = reply.task
        found += [client] * (federation.coordinator.state.version - before)
    return found


@pytest.mark.parametrize(("pace", "most"), [(2.0, 125), (0.0, 1200)])
def test_members_that_flood_do_not_earn_each_other_their_budgets_back(pace, most) -> None:
    federation = joined(FedAsync(), 20, replace(ALL, rise=0.0, pace=pace))
    honest, flood = [f"c{i}" for i in range(4, 20)], ["c0", "c1", "c2", "c3"]
    folded = folds(federation, [client for member in honest * 6 for client in (*flood * 5, member)])
    assert [folded.count(client) for client in honest] == [6] * 16
    assert 0.9 * most < len(folded) - 96 < most  # of 1920: each its budget at once, then twice what others do


@pytest.mark.parametrize(("active", "most"), [(8, 0), (5, 4)])
def test_members_who_are_silent_hardly_stop_those_who_upload(active, most) -> None:
    federation = joined(FedAsync(), 20, replace(ALL, rise=0.0))
    clients = [f"c{i}" for i in range(active)]
    folds(federation, clients * 20)  # until it is known that the others are silent
    assert len(folds(federation, clients * 10)) >= 10 * active - most


def test_claims_are_capped_where_uploads_are_weighed() -> None:
    federation = joined(FedAvg(clients_per_round=4))
    start = federation.coordinator.state.clusters["k0"].params
    for client in ("c0", "c1", "c2", "c3"):
        claim = 1 << 50 if client == "c3" else 10
        upload = replace(federation.upload_of(client), samples=claim)
        federation.coordinator.receive(upload)
    assert federation.coordinator.state.members["c3"].samples == 30
    assert federation.coordinator.state.clusters["k0"].params is not start
    assert federation.coordinator.state.members["c0"].samples == 10


class Crooked(ToyFederation):
    """A federation one of whose clients sends its changes the wrong way round, thirty times as long."""

    def upload_of(self, client):
        upload = super().upload_of(client)
        if client != "c0" or len(upload.models) != 1:
            return upload
        ((name, params),) = upload.models.items()
        models = self.tasks["c0"].models  # one that was trained from several is called otherwise
        given = 0 * params if self.tasks["c0"].settings.get("delta") else models.get(name, next(iter(models.values())))
        wrong = given - np.float32(30) * (params - given)
        wrong[LAYOUT.trainable :] = params[LAYOUT.trainable :]
        return replace(upload, models={name: seal(wrong.astype(np.float32))})


WAYS = [FedAsync(), CDFL(), Confluence(first_pretend=2, pretend=1, pretend_window=3), FedBuff(buffer_size=3)]
WAYS += [FedAvg(clients_per_round=3), FedBuff(buffer_size=3, aggregate="trimmed")]


@pytest.mark.parametrize("algorithm", WAYS, ids=lambda a: f"{a.name}-{WAYS.index(a)}")
def test_restored_and_replayed_it_has_the_same_bits(algorithm) -> None:
    """With bounds that bite: uploads are clipped, scaled down and set aside for both reasons."""
    seen: list[Event] = []
    tight = Defence(clip=1.5, budget=2.0, rise=1.0)
    federation = Crooked(algorithm, 6)
    federation.coordinator.adopt({**federation.coordinator.settings, "defence": tight.tree})
    federation.join_all()
    first = federation.coordinator.snapshot()
    federation.coordinator.record = seen.append
    for turn in range(60):
        federation.step()
        if turn % 7 == 0:
            federation.restart()
            federation.coordinator.record = seen.append
    assert any(event.measured and event.measured.digest for event in seen)
    if not algorithm.pace().in_rounds:
        assert any(event.set_aside for event in seen)
    again = Coordinator.restore(algorithm, first, pace=federation.coordinator.pace)  # no proxies: nothing is measured
    for event in seen:
        again.replay(event)
    assert again.digest() == federation.coordinator.digest()
    assert again.defence == tight


def test_a_fold_that_raises_a_held_back_loss_is_not_made() -> None:
    seen: list[Event] = []
    federation = joined(FedAsync(), 8, replace(ALL, clip=0.0, stride=0.0, budget=0.0, refuse=0.0))
    for _ in range(24):
        federation.step()
    before = federation.coordinator.state
    federation.coordinator.record = seen.append
    (reply,) = federation.coordinator.receive(turned(federation, "c0", -300))
    (event,) = seen
    assert event.judged.keys() == event.set_aside.keys() == {f"c0/{reply.task.number - 1}"}
    assert "held-back loss" in next(iter(event.set_aside.values()))
    assert federation.coordinator.state.version == before.version
    assert federation.coordinator.state.clusters == before.clusters
    losses = federation.coordinator.judge.losses(federation.coordinator.state)
    assert losses.keys() == {"k0"}


def test_a_late_upload_is_judged_by_the_step_it_would_make_in_time() -> None:
    seen: list[Event] = []
    federation = joined(FedAsync(alpha=0.5), 8, replace(ALL, clip=0.0, stride=0.0, budget=0.0, refuse=0.0))
    for _ in range(20):
        federation.step()
    state = federation.coordinator.state
    late = max(state.members, key=lambda client: state.version - federation.coordinator.recorded(client)[0].task.base)
    assert state.version - federation.coordinator.recorded(late)[0].task.base > 2
    federation.coordinator.record = seen.append
    upload = turned(federation, late, 1)
    federation.coordinator.receive(upload)
    losses = federation.coordinator.judge.losses(federation.coordinator.state)
    assert losses.keys() == {"k0"}  # of the model that it really made
    fresh = combine(state.layout, (state.clusters["k0"].params, upload.params), (0.5, 0.5))
    rise = federation.coordinator.judge.rise(state, Step({"k0": fresh}), False)
    assert seen[-1].judged == {f"{late}/{upload.number}": pytest.approx(rise, rel=1e-5)}


def test_an_upload_that_its_members_stride_shortened_is_judged_at_full_length() -> None:
    seen: list[Event] = []
    federation = joined(FedAsync(alpha=0.5), 6, replace(ALL, budget=0.0, harmless=1e6))
    for client in ("c1", "c2", "c3", "c4", "c5", "c0"):
        (federation.tasks[client],) = (
            reply.task
            for reply in federation.coordinator.receive(turned(federation, client, 50 if client == "c0" else 1))
        )
    federation.coordinator.record = seen.append
    state, upload = federation.coordinator.state, turned(federation, "c0", 50)
    measured = federation.coordinator.measure(upload, federation.coordinator.admit(upload))
    assert measured.shortened == pytest.approx(3) and measured.spent == pytest.approx(1)
    federation.coordinator.upload(measured)
    old, new = state.clusters["k0"].params, federation.coordinator.state.clusters["k0"].params
    whole = combine(state.layout, (old, new), (-2.0, 3.0))  # the step it made, three times
    rise = federation.coordinator.judge.rise(state, Step({"k0": whole}), False)
    assert seen[-1].judged == {f"c0/{upload.number}": pytest.approx(rise, rel=1e-4)}
    assert rise > 2 * federation.coordinator.judge.rise(state, Step({"k0": new}), False)


def test_a_longer_step_has_the_buffers_of_the_step_itself() -> None:
    state = ToyFederation(FedAsync(), 2).coordinator.state
    old = seal(np.arange(LAYOUT.size, dtype=np.float32))
    state = replace(state, clusters={"k0": replace(state.clusters["k0"], params=old)})
    new = seal(old + np.float32(1))
    longer = stretched(state, Step({"k0": new, "born": new}), 2.0)
    np.testing.assert_array_equal(longer.clusters["k0"][: LAYOUT.trainable], old[: LAYOUT.trainable] + 2)
    np.testing.assert_array_equal(longer.clusters["k0"][LAYOUT.trainable :], new[LAYOUT.trainable :])
    assert longer.clusters["born"] is new
    assert stretched(state, Step({"k0": new}), 1.0).clusters["k0"] is new


def test_uploads_of_a_buffer_are_judged_one_by_one() -> None:
    seen: list[Event] = []
    federation = joined(FedBuff(buffer_size=3), 8, replace(ALL, clip=0.0, stride=0.0, budget=0.0, refuse=0.0))
    for _ in range(30):
        federation.step()
    federation.coordinator.record = seen.append
    version = federation.coordinator.state.version
    for client, times in (("c1", 1), ("c0", -300), ("c2", 1)):
        federation.coordinator.receive(turned(federation, client, times))
    *_, last = seen
    assert [name.split("/")[0] for name in last.judged] == ["c1", "c0", "c2"]
    assert [name.split("/")[0] for name in last.set_aside] == ["c0"]
    assert federation.coordinator.state.version == version + 1


@pytest.mark.parametrize("newcomer", [4.0, 0.0])
def test_the_first_buffer_is_judged_by_itself(newcomer) -> None:
    seen: list[Event] = []
    defence = replace(ALL, clip=0.0, stride=0.0, budget=0.0, refuse=0.0, newcomer=newcomer)
    federation = joined(FedBuff(buffer_size=6), 8, defence)
    federation.coordinator.record = seen.append
    for client, times in (("c1", 1), ("c0", -300), ("c2", 1), ("c3", 1), ("c4", 1), ("c5", 1)):
        federation.coordinator.receive(turned(federation, client, times))
    *_, last = seen
    assert len(last.judged) == 6
    assert [name.split("/")[0] for name in last.set_aside] == (["c0"] if newcomer else [])


def test_the_judge_uses_some_samples_and_each_clusters_own() -> None:
    federation = ToyFederation(CDFL(), 2)
    judge = Judge(federation.coordinator.proxies, 5, 0)
    assert [samples.samples for samples in judge._samples.values()] == [5, 5]
    state = federation.coordinator.state
    k1 = state.clusters["k1"].params
    step, other = Step({"k0": k1}), Judge(federation.coordinator.proxies, 5, 0)
    assert judge.rise(state, step, own=True) != other.rise(state, step, own=False)
    assert judge.rise(state, Step(), own=True) == 0


def test_what_is_measured_may_be_refused_by_the_disk_without_a_trace() -> None:
    federation = joined(FedAsync())
    before = federation.coordinator.digest()

    def fail(event: Event) -> None:
        raise StorageError("the disk is full")

    federation.coordinator.record = fail
    with pytest.raises(StorageError):
        federation.coordinator.receive(federation.upload_of("c0"))
    assert federation.coordinator.digest() == before


def test_settings_without_a_defence_are_undefended() -> None:
    federation = joined(FedAsync())
    snapshot = federation.coordinator.snapshot()
    older = {key: value for key, value in snapshot.settings.items() if key != "defence"}
    restored = Coordinator.restore(FedAsync(), replace(snapshot, settings=older), defence=ALL)
    assert restored.defence is None
    restored.adopt({**restored.settings, "defence": ALL.tree})
    assert restored.defence == ALL


def test_receipts_of_uploads_without_models_are_not_measured() -> None:
    federation = joined(FedAsync())
    upload = Upload("c0", 1, 10)
    measured = federation.coordinator.measure(upload, Receipt(1, 0, "train", ()))
    assert (measured.length, measured.spent, measured.aside) == (0, 0, "")


@pytest.mark.parametrize("name", some_heavy(sorted(ALGORITHMS), "cdfl", "confluence", "fedbuff", "flexcfl"))
def test_every_algorithm_is_defended_and_replayed_with_the_same_bits(name) -> None:
    seen: list[Event] = []
    algorithm = ALGORITHMS[name]()
    federation = Crooked(algorithm, 6)
    tight = replace(ALL, budget=2.0, pace=0.5)
    federation.coordinator.adopt({**federation.coordinator.settings, "defence": tight.tree})
    federation.join_all()
    first = federation.coordinator.snapshot()
    federation.coordinator.record = seen.append
    for _ in range(24):
        federation.step()
    again = Coordinator.restore(algorithm, first, pace=federation.coordinator.pace)
    for event in seen:
        again.replay(event)
    assert again.digest() == federation.coordinator.digest()
    if name not in ("local", "fedrep"):  # which send no change: the head, all that trains here, stays with its client
        assert federation.coordinator.desk.ledger.uploads
    if not federation.coordinator.pace.in_rounds and name != "local":
        assert any(event.set_aside for event in seen)
