"""Simulations with a defence: the same bits over HTTP and resumed, and refused uploads that stop nothing."""

from dataclasses import replace

import numpy as np
import pytest
from promises.hostile import Attacked

from artesian.config.experiments import load, simulate
from artesian.engine.defence import Defence
from artesian.testing import InProcess

TINY = ["world.clients=6", "uploads=60", "start.trunk_epochs=1", "start.epochs=1", "training.epochs=1"]
TIGHT = Defence(clip=1.0, budget=2.0, rise=1.0)


def experiment(algorithm: str, defence: Defence | None = TIGHT):
    return replace(load("digits-2", [*TINY, f"algorithm.name={algorithm}"]), defence=defence)


def bits(run) -> list[bytes]:
    return [params.tobytes() for params in run.params.values()]


@pytest.mark.heavy
@pytest.mark.parametrize("algorithm", ["cdfl", "fedbuff"])
def test_over_http_a_defended_run_has_the_same_bits(algorithm) -> None:
    direct = simulate(experiment(algorithm))
    served = simulate(experiment(algorithm), transport=InProcess)
    assert bits(direct) == bits(served)
    assert bits(direct) != bits(simulate(experiment(algorithm, None)))
    assert direct.summary["notes"]["set_aside"] > 0


@pytest.mark.heavy
def test_resumed_a_defended_run_has_the_same_bits(tmp_path) -> None:
    def stop(progress) -> None:
        if progress.uploads == 45:
            raise KeyboardInterrupt

    chosen = replace(experiment("cdfl"), snapshot_every=20)
    with pytest.raises(KeyboardInterrupt):
        simulate(chosen, out=tmp_path / "run", progress=stop)
    resumed = simulate(chosen, out=tmp_path / "run", resume=True)
    whole = simulate(chosen)
    assert bits(resumed) == bits(whole)
    assert resumed.summary["notes"] == whole.summary["notes"]


@pytest.mark.parametrize("algorithm", ["fedasync", "fedavg"])
def test_a_refused_upload_is_withdrawn_and_the_run_goes_on(algorithm) -> None:
    chosen = load("digits-2", [*TINY, f"algorithm.name={algorithm}"])
    if algorithm == "fedavg":
        chosen = replace(chosen, algorithm=replace(chosen.algorithm, clients_per_round=6))
    run = simulate(replace(chosen, defence=Defence()), transport=lambda engine: Attacked(engine, "x1e6"))
    assert run.summary["uploads"] == 60
    assert run.summary["notes"]["refused"] > 1
    assert all(np.isfinite(params).all() for params in run.params.values())
