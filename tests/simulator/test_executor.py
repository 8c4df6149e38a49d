"""Which executor a run has, and what is refused."""

import sys

import pytest

from artesian.algorithms import CDFL
from artesian.config.experiments import simulate
from artesian.errors import MissingExtra, SettingError
from artesian.simulator.executor import Means
from artesian.simulator.experiment import Experiment
from artesian.testing import ToyModel, ToyWorld

TOY = Experiment(ToyWorld(3), ToyModel(), CDFL(), uploads=4)


@pytest.mark.heavy
def test_workers_are_processes_unless_something_else_is_said() -> None:
    assert [Means().name, Means(2).name, Means(2, "ray").name] == ["inline", "processes", "ray"]
    run = simulate(TOY, workers=1, executor="processes")
    assert (run.summary["executor"], run.summary["workers"]) == ("processes", 1)
    assert simulate(TOY, executor="inline").summary["executor"] == "inline"


@pytest.mark.parametrize(
    ("means", "says"),
    [
        ({"executor": "rays", "workers": 1}, r"There is no executor 'rays'. Did you mean 'ray'\?"),
        ({"executor": "inline", "workers": 1}, "The executor inline has no workers. Leave out --workers"),
        ({"executor": "processes"}, "The executor processes needs at least one worker. Give --workers N"),
        ({"executor": "ray"}, "The executor ray needs at least one worker"),
        ({"workers": 1, "ray_address": "auto"}, "The executor processes has no Ray address. Give --executor ray too"),
    ],
)
def test_means_that_contradict_each_other_are_refused_before_a_folder_is_made(tmp_path, means, says) -> None:
    with pytest.raises(SettingError, match=says):
        simulate(TOY, out=tmp_path / "run", **means)
    assert not (tmp_path / "run").exists()


def test_without_ray_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'artesian\[ray\]'"):
        simulate(TOY, workers=1, executor="ray")
