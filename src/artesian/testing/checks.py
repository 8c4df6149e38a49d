"""The rules every algorithm keeps, each a function that raises AssertionError where one is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from artesian import errors
from artesian.core import Algorithm, ClientId, Event, Model, Pace, State, Step, Task, Upload
from artesian.engine.coordinator import Coordinator
from artesian.engine.pace import Rounds
from artesian.errors import Refused, SettingError, nearest
from artesian.params import Params, seal
from artesian.recipes import recipe
from artesian.simulator.experiment import Experiment
from artesian.simulator.simulation import Simulation
from artesian.storage.codec import decode, encode
from artesian.testing.inprocess import InProcess
from artesian.testing.toy import ToyFederation, ToyModel, ToyWorld

TOY = ToyModel()


def check_algorithm(algorithm: Algorithm, *, only: str | None = None, model: Model = TOY) -> list[str]:
    """Run every check, or the one named; raise AssertionError at the first broken rule; return what was checked.

    `model` is what the toy federation learns: any that takes rows of three numbers and the label 0.
    """
    _check_arguments(algorithm, only, model)
    chosen = [name for name in CHECKS if only in (None, name)]
    for name in chosen:
        _run(name, algorithm, model)
    return chosen


def _check_arguments(algorithm: Algorithm, only: str | None, model: Model) -> None:
    if isinstance(algorithm, type):
        raise SettingError(f"{algorithm.__name__} is a class, not an algorithm", f"Pass {algorithm.__name__}(...)")
    if Algorithm not in type(algorithm).__mro__:
        raise SettingError(
            f"{type(algorithm).__name__} is not an algorithm", "Pass a value whose class inherits artesian.Algorithm"
        )
    if Model not in type(model).__mro__:
        raise SettingError(f"{type(model).__name__} is not a model", "Pass a value whose class inherits artesian.Model")
    if only is not None and only not in CHECKS:
        raise SettingError(f"No check is called {only!r}", nearest(only, CHECKS))


def _run(name: str, algorithm: Algorithm, model: Model) -> None:
    """One check. Whatever fails in it is a broken rule: the error names the rule, and says what it is."""
    check = CHECKS[name]
    try:
        check(algorithm, model)
    except Exception as error:  # an algorithm may fail in any way
        what = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        rule = f"{algorithm.name} breaks the rule {name}: {what.rstrip('.')}"
        raise AssertionError(f"{rule}. The rule: {check.__doc__}") from error


def _federation(algorithm: Algorithm, model: Model, **options: Any) -> ToyFederation:
    pace = algorithm.pace()
    size = (pace.size or 2) + 2 if isinstance(pace, Rounds) else 4
    federation = ToyFederation(algorithm, **{"clients": max(4, size), "model": model, **options})
    federation.join_all()
    return federation


def _uploads(algorithm: Algorithm) -> int:
    """Enough uploads to fold several times, whatever the pace."""
    pace = algorithm.pace()
    everybody = 4 if pace.in_rounds and pace.clients_needed == 1 else 1
    return 3 * max(pace.batch, pace.clients_needed, everybody) + 3


def _expect(holds: bool, broken: str) -> None:
    assert holds, broken


def answers_in_kind(algorithm: Algorithm, model: Model = TOY) -> None:
    """init gives a State, task and draw a Task, measure numbers by name, fold a Step, and pace a Pace."""
    pace = algorithm.pace()
    _expect(Pace in type(pace).__mro__, f"pace gave a {type(pace).__name__}")
    answers: dict[str, tuple[Callable[..., Any], type]] = {
        "init": (algorithm.init, State),
        "task": (algorithm.task, Task),
        "draw": (algorithm.draw, Task),
        "measure": (algorithm.measure, Mapping),
        "fold": (algorithm.fold, Step),
    }
    watched = copy(algorithm)
    for name, (method, kind) in answers.items():
        object.__setattr__(watched, name, partial(_in_kind, name, method, kind))  # of this copy alone
    federation = _federation(watched, model)
    for _ in range(_uploads(algorithm)):
        for client in federation.world.names:
            federation.coordinator.preview(client)
        federation.step()


def _in_kind(name: str, method: Callable[..., Any], kind: type, *arguments: Any) -> Any:
    """What a method answers, if it is of this kind."""
    found = method(*arguments)
    _expect(isinstance(found, kind), f"{name} gave a {type(found).__name__}, not a {kind.__name__}")
    return found


def is_pure(algorithm: Algorithm, model: Model = TOY) -> None:
    """init, task, measure and fold give the same answer twice and touch nothing they were given."""
    one, two = _federation(algorithm, model), _federation(algorithm, model)
    for _ in range(_uploads(algorithm)):
        before = one.coordinator.digest()
        for client in one.world.names:
            one.coordinator.preview(client)
        _expect(one.coordinator.digest() == before, "task changed the state")
        upload = one.step(watch=_measures_the_same)
        _expect(not any(p.flags.writeable for p in upload.models.values()), "an upload can be written to")
        two.step()
        models = [c.params for c in one.coordinator.state.clusters.values()]
        _expect(not any(p.flags.writeable for p in models), "a cluster can be written to")
        _expect(one.coordinator.digest() == two.coordinator.digest(), "the same events, other bits")


def _measures_the_same(federation: ToyFederation, upload: Upload) -> None:
    coordinator = federation.coordinator
    receipt = coordinator.admit(upload)
    assert receipt is not None
    found = [dict(coordinator.measure(upload, receipt).evidence) for _ in range(2)]
    _expect(found[0] == found[1], "measure looked at its own state: twice, and not the same")


def names_its_recipes(algorithm: Algorithm, model: Model = TOY) -> None:
    """Every task names a recipe that `recipes` lists: clients learn from there what they need."""
    federation = _federation(algorithm, model)
    for _ in range(_uploads(algorithm)):
        for task in federation.tasks.values():
            rule = f"a task names the recipe {task.recipe!r}, which is not among its recipes {algorithm.recipes}"
            _expect(task.recipe in algorithm.recipes, rule)
        federation.step()


def draws_without_a_trace(algorithm: Algorithm, model: Model = TOY) -> None:
    """A draw between uploads gives models that clients can use, twice the same, and changes no bit of what follows."""
    other = _federation(algorithm, model)
    for _ in range(_uploads(algorithm)):
        other.step()
    drawing = _federation(algorithm, model)
    for _ in range(_uploads(algorithm)):
        for client in drawing.world.names:
            _draw(drawing, client)
        drawing.step()
    same = drawing.coordinator.digest() == other.coordinator.digest()  # with what open tasks were given
    _expect(same, "draws changed what came after them")


def _draw(federation: ToyFederation, client: ClientId) -> None:
    """Draw as a client does, and use what comes; a method that has nothing to draw says so of every client."""
    if federation.algorithm.no_draw:
        return
    first, second = federation.coordinator.draw(client), federation.coordinator.draw(client)
    _expect(encode("task", first) == encode("task", second), "twice, and not the same")
    layout = federation.model.layout
    for _, params in recipe(first.recipe).use(layout, first, federation.notebooks.get(client, {})):
        layout.check(params)


def restores(algorithm: Algorithm, model: Model = TOY) -> None:
    """Restored from bytes after every upload, it ends with the same bits."""
    kept, restarted = _federation(algorithm, model), _federation(algorithm, model)
    for _ in range(_uploads(algorithm)):
        kept.step()
        restarted.step()
        restarted.restart()
        one, two = kept.coordinator, restarted.coordinator
        same = one.digest() == two.digest() and list(one.state.clusters) == list(two.state.clusters)
        _expect(same, "a restart changed the state")


def replays(algorithm: Algorithm, model: Model = TOY) -> None:
    """Its journal, replayed without proxies, gives the same state: nothing is measured again."""
    events: list[Event] = []
    federation = ToyFederation(
        algorithm, clients=_federation(algorithm, model).clients, record=events.append, model=model
    )
    first = federation.coordinator.snapshot()
    federation.join_all()
    for _ in range(_uploads(algorithm)):
        federation.step()
    decoded = [decode("event", encode("event", event), Event) for event in events]
    again = Coordinator.restore(algorithm, first, pace=federation.coordinator.pace)
    for event in decoded:
        again.replay(event)
    _expect(again.digest() == federation.coordinator.digest(), "a replay gave another state")


def folds_a_retry_once(algorithm: Algorithm, model: Model = TOY) -> None:
    """The same upload again is answered from the record, also inside a part-filled buffer; another body is refused."""
    federation = _federation(algorithm, model)
    for _ in range(_uploads(algorithm)):
        upload = federation.step()
        before = federation.coordinator.digest()
        again = federation.coordinator.receive(upload)
        _expect(federation.coordinator.digest() == before, "a retry changed the state")
        expected = [federation.tasks[upload.client]] if upload.client in federation.tasks else []
        _expect(
            [encode("task", r.task) for r in again] == [encode("task", t) for t in expected],
            "a retry got another answer",
        )
        _refuses(federation, replace(upload, samples=upload.samples + 1), errors.Conflict)


def takes_two_of_one_client(algorithm: Algorithm, model: Model = TOY) -> None:
    """One client may upload twice in a row, also into one buffer: the second has the next number."""
    federation = _federation(algorithm, model)
    client = sorted(federation.tasks)[0]
    first = federation.upload_of(client)
    federation.tasks.pop(client)
    federation.take(federation.coordinator.receive(first))
    while client not in federation.tasks:
        federation.step()
    second = federation.upload_of(client)
    _expect(second.number == first.number + 1, "numbers are not consecutive")
    federation.take(federation.coordinator.receive(second))
    member = federation.coordinator.state.members[client]
    _expect(member.answered == second.number, "the second upload was not taken")


def survives_leaving_untrained(algorithm: Algorithm, model: Model = TOY) -> None:
    """Whoever leaves before its first upload and comes back can still work."""
    federation = _federation(algorithm, model)
    client = sorted(federation.tasks)[0]
    federation.tasks.pop(client)
    federation.take(federation.coordinator.leave(client))
    federation.take(federation.coordinator.join(client, 10))
    for _ in range(_uploads(algorithm)):
        federation.step()
    _expect(federation.coordinator.state.version > 0, "nothing was folded any more")


def survives_leaving(algorithm: Algorithm, model: Model = TOY) -> None:
    """Whoever leaves and rejoins at the same version gets the next number; the old task is closed."""
    federation = _federation(algorithm, model)
    client = sorted(federation.tasks)[0]
    old = federation.upload_of(client)
    version = federation.coordinator.state.version
    federation.tasks.pop(client)
    federation.take(federation.coordinator.leave(client))
    _refuses(federation, old, errors.TaskClosed)
    federation.take(federation.coordinator.join(client, 10))
    _expect(federation.coordinator.state.version == version, "leaving counted as a fold")
    for _ in range(_uploads(algorithm)):
        if client in federation.tasks:
            break
        federation.step()
    if client in federation.tasks:
        _expect(federation.tasks[client].number == old.number + 1, "a number was used again")
    _refuses(federation, old, errors.TaskClosed)
    for other in federation.world.names:
        federation.coordinator.leave(other)
    state, desk = federation.coordinator.state, federation.coordinator.desk
    _expect(state.present == 0 and desk.open == 0 and not desk.waiting, "somebody is still there")


def refuses_strangers(algorithm: Algorithm, model: Model = TOY) -> None:
    """Nobody uploads or leaves without joining, and nobody uploads twice to an old number."""
    federation = _federation(algorithm, model)
    upload = federation.upload_of(sorted(federation.tasks)[0])
    _refuses(federation, replace(upload, client="stranger"), errors.UnknownClient)
    _refuses(federation, replace(upload, number=upload.number + 1), errors.UnknownTask)
    _refuses(federation, replace(upload, number=0), errors.UnknownTask)
    _refuses(federation, replace(upload, number=-1), errors.UnknownTask)
    old = None
    for _ in range(_uploads(algorithm)):
        newest = federation.step()
        old = old or newest
    assert old is not None
    while federation.coordinator.state.members[old.client].answered == old.number:
        federation.step()
    _refuses(federation, old, errors.TaskClosed)


def refuses_bad_uploads(algorithm: Algorithm, model: Model = TOY) -> None:
    """NaN, Inf, wrong shapes, dtypes, models, mixtures and counts change nothing."""
    federation = _federation(algorithm, model)
    federation.step()
    upload = federation.upload_of(sorted(federation.tasks)[0])
    _refuses(federation, replace(upload, samples=-1), errors.BadClient)
    _refuses(federation, replace(upload, metrics={"loss": float("nan")}), errors.NotFinite)
    _refuses(federation, replace(upload, mixture={"nowhere": 0.5}), errors.BadMixture)
    _refuses(federation, replace(upload, mixture={"k0": 1.5}), errors.BadMixture)
    _refuses(federation, replace(upload, mixture={"k0": float("nan")}), errors.BadMixture)
    spare = seal(np.zeros(federation.model.layout.size, np.float32))
    _refuses(federation, replace(upload, models={**upload.models, "other": spare}), errors.WrongModels)
    for name, params in upload.models.items():
        _refuses(federation, replace(upload, models={}), errors.WrongModels)
        for bad, kind in _spoilt(params):
            _refuses(federation, replace(upload, models={**upload.models, name: bad}), kind)


def _spoilt(params: Params) -> Iterator[tuple[np.ndarray, type[Refused]]]:
    for value in (np.nan, np.inf, -np.inf):
        bad = params.copy()
        bad[1] = value
        yield bad, errors.NotFinite
    yield params[:-1], errors.WrongShape
    yield params.astype(np.float64), errors.WrongShape
    yield params.reshape(1, -1), errors.WrongShape
    yield np.append(params, params[:1]), errors.WrongShape


def _refuses(federation: ToyFederation, upload: Upload, kind: type[Refused]) -> None:
    before = federation.coordinator.digest()
    try:
        federation.coordinator.receive(upload)
    except kind:
        pass
    else:
        raise AssertionError(f"it took what should be {kind.__name__}: {upload}")
    rule = f"a refusal ({kind.__name__}) changed the state"
    _expect(federation.coordinator.digest() == before, rule)


def serves_one_client(algorithm: Algorithm, model: Model = TOY) -> None:
    """A federation of one goes on, and its model stays finite."""
    federation = ToyFederation(algorithm, clients=1, model=model)
    federation.join_all()
    for _ in range(_uploads(algorithm)):
        federation.step()
    _expect(federation.coordinator.state.version > 0, "one client never caused a fold")


def serves_one_cluster(algorithm: Algorithm, model: Model = TOY) -> None:
    """A repository of one start model works like any other."""
    federation = _federation(algorithm, model, clusters=1)
    for _ in range(_uploads(algorithm)):
        federation.step()
    for cluster in federation.coordinator.state.clusters.values():
        federation.model.layout.check(cluster.params)


def agrees_over_http(algorithm: Algorithm, model: Model = TOY) -> None:
    """Simulated directly and over in-process HTTP, the same seed gives the same bits."""
    clients = _federation(algorithm, model).clients
    experiment = Experiment(ToyWorld(clients), model, algorithm, uploads=_uploads(algorithm)).planned()
    direct, served = Simulation(experiment, 3), Simulation(experiment, 3, transport=InProcess)
    direct.run()
    served.run()
    assert isinstance(served.transport, InProcess)
    served.transport.close()
    _expect(direct.coordinator.digest() == served.coordinator.digest(), "over HTTP the bits differ")


CHECKS: dict[str, Callable[[Algorithm, Model], None]] = {
    check.__name__: check
    for check in (
        answers_in_kind,
        is_pure,
        names_its_recipes,
        draws_without_a_trace,
        restores,
        replays,
        folds_a_retry_once,
        takes_two_of_one_client,
        survives_leaving,
        survives_leaving_untrained,
        refuses_strangers,
        refuses_bad_uploads,
        serves_one_client,
        serves_one_cluster,
        agrees_over_http,
    )
}
