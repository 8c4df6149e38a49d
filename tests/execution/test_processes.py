"""Worker processes: set up once, replaced when they are lost, and gone with their pool."""

import os
import signal
import sys
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from artesian.algorithms import CDFL
from artesian.errors import NotFinite, SettingError, WorkerLost
from artesian.execution.pool import TRIES, Inline, open_pool
from artesian.execution.processes import Lost, Processes
from artesian.execution.threads import ONE_THREAD
from artesian.execution.wires import PLAIN, Outcome
from artesian.simulator.experiment import Experiment
from artesian.simulator.simulation import Simulation
from artesian.testing import ToyModel, ToyWorld

# workers that do as told


class Scripted:
    """A worker that answers as told; None: it is lost over the job."""

    pid = 0

    def __init__(self, answers: list, error: Exception | None = None) -> None:
        self.answers, self.error, self.closed = answers, error, False

    def started(self) -> Exception | None:
        return self.error

    def ask(self, job: object) -> Outcome:
        if self.error is not None:
            raise Lost(f"it could not start: {self.error}")
        told = self.answers.pop(0)
        if told is None:
            raise Lost("as told")
        return Outcome(told)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def pool_of(monkeypatch):
    """A pool of one worker, which are these in turn; then there are no more processes."""
    pools = []

    def make(*scripts: Scripted) -> tuple[Processes, list[Scripted]]:
        hired = list(scripts)

        def hire(self) -> Scripted:
            if hired:
                return hired.pop(0)
            raise BlockingIOError("no more processes")

        monkeypatch.setattr(Processes, "_hire", hire)
        pools.append(Processes(dict, 1))
        return pools[-1], hired

    yield make
    for pool in pools:
        pool.close()


def test_a_lost_worker_is_replaced_and_the_job_done_again(pool_of, caplog) -> None:
    first, second = Scripted([1, None]), Scripted([2, 3])
    pool, _ = pool_of(first, second)
    pool.wait()
    assert [pool.submit("job").result() for _ in range(3)] == [1, 2, 3]
    assert first.closed and not second.closed
    assert "A worker was lost, and another takes its place: as told" in caplog.text
    pool.close()
    assert second.closed


def test_a_job_that_loses_one_worker_after_another_fails_and_the_next_is_done(pool_of) -> None:
    pool, _ = pool_of(*(Scripted([None]) for _ in range(TRIES)), Scripted([4]))
    with pytest.raises(WorkerLost, match=r"One job lost 3 workers\. The last: as told\."):
        pool.submit("job").result()
    assert pool.submit("job").result() == 4


def test_a_fresh_worker_that_cannot_be_set_up_is_not_used(pool_of, caplog) -> None:
    pool, _ = pool_of(Scripted([None]), Scripted([7], SettingError("A different federation")), Scripted([8]))
    assert pool.submit("job").result() == 8
    assert "it could not start: A different federation." in caplog.text


def test_a_worker_that_cannot_be_replaced_is_tried_again(pool_of, caplog) -> None:
    pool, hired = pool_of(Scripted([None] * (TRIES + 1)))
    with pytest.raises(WorkerLost):
        pool.submit("job").result()
    assert "No other worker could be started: no more processes" in caplog.text
    hired.append(Scripted([5]))
    assert pool.submit("job").result() == 5


def test_nobody_is_hired_once_the_pool_is_closed(pool_of) -> None:
    pool, hired = pool_of(Scripted([None]), Scripted([1]))
    pool.close()
    with pytest.raises(WorkerLost, match="The workers were stopped"):
        pool.submit("job")
    assert len(hired) == 1


def test_what_keeps_a_worker_from_starting_is_raised(pool_of) -> None:
    for error, kind in ((SettingError("Ours"), SettingError), (ValueError("theirs"), WorkerLost)):
        pool, _ = pool_of(Scripted([], error))
        with pytest.raises(kind, match=r"Ours|A worker could not start: ValueError: theirs"):
            pool.wait()


# real ones


def doer(name: str):
    """What a worker is set up with."""
    if name == "broken":
        raise SettingError("No such data", "Put them there")
    return partial(do, name)


def do(name: str, job: object) -> object:
    match job:
        case "who":
            return name, os.getpid()
        case "environment":
            return {key: os.environ.get(key) for key in ONE_THREAD}
        case "print":
            print("a word on standard output", flush=True)
        case "refuse":
            raise NotFinite("What happened", "What to do")
        case "fail":
            raise KeyError("mine")
        case {"die once at": path} if not Path(path).exists():
            Path(path).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
    return "done"


@pytest.fixture(scope="module", params=["pickles", "plain"])
def pool(request):
    wire = {"wire": PLAIN} if request.param == "plain" else {}
    pool = open_pool("processes", partial(doer, "toy"), 2, **wire)
    pool.wait()
    yield pool
    pool.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pool.pids)


@pytest.mark.heavy
def test_workers_are_other_processes_of_one_thread(pool) -> None:
    name, pid = pool.submit("who").result()
    assert name == "toy" and pid in pool.pids and pid != os.getpid()
    assert pool.submit("environment").result() == ONE_THREAD


def test_this_process_keeps_its_environment_and_signals(monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    Processes(partial(doer, "toy"), 1).close()
    assert os.environ["OMP_NUM_THREADS"] == "7" and "MKL_NUM_THREADS" not in os.environ
    assert not {signal.SIGINT, signal.SIGTERM} & signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_what_a_job_raises_is_raised_here(pool) -> None:
    with pytest.raises(NotFinite, match="What happened"):
        pool.submit("refuse").result()
    with pytest.raises((KeyError, RuntimeError), match="mine"):
        pool.submit("fail").result()
    assert pool.submit("anything").result() == "done"


def test_standard_output_belongs_to_the_main_process(pool, capfd) -> None:
    pool.submit("print").result()
    assert "a word on standard output" not in capfd.readouterr().out


def test_a_worker_killed_over_a_job_costs_that_job_nothing_but_time(pool, tmp_path) -> None:
    before = set(pool.pids)
    assert pool.submit({"die once at": str(tmp_path / "died")}).result() == "done"
    assert len(before & set(pool.pids)) == 1 and (tmp_path / "died").exists()


@pytest.mark.heavy
def test_a_job_that_kills_every_worker_fails_and_others_do_not(pool) -> None:
    doomed = pool.submit("die")
    others = [pool.submit("anything") for _ in range(10)]
    with pytest.raises(WorkerLost, match="ended with exit code -9"):
        doomed.result()
    assert [other.result() for other in others] == ["done"] * 10


def test_jobs_under_way_fail_when_the_pool_is_closed() -> None:
    pool = Processes(partial(doer, "toy"), 1)
    waiting = [pool.submit("anything") for _ in range(200)]
    pool.close()
    told = {type(one.exception()) for one in waiting}
    assert WorkerLost in told and told <= {WorkerLost, type(None)}


@pytest.mark.heavy
def test_a_worker_that_cannot_be_set_up_says_why() -> None:
    pool = Processes(partial(doer, "broken"), 1)
    try:
        with pytest.raises(SettingError, match=r"No such data\. Put them there\."):
            pool.wait()
    finally:
        pool.close()


def test_a_job_that_cannot_be_pickled_is_the_callers_error_and_costs_no_worker() -> None:
    pool = Processes(partial(doer, "toy"), 1)
    try:
        pids = pool.pids
        with pytest.raises((AttributeError, TypeError, ValueError, ImportError), match=r"lambda|pickle"):
            pool.submit(lambda: 1).result()
        assert pool.submit("anything").result() == "done" and pool.pids == pids
    finally:
        pool.close()


def test_inline_does_the_same_at_once() -> None:
    pool = open_pool("inline", partial(doer, "toy"), 0)
    assert isinstance(pool, Inline) and pool.workers == 0
    pool.wait()
    done: Future = pool.submit("who")
    assert done.done() and done.result() == ("toy", os.getpid())
    with pytest.raises(NotFinite, match="What happened"):
        pool.submit("refuse").result()
    pool.close()


def test_an_unknown_executor_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SettingError, match=r"There is no executor 'process'\. Did you mean 'processes'\?"):
        open_pool("process", partial(doer, "toy"), 1)


# a run


@pytest.mark.skipif(sys.platform != "linux", reason="kills by process id")
def ended(pid: int) -> bool:
    """Kill a process; False if it was gone already."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


@pytest.mark.heavy
def test_killed_workers_of_a_run_are_replaced_and_the_bits_stay(caplog) -> None:
    killed = []

    def kill(progress) -> None:
        if progress.uploads in (7, 20):  # a third kill could hit the same job, which may lose two workers
            killed.append(next(filter(ended, simulation.executor.pool.pids)))

    def toy() -> Experiment:
        return Experiment(ToyWorld(6), ToyModel(), CDFL(), uploads=40)

    simulation, one = Simulation(toy(), 0, progress=kill, workers=2), Simulation(toy(), 0)
    simulation.run()
    one.run()
    assert len(killed) == 2 and "A worker was lost" in caplog.text
    assert simulation.coordinator.digest() == one.coordinator.digest()
    assert list(simulation.evaluation.uploads) == list(one.evaluation.uploads)
