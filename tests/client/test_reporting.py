"""What a client tells the server of its refreshes: nothing unless asked, and never a number that means nothing."""

import numpy as np
import pytest
from homes import MODEL, Home

from artesian.client.reporting import Reports
from artesian.errors import StorageError
from artesian.recipes.accepting import Choice


def test_a_first_upload_reports_only_whether_data_changed(tmp_path) -> None:
    assert Reports(tmp_path).metrics(False) == {"drift": 0.0}
    assert Reports(tmp_path).metrics(True) == {"drift": 1.0}


def test_the_next_upload_reports_how_the_refresh_went(tmp_path) -> None:
    Reports(tmp_path).keep(Choice("drawn", {"drawn": 0.8, "trained": 0.7, "previous": 0.6}, 20))
    assert Reports(tmp_path).metrics(False) == {"score_before": 0.6, "score_after": 0.8, "drift": 0.0}


@pytest.mark.parametrize("scores", [{}, {"drawn": 0.8}, {"drawn": float("nan"), "previous": 0.5}])
def test_what_was_not_judged_is_not_reported(tmp_path, scores) -> None:
    Reports(tmp_path).keep(Choice("drawn", {"drawn": 0.8, "previous": 0.6}, 20))
    Reports(tmp_path).keep(Choice("drawn", scores))
    assert Reports(tmp_path).metrics(False) == {"drift": 0.0}


@pytest.mark.parametrize("text", ["[1]", '{"score_after": NaN}', '{"score_after": 1e999}', f'{{"a": 1{"0" * 400}}}'])
def test_a_damaged_file_is_refused(tmp_path, text) -> None:
    (tmp_path / "outcome.json").write_text(text)
    with pytest.raises(StorageError, match=r"outcome\.json"):
        Reports(tmp_path).metrics(False)


def metrics(home: Home) -> list[dict[str, float]]:
    """Those of every upload the server took."""
    return [dict(event.measured.upload.metrics) for event in home.store.events() if event.measured is not None]


def test_uploads_report_only_where_the_client_asks_for_it(home) -> None:
    learner = MODEL.learner(np.zeros((60, 3), np.float32), np.zeros(60, np.int64))
    with home.session("c0") as session:
        session.refresh(learner)
        first = session.refresh(learner, report=True)
        session.refresh(learner, report=True, changed=True)
    assert metrics(home)[:2] == [{}, {"drift": 0.0}]
    told = {"score_before": first.scores["previous"], "score_after": first.scores[first.won], "drift": 1.0}
    assert metrics(home)[2] == told
