"""Runs opened again from their folders: the same value as when they ended, or a clear word about why not."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import artesian
from artesian import Experiment, Run, open_run, simulate
from artesian.errors import JournalDamaged, MissingExtra, NoRun, SettingError, StorageError, UnknownFormat
from artesian.testing import ToyModel, ToyWorld

HALF_DONE = Path(__file__).parent.parent / "fixtures" / "0.1" / "run"
TABLES = ("metrics", "clusters", "clients")


def toy() -> Experiment:
    return Experiment(ToyWorld(6), ToyModel(), artesian.CDFL(), uploads=30, evaluate_every=7, snapshot_every=20)


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Run:
    return simulate(toy(), seed=3, out=tmp_path_factory.mktemp("kept") / "run")


@pytest.fixture
def folder(ran, tmp_path) -> Path:
    """A copy of the run that may be damaged."""
    return Path(shutil.copytree(ran.folder, tmp_path / "run"))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same_tables(one: Run, other: Run) -> bool:
    for name in TABLES:
        a, b = getattr(one, name), getattr(other, name)
        np.testing.assert_equal(dict(a), dict(b))
        assert {key: column.dtype for key, column in a.items()} == {key: column.dtype for key, column in b.items()}
    return True


def test_a_finished_run_is_the_same_value_again(ran) -> None:
    again = open_run(ran.folder)
    assert again.finished and same_tables(again, ran)
    assert json.dumps(again.summary) == json.dumps(ran.summary)
    assert {k: vector.tobytes() for k, vector in again.params.items()} == {
        k: vector.tobytes() for k, vector in ran.params.items()
    }
    for cluster, arrays in ran.models.items():
        np.testing.assert_equal(dict(again.models[cluster]), dict(arrays))
        assert list(again.models[cluster]) == sorted(arrays)
    assert again.mixtures == ran.mixtures and any(found for _, found in again.mixtures.values())
    assert repr(again) == repr(ran) and again.table() == ran.table()


def test_a_run_without_estimates_has_none_in_its_mixtures_again(tmp_path) -> None:
    run = simulate(toy(), algorithm=artesian.FedBuff(), out=tmp_path / "run")
    assert open_run(tmp_path / "run").mixtures == run.mixtures
    assert {found for _, found in run.mixtures.values()} == {None}


def test_a_kept_run_knows_its_configuration_and_journal(ran) -> None:
    for run in (ran, open_run(str(ran.folder))):
        assert run.config["seed"] == 3
        assert run.config["experiment"]["algorithm"]["name"] == "cdfl"
        kinds = [event["kind"] for event in run.journal]
        assert (kinds.count("join"), kinds.count("upload")) == (6, 30)


def test_a_run_that_was_not_kept_says_so() -> None:
    run = simulate(toy(), uploads=8)
    for ask in (lambda: run.journal, lambda: run.config, lambda: run.frame("journal")):
        with pytest.raises(NoRun, match=r"not kept in a folder. Give simulate a folder: out="):
            ask()


def test_opening_changes_nothing(folder) -> None:
    before = contents(folder)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    open_run(folder)
    assert contents(folder) == before


def test_an_unfinished_run_opens_as_of_its_last_snapshot(ran, folder) -> None:
    (folder / "summary.json").unlink()
    with (folder / "metrics.csv").open("ab") as table:
        table.write(b"31,torn")
    before = contents(folder)
    run = open_run(folder, unfinished=True)
    assert not run.finished
    assert run.summary == {
        "algorithm": "cdfl",
        "preset": "own",
        "seed": 3,
        "uploads": 20,
        "virtual_time": run.summary["virtual_time"],
        "versions": 20,
    }
    assert len(run.metrics["upload"]) == 20
    np.testing.assert_equal(run.metrics["after"], ran.metrics["after"][:20])
    assert set(run.models) == set(ran.models) and run.params["k0"].tobytes() != ran.params["k0"].tobytes()
    assert set(run.mixtures) == set(ran.mixtures)
    assert contents(folder) == before


def test_a_table_says_that_its_run_is_unfinished_or_empty(ran, tmp_path) -> None:
    """Stopped before the first upload: there is a first snapshot and nothing in the tables."""

    def stop(progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        artesian.simulate(world=ToyWorld(4), model=ToyModel(), uploads=9, out=tmp_path / "run", progress=stop)
    run = open_run(tmp_path / "run", unfinished=True)
    assert run.table().splitlines()[-2:] == [
        "not finished: this is the run as of its last snapshot",
        "no upload yet: metrics, clusters and clients are empty",
    ]
    assert "not finished" not in ran.table() and "no upload" not in ran.table()


def test_an_unfinished_run_of_the_version_before_opens(tmp_path) -> None:
    run = open_run(shutil.copytree(HALF_DONE, tmp_path / "run"), unfinished=True)
    assert run.summary["uploads"] == len(run.metrics["upload"]) > 0
    assert run.models and run.mixtures


def test_an_unfinished_run_is_not_taken_for_a_finished_one(folder) -> None:
    (folder / "summary.json").unlink()
    with pytest.raises(NoRun, match=r"has not finished. Finish it with resume=True.*unfinished=True"):
        open_run(folder)


def test_a_run_without_its_snapshots_opens_without_vectors(ran, folder) -> None:
    shutil.rmtree(folder / "snapshots")
    shutil.rmtree(folder / "blobs")
    run = open_run(folder)
    assert run.params == {} and set(run.models) == set(ran.models)
    assert not (folder / "blobs").exists()
    (folder / "summary.json").unlink()
    with pytest.raises(NoRun, match="no snapshot yet"):
        open_run(folder, unfinished=True)


def test_a_run_of_an_older_version_has_no_mixtures(folder) -> None:
    (folder / "mixtures.json").unlink()
    assert open_run(folder).mixtures == {}


def test_a_folder_that_is_no_run_says_what_it_is(ran, tmp_path) -> None:
    with pytest.raises(NoRun, match=r"No such folder: .*nowhere. Name a folder that simulate wrote"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(NoRun, match=r"No run in the folder .*. Name one that simulate wrote"):
        open_run(tmp_path)
    with pytest.raises(NoRun, match=f"Name one of the runs below it, such as {ran.folder}"):
        open_run(ran.folder.parent)


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("config.json", b"{", "config.json"),
        ("summary.json", b"[1]", "summary.json"),
        ("mixtures.json", b'{"c0": ', "mixtures.json"),
        ("mixtures.json", b'{"c0": 1}', "mixtures.json is damaged"),
        ("metrics.csv", b"", "metrics.csv is damaged: its columns are missing"),
        ("metrics.csv", b"upload,time\r\n", "its columns are upload, time"),
        ("clusters.csv", b"upload,time,cluster,accuracy\r\n1,2.0,k0\r\n", "clusters.csv is damaged"),
        ("clusters.csv", b"upload,time,cluster,accuracy\r\n1,x,k0,0.5\r\n", "clusters.csv is damaged"),
        ("clients.csv", b"\xff\xfe", "clients.csv is damaged"),
        ("final/k0.safetensors", b"short", "k0.safetensors is damaged"),
        ("snapshots/000000020.json", b'{"format": 1, "checkpoint": {}}', "snapshots is damaged"),
        ("snapshots/000000020.json", b'{"format": 1, "checkpoint": []}', "snapshots is damaged"),
    ],
)
def test_a_damaged_file_is_named(folder, name, damage, words) -> None:
    (folder / name).write_bytes(damage)
    with pytest.raises(StorageError, match=words):
        open_run(folder)


def test_the_damage_of_an_unfinished_run_is_named(folder) -> None:
    (folder / "summary.json").unlink()
    for path in (folder / "blobs").iterdir():
        path.unlink()
    with pytest.raises(StorageError, match="blobs"):
        open_run(folder, unfinished=True)
    (folder / "snapshots" / "000000020.json").write_text('{"format": 1, "checkpoint": {"found": {}}}')
    with pytest.raises(StorageError, match="snapshots is damaged"):
        open_run(folder, unfinished=True)


@pytest.mark.parametrize("name", ["metrics.csv", "clusters.csv", "clients.csv"])
def test_a_missing_table_is_named(folder, name) -> None:
    (folder / name).unlink()
    with pytest.raises(StorageError, match=name):
        open_run(folder)


def test_missing_models_and_journals_are_named(folder) -> None:
    run = open_run(folder)
    (folder / "journal.jsonl").write_text("nothing\n")
    with pytest.raises(JournalDamaged):
        _ = run.journal
    (folder / "journal.jsonl").unlink()
    with pytest.raises(StorageError, match=r"journal\.jsonl"):
        _ = run.journal
    shutil.rmtree(folder / "final")
    with pytest.raises(StorageError, match="No final models in"):
        open_run(folder)


def test_a_table_that_lost_its_end_is_refused(folder) -> None:
    (folder / "summary.json").unlink()
    (folder / "metrics.csv").write_bytes((folder / "metrics.csv").read_bytes()[:200])
    with pytest.raises(StorageError, match=r"metrics\.csv has lost its end: 200 of \d+ bytes"):
        open_run(folder, unfinished=True)


def test_a_run_of_a_newer_format_is_refused(folder) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"format": 99}))
    with pytest.raises(UnknownFormat):
        open_run(folder)


def test_tables_come_as_data_frames(ran) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    for name in TABLES:
        frame = ran.frame(name)
        assert isinstance(frame, pandas.DataFrame)
        assert list(frame.columns) == list(getattr(ran, name))
        assert len(frame) == len(getattr(ran, name)["upload"])
    assert ran.frame().equals(ran.frame("metrics"))
    assert ran.frame("metrics").groupby("client")["after"].last().notna().all()
    events = open_run(ran.folder).frame("journal")
    assert (events["kind"] == "upload").sum() == 30
    with pytest.raises(
        SettingError,
        match=r"no table 'models'. Name one of metrics, clusters, clients, distributions, shares, turns or journal",
    ):
        ran.frame("models")


def test_without_pandas_the_error_says_how_to_install_it(ran, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"pip install 'artesian\[pandas\]'"):
        ran.frame()
