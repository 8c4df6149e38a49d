"""What every detector of the table does: it finds a large change, keeps still otherwise, and goes on exactly."""

import random
import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from drift.streams import batch, constant

from artesian.drift import stream_tests
from artesian.drift.detector import Batch, Detector, Drift
from artesian.drift.detectors import DETECTORS, detector, read_detector
from artesian.errors import BadData, MissingExtra, SettingError
from artesian.storage.codec import decode, encode

SMALL = {
    "labels": {"reference": 40, "window": 20, "level": 0.02, "permutations": 99},
    "flexcfl": {"fraction": 0.5},
    "adwin": {"memory": 100},
    "page-hinkley": {"memory": 100, "limit": 20.0},
    "kswin": {"window": 20, "newest": 10, "level": 0.01},
    "ks": {"reference": 40, "window": 20, "directions": 4},
    "mmd": {"reference": 40, "window": 20, "directions": 4, "permutations": 99},
}  # so that bounds are passed within a few batches
NAMES = sorted(DETECTORS)


@pytest.fixture(params=NAMES)
def name(request) -> str:
    if request.param in ("adwin", "page-hinkley", "kswin") and find_spec("river") is None:
        pytest.skip("needs the extra drift")
    return request.param


def answers(made: Detector, batches: list[Batch]) -> list[Drift | None]:
    return [made.observe(each) for each in batches]


def stored(made: Detector):
    """The state as it comes back from a file."""
    return decode("watch", encode("watch", made.state()), dict)


def test_the_table_and_these_tests_know_the_same_detectors() -> None:
    assert set(SMALL) == set(DETECTORS)
    assert all(DETECTORS[name].name == name for name in DETECTORS)


def test_a_large_change_is_found_soon(name) -> None:
    made = detector(name)
    assert not any(answers(made, [batch(i) for i in range(7)]))
    found = [drift for drift in answers(made, [batch(7, moved=True)]) if drift]
    assert found[0].detector == name and 700 < found[0].samples <= 800
    assert found[0].why and not found[0].why.endswith(".")


def test_nothing_changes_in_constant_data(name) -> None:
    assert not any(answers(detector(name, **SMALL[name]), [constant(40) for _ in range(8)]))


def test_it_goes_on_from_its_state_at_every_point(name) -> None:
    batches = [batch(i, 9, moved=i % 12 > 5) for i in range(30)]
    whole = detector(name, **SMALL[name])
    expected = answers(whole, batches)
    assert any(expected) and None in expected
    stopped = detector(name, **SMALL[name])
    for each, drift in zip(batches, expected, strict=True):
        again = detector(name, **SMALL[name])
        again.restore(stored(stopped))
        assert again.observe(each) == drift
        stopped = again
    assert encode("watch", stopped.state()) == encode("watch", whole.state())


def test_its_state_stays_small(name) -> None:
    made, sizes = detector(name, **SMALL[name]), []
    for i in range(24):
        made.observe(batch(i, 20))
        sizes.append(len(encode("watch", made.state())))
    assert max(sizes) < 4_000
    assert max(sizes[12:]) <= max(sizes[:12]) + 64  # digits of counts


def test_global_randomness_is_neither_used_nor_changed(name) -> None:
    batches = [batch(i, 20) for i in range(6)]
    first = answers(detector(name, **SMALL[name]), batches)
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist()
    assert answers(detector(name, **SMALL[name]), batches) == first
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_after_a_reset_what_comes_is_the_new_normal(name) -> None:
    for resets, found in ((False, True), (True, False)):
        made = detector(name, **SMALL[name])
        answers(made, [batch(i, 40) for i in range(3)])
        if resets:
            made.reset()
        assert any(answers(made, [constant(40) for _ in range(3)])) == found


def test_an_empty_batch_changes_nothing_and_one_sample_is_taken(name) -> None:
    made = detector(name, **SMALL[name])
    before = encode("watch", made.state())
    nothing = batch(0, 0)
    assert made.observe(nothing) is None
    assert encode("watch", made.state()) == before
    assert made.observe(batch(0, 1)) is None
    assert encode("watch", made.state()) != before


def test_a_batch_without_its_part_is_refused(name) -> None:
    made = detector(name)
    with pytest.raises(BadData, match=f"detector {name} needs {made.part}, and this batch has none"):
        made.observe(replace(batch(0), **{made.part: None}))


def test_numbers_that_are_not_finite_are_refused_and_change_nothing(name) -> None:
    made = detector(name)
    before = encode("watch", made.state())
    part = np.array(vars(batch(0))[made.part], np.float64)
    part[3] = np.nan
    with pytest.raises(BadData, match=f"The {made.part} hold NaN or infinity"):
        made.observe(replace(batch(0), **{made.part: part}))
    assert encode("watch", made.state()) == before


@pytest.mark.parametrize("wrong", [np.array(3.0), np.array(["a", "b"])])
def test_what_is_no_row_of_numbers_is_refused(name, wrong) -> None:
    made = detector(name)
    with pytest.raises(BadData, match=r"have the shape \(\)|are <U1"):
        made.observe(replace(batch(0), **{made.part: wrong}))


# by name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("adwn", "There is no detector 'adwn'. Did you mean 'adwin'?"),
        ("ks levl=0.1", "The detector 'ks' has no setting 'levl'. Did you mean 'level'?"),
        ("ks level", "'level' is not a setting of the detector 'ks'. Write KEY=VALUE, such as level=0.01."),
        ("ks level=2", "The detector 'ks' cannot be made: level must be in (0, 1), not 2. Change its settings."),
        ("ks part=labels", "part must be features, logits or losses, not 'labels'"),
        ("labels distance=l2", "distance must be hellinger, total_variation"),
        ("labels level=0.0001", "permutations must be at least 1 / level - 1"),
        ("nowhere:thing", "could not be imported"),
        ("math:floor", "The detector 'math:floor' cannot be made"),
        ("builtins:dict", "builtins:dict gave a dict, not a Detector"),
    ],
)
def test_what_is_wrong_with_a_name_is_said(text, words) -> None:
    with pytest.raises(SettingError) as raised:
        read_detector(text)
    assert words in str(raised.value)


def test_settings_can_be_written_as_text_and_a_detector_can_be_ones_own(tmp_path, monkeypatch) -> None:
    assert read_detector("ks part=logits level=0.001 window=50") == detector(
        "ks", part="logits", level=0.001, window=50
    )
    (tmp_path / "own_detector.py").write_text(
        "from artesian.drift.label_shift import Labels\nclass Mine(Labels):\n    name = 'mine'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert detector("own_detector:Mine", window=30).name == "mine"


@pytest.mark.parametrize("name", ["adwin", "page-hinkley", "kswin"])
def test_a_missing_package_is_named_at_once(name, monkeypatch) -> None:
    monkeypatch.setattr(stream_tests, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"needs the package river. Install it: pip install 'artesian\[drift\]'"):
        detector(name)
