"""What travels to worker processes and back arrives as it was; a plain wire unpickles nothing."""

import threading
from multiprocessing import Pipe
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest

from artesian.core import Receipt, Upload
from artesian.errors import MissingExtra, NotFinite
from artesian.execution.wires import PICKLES, PLAIN, Outcome
from artesian.params import seal

RECEIPT = Receipt(1, 0, "train", ("k0",), memo={"$x": [np.zeros((2, 0)), np.ones((2, 3), np.int64)]}, wanted=("k0",))


@pytest.fixture
def pipe():
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours, theirs


def sent(pipe, wire, outcome: Outcome) -> Outcome:
    wire.answer(pipe[0], outcome)
    return wire.outcome(pipe[1])


def test_what_travels_plainly_arrives_bit_for_bit(pipe) -> None:
    ours, theirs = pipe
    large = Upload("c0", 1, 5, {"k0": seal(np.random.default_rng(0).normal(size=300_000).astype(np.float32))})
    sender = threading.Thread(target=lambda: [PLAIN.send(ours, value) for value in (large, RECEIPT, np.nan)])
    sender.start()
    got = [PLAIN.receive(theirs) for _ in range(3)]
    sender.join()
    assert got[0]["models"]["k0"].tobytes() == large.params.tobytes()
    assert not got[0]["models"]["k0"].flags.writeable
    (empty, ones), want = got[1]["memo"]["$x"], RECEIPT.memo["$x"]
    assert (empty.shape, empty.dtype) == ((2, 0), np.float64)
    assert (ones == want[1]).all() and ones.dtype == np.int64
    assert np.isnan(got[2])
    ours.close()
    with pytest.raises(EOFError):
        PLAIN.receive(theirs)


def test_a_plain_wire_pickles_and_unpickles_nothing(pipe, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a pickle")

    monkeypatch.setattr(ForkingPickler, "dumps", refuse)
    monkeypatch.setattr(ForkingPickler, "loads", refuse)
    PLAIN.send(pipe[0], {"x": np.arange(3)})
    assert PLAIN.receive(pipe[1])["x"].tolist() == [0, 1, 2]
    assert sent(pipe, PLAIN, Outcome({"loss": 0.5})).get() == {"loss": 0.5}
    with pytest.raises(AssertionError, match="a pickle"):
        PICKLES.send(pipe[0], 1)


@pytest.mark.parametrize("wire", [PICKLES, PLAIN])
def test_an_outcome_is_a_result_or_what_went_wrong(pipe, wire) -> None:
    def refuse():
        raise NotFinite("What happened", "What to do")

    assert np.isnan(sent(pipe, wire, Outcome.of(lambda: {"loss": float("nan")})).get()["loss"])
    with pytest.raises(NotFinite, match=r"^What happened\. What to do\.$"):
        sent(pipe, wire, Outcome.of(refuse)).get()


def test_other_errors_arrive_with_their_class_and_traceback_where_pickles_do(pipe, caplog) -> None:
    with pytest.raises(ZeroDivisionError) as told:
        sent(pipe, PICKLES, Outcome.of(lambda: 1 / 0)).get()
    assert "test_wires.py" in told.value.__notes__[0]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        sent(pipe, PLAIN, Outcome.of(lambda: 1 / 0)).get()
    assert "A job failed in a worker" in caplog.text
    with pytest.raises(RuntimeError, match="needs the package ray"):  # it is made from other words than it says
        sent(pipe, PLAIN, Outcome(error=MissingExtra("ray", "ray"))).get()


def test_what_cannot_be_pickled_is_an_error_and_the_wire_goes_on(pipe) -> None:
    with pytest.raises(RuntimeError, match="lambda"):
        sent(pipe, PICKLES, Outcome(lambda: 1)).get()

    class Local(Exception):
        """A class no other process finds."""

    with pytest.raises(RuntimeError, match="Local: here"):
        sent(pipe, PICKLES, Outcome(error=Local("here"))).get()
    assert sent(pipe, PICKLES, Outcome(7)).get() == 7
