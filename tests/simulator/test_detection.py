"""Delays, false alarms and missed drifts, counted by hand."""

from artesian.simulator.detection import detection


def rows(client: str, drifts: str, alarms: str, refreshes: str = "", share: float = 1.0):
    """Turns of one client: how many drifts began so far, and whether there was an alarm and a refresh."""
    told = zip(drifts, alarms, refreshes or alarms, strict=True)
    return [
        (cycle + 1, float(cycle), client, cycle, int(drift), share, int(alarm), int(refresh), "", 0.5)
        for cycle, (drift, alarm, refresh) in enumerate(told)
    ]


def test_a_delay_is_the_turns_from_a_drift_to_its_first_alarm() -> None:
    """Drifts at the turns 2 and 6; alarms at 2 and 9, and once more at 10."""
    found = detection(rows("c0", "00111122222", "00100000011"), detects=True)
    assert found["detection_delay"] == (0 + 3) / 2
    assert (found["drifts"], found["alarms"], found["missed_drifts"]) == (2, 3, 0)
    assert (found["false_alarms"], found["false_alarm_rate"]) == (1, 1 / 11)


def test_a_drift_is_missed_if_the_next_or_the_end_comes_before_an_alarm() -> None:
    found = detection(rows("c0", "011223", "000010"), detects=True)
    assert (found["drifts"], found["missed_drifts"], found["detection_delay"]) == (3, 2, 1.0)


def test_an_alarm_without_a_drift_is_false_also_the_first_and_for_each_client_apart() -> None:
    turns = [*rows("c0", "000", "011"), *rows("c1", "011", "010")]
    found = detection(turns, detects=True)
    assert (found["alarms"], found["false_alarms"], found["detection_delay"]) == (3, 2, 0.0)


def test_an_alarm_is_right_while_a_gradual_drift_goes_on() -> None:
    turns = [*rows("c0", "0", "0"), *rows("c0", "01", "01", share=0.5)[1:], *rows("c0", "011", "001", share=1.0)[2:]]
    assert detection(turns, detects=True)["false_alarms"] == 0


def test_without_a_detector_there_are_no_alarms_to_judge() -> None:
    found = detection(rows("c0", "0011", "0000", "1010"), detects=False)
    assert found == {"turns": 4, "refreshes": 2, "in_use": 0.5, "drifts": 1}


def test_a_run_without_turns_counts_none() -> None:
    assert detection([], detects=True)["false_alarm_rate"] == 0.0
