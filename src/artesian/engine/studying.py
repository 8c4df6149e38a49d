"""The work that an algorithm wants done beside the uploads: begun early, and in force when a fold needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from artesian.core import Algorithm, ClusterId, Learner, Plan, State, Study, Tree
from artesian.engine.transition import Change
from artesian.engine.workbench import Found, Workbench
from artesian.errors import NotFinite


class Studying:
    """The study under way, if there is one."""

    def __init__(self) -> None:
        self._begun: tuple[int, Callable[[], Found]] | None = None  # the version it began with, and its result

    def drop(self) -> None:
        """The study under way is of no use any more: settings or state are others now."""
        self._begun = None

    def begin(self, bench: Workbench, state: State) -> None:
        """Begin what the algorithm wants done beside the uploads; not in a replay, which has its result."""
        study = None if bench.known is not None else bench.algorithm.study(state)
        if study is not None:
            self._begin(bench, study)

    def learn(self, bench: Workbench, change: Change) -> None:
        """A study whose result is needed by now comes into force; the fold waits for it."""
        study = bench.algorithm.study(change.state)
        if study is None or study.needed > change.state.version:
            return
        change.learn(bench.known.found if bench.known is not None else self._result(bench, study))

    def _begin(self, bench: Workbench, study: Study) -> Callable[[], Found]:
        if self._begun is None or self._begun[0] != study.state.version:
            self._begun = study.state.version, bench.beside(work_of(bench, study))
        return self._begun[1]

    def _result(self, bench: Workbench, study: Study) -> Found:
        result = self._begin(bench, study)
        try:
            with bench.watch("studying"):
                return result()
        except BaseException:
            self._begun = None  # the next fold tries again
            raise


def learn_first(bench: Workbench, change: Change) -> bool:
    """What an algorithm must know before anybody comes; whether there is anything."""
    study = bench.algorithm.study(change.state)
    if study is None or study.needed > change.state.version:
        return False
    change.learn(bench.beside(work_of(bench, study))())
    return True


def work_of(bench: Workbench, study: Study) -> Callable[[], Found]:
    """What finds the result of a study, wherever it is called."""
    return partial(_find, bench.algorithm, study.state, bench.proxies, Plan.of(bench.plan))


def _find(algorithm: Algorithm, state: State, proxies: Mapping[ClusterId, Learner], plan: Plan) -> Found:
    """The result of a study, which is finite."""
    found = algorithm.find(state, proxies, plan)
    if not _is_finite(found):
        raise NotFinite(f"A study of {algorithm.name} gave NaN or Inf", "Train at a lower rate")
    return found


def _is_finite(tree: Tree) -> bool:
    if isinstance(tree, Mapping):
        return all(map(_is_finite, tree.values()))
    if isinstance(tree, (list, tuple)):
        return all(map(_is_finite, tree))
    return not isinstance(tree, (float, np.ndarray)) or bool(np.isfinite(tree).all())
