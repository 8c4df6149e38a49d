"""The command line as a user meets it: real processes, exit codes, no tracebacks, nothing lost."""

import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest
from launching import SIMULATING, launcher
from promises.federation import APP
from rich.console import Console
from server.test_replaying import crashed
from tiers import some_thorough
from typer.testing import CliRunner

from artesian import cli
from artesian.algorithms import ALGORITHMS
from artesian.cli import console
from artesian.config.experiments import presets
from artesian.data.mnist import MNIST
from artesian.errors import ArtesianError, RunExists, SettingError, StorageError
from artesian.simulator.simulation import Progress

ROOT = Path(__file__).parent.parent

FIELDS = [
    "algorithm", "preset", "seed", "uploads", "client_before", "client_after", "cluster", "kl", "kl_uniform",
    "bytes_up", "bytes_down", "virtual_time", "wall_seconds", "peak_mb",
]  # fmt: skip
FEW = ["--set", "uploads=12", "--set", "world.clients=12", "--set", "start.trunk_epochs=1", "--set", "start.epochs=1"]
QUICK = ["--set", "uploads=20", "--set", "world.clients=4"]


def artesian(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess:
    return launcher(SIMULATING).run(*arguments, cwd=cwd, **environment)


def fails(code: int, *arguments: str, cwd: Path | None = None) -> str:
    """What a failing command says: one sentence, the right code, no traceback."""
    told = artesian(*arguments, cwd=cwd)
    assert told.returncode == code, told.stdout + told.stderr
    assert "Traceback" not in told.stderr
    return " ".join(told.stderr.split())


@pytest.mark.heavy
def test_help_teaches_every_command() -> None:
    told = artesian("--help")
    assert told.returncode == 0
    for command in ("demo", "simulate", "compare", "algorithms", "presets"):
        assert command in told.stdout
        assert CliRunner().invoke(cli.app, [command, "--help"]).exit_code == 0


def test_help_shows_brackets_and_fills_the_width() -> None:
    wide = {"COLUMNS": "300"}
    assert "[default: processes with workers, else inline]" in artesian("simulate", "--help", **wide).stdout
    assert "The server is killed with SIGKILL while clients" in artesian("demo", "--help", **wide).stdout


def test_the_version() -> None:
    assert artesian("--version").stdout.startswith("artesian 0.")


@pytest.mark.parametrize(("algorithm", "part"), [("cdfl", "appraising"), ("confluence", "comparing")])
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_profile_is_a_table_that_adds_up(workers, algorithm, part) -> None:
    words = ["simulate", "digits-2", *QUICK, "--algorithm", algorithm, "--profile", "--workers", workers]
    told = CliRunner().invoke(cli.app, words)
    rows = {line.split()[0]: line.split()[1:] for line in told.stdout.splitlines() if line.strip()}
    assert rows["part"] == ["main,", "s", "share", *(["workers,", "s", "share"] if workers == "1" else [])]
    measured = {"measuring"} if algorithm == "cdfl" else set()  # Confluence's clients ask a gate
    assert {"starting", "training", "folding", part, "evaluating", "other"} | measured <= set(rows)
    assert [cell for cell in rows["together"] if "%" in cell] == ["100.0%"] * (1 + int(workers))


def test_simulate_ends_each_run_with_one_json_object(tmp_path) -> None:
    told = artesian("simulate", "digits-2", *QUICK, "--seeds", "2", "--json", "--out", str(tmp_path / "runs"))
    assert told.returncode == 0, told.stderr
    objects = [json.loads(line) for line in told.stdout.splitlines()]
    assert [o["seed"] for o in objects] == [0, 1]
    assert all(set(FIELDS) <= set(o) for o in objects)
    assert objects[0]["preset"] == "digits-2"
    assert (tmp_path / "runs" / "seed-1" / "final" / "k1.safetensors").exists()
    compared = artesian("compare", str(tmp_path / "runs"), "--json")
    (row,) = json.loads(compared.stdout)
    mean = (objects[0]["client_after"] + objects[1]["client_after"]) / 2
    assert (row["algorithm"], row["seeds"]) == ("confluence", 2)
    assert row["client_after"][0] == pytest.approx(mean)
    table = artesian("compare", str(tmp_path / "runs" / "seed-0"), str(tmp_path / "runs" / "seed-1"))
    assert "confluence" in table.stdout


def test_a_file_and_changes_to_it(tmp_path) -> None:
    (tmp_path / "mine.toml").write_text(
        'uploads = 50\n[algorithm]\nname = "fedbuff"\nbuffer_size = 5\n[world]\nclients = 4\n'
    )
    told = artesian(
        "simulate", "mine.toml", "--set", "uploads=15", "--set", "algorithm.server_lr=0.5", "--json", cwd=tmp_path
    )
    summary = json.loads(told.stdout)
    assert (summary["algorithm"], summary["uploads"], summary["versions"]) == ("fedbuff", 15, 3)
    assert summary["preset"] == "mine"


@pytest.mark.heavy
def test_a_preset_runs_with_any_algorithm() -> None:
    for name in ALGORITHMS:
        plain = ["--set", "training.optimizer=sgd"] if name == "scaffold" else []  # it corrects plain steps only
        command = ["simulate", "digits-4", "--set", f"algorithm.name={name}", *FEW, *plain, "--json"]
        told = CliRunner().invoke(cli.app, command)
        assert told.exit_code == 0, told.output
        assert json.loads(told.stdout.splitlines()[-1])["algorithm"] == name


def test_an_algorithm_is_named_by_an_option_of_its_own() -> None:
    """The same run as with --set algorithm.name=, which counts where both are given."""
    short, long, both = (
        json.loads(CliRunner().invoke(cli.app, ["simulate", "digits-2", *QUICK, *named, "--json"]).stdout)
        for named in (
            ["--algorithm", "fedasync"],
            ["--set", "algorithm.name=fedasync"],
            ["--algorithm", "fedavg", "--set", "algorithm.name=fedasync"],
        )
    )
    assert short["algorithm"] == "fedasync"
    assert short["settings"] == long["settings"] == both["settings"]


def test_an_unknown_algorithm_is_refused_by_name() -> None:
    told = CliRunner().invoke(cli.app, ["simulate", "digits-2", "--algorithm", "fedavgg"])
    assert "algorithm.name is 'fedavgg', which is unknown. Did you mean 'fedavg'?" in str(told.exception)


def test_help_teaches_to_remove_a_setting_and_to_name_an_algorithm() -> None:
    told = " ".join(CliRunner().invoke(cli.app, ["simulate", "--help"], env={"COLUMNS": "200"}).stdout.split())
    assert "Without VALUE: remove it, so that its default counts." in told
    assert "Short for --set algorithm.name=NAME" in told


def test_compare_keeps_other_settings_apart(tmp_path) -> None:
    for rate in ("0.1", "0.2"):
        change = ["--set", "algorithm.name=fedasync", "--set", f"algorithm.alpha={rate}"]
        CliRunner().invoke(cli.app, ["simulate", "digits-2", *QUICK, *change, "--out", str(tmp_path / rate)])
    told = CliRunner().invoke(cli.app, ["compare", str(tmp_path), "--json"])
    rows = json.loads(told.stdout)
    assert [row["seeds"] for row in rows] == [1, 1]
    assert rows[0]["settings"] != rows[1]["settings"]
    table = CliRunner().invoke(cli.app, ["compare", str(tmp_path)]).stdout
    assert all(f"fedasync {row['settings']}" in table for row in rows)


def test_the_lists_are_json_too() -> None:
    names = [row["name"] for row in json.loads(artesian("algorithms", "--json").stdout)]
    assert names == sorted(ALGORITHMS)
    assert [row["name"] for row in json.loads(artesian("presets", "--json").stdout)] == list(presets())
    told = artesian("algorithms").stdout
    assert "fedbuff" in told and told.endswith("artesian algorithms NAME\n")
    summaries = {row["summary"] for row in json.loads(artesian("algorithms", "--json").stdout)}
    assert len(summaries) == len(names)  # each says something of its own
    assert "digits-4" in artesian("presets").stdout


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_one_algorithm_is_shown_with_its_settings_and_its_module(name) -> None:
    told = CliRunner().invoke(cli.app, ["algorithms", name]).stdout
    lines = dict(line.split() for line in told.splitlines() if len(line.split()) == 2)
    for setting in fields(ALGORITHMS[name]):
        assert lines[setting.name] == ("none" if setting.default is None else str(setting.default))
    row = json.loads(CliRunner().invoke(cli.app, ["algorithms", name, "--json"]).stdout)
    assert row["name"] == name
    assert row["about"] and row["about"] in " ".join(told.split())
    assert told.endswith(f"python -m pydoc {row['module']}\n") and row["module"].startswith("artesian.algorithms.")


def test_an_unknown_algorithm_gives_the_nearest() -> None:
    assert "No algorithm is called 'cdlf'. Did you mean 'cdfl'?" in fails(2, "algorithms", "cdlf")


def test_presets_say_how_long_they_are_and_whether_their_data_are_here(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ARTESIAN_DATA", str(tmp_path))
    monkeypatch.setitem(MNIST, "mnist", (tmp_path / "nowhere", "fetch it"))

    def told() -> dict[str, str]:
        listing = CliRunner().invoke(cli.app, ["presets"]).stdout
        return {line.split()[0]: " ".join(line.split()) for line in listing.splitlines() if line.strip()}

    assert told()["digits-4"].startswith("digits-4 80 2,000 uploads here Real 8x8 digits")
    assert told()["fedsoft-linear"].startswith("fedsoft-linear 100 75 rounds none needed")
    assert told()["casa-mnist"].startswith("casa-mnist 100 6,000 uploads not found: mnist CASA")
    assert " 30 100 uploads not found: mnist, usps, svhn, plates " in told()["digit-world"]
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").touch()
    (tmp_path / "usps.npz").touch()
    assert " uploads here CASA" in told()["casa-mnist"]
    assert " not found: svhn, plates " in told()["digit-world"]


def test_data_that_were_not_found_say_where_they_were_looked_for(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ARTESIAN_DATA", str(tmp_path))
    monkeypatch.setitem(MNIST, "mnist", (tmp_path / "debian", "fetch it"))
    told = "".join(CliRunner().invoke(cli.app, ["data"]).stdout.split())
    assert f"notfound:{tmp_path}/usps/usps.npzor{tmp_path}/usps.npz" in told
    first = "train-images-idx3-ubyte"
    assert f"notfound:{tmp_path}/mnist/{first}or{tmp_path}/debian/{first}" in told
    (tmp_path / "usps.npz").touch()
    assert json.loads(CliRunner().invoke(cli.app, ["data", "--json"]).stdout)["usps"] == str(tmp_path / "usps.npz")
    monkeypatch.delenv("ARTESIAN_DATA")
    told = CliRunner().invoke(cli.app, ["data"]).stdout
    assert "not found: $ARTESIAN_DATA/usps/usps.npz" in told
    assert "ARTESIAN_DATA is not set" in told


def test_a_run_says_what_is_pre_trained_on_which_data_before_it_begins() -> None:
    told = CliRunner().invoke(cli.app, ["simulate", "digits-2", *QUICK]).stderr
    assert "digits-2: confluence, 4 clients of the world rotated, 20 uploads" in told
    assert "pre-training: one model on the server's 2 proxy sets (600 samples, 10 epochs), and from it a model" in told
    single = ["--set", "world.clusters=1", "--set", "start.kind=apart", "--set", "start.epochs=0"]
    told = CliRunner().invoke(cli.app, ["simulate", "digits-2", *QUICK, *single, "--algorithm", "cdfl"]).stderr
    assert "no pre-training: the start is one random model" in told
    assert "cdfl begins with one cluster here: a single model for all clients, and no mixture to estimate" in told
    told = CliRunner().invoke(cli.app, ["simulate", "digits-2", *QUICK, *single]).stderr
    assert "confluence begins with one cluster here: a single model for all clients, until it finds kinds of" in told


def test_what_speaks_against_a_run_is_said_before_it_announces_anything(tmp_path) -> None:
    (tmp_path / "seed-1").mkdir()
    (tmp_path / "seed-1" / "notes.txt").touch()
    taken = ["--out", str(tmp_path / "seed-1")]
    for options in (taken, ["--executor", "inline", "--workers", "2"], ["--out", str(tmp_path), "--seeds", "2"]):
        told = CliRunner().invoke(cli.app, ["simulate", "digits-2", *QUICK, *options])
        assert isinstance(told.exception, (RunExists, SettingError))
        assert told.stderr == ""
    assert not (tmp_path / "seed-0").exists()


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("nowhere", ["--ca", "missing.pem"], "Not the address of a server: 'nowhere'"),
        ("https://host:8440", ["--ca", "missing.pem"], "missing.pem"),
        ("https://host:8440", [], "No enrolment token to join with"),
        ("https://host:8440", ["--token", "t"], "missing"),
    ],
)
def test_a_client_judges_what_costs_least_first(tmp_path, monkeypatch, url, options, words) -> None:
    """The address, the certificates, the token; only then is the user's own code imported, and a home made."""
    monkeypatch.delenv("ARTESIAN_TOKEN", raising=False)
    home = tmp_path / "home"
    told = CliRunner().invoke(cli.app, ["client", url, "--home", str(home), "--learner", "missing:learner", *options])
    assert isinstance(told.exception, SettingError)
    assert words in str(told.exception)
    assert not home.exists()


def test_several_runs_announce_themselves_once() -> None:
    told = CliRunner().invoke(cli.app, ["simulate", "digits-2", *QUICK, "--seeds", "2"]).stderr
    assert told.count("pre-training: ") == 1


def test_tables_in_a_pipe_are_rows_with_tabs() -> None:
    lines = CliRunner().invoke(cli.app, ["algorithms"]).stdout.splitlines()
    assert lines[0].split("\t") == ["name", "pace", "what it is", "settings and defaults"]
    assert {line.split("\t")[0] for line in lines[1:-1]} == set(ALGORITHMS)
    assert {len(line.split("\t")) for line in lines[:-1]} == {4}


def test_a_narrow_terminal_loses_columns_and_no_digits(monkeypatch) -> None:
    columns, rows = ["algorithm", "before", "after", "MB up"], [["fedavg", "0.812±0.003", "0.905±0.001", "12.3"]]
    for width, shown in ((80, 4), (42, 4), (41, 3), (35, 3), (34, 2), (1, 1)):
        assert console.columns_that_fit(columns, rows, (), width) == shown, width
    assert console.columns_that_fit(["name", "what it is"], [["a", "b" * 200]], ["what it is"], 30) == 2
    monkeypatch.setattr(console, "out", Console(force_terminal=True, width=35, file=io.StringIO(), color_system=None))
    console.print_table(columns, rows)
    told = console.out.file.getvalue()
    assert "0.812±0.003" in told and "0.905±0.001" in told and "12.3" not in told
    assert "no room for: MB up" in told


def test_progress_never_says_none_in_a_second(monkeypatch) -> None:
    now = iter([10.0, 10.5, 14.5, 40.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(now))
    speed, told = console.Speed(), []
    for done in (5, 5, 6, 205):
        speed.update(done)
        told.append(console.progress_line(Progress(done, 405, 0.5, "uploads"), speed))
    assert told == [
        "5/405 uploads, accuracy 0.500",
        "5/405 uploads, accuracy 0.500",
        "6/405 uploads, 4.5 s/upload, 1796 s left, accuracy 0.500",
        "205/405 uploads, 7/s, 30 s left, accuracy 0.500",
    ]


def completing(**asked: str) -> str:
    """What the command says to a shell that asks it to complete something."""
    command = shutil.which("artesian", path=str(Path(sys.executable).parent))
    assert command is not None
    env = {**os.environ, **asked}
    return subprocess.run([command], capture_output=True, text=True, env=env, timeout=60).stdout


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("sim", "simulate"),
        ("simulate digits-", "digits-4"),
        ("algorithms fedb", "fedbuff"),
        ("simulate digits-4 --algorithm fedb", "fedbuff"),
        ("simulate digits-4 --re", "--resume"),
    ],
    ids=["command", "preset", "algorithm", "algorithm of a run", "option"],
)
def test_the_shell_completes(typed, offered) -> None:
    words = f"artesian {typed}"
    last = str(len(words.split()) - 1)
    told = artesian(_ARTESIAN_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=last)
    assert offered in told.stdout.split()


def test_the_shell_gets_a_script_for_completion() -> None:
    assert "complete -o default -F _artesian_completion artesian" in completing(_ARTESIAN_COMPLETE="source_bash")
    told = artesian("--help").stdout
    assert "--install-completion" in told and "--show-completion" in told


def test_progress_is_plain_lines_when_nobody_watches() -> None:
    told = artesian("simulate", "digits-2", *QUICK)
    assert "20/20 uploads" in told.stderr
    assert "accuracy 0." in told.stderr
    assert "\x1b" not in told.stderr


@pytest.mark.heavy
def test_progress_is_a_bar_on_a_terminal() -> None:
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "artesian.cli", "simulate", "digits-2", *QUICK]
    process = subprocess.Popen(command, stderr=child, stdout=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm"})
    os.close(child)
    seen = b""
    try:
        while chunk := os.read(parent, 65536):
            seen += chunk
    except OSError:  # the other end is closed
        pass
    assert process.wait() == 0
    os.close(parent)
    assert b"20/20" in seen
    assert b"accuracy" in seen
    assert b"/s" in seen


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("uploads = ", "is not valid TOML"),
        ("uploads = 'many'", "uploads must be a whole number"),
        ("uploads = 0", "uploads must be at least 1, not 0"),
        ("upload = 5", "Did you mean 'uploads'?"),
        ("[algoritm]\nname='cdfl'", "Did you mean 'algorithm'?"),
        ("algorithm = 'cdfl'", "algorithm must be a table"),
        ("[algorithm]\nname = 'fedbuf'", "Did you mean 'fedbuff'?"),
        ("[algorithm]\nname = 3", "algorithm.name must be a text"),
        ("[algorithm]\nname = 'no.such:Thing'", "could not be imported"),
        ("[algorithm]\nname = 'cdfl'\nbeta_0 = 1", "Did you mean 'beta0'?"),
        ("[algorithm]\nname = 'cdfl'\nbeta0 = 'big'", "algorithm.beta0"),
        ("[algorithm]\nname = 'cdfl'\nbeta0 = 7", "beta0 must be in (0, 1], not 7.0"),
        ("[algorithm]\nname = [1]", "algorithm.name must be a text"),
        ("[algorithm]\nname = 'broken_module:Thing'", "SyntaxError"),
        ("[algorithms]\ncdfl = 3", "algorithms.cdfl must be a table"),
        ("[algorithms.fedbuf]\nbuffer_size = 1", "Did you mean 'fedbuff'?"),
        ("[fleet]\nslow_share = -0.5", "In [fleet]: slow_share must be in [0, 1], not -0.5."),
        ("[world]\nname = 'moon'", "world.name is 'moon', which is unknown"),
        ("[world]\nclusters = 0", "clusters and clients must be at least 1, but clusters = 0 and clients = 80"),
        ("[world]\nsamples_max = 5000", "too few for proxy_images, test_images and samples_max together"),
        ("[world]\ndata = 'nowhere.npz'", "nothing at nowhere.npz"),
        ("[model]\nhiden = 3", "Did you mean 'hidden'?"),
        ("[training]\nrate = -1", "In [training]: rate must be above 0, not -1.0."),
        ("[start]\nkind = 'together'", "start.kind"),
    ],
)
def test_a_mistake_in_a_file_is_named_and_costs_exit_code_2(tmp_path, monkeypatch, text, words) -> None:
    (tmp_path / "bad.toml").write_text(text)
    (tmp_path / "broken_module.py").write_text("def :")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    runner = CliRunner()
    result = runner.invoke(cli.app, ["simulate", str(tmp_path / "bad.toml")])
    assert isinstance(result.exception, ArtesianError)
    assert result.exception.exit_code == 2
    assert words in str(result.exception)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model.hidden=0", "whole numbers from 1 on"),
        ("model.features=3", "model.features is 3, but the data have 64"),
        ("model.classes=3", "model.classes is 3, but the data have 10"),
        ("algorithm.name=os:getcwd", "is not an algorithm: str has no name"),
        ("algorithms.fedbuff.buffer_siz=3", "Did you mean 'buffer_size'?"),
        ("fleet.latency=inf", "latency must be positive and finite, not inf"),
        ("algorithm.beta0=nan", "beta0 must be in (0, 1], not nan"),
        ("algorithm.update_bar=avg", "algorithm.update_bar must be a number or 'ave', not 'avg'"),
        ("algorithm.loss_scale=total", "algorithm.loss_scale must be 'batch_sum', 'mean' or 'sum', not 'total'"),
        ("algorithm.amplifier=[1, 'x']", "algorithm.amplifier.1 must be a number, not 'x'"),
        ("algorithm.clamp=1", "algorithm.clamp must be true or false, not 1"),
        ("world.clients=40.0", "world.clients must be a whole number, not 40.0"),
        ("world.clients='40'", "world.clients must be a whole number, not '40'"),
        ("world.clients=1", "no more clusters than clients, but clusters = 2 and clients = 1"),
        ("uploads=1e2", "uploads must be a whole number, not 100.0"),
        ("training.batch=0", "batch must be at least 1, not 0"),
        (
            "training.momentum=0.9",
            "momentum has an effect only with optimizer = sgd, but momentum = 0.9 and optimizer = 'adam'",
        ),
        ("start.rate=-1", "In [start]: rate must be above 0, not -1.0"),
        ("start.trunk_rate=0", "In [start]: trunk_rate must be above 0, not 0.0"),
        ("name=' '", "name must not be empty, but name = ' '"),
    ],
)
def test_a_mistake_in_a_change_is_named(change, words) -> None:
    result = CliRunner().invoke(cli.app, ["simulate", "digits-2", "--algorithm", "cdfl", "--set", change])
    assert isinstance(result.exception, ArtesianError)
    assert result.exception.exit_code == 2
    assert words in str(result.exception)


def test_one_seed_and_many_are_not_asked_for_at_once() -> None:
    result = CliRunner().invoke(cli.app, ["simulate", "digits-2", "--seed", "0", "--seeds", "1"])
    assert "--seed 0 runs one seed, --seeds 1 runs seeds 0 to 0. Leave one of the two out" in str(result.exception)


def test_a_place_for_a_run_that_cannot_be_made_is_named(tmp_path) -> None:
    (tmp_path / "mine.txt").write_text("a file")
    places = {tmp_path / "mine.txt" / "x": "A file is in the way", Path("/proc/run"): "No such file or directory"}
    for place, words in places.items():
        result = CliRunner().invoke(cli.app, ["simulate", "digits-2", *QUICK, "--out", str(place)])
        assert isinstance(result.exception, StorageError)
        assert words in str(result.exception)
        assert str(place) in str(result.exception)


@pytest.mark.heavy
def test_a_failure_in_somebodys_code_is_one_sentence_until_more_is_asked_for(tmp_path) -> None:
    (tmp_path / "mine.py").write_text(
        "from artesian.algorithms import FedAsync\n"
        "class Mine(FedAsync):\n    def fold(self, state, measured):\n        raise RuntimeError('my own bug')\n"
    )
    arguments = ("simulate", "digits-2", *QUICK, "--set", "algorithm.name=mine:Mine")
    told = fails(1, *arguments, cwd=tmp_path)
    assert "RuntimeError: my own bug (mine.py, line 4)" in told
    shown = artesian(*arguments, cwd=tmp_path, ARTESIAN_TRACEBACK="1")
    assert "Traceback" in shown.stderr


def test_compare_counts_every_seed_once_and_refuses_what_is_no_summary(tmp_path) -> None:
    out = tmp_path / "run"
    CliRunner().invoke(cli.app, ["simulate", "digits-2", *QUICK, "--out", str(out)])
    shutil.copytree(out, tmp_path / "copy")
    told = CliRunner().invoke(cli.app, ["compare", str(out), str(out), str(tmp_path), "--json"])
    assert [row["seeds"] for row in json.loads(told.stdout)] == [1]
    into = CliRunner().invoke(cli.app, ["simulate", "digits-2", *QUICK, "--seeds", "2", "--out", str(out)])
    assert "holds a run, and --seeds" in str(into.exception)
    (tmp_path / "copy" / "summary.json").write_text('{"algorithm": "x", "seed": "many"}')
    bad = CliRunner().invoke(cli.app, ["compare", str(tmp_path / "copy")])
    assert "is not a summary of a run" in str(bad.exception)


def test_mistakes_on_the_command_line(tmp_path) -> None:
    assert "Did you mean 'digits-4'" in fails(2, "simulate", "digit-4")
    assert "section.key=value" in fails(2, "simulate", "digits-4", "--set", "uploads")
    assert "uploads is a value" in fails(2, "simulate", "digits-4", "--set", "uploads=3", "--set", "uploads.more=3")
    assert "--resume needs a folder" in fails(2, "simulate", "digits-4", "--resume")
    assert fails(2, "simulate")
    assert fails(2, "simulate", "digits-4", "--workers", "-1")
    assert fails(2, "nonsense")
    assert "No finished run" in fails(2, "compare", str(tmp_path))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert "is not a text file" in fails(2, "simulate", str(tmp_path / "binary.toml"))


def test_an_existing_folder_a_mismatch_and_a_finished_run(tmp_path) -> None:
    out = str(tmp_path / "run")
    assert artesian("simulate", "digits-2", *QUICK, "--out", out).returncode == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert "--resume" in fails(2, "simulate", "digits-2", *QUICK, "--out", out)
    assert "seed = 0, and now it is 3" in fails(
        2, "simulate", "digits-2", *QUICK, "--out", out, "--resume", "--seed", "3"
    )
    assert "uploads = 20, and now it is 30" in fails(
        2, "simulate", "digits-2", *QUICK, "--set", "uploads=30", "--out", out, "--resume"
    )
    again = artesian("simulate", "digits-2", *QUICK, "--out", out, "--resume", "--json")
    assert again.returncode == 0
    assert "has finished already" in again.stderr
    assert json.loads(again.stdout)["uploads"] == 20
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


@pytest.mark.heavy
@pytest.mark.parametrize("workers", some_thorough(["0", "2"], "2"))
def test_ctrl_c_says_how_to_go_on(tmp_path, workers) -> None:
    out = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "artesian.cli",
        "simulate",
        "digits-4",
        "--set",
        "snapshot_every=5",
        "--workers",
        workers,
    ]
    process = subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.PIPE, text=True, start_new_session=True)
    end = time.monotonic() + 60
    while not (out / "snapshots" / "000000010.json").exists():
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "--resume" in told
    assert "Traceback" not in told
    resumed = artesian(
        "simulate",
        "digits-4",
        "--set",
        "snapshot_every=5",
        "--set",
        "uploads=2000",
        "--out",
        str(out),
        "--resume",
        "--set",
        "world.clients=81",
    )
    assert resumed.returncode == 2  # another configuration: nothing touched
    assert any((out / "snapshots").iterdir())


@pytest.mark.thorough
@pytest.mark.heavy
def test_a_full_disk_is_the_machines_fault_and_loses_nothing(tmp_path) -> None:
    """A process that may write no more than 200 kB into any file stands for a disk that is full."""
    out = tmp_path / "run"
    script = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)\n"
        "from artesian.cli import main\nmain()\n"
    )
    arguments = [
        "simulate",
        "digits-2",
        "--set",
        "uploads=200",
        "--set",
        "world.clients=4",
        "--set",
        "snapshot_every=10",
    ]
    command = [sys.executable, "-c", script, "30000", *arguments, "--out", str(out)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert told.returncode == 1, told.stderr
    assert "The disk is full" in told.stderr
    assert "Traceback" not in told.stderr
    assert not list(out.rglob("*.tmp"))
    resumed = artesian(*arguments, "--out", str(out), "--resume")
    assert resumed.returncode == 0, resumed.stderr
    whole = tmp_path / "whole"
    artesian(*arguments, "--out", str(whole))
    for name in ("metrics.csv", "final/k0.safetensors", "final/k1.safetensors"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()


def test_a_folder_that_cannot_be_written_is_the_machines_fault(tmp_path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert "file" in fails(1, "simulate", "digits-2", *QUICK, "--out", str(tmp_path / "file" / "run"))


@pytest.mark.heavy
def test_a_missing_extra_answers_with_its_pip_command(tmp_path) -> None:
    (tmp_path / "sklearn.py").write_text("raise ModuleNotFoundError('sklearn')\n")
    command = [sys.executable, "-m", "artesian.cli", "simulate", "digits-2", *QUICK]
    told = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert told.returncode == 2
    assert "pip install 'artesian[sim]'" in told.stderr


# stores


@pytest.fixture
def store(tmp_path) -> Path:
    crashed(tmp_path / "store")
    return tmp_path / "store"


def ran(*words: object) -> tuple[int, str]:
    told = CliRunner().invoke(cli.app, [str(word) for word in words])
    return told.exit_code, told.stdout


def test_a_store_is_inspected_verified_backed_up_and_restored(tmp_path, store) -> None:
    code, told = ran("inspect", store)
    assert code == 0
    assert re.search(r"last_at +20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", told)
    assert ran("verify", store)[0] == 0
    assert ran("verify", store)[1].splitlines() == [
        "4 events, 4 replayed, 5 arrays",
        "no keys.json: without it, acknowledgements that this store's server signed cannot be checked",
        "sound",
    ]
    code, told = ran("backup", store, tmp_path / "backup")
    assert code == 0
    assert re.search(r"backup: 4 events up to 20\S+Z, 5 arrays", told)
    code, told = ran("restore", tmp_path / "backup", tmp_path / "again", "--json")
    assert (code, json.loads(told)["events"], json.loads(told)["attempts"]) == (0, 4, 1)
    assert json.loads(ran("verify", tmp_path / "again", "--json")[1])["sound"]


def test_a_store_that_is_not_sound_costs_exit_code_1(tmp_path, store) -> None:
    ran("backup", store, tmp_path / "backup")
    next((tmp_path / "backup" / "blobs").iterdir()).write_bytes(b"x")
    code, told = ran("verify", tmp_path / "backup")
    assert code == 1
    assert "The stored array was altered" in told
    assert told.splitlines()[-1] == "NOT SOUND"
    assert not json.loads(ran("verify", tmp_path / "backup", "--json")[1])["sound"]


def test_mistakes_with_stores_are_named(tmp_path, store) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    assert "full is there already, and not empty. Choose a new folder." in fails(
        2, "backup", "store", "full", cwd=tmp_path
    )
    assert "Choose a folder outside of it." in fails(2, "backup", "store", "store/in", cwd=tmp_path)
    assert not (store / "in").exists()
    assert "No store at nowhere" in fails(2, "inspect", "nowhere", cwd=tmp_path)
    assert "No store at full" in fails(2, "restore", "full", "new", cwd=tmp_path)
    assert "No store at nowhere" in fails(2, "verify", "nowhere", cwd=tmp_path)


def test_a_federation_that_is_named_replays_its_store(tmp_path, store) -> None:
    (tmp_path / "served.py").write_text(APP)
    told = artesian("verify", "store", "--federation", "served:federation", "--json", cwd=tmp_path)
    assert json.loads(told.stdout)["replayed"] == 4
    assert "is the store of another federation" in fails(2, "verify", "store", "--federation", "digits-2", cwd=tmp_path)


def test_copies_count_in_plain_lines_when_nobody_watches(monkeypatch) -> None:
    said, now = io.StringIO(), iter([0.0, 1.0, 6.0, 6.0, 7.0])
    monkeypatch.setattr(console, "err", Console(file=said))
    monkeypatch.setattr(console.time, "monotonic", lambda: next(now))
    with console.count_of("copying") as progress:
        for done in (1, 2, 3):
            progress(done, 3)
    assert said.getvalue() == "copying: 2/3\n"
