"""Runs: the same bits on every executor, killed and resumed or not; fleets that leave, are late or slow."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from tiers import some_heavy, some_thorough

from artesian.algorithms import ALGORITHMS, CA2FL, CDFL, ICFL, FedAvg, FedBuff, Local
from artesian.config.experiments import load
from artesian.config.federations import serve_experiment
from artesian.errors import JournalDamaged, NotFinite, ResumeMismatch, RunExists, RunLocked, SettingError, Stalled
from artesian.simulator.evaluation import divergence
from artesian.simulator.experiment import Experiment
from artesian.simulator.fleet import Fleet
from artesian.simulator.folder import RunFolder, configuration
from artesian.simulator.pretraining import Start
from artesian.simulator.profiling import PARTS
from artesian.simulator.run import run_experiment
from artesian.simulator.simulation import Progress, Simulation
from artesian.simulator.transports import Direct
from artesian.storage.journal import Journal
from artesian.testing import InProcess, ToyModel, ToyWorld

SMALL = ["uploads=60", "world.clients=8", "snapshot_every=10", "evaluate_every=7", "algorithm.first_pretend=4"]


def toy(algorithm=None, clients: int = 6, uploads: int = 60, **options) -> Experiment:
    return Experiment(ToyWorld(clients), ToyModel(), algorithm or CDFL(), uploads=uploads, **options)


def files(folder: Path) -> dict[str, bytes]:
    """What must be the same bit for bit: final models, tables and journal."""
    names = ["metrics.csv", "clusters.csv", "journal.jsonl"]
    final = sorted((folder / "final").glob("*.safetensors"))
    assert final
    return {path.name: path.read_bytes() for path in [*(folder / n for n in names), *final]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run never interrupted, in this process."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run_experiment(load("digits-4", SMALL), seed=1, out=folder)
    return folder


@pytest.mark.parametrize("workers", some_heavy([1, 2, 3], 2))
def test_any_number_of_workers_gives_the_same_bits(whole, tmp_path, workers) -> None:
    run_experiment(load("digits-4", SMALL), seed=1, workers=workers, out=tmp_path / "run")
    assert files(tmp_path / "run") == files(whole)


def test_a_proxy_sample_as_large_as_the_sets_changes_nothing(whole, tmp_path) -> None:
    run_experiment(load("digits-4", [*SMALL, "proxy_sample=300"]), seed=1, out=tmp_path / "run")
    assert files(tmp_path / "run") == files(whole)


@pytest.mark.heavy
def test_uploads_are_measured_on_a_proxy_sample(whole, tmp_path) -> None:
    """Drawn once for a seed, in every process alike; clusters start from the whole sets."""
    experiment = load("digits-4", [*SMALL, "proxy_sample=20"])
    for workers in (0, 2):
        run_experiment(experiment, seed=1, workers=workers, out=tmp_path / str(workers))
    assert files(tmp_path / "0") == files(tmp_path / "2") != files(whole)
    place = Simulation(experiment, 1).place
    chosen = {k: proxy.x for k, proxy in place.proxies.items()}
    assert {len(x) for x in chosen.values()} == {20}
    for name, samples in experiment.world.proxies(1).items():
        rows = {row.tobytes() for row in samples.x}
        assert len({row.tobytes() for row in chosen[name]} & rows) == 20
    served = serve_experiment(experiment, {"seed": 1}).proxies
    assert all(np.array_equal(served[name].x, x) for name, x in chosen.items())
    begun = [Simulation(e, 1).coordinator.state.clusters for e in (experiment, load("digits-4", SMALL))]
    assert all(np.array_equal(a.params, b.params) for a, b in zip(*(c.values() for c in begun), strict=True))


@pytest.mark.parametrize("size", [0, -3])
def test_a_proxy_sample_has_a_sample(size) -> None:
    with pytest.raises(SettingError, match=f"proxy_sample must be at least 1, not {size}"):
        load("digits-4", [f"proxy_sample={size}"])


def test_a_proxy_sample_larger_than_the_proxy_sets_is_refused_before_there_is_a_folder(tmp_path) -> None:
    with pytest.raises(SettingError, match="is 301, but the largest proxy set has 300 samples"):
        run_experiment(load("digits-4", [*SMALL, "proxy_sample=301"]), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("algorithm", [FedBuff(buffer_size=21), CA2FL(buffer_size=21)])
def test_a_run_too_short_to_fold_is_refused(algorithm) -> None:
    with pytest.raises(SettingError, match="A fold needs 21 uploads, but the run has 20 in all"):
        run_experiment(toy(algorithm, uploads=20))


@pytest.mark.parametrize(("rounds", "unit"), [(None, "uploads"), (2, "rounds")])
def test_progress_says_what_it_counts_and_what_it_calls_a_score(rounds, unit) -> None:
    said: list[Progress] = []
    run_experiment(toy(FedBuff(buffer_size=3), uploads=6, rounds=rounds), progress=said.append)
    assert {(one.unit, one.measure) for one in said} == {(unit, "score")}  # the toy is a regression
    assert said[-1].uploads == said[-1].total == (rounds or 6)


def test_another_seed_gives_other_bits(whole, tmp_path) -> None:
    run_experiment(load("digits-4", SMALL), seed=2, out=tmp_path / "run")
    assert files(tmp_path / "run") != files(whole)


@pytest.mark.heavy
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_killed_half_way_resumes_to_the_same_bits(whole, tmp_path, workers) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "artesian.cli", "simulate", "digits-4", "--seed", "1", "--workers", str(workers)]
    command += ["--out", str(folder), *(part for change in SMALL for part in ("--set", change))]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    wait_for(lambda: (folder / "snapshots" / "000000020.json").exists() or process.poll() is not None)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "summary.json").exists(), "it finished before it was killed"
    run_experiment(load("digits-4", SMALL), seed=1, workers=workers, out=folder, resume=True)
    assert files(folder) == files(whole)


def wait_for(holds, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.002)


class Stopped(Exception):
    pass


def stop_at(count):
    def look(progress) -> None:
        if progress.uploads == count:
            raise Stopped

    return look


@pytest.mark.parametrize("name", some_heavy(sorted(ALGORITHMS), "cdfl", "confluence", "fedbuff", "flexcfl"))
def test_every_algorithm_resumes_from_anywhere(tmp_path, name) -> None:
    experiment = toy(ALGORITHMS[name](), clients=12, snapshot_every=7, fleet=Fleet("latency", 1, 5))
    run_experiment(experiment, out=tmp_path / "whole")

    for count in (3, 17, 40):
        with pytest.raises(Stopped):
            run_experiment(experiment, out=tmp_path / "parts", resume=True, progress=stop_at(count))
    run_experiment(experiment, out=tmp_path / "parts", resume=True)
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_takes_a_snapshot_where_it_stands(tmp_path, number) -> None:
    def interrupt(progress) -> None:
        if progress.uploads == 33:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(toy(), out=tmp_path / "run", progress=interrupt)
    assert signal.getsignal(number) == before
    assert [path.stem for path in (tmp_path / "run" / "snapshots").iterdir()] == ["000000033"]
    run_experiment(toy(), out=tmp_path / "run", resume=True)
    run_experiment(toy(), out=tmp_path / "whole")
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_a_second_ctrl_c_stops_at_once_and_the_last_snapshot_stands(tmp_path) -> None:
    def insist(progress) -> None:
        if progress.uploads == 25:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_experiment(toy(snapshot_every=10), out=tmp_path / "run", progress=insist)
    assert [path.stem for path in (tmp_path / "run" / "snapshots").iterdir()] == ["000000020"]
    run_experiment(toy(snapshot_every=10), out=tmp_path / "run", resume=True)
    run_experiment(toy(snapshot_every=10), out=tmp_path / "whole")
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_a_run_killed_before_its_first_snapshot_begins_again(tmp_path) -> None:
    run_experiment(toy(), out=tmp_path / "whole")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json.tmp").write_text("{")  # as a kill leaves it
    run_experiment(toy(), out=folder, resume=True)
    assert files(folder) == files(tmp_path / "whole")


def test_a_finished_run_is_not_run_again(tmp_path) -> None:
    assert run_experiment(toy(), out=tmp_path / "run") is not None
    before = files(tmp_path / "run")
    assert run_experiment(toy(), out=tmp_path / "run", resume=True) is None
    assert files(tmp_path / "run") == before


def test_a_folder_that_exists_is_left_alone(tmp_path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(RunExists, match="not a run folder"):
        run_experiment(toy(), out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    run_experiment(toy(), out=tmp_path / "run")
    with pytest.raises(RunExists, match="--resume"):
        run_experiment(toy(), out=tmp_path / "run")


def test_another_configuration_is_not_resumed_and_the_difference_is_named(tmp_path) -> None:
    run_experiment(toy(), out=tmp_path / "run")
    before = files(tmp_path / "run")
    with pytest.raises(ResumeMismatch, match=r"experiment.algorithm.beta0 = 0.025, and now it is 0.5"):
        run_experiment(toy(CDFL(beta0=0.5)), out=tmp_path / "run", resume=True)
    with pytest.raises(ResumeMismatch, match="seed = 0, and now it is 5"):
        run_experiment(toy(), seed=5, out=tmp_path / "run", resume=True)
    assert files(tmp_path / "run") == before


def test_clients_leave_come_back_and_join_late() -> None:
    fleet = Fleet(
        "latency", 1, 3, leave_share=0.5, leave_by=10, return_after=4, late_share=0.5, late_by=8, slow_share=0.3
    )
    run = run_experiment(toy(FedBuff(buffer_size=3), clients=10, uploads=120, fleet=fleet))
    assert run.summary["uploads"] == 120
    assert set(run.metrics["client"]) == set(ToyWorld(10).names)
    assert (np.diff(run.metrics["time"]) >= 0).all()


def test_a_run_nobody_can_go_on_with_says_so() -> None:
    fleet = Fleet("latency", 1, leave_share=1.0, leave_by=5)
    with pytest.raises(Stalled, match=r"of 60 uploads are done, 0 clients are present"):
        run_experiment(toy(fleet=fleet))


def test_a_cohort_larger_than_the_fleet_is_refused_before_the_run() -> None:
    with pytest.raises(SettingError, match=r"A round needs 7 clients, but there are 6\. Lower clients_per_round"):
        run_experiment(toy(FedAvg(clients_per_round=7)))


def test_a_run_may_be_measured_in_rounds() -> None:
    seen = []
    run = run_experiment(replace(toy(FedAvg(clients_per_round=3)), rounds=4), progress=seen.append)
    assert (run.summary["rounds"], run.summary["uploads"], run.summary["estimates"]) == (4, 12, 0)
    assert (seen[-1].uploads, seen[-1].total) == (4, 4)


def test_icfl_rises_alike_whether_a_run_is_planned_in_uploads_or_in_rounds() -> None:
    """Ten rounds of six clients are 60 uploads."""
    in_uploads, in_rounds = (run_experiment(toy(ICFL(growth=9.0), **plan)) for plan in ({}, {"rounds": 10}))
    assert in_uploads.summary["rounds"] == in_rounds.summary["rounds"] == 10
    assert in_uploads.params.keys() == in_rounds.params.keys()
    for name, params in in_rounds.params.items():
        np.testing.assert_array_equal(in_uploads.params[name], params)


def test_a_run_goes_on_with_the_horizon_it_recorded(tmp_path) -> None:
    """An earlier version took the uploads for ICFL's horizon; its runs end as they would have."""
    before, now = toy(ICFL(horizon=60), snapshot_every=10), toy(ICFL(), snapshot_every=10)
    run_experiment(before, out=tmp_path / "whole")
    with pytest.raises(Stopped):
        run_experiment(before, out=tmp_path / "run", progress=stop_at(25))
    run_experiment(now, out=tmp_path / "run", resume=True)
    assert files(tmp_path / "run") == files(tmp_path / "whole")
    with pytest.raises(ResumeMismatch, match=r"algorithm.horizon = 60, and now it is 30"):
        run_experiment(toy(ICFL(horizon=30), snapshot_every=10), out=tmp_path / "run", resume=True)


def test_a_run_goes_on_with_the_server_lr_it_recorded(tmp_path) -> None:
    """An earlier version had 1 as CA2FL's default; its runs end as they would have."""
    before, now = (toy(CA2FL(3, **rate), snapshot_every=10) for rate in ({"server_lr": 1.0}, {}))
    run_experiment(before, out=tmp_path / "whole")
    with pytest.raises(Stopped):
        run_experiment(before, out=tmp_path / "run", progress=stop_at(25))
    run_experiment(now, out=tmp_path / "run", resume=True)
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_patience_lets_a_round_go_on_without_its_slow_clients() -> None:
    fleet = Fleet("latency", 1, slow_share=0.5, slow_factor=10)
    patient = run_experiment(toy(FedAvg(clients_per_round=4), fleet=fleet))
    hasty = run_experiment(toy(FedAvg(clients_per_round=4, patience=2), fleet=fleet))
    assert patient.summary["late_uploads"] == 0
    assert hasty.summary["late_uploads"] > 0
    assert hasty.summary["virtual_time"] < patient.summary["virtual_time"]


def test_a_round_closed_by_patience_or_a_leave_is_scored_when_it_closes() -> None:
    fleet = Fleet("latency", 1, slow_share=0.5, slow_factor=10, leave_share=0.3, leave_by=6, return_after=3)
    run = run_experiment(toy(FedAvg(clients_per_round=4, patience=2), clients=8, fleet=fleet))
    versions = run.metrics["version"]
    assert (np.diff(versions) >= 0).all()
    assert len(set(versions.tolist())) > 10  # not all at the end
    assert versions[0] == 1


def test_a_run_in_which_everybody_is_always_too_late_says_so() -> None:
    with pytest.raises(Stalled, match="Raise patience"):
        run_experiment(toy(FedAvg(clients_per_round=3, patience=0.5), fleet=Fleet("latency", 1)))


@pytest.mark.parametrize("seed", range(4))
def test_a_cohort_that_failed_is_not_drawn_for_ever(seed) -> None:
    fleet = Fleet("latency", 1, slow_share=0.5, slow_factor=10)
    algorithm = FedAvg(clients_per_round=2, quorum=4, patience=2)
    assert run_experiment(toy(algorithm, clients=4, uploads=20, fleet=fleet), seed=seed).summary["uploads"] == 20


def test_late_uploads_count_in_the_traffic() -> None:
    fleet = Fleet("latency", 1, slow_share=0.5, slow_factor=10)
    told = run_experiment(toy(FedAvg(clients_per_round=4, patience=2), fleet=fleet)).summary
    assert told["bytes_up"] == (told["uploads"] + told["late_uploads"]) * ToyModel().layout.size * 4


def test_local_survives_clients_that_leave_before_their_first_upload() -> None:
    fleet = Fleet("latency", 1, 3, leave_share=0.5, leave_by=2, return_after=4)
    assert run_experiment(toy(Local(), clients=10, fleet=fleet)).summary["uploads"] == 60


def test_staleness_cycles_and_notes_by_hand() -> None:
    """Three clients in turn, one unit each: every upload misses the two others', and each client counts its cycles."""
    run = run_experiment(toy(CDFL(), clients=3, uploads=9, fleet=Fleet("latency", 1)))
    assert run.metrics["staleness"].tolist() == [0, 1, 2, 2, 2, 2, 2, 2, 2]
    assert run.metrics["cycle"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert run.metrics["version"].tolist() == list(range(1, 10))
    assert run.summary["notes"]["staleness"] == 1 + 2 + 3 * 7  # CDFL counts the upload itself
    assert run.clusters["upload"].tolist() == [9, 9]  # the last look, though 9 is no multiple of 20


def test_a_second_process_is_refused(tmp_path) -> None:
    folder = RunFolder.create(tmp_path / "run", configuration(toy().planned().describe(), 0))
    with pytest.raises(RunLocked, match="Another process works on the run"):
        run_experiment(toy(), out=tmp_path / "run", resume=True)
    folder.close()
    assert run_experiment(toy(), out=tmp_path / "run", resume=True) is not None


def test_a_journal_that_lost_records_is_not_resumed(tmp_path) -> None:
    with pytest.raises(Stopped):
        run_experiment(toy(snapshot_every=10), out=tmp_path / "run", progress=stop_at(25))
    journal = tmp_path / "run" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:12]))
    with pytest.raises(JournalDamaged, match="records, but had"):
        run_experiment(toy(snapshot_every=10), out=tmp_path / "run", resume=True)


def test_a_run_that_lost_its_snapshots_begins_again(tmp_path) -> None:
    run_experiment(toy(snapshot_every=10), out=tmp_path / "whole")
    with pytest.raises(Stopped):
        run_experiment(toy(snapshot_every=10), out=tmp_path / "run", progress=stop_at(25))
    for path in (tmp_path / "run" / "snapshots").iterdir():
        path.unlink()
    run_experiment(toy(snapshot_every=10), out=tmp_path / "run", resume=True)
    assert files(tmp_path / "run") == files(tmp_path / "whole")


@dataclass(frozen=True)
class Odd(ToyWorld):
    where: Path = Path("here")


def test_a_world_with_a_field_that_is_no_setting_is_refused(tmp_path) -> None:
    with pytest.raises(SettingError, match="neither a number nor a text"):
        run_experiment(replace(toy(), world=Odd()), out=tmp_path / "run")


def test_a_run_says_what_it_is_in_one_line() -> None:
    assert repr(run_experiment(toy(uploads=3))) == "Run(own cdfl seed 0, 3 uploads)"


def test_patience_behaves_the_same_over_http() -> None:
    fleet = Fleet("latency", 1, slow_share=0.5, slow_factor=10, leave_share=0.3, leave_by=6, return_after=3)
    experiment = toy(FedAvg(clients_per_round=3, patience=2), clients=7, fleet=fleet)
    direct, served = Simulation(experiment, 0), Simulation(experiment, 0, transport=InProcess)
    one, two = direct.run(), served.run()
    served.transport.close()
    assert direct.coordinator.digest() == served.coordinator.digest()
    assert one.summary["late_uploads"] == two.summary["late_uploads"] > 0


def abroad() -> float:
    """1 in a worker, 0 in the main process."""
    return float(multiprocessing.parent_process() is not None)


class Telling(CDFL):
    """Says in its evidence where it measured."""

    def measure(self, upload, given):
        return {**super().measure(upload, given), "abroad": abroad()}


class Homesick(Telling):
    """Measures at home only."""

    def measure(self, upload, given):
        if abroad():
            raise RuntimeError("not here")
        return super().measure(upload, given)


def hidden() -> type[Telling]:
    class Hidden(Telling):
        """No worker finds it by name."""

    return Hidden


def clipped(coordinator):
    coordinator.clip = 1e9
    return Direct(coordinator)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("algorithm", "workers", "transport", "where"),
    [
        (Telling, 0, Direct, 0),
        (Telling, 2, Direct, 1),
        (Telling, 1, clipped, 0),
        (Telling, 1, InProcess, 0),
        (Homesick, 1, Direct, 0),
        (hidden(), 1, Direct, 0),
    ],
)
def test_uploads_are_measured_where_they_are_made_if_they_may(algorithm, workers, transport, where) -> None:
    found = []

    def linked(coordinator):
        coordinator.record = lambda event: event.measured and found.append(event.measured.evidence)
        return transport(coordinator)

    one = Simulation(toy(uploads=12), 0)
    two = Simulation(toy(algorithm(), uploads=12), 0, workers=workers, transport=linked)
    one.run()
    two.run()
    if transport is InProcess:
        two.transport.close()
    assert [evidence["abroad"] for evidence in found] == [where] * 12
    assert (
        one.coordinator.state.clusters["k0"].params.tobytes() == two.coordinator.state.clusters["k0"].params.tobytes()
    )


class Patient(FedAvg):
    """A round that measures."""

    def measure(self, upload, given):
        return {"length": float(np.abs(upload.params).sum())}


@pytest.mark.heavy
@pytest.mark.parametrize("workers", some_thorough([1, 2], 2))
def test_uploads_that_come_too_late_are_late_with_workers_too(tmp_path, workers) -> None:
    fleet = Fleet("latency", 1, slow_share=0.5, slow_factor=10, leave_share=0.3, leave_by=6, return_after=3)
    experiment = toy(Patient(clients_per_round=4, patience=2), clients=8, fleet=fleet)
    one = run_experiment(experiment, out=tmp_path / "one")
    two = run_experiment(experiment, workers=workers, out=tmp_path / "two")
    assert one.summary["late_uploads"] == two.summary["late_uploads"] > 0
    assert files(tmp_path / "one") == files(tmp_path / "two")


@dataclass(frozen=True)
class Exploding(ToyModel):
    """Trains to infinity."""

    def learner(self, x, y):
        return super().learner(x * np.float32(np.inf), y) if len(x) != 20 else super().learner(x, y)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unsound_upload_is_refused_wherever_it_was_made(workers) -> None:
    experiment = replace(toy(), model=Exploding(), start=Start(trunk_epochs=0, epochs=0))
    with np.errstate(all="ignore"), pytest.raises(NotFinite, match="The model holds nan"):
        run_experiment(experiment, workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_profile_says_where_the_time_went(whole, tmp_path, workers) -> None:
    run = run_experiment(load("digits-4", SMALL), seed=1, workers=workers, out=tmp_path / "run", profile=True)
    assert files(tmp_path / "run") == files(whole)  # it changes nothing
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    profile = told["profile"]
    assert profile == run.summary["profile"]
    assert list(profile) == ["main", "workers"][: 2 if workers else 1]
    for parts in profile.values():
        assert list(parts) == list(PARTS)
        assert min(parts.values()) >= 0
    main, busy = profile["main"], profile.get("workers", profile["main"])
    ran = sum(main.values()) - main["starting"]
    assert ran == pytest.approx(told["wall_seconds"], abs=0.5)
    assert min(main[part] for part in ("starting", "folding", "comparing", "other")) > 0
    assert min(busy[part] for part in ("training", "evaluating")) > 0
    if workers:
        assert sum(busy.values()) == pytest.approx(workers * ran, abs=0.1)
        assert main["moving"] > 0 < busy["moving"]
        assert main["training"] == main["measuring"] == main["evaluating"] == 0
        assert busy["folding"] == busy["appraising"] == busy["comparing"] == busy["studying"] == 0
    else:
        assert main["moving"] == main["waiting"] == 0


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (["algorithm.name=cdfl"], ["measuring", "appraising"]),
        (
            ["algorithm.name=confluence", "algorithm.estimator=calibrated", "algorithm.calibrate_every=20"],
            ["measuring", "comparing", "studying"],
        ),
    ],
)
def test_a_profile_shows_what_an_algorithm_does_with_its_proxy_sets(changes, parts) -> None:
    experiment = load("digits-2", ["uploads=45", "world.clients=4", *changes])
    plain, run = (run_experiment(experiment, profile=profile) for profile in (False, True))
    main = run.summary["profile"]["main"]
    assert min(main[part] for part in parts) > 0  # however fast the machine: what is not timed has exactly 0
    assert sum(main.values()) - main["starting"] == pytest.approx(run.summary["wall_seconds"], abs=0.5)
    assert plain.summary["client_after"] == run.summary["client_after"]


def test_a_run_without_a_profile_tells_of_none(whole) -> None:
    assert "profile" not in json.loads((whole / "summary.json").read_text())


def test_a_profile_over_http_counts_the_server_as_folding() -> None:
    simulation = Simulation(toy(uploads=12), 0, transport=InProcess, profile=True)
    main = simulation.run().summary["profile"]["main"]
    simulation.transport.close()
    assert main["folding"] > 0 == main["measuring"] == main["appraising"]


def test_traffic_is_counted_in_bytes_of_models() -> None:
    size = ToyModel().layout.size * 4
    run = run_experiment(toy(clients=6, uploads=60))
    assert run.summary["bytes_up"] == 60 * size
    assert run.summary["bytes_down"] == 66 * size  # six joins, sixty replies
    alone = run_experiment(toy(Local())).summary
    assert (alone["bytes_up"], alone["bytes_down"]) == (0, 6 * size)  # the start model, once each


def test_the_journal_tells_what_happened_without_models(tmp_path) -> None:
    run_experiment(toy(clients=3, uploads=5), out=tmp_path / "run")
    journal = Journal(tmp_path / "run" / "journal.jsonl")
    records = journal.records()
    journal.close()
    assert [r["kind"] for r in records] == ["join"] * 3 + ["upload"] * 5
    assert [r["time"] for r in records] == [0, 0, 0, 1, 2, 3, 4, 5]
    assert set(records[3]["evidence"]) == {"loss/k0", "loss/k1", "unit/k0", "unit/k1"}
    assert len((tmp_path / "run" / "journal.jsonl").read_bytes()) < 5000


def test_the_summary_takes_each_clients_last_cycle() -> None:
    run = run_experiment(toy(uploads=40))
    last = dict(zip(run.metrics["client"], run.metrics["after"], strict=True))
    assert run.summary["client_after"] == pytest.approx(np.mean(list(last.values())))
    assert run.summary["uploads"] == len(run.metrics["upload"]) == 40
    assert "client_after" in run.table()


def test_cdfl_finds_the_cluster_a_client_lives_in() -> None:
    run = run_experiment(toy(CDFL(amplifier=8.0), clients=8, uploads=200))
    for true, found in run.mixtures.values():
        assert found is not None
        assert max(true, key=true.get) == max(found, key=found.get)
    assert run.summary["kl"] < run.summary["kl_uniform"]


def test_guessing_is_judged_where_estimates_are() -> None:
    """A stale upload is not estimated; whoever sent nothing else counts on neither side."""
    small = ["uploads=16", "world.clients=8"]
    run = run_experiment(load("digits-2", [*small, "algorithm.name=cdfl", "algorithm.tau0=2"]))
    last = {client: i for i, client in enumerate(run.metrics["client"])}
    kl, even = (run.metrics[name][list(last.values())] for name in ("kl", "kl_uniform"))
    known = np.isfinite(kl)
    assert 0 < known.sum() < len(known)
    assert run.summary["kl"] == pytest.approx(kl[known].mean())
    assert run.summary["kl_uniform"] == pytest.approx(even[known].mean()) != pytest.approx(even.mean())
    plain = run_experiment(load("digits-2", [*small, "algorithm.name=fedbuff"]))
    assert plain.summary["kl"] is None
    assert plain.summary["kl_uniform"] == pytest.approx(even.mean())


def test_a_summary_says_how_long_a_run_was_to_last() -> None:
    assert run_experiment(toy(uploads=5)).summary["length"] == "5 uploads"
    assert run_experiment(toy(FedAvg(clients_per_round=2), rounds=3)).summary["length"] == "3 rounds"


def test_a_flushed_buffer_reaches_the_final_model() -> None:
    kept = run_experiment(toy(FedBuff(buffer_size=15), uploads=20))
    flushed = run_experiment(toy(FedBuff(buffer_size=15, flush_on_stop=True), uploads=20))
    assert (kept.summary["versions"], flushed.summary["versions"]) == (1, 2)
    assert kept.params["k0"].tobytes() != flushed.params["k0"].tobytes()


def test_local_keeps_no_cluster_and_never_uploads_a_model() -> None:
    run = run_experiment(toy(Local()))
    assert run.summary["cluster"] is None
    assert run.summary["kl"] is None
    assert run.summary["client_before"] == run.summary["client_after"]


def test_divergence_by_hand() -> None:
    assert divergence({"a": 0.5, "b": 0.5}, {"a": 0.5, "b": 0.5}) == 0
    assert divergence({"a": 1.0, "b": 0.0}, {"a": 0.5, "b": 0.5}) == pytest.approx(np.log(2))
    assert divergence({"a": 1.0}, {"b": 1.0}) == pytest.approx(np.log(1e4))


def test_a_model_inherits_the_defaults_of_its_seam() -> None:
    class Stranger:
        layout, start, learner = ToyModel().layout, ToyModel().start, ToyModel().learner

    with pytest.raises(ValueError, match=r"Stranger is not a model: .*artesian\.Model"):
        replace(toy(), model=Stranger())
