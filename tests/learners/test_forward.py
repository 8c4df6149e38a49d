"""Forward passes in other ways: tried elsewhere first, left out with a warning where they fail."""

from __future__ import annotations

import pickle
import shutil
import warnings
from collections.abc import Iterator

import numpy as np
import pytest

from artesian import cli
from artesian.core import Plan
from artesian.errors import BadData, FellBack, SettingError

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch import nn  # noqa: E402

from artesian.config.experiments import load  # noqa: E402
from artesian.learners import forward  # noqa: E402
from artesian.learners.torch import TorchModel, one_thread  # noqa: E402

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    forward.refusal.cache_clear()
    with one_thread():
        yield
    forward.refusal.cache_clear()


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def points() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(40, 6)).astype(np.float32), rng.integers(0, 3, 40)


def trial(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(forward, "TRIAL", script)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (DIES, "the trial was ended by SIGILL"),
        ("raise RuntimeError('no such format')", "RuntimeError: no such format"),
        ("import sys; sys.exit('it gave numbers that are not finite')", "it gave numbers that are not finite"),
        ("import sys; sys.exit(3)", "the trial ended with 3"),
        ("while True: pass", r"the trial did not end \(TimeoutExpired\)"),
    ],
)
def test_a_trial_that_fails_says_why_and_the_model_does_without(monkeypatch, script, reason) -> None:
    trial(monkeypatch, script)
    monkeypatch.setattr(forward, "PATIENCE", 1 if "True" in script else 60)
    with pytest.warns(FellBack, match=f"^bfloat16 does not work on this cpu: {reason}; it is left out$"):
        model = TorchModel(net, device="cpu", precision="bfloat16")
    assert model.precision == "float32" and model.describe()["precision"] == "float32"
    plain = TorchModel(net, device="cpu")
    params, data = plain.start(0), points()
    assert np.array_equal(model.learner(*data).losses(params), plain.learner(*data).losses(params))


def test_a_trial_is_made_once_and_only_for_what_was_asked(monkeypatch, tmp_path) -> None:
    note = tmp_path / "trials"
    trial(monkeypatch, f"import sys; print(sys.argv[1:], file=open({str(note)!r}, 'a'))")
    TorchModel(net, device="cpu")
    assert not note.exists()
    for _ in range(2):
        model = TorchModel(net, device="cpu", compile=True)
    assert model.compile and note.read_text() == "['compile', 'cpu']\n"


def test_what_travels_to_a_worker_is_not_tried_again(monkeypatch) -> None:
    trial(monkeypatch, DIES)
    with pytest.warns(FellBack):
        model = TorchModel(net, device="cpu", precision="bfloat16")
    sent = pickle.dumps(model)
    forward.refusal.cache_clear()
    assert pickle.loads(sent).precision == "float32"  # without a warning, which would be an error here


@pytest.mark.thorough
@pytest.mark.heavy
def test_bfloat16_is_shorter_in_forward_passes_and_learns_alike() -> None:
    if reason := forward.refusal("bfloat16", "cpu"):
        pytest.skip(reason)
    plain, short = TorchModel(net, device="cpu"), TorchModel(net, device="cpu", precision="bfloat16")
    params, data = plain.start(0), points()
    losses = [model.learner(*data).losses(params) for model in (plain, short)]
    assert losses[1].dtype == np.float32
    assert 0 < np.abs(losses[0] - losses[1]).max() < 0.05
    plan = Plan("sgd", 0.1, 3, 8)
    plain_end, *short_ends = [model.learner(*data).train(params, seed=1, plan=plan) for model in (plain, short, short)]
    assert np.array_equal(*short_ends)
    assert 0 < np.abs(plain_end - short_ends[0]).max() < 0.05
    assert np.abs(plain_end - params).max() > 0.1


@pytest.mark.heavy
@pytest.mark.thorough  # compiles
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, inside its compiler
def test_compiled_passes_see_the_same(monkeypatch) -> None:
    trial(monkeypatch, "")
    monkeypatch.setattr("torch._inductor.config.cpp_cache_precompile_headers", False)  # worth it for many kernels alone
    plain, fast = TorchModel(net, device="cpu"), TorchModel(net, device="cpu", compile=True)
    data = points()
    for seed in (0, 1):  # other weights in the same network
        params = plain.start(seed)
        np.testing.assert_allclose(
            fast.learner(*data).losses(params), plain.learner(*data).losses(params), rtol=1e-5, atol=1e-6
        )
    assert fast.passes.compiled
    plan = Plan("sgd", 0.1, 1, 8)
    ends = [model.learner(*data).train(params, seed=1, plan=plan) for model in (plain, fast)]
    assert np.array_equal(*ends)  # training is never compiled


def test_a_network_the_compiler_cannot_take_runs_as_it_is(monkeypatch) -> None:
    trial(monkeypatch, "")
    model = TorchModel(net, device="cpu", compile=True)

    def compiled(module: nn.Module) -> nn.Module:
        def fail(*_: object) -> None:
            raise RuntimeError("unsupported\nat length")

        failing = nn.Module()
        failing.forward = fail  # type: ignore[method-assign]
        return failing

    monkeypatch.setattr(torch, "compile", compiled)
    params, data = model.start(0), points()
    with pytest.warns(FellBack, match="the network cannot be compiled: .*unsupported.*; it is left out"):
        losses = model.learner(*data).losses(params)
    assert np.array_equal(losses, TorchModel(net, device="cpu").learner(*data).losses(params))
    assert not model.passes.compiled
    model.learner(*data).losses(params)  # and says so once


def test_data_that_no_pass_takes_are_refused_as_ever(monkeypatch) -> None:
    trial(monkeypatch, "")
    model = TorchModel(net, device="cpu", compile=True)
    monkeypatch.setattr(torch, "compile", lambda module: module)
    with pytest.raises(BadData, match="failed on a batch of shape"):
        model.learner(np.zeros((4, 5), np.float32), np.zeros(4, int)).losses(model.start(0))


def test_an_experiment_asks_for_them(monkeypatch) -> None:
    trial(monkeypatch, "")
    changes = ["model.framework=torch", "model.precision=bfloat16", "model.compile=true"]
    model = load("digits-2", changes).model
    assert (model.precision, model.compile) == ("bfloat16", True)


@pytest.mark.parametrize(("key", "rule"), [("precision=half", "float32, bfloat16"), ("compile=3", "true or false")])
def test_what_is_no_option_is_refused(key, rule) -> None:
    with pytest.raises(SettingError, match=f"{key.partition('=')[0]} is .*{rule}"):
        load("digits-2", ["model.framework=torch", f"model.{key}"])


def test_the_command_line_says_it_in_one_line(monkeypatch, capsys) -> None:
    trial(monkeypatch, DIES)
    words = ["simulate", "digits-2", "--set", "uploads=2", "--set", "model.framework=torch"]
    monkeypatch.setattr("sys.argv", ["artesian", *words, "--set", "model.precision=bfloat16"])
    shown = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        try:
            with pytest.raises(SystemExit):
                cli.main()
        finally:
            warnings.showwarning = shown
    said = " ".join(capsys.readouterr().err.split())
    assert "warning: bfloat16 does not work on this cpu: the trial was ended by SIGILL; it is left out" in said
