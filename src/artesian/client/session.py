"""A client's session with a federation. It saves before it sends, and may be killed at any moment.

A home folder keeps who the client is (`identity.json`, made before it first joins), the newest task, its notebook, an
upload on its way with what was trained, and what the client uses. After any crash, `refresh` asks for the open task
first: an upload that was taken is dropped once the client chose what it uses, one that was not is sent again as it was
(a large one from where it broke off), and nothing is trained or counted twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx

from artesian.client.drawn import Drawn
from artesian.client.identity import identity_in
from artesian.client.in_use import NOT_JUDGED, InUse, Refreshed, split_for
from artesian.client.layout import layout_in
from artesian.client.reporting import Reports, with_metrics
from artesian.client.spool import Spool
from artesian.client.transport import IN_HEADERS, Transport
from artesian.core import ClientId, Ensemble, Learner, Notebook, Plan, Recipe, Task, Upload, derive
from artesian.engine.admission import check_client
from artesian.engine.drawing import HEADER as MOVED
from artesian.engine.drawing import Moved, moved_between
from artesian.errors import (
    BadData,
    BadFormat,
    BadMixture,
    Conflict,
    NotFinite,
    SettingError,
    TaskClosed,
    Unauthorized,
    UnknownTask,
    WrongModels,
    WrongShape,
)
from artesian.params import Layout, Params
from artesian.recipes import by_name, recipe
from artesian.recipes.accepting import SHARE, Accept, Choice, Split, candidates, choose, with_continued
from artesian.recipes.kept_optimizers import follow
from artesian.recipes.tuning import tuned
from artesian.storage.acknowledgement import HEADER
from artesian.storage.codec import decode, encode
from artesian.storage.files import storage, write_file
from artesian.storage.older import translated_notebook

FINAL = (TaskClosed, UnknownTask, Conflict, WrongModels, WrongShape, NotFinite, BadMixture)  # useless to send again


class Session:
    """One client of one federation."""

    def __init__(
        self,
        transport: Transport,
        token: str,
        home: Path,
        client: ClientId | None = None,
        recipes: Iterable[Recipe | str] = (),
    ) -> None:
        """`recipes` are this client's own, besides those that are built in: values, or `module:name`."""
        self.transport, self.token, self.home = transport, token, home
        self._recipes = by_name(recipes)
        if client is not None:
            check_client(client, 0)
        if not (token.isascii() and token.isprintable()):
            raise SettingError("The token holds characters that are not ASCII", "Copy it again")
        with storage(home):
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.client, self._secret = identity_in(home, transport.url, client)
        self._in_use, self._fresh, self._reports = InUse(home), Drawn(home), Reports(home)
        self._moved: Moved | None = None  # from the task before the newest to the newest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the client stays a member of the federation."""
        self.transport.close()

    @cached_property
    def layout(self) -> Layout:
        """How the federation's models are laid out; fetched once, then kept at home."""
        return layout_in(self.home, lambda: self.transport.send("GET", "/v1/federation", self.token).content)

    def task(self, samples: int = 0, wait: float = 30.0, changed: bool = False) -> Task | None:
        """The open task, after joining if need be and waiting `wait` seconds for a round; None if there is none yet.

        `changed` states that the client's data changed: some methods then estimate its group again at once.
        """
        joined = (self.home / "joined").exists()
        answer = self._ask_for_task(0) if joined else self._join(samples, changed)
        if joined and answer.status_code == 204:
            answer = self._join(samples, changed)  # perhaps withdrawn meanwhile: joining again asks for a new one
        if answer.status_code in (202, 204) and wait:
            answer = self._ask_for_task(wait)
        return self._task_in(answer)

    def upload(self, upload: Upload) -> Task | None:
        """Send an upload, saved first; the next task, or None while a round is open. What is drawn is used then."""
        begun = (self.home / "spool").exists()
        answer = self._send(self._save(Spool(upload, self._notebook())), begun)
        self._in_use.use(upload.number, ())
        self._drop_spool()
        return answer

    def refresh(
        self,
        learner: Learner,
        *,
        wait: float = 30.0,
        changed: bool = False,
        tune: int = 0,
        accept: Accept = "better",
        hold_back: float = SHARE,
        keep_training: bool = False,
        report: bool = False,
    ) -> Refreshed:
        """Train by the task's recipe, upload, and return what to predict with now.

        That is the best of what was trained, what came back, the mean of the two and what was used before, judged on a
        share of the data that is held back from training. Where nothing can be held back, it is the mean of what was
        trained and what came back; with `accept="always"`, what came back. Without a task (a round is still open) it is
        what the client has. `changed` says that its data changed. Where a task only asks for an estimate and is
        answered with another, that is done at once, too. With `tune`, what comes back is also trained for so many
        epochs more on the learner's data; that stays here. With `keep_training`, what was used before is trained on
        where it is better than all of these, and is a candidate, too. With `report`, the upload tells the server how
        the refresh before it went.
        """
        _check_tune(tune)
        if keep_training and accept != "better":
            raise SettingError("keep_training has an effect only with accept='better'", "Leave one of the two out")
        if not learner.samples:
            raise BadData("There are no samples to train on", "Refresh once there are some; draw() needs none")
        split = split_for(learner, accept, hold_back, self.client)
        self._in_use.begin(self._drawn_or_nothing)
        task, self._moved = self.task(split.train.samples, wait, changed), None
        if task is not None:
            metrics = self._reports.metrics(changed) if report else {}
            refreshed = self._choose(self._answer(task, split.train, metrics), split, tune, keep_training)
            if report:
                self._reports.keep(refreshed.choice)
            return refreshed
        return Refreshed(self.held(), Choice("previous", why="There is no task yet: a round is open"))

    def _answer(self, task: Task, learner: Learner, metrics: Mapping[str, float]) -> Spool:
        """Do what is asked until a training was uploaded, or nothing more is asked: the last upload, now taken."""
        while True:
            spool = self._spool()
            if spool is not None and spool.upload.number < task.number:  # it was taken: the answer is this task
                self._taken(spool)
                self._drop_proof()
                answer: Task | None = task
            else:
                begun = spool is not None
                if spool is None:
                    fit = follow(self._recipe(task), self.layout, self.client, task, learner, self._notebook())
                    spool = self._save(Spool.of(with_metrics(fit, metrics)))
                answer = self._send(spool, begun)
            if answer is None or not _estimated(spool.upload):
                return spool
            self._drop_spool()
            task = answer

    def _choose(self, spool: Spool, split: Split, tune: int, keep_training: bool) -> Refreshed:
        """Choose what to use after an upload; only then it is done with."""
        drawn, number = self._drawn(), spool.upload.number
        tuned_here = self._tuned(drawn, split.train, "tune", tune) if tune else ()
        among = candidates(self.layout, drawn, spool.models, self._in_use.before(number), tuned_here)
        if keep_training:
            among = with_continued(among, split, lambda models: self._tuned(models, split.train, "continue"))
        choice = choose(among, split)
        self._in_use.use(number, among[choice.won])
        self._drop_spool()
        return Refreshed(among[choice.won], choice, self._moved)

    def draw_now(
        self, learner: Learner | None = None, *, samples: int = 0, accept: Accept = "better", hold_back: float = SHARE
    ) -> Refreshed:
        """Use the model that the server has for this client now: nothing is trained or uploaded, the task stays open.

        With a learner it is used unless what is in use is clearly better on the samples held back; without one, or
        with `accept="always"`, it is used as it is. A client that has not joined joins with so many `samples`.
        """
        split = None if learner is None else split_for(learner, accept, hold_back, self.client)
        drawn = self._fetch_fresh(samples if split is None else split.train.samples)
        self._in_use.begin(self._drawn_or_nothing)
        among = candidates(self.layout, drawn, (), self._in_use.now())
        choice = NOT_JUDGED if split is None else choose(among, split)
        if choice.won == "drawn":
            self._in_use.renew(drawn)
        return Refreshed(among[choice.won], choice)

    def moved(self) -> Moved:
        """How far the server's model for this client moved since its task was made: a question, answered in headers."""
        if not (self.home / "joined").exists():
            raise SettingError("This client has not joined yet", "Call draw() or refresh() first")
        answer = self._ask_for_model("*")
        told, tag = Moved.of(answer.headers.get(MOVED, "")), self._fresh.tag
        return replace(told, changed=answer.headers.get("etag") != tag) if tag else told

    def _tuned(self, models: Ensemble, learner: Learner, purpose: str, epochs: int | None = None) -> Ensemble:
        """These models, trained on by the newest task's plan, for its epochs or for so many."""
        task = self.kept()
        assert task is not None
        plan = Plan.of(task.settings)
        plan = plan if epochs is None else replace(plan, epochs=epochs)
        return tuned(models, learner, seed=derive(task.settings["seed"], purpose), plan=plan)

    @property
    def acknowledgement(self) -> str | None:
        """The server's signed word that it took this client's last upload; None where none came: it signs none, or the
        answer was lost on its way.

        `artesian.verify_acknowledgement` checks it, now or later, with the keys that `keys` fetches.
        """
        data = self._stored("acknowledgement")
        return None if data is None else data.decode()

    def keys(self) -> dict[str, Any]:
        """The server's public keys, with which an acknowledgement is checked: keep them where you keep those."""
        return dict(self.transport.send("GET", "/v1/keys", self.token).json())

    def kept(self) -> Task | None:
        """The newest task at home, without asking anybody."""
        data = self._stored("task")
        return None if data is None else decode("task", data, Task)

    def pending(self) -> Upload | None:
        """An upload that was trained and saved, but not acknowledged yet."""
        spool = self._spool()
        return None if spool is None else spool.upload

    def held(self) -> Ensemble:
        """What the client uses, without asking anybody: what the last refresh chose, or what was drawn before one."""
        return self._in_use.now() or self._drawn()

    def previous(self) -> Ensemble:
        """Go back to what the client used before its last refresh, and return it; nothing is sent."""
        return self._in_use.go_back()

    def draw(self, samples: int = 0, fresh: bool = False) -> Params:
        """The one model that the newest task gives this client, fetched if there is none at home yet.

        With `fresh` it is the one that the server has for it now. That is only fetched: `draw_now` also uses it.
        """
        if fresh:
            return only_model_of(self._fetch_fresh(samples))
        if self._stored("task") is None and self.task(samples) is None:
            raise SettingError("No task yet: the next round has not begun", "Try again later")
        return only_model_of(self._drawn())

    def leave(self) -> None:
        """Leave the federation. Joining again later goes on under the same name."""
        self.transport.send("DELETE", self._path(), self._secret)
        (self.home / "joined").unlink(missing_ok=True)

    # at home

    def _drawn(self) -> Ensemble:
        """What the newest task at home gives the client to predict with."""
        task = self.kept()
        if task is None:
            raise SettingError("No model yet", "Call draw() or refresh() first")
        return self._recipe(task).use(self.layout, task, self._notebook())

    def _drawn_or_nothing(self) -> Ensemble:
        with suppress(SettingError):  # no task yet, or one that brings no model
            return self._drawn()
        return ()

    def _path(self) -> str:
        return f"/v1/clients/{quote(self.client, safe='')}"

    def _join(self, samples: int, changed: bool) -> httpx.Response:
        body = {"samples": samples, "changed": changed, "secret": self._secret}
        with _explained("Check the token: the operator makes one with artesian token make"):
            answer = self.transport.send("PUT", self._path(), self.token, json=body)
        write_file(self.home / "joined", b"")
        return answer

    def _ask_for_task(self, wait: float) -> httpx.Response:
        """The open task, unless it is the one at home: that one is not sent again."""
        kept = self._stored("task")
        known = {} if kept is None else {"if-none-match": f'"{hashlib.sha256(kept).hexdigest()}"'}
        with _explained(f"If the server has a new store, give this client another home, or delete {self.home}"):
            return self.transport.send("GET", f"{self._path()}/task?wait={wait:g}", self._secret, known)

    def _ask_for_model(self, known: str) -> httpx.Response:
        """What the client may use now, unless it is the one with this tag; `*` asks for no model at all."""
        with _explained(f"If the server has a new store, give this client another home, or delete {self.home}"):
            headers = {"if-none-match": known} if known else {}
            return self.transport.send("GET", f"{self._path()}/model", self._secret, headers)

    def _fetch_fresh(self, samples: int) -> Ensemble:
        """What the server has for this client now, kept at home beside the open task."""
        if not (self.home / "joined").exists():
            self.task(samples, wait=0)
        answer = self._ask_for_model(self._fresh.tag)
        if answer.status_code == 200:
            self._checked(answer)
            self._fresh.keep(answer.content)
        task = self._fresh.task()
        return self._recipe(task).use(self.layout, task, self._notebook())

    def _save(self, spool: Spool) -> Spool:
        """On disk before it is sent."""
        write_file(self.home / "spool", encode("spool", spool))
        return spool

    def _send(self, spool: Spool, begun: bool = False) -> Task | None:
        """`begun` says that a part of it may have been sent before."""
        path = f"{self._path()}/uploads/{spool.upload.number}"
        try:
            answer = self.transport.upload(path, self._secret, encode("upload", spool.upload), begun)
        except FINAL:
            self._drop_spool()  # it will never be accepted: the next refresh trains again
            raise
        self._keep_proof(answer)
        task = self._task_in(answer)
        self._taken(spool)
        return task

    def _drop_proof(self) -> None:
        """An answer was lost, and its signed word with it: that for an earlier upload must not stand for it."""
        with storage(self.home):
            (self.home / "acknowledgement").unlink(missing_ok=True)

    def _keep_proof(self, answer: httpx.Response) -> None:
        if signed := answer.headers.get(HEADER):
            write_file(self.home / "acknowledgement", signed.encode())

    def _taken(self, spool: Spool) -> None:
        """The server has the upload: the notebook of its training is valid from now on."""
        if spool.notebook:
            write_file(self.home / "notebook", encode("notebook", spool.notebook))

    def _drop_spool(self) -> None:
        with storage(self.home):
            (self.home / "spool").unlink(missing_ok=True)

    def _task_in(self, answer: httpx.Response) -> Task | None:
        """The task of an answer: a new one, the one at home (304), or none yet."""
        if answer.status_code == 304:
            return self.kept()
        return self._keep(answer) if answer.status_code == 200 else None

    def _keep(self, answer: httpx.Response) -> Task:
        """The task of a response, checked and saved before it is used."""
        task, before = self._checked(answer), self.kept()
        if before is not None and before.number < task.number:
            self._moved = moved_between(self.layout, before, task, max(0, task.base - before.base))
        self._fresh.drop()  # older than this task
        write_file(self.home / "task", answer.content)
        return task

    def _checked(self, answer: httpx.Response) -> Task:
        """The task of a response, if it is whole, fits the federation, and this client has a recipe for it."""
        data, tag = answer.content, answer.headers.get("etag", "").strip('"')
        if hashlib.sha256(data).hexdigest() != tag:
            raise BadFormat("The task was damaged on its way", "Fetch it again")
        task = decode("task", data, Task)
        for params in task.models.values():
            self.layout.check(params)
        self._recipe(task)
        return task

    def _spool(self) -> Spool | None:
        data = self._stored("spool")
        if data is None:
            return None
        spool = decode("spool", data, Spool)
        return replace(spool, notebook=translated_notebook(spool.notebook))

    def _notebook(self) -> Notebook:
        data = self._stored("notebook")
        return {} if data is None else translated_notebook(decode("notebook", data, dict))

    def _recipe(self, task: Task) -> Recipe:
        """What this client does with a task; one it has no recipe for is refused."""
        return recipe(task.recipe, self._recipes)

    def _stored(self, name: str) -> bytes | None:
        path = self.home / name
        if not path.exists():
            return None
        with storage(path):
            return path.read_bytes()


def only_model_of(held: Ensemble) -> Params:
    """The one model of a client that predicts with one."""
    if len(held) != 1:
        problem = f"This client predicts with {len(held)} models, not with one"
        raise SettingError(problem, "Call held(), which gives all of them with their weights")
    ((_, params),) = held
    return params


@contextmanager
def _explained(remedy: str) -> Iterator[None]:
    """A refused credential, with what the owner of this client can do about it, where the server speaks of headers."""
    try:
        yield
    except Unauthorized as error:
        raise Unauthorized(error.problem, remedy if IN_HEADERS in error.remedy else error.remedy) from None


def _check_tune(epochs: int) -> None:
    if type(epochs) is not int or epochs < 0:
        raise SettingError(f"tune must be a number of epochs from 0 on, not {epochs!r}")


def _estimated(upload: Upload) -> bool:
    """Whether it holds only a mixture."""
    return upload.mixture is not None and not upload.models
