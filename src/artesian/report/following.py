"""A run folder as the live page shows it, read on while the run goes on. Nothing is written."""

from __future__ import annotations

import csv
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from artesian.core import ClientId, ClusterId
from artesian.dashboard.chronicle import About, Chronicle, Exchange, rounded
from artesian.errors import ArtesianError, NoRun, SettingError
from artesian.simulator.folder import read_json
from artesian.simulator.saved_runs import config_of, mixtures_in
from artesian.storage.files import storage

MOST = 12  # runs on one page
LATEST = 1e12  # a moment beyond it is damage
BLOCK = 1 << 24  # bytes of a file that are read at once
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, csv.Error)  # of a line
Row = dict[str, str]
T = TypeVar("T")


class Tail:
    """The whole lines of a file that were not read yet; one that is still being written waits."""

    def __init__(self, path: Path) -> None:
        self.path, self._at = path, 0

    @property
    def was_cut(self) -> bool:
        """Whether the file is shorter than what was read: the run was resumed from an earlier snapshot."""
        return self._size() < self._at

    def lines(self) -> Iterator[bytes]:
        """What is new, read a block at a time."""
        while self._size() > self._at:
            with storage(self.path), open(self.path, "rb") as file:
                file.seek(self._at)
                block = file.read(BLOCK)
            whole, newline, _ = block.rpartition(b"\n")
            if not newline and len(block) < BLOCK:
                return
            self._at += len(whole) + len(newline) if newline else len(block)  # no line of ours is as long as a block
            yield from whole.splitlines()

    def _size(self) -> int:
        with storage(self.path):
            return self.path.stat().st_size if self.path.exists() else 0


class TailedTable:
    """The new rows of a CSV table, by column; columns that are not known are harmless."""

    def __init__(self, path: Path) -> None:
        self.tail, self._columns = Tail(path), list[str]()

    def rows(self) -> Iterator[Row]:
        """What is new; of a line that is damaged, nothing."""
        for line in self.tail.lines():
            try:
                (cells,) = csv.reader([line.decode()])
            except DAMAGE:
                cells = []
            if self._columns:
                yield dict(zip(self._columns, cells, strict=False))
            else:
                self._columns = cells


class FollowedRun:
    """One run: its chronicle, and how far its files were read."""

    def __init__(self, folder: Path, key: str, name: str = "") -> None:
        self.folder, self.key = folder, key
        config = config_of(folder)
        try:
            self._algorithm = str(config["experiment"]["algorithm"]["name"])
            self.name = name or f"{config['experiment']['name']}, seed {config['seed']}"
        except (LookupError, TypeError):
            raise NoRun(f"{folder / 'config.json'} is not of a run", "Name a folder that simulate wrote") from None
        self.turns = 0  # how often it was read from its beginning
        self.chronicle = self._begin()

    def _begin(self) -> Chronicle:
        self.turns += 1
        names = ("metrics", "clusters", "shares")
        self._metrics, self._clusters, self._shares = (TailedTable(self.folder / f"{name}.csv") for name in names)
        self._journal = Tail(self.folder / "journal.jsonl")
        self._totals: Counter[str] = Counter()
        self._answered: Counter[ClientId] = Counter()
        self._present: dict[ClientId, bool] = {}
        self._mixtures: dict[int, dict[ClusterId, float]] = {}  # by upload, where the run exports them
        self._known: dict[ClientId, dict[ClusterId, float]] = {}  # the newest mixture of each client
        self._snapshot = ""
        self._damaged = False  # was something found that cannot be read?
        live = not (self.folder / "summary.json").exists()
        return Chronicle(About(self.key, self.name, self._algorithm, "virtual", live), step=1.0)

    def read(self) -> None:
        """Take in what was written since; where the run went back or ended, it is read from its beginning again."""
        tails = (self._journal, self._metrics.tail, self._clusters.tail, self._shares.tail)
        ended = self.chronicle.about.live and (self.folder / "summary.json").exists()
        if ended or any(tail.was_cut for tail in tails):
            self.chronicle = self._begin()
        self._take(self._event, self._journal.lines())
        self._take(self._share, self._shares.rows())
        self._take(self._upload, self._metrics.rows())
        self._take(self._score, self._clusters.rows())
        self._take(lambda tell: tell(), (self._read_mixtures, self._tell_totals))

    # inside

    def _take(self, take: Callable[[T], None], found: Iterable[T]) -> None:
        """Take in one after the other; what is damaged is left out, and told once."""
        try:
            for one in found:
                try:
                    take(one)
                except DAMAGE:
                    self._note_damage()
        except ArtesianError:  # the file itself cannot be read
            self._note_damage()

    def _note_damage(self) -> None:
        if not self._damaged:
            self.chronicle.notice("alarm", float(self._totals["time"]), "Some of its files cannot be read")
        self._damaged = True

    def _event(self, line: bytes) -> None:
        text = line[9:]
        if line[:9] == b"%08x " % zlib.crc32(text):  # a damaged journal is not this reader's business
            self._note(json.loads(text))

    def _score(self, row: Row) -> None:
        self.chronicle.measure("accuracy", row["cluster"], _time(row["time"]), float(row["accuracy"]))

    def _note(self, record: dict[str, Any]) -> None:
        time, client = _time(record["time"]), str(record.get("client", ""))
        self._totals["time"] = max(self._totals["time"], round(time))
        if record["kind"] in ("join", "leave"):
            self._present[client] = record["kind"] == "join"
            self.chronicle.notice("membership", time, "joined" if self._present[client] else "left", client)
        elif record["kind"] == "upload":
            self._totals["uploads"] += 1
        for cluster, loss in record.get("appraisals", {}).items():
            self.chronicle.measure("loss", cluster, time, loss)
        for name, why in record.get("set_aside", {}).items():
            self._totals["set_aside"] += 1
            self.chronicle.notice("aside", time, f"upload not folded: {why}", name.rpartition("/")[0])

    def _share(self, row: Row) -> None:
        if share := _number(row, "estimated"):
            self._mixtures.setdefault(int(row["upload"]), {})[row["cluster"]] = share

    def _upload(self, row: Row) -> None:
        client, time, staleness = row["client"], _time(row["time"]), _count(row["staleness"])
        self._totals["version"] = max(self._totals["version"], _count(row["version"]))
        self._answered[client] += 1
        accepted = _number(row, "accepted")
        mixture = self._mixtures.pop(int(row["upload"]), None)
        exchange = Exchange(
            time=time,
            client=client,
            number=self._answered[client],
            staleness=staleness,
            mixture=mixture,
            before=_number(row, "before"),
            after=_number(row, "after") if accepted is None else accepted,
            drift=_number(row, "drift"),
        )
        self.chronicle.upload(exchange)
        self._tell_member(client, mixture)

    def _tell_member(self, client: ClientId, mixture: dict[ClusterId, float] | None) -> None:
        if mixture:
            self._known[client] = mixture
        row = {"answered": self._answered[client], "present": self._present.get(client, True), "standing": "member"}
        self.chronicle.member(client, {**row, "mixture": rounded(self._known.get(client))})

    def _read_mixtures(self) -> None:
        """The mixtures that the run found, once for every snapshot: where it exports none, they have no history."""
        newest = max((path.name for path in (self.folder / "snapshots").glob("*.json")), default="")
        if newest == self._snapshot and self.chronicle.about.live:
            return
        self._snapshot = newest
        for client, (_, found) in mixtures_in(self.folder).items():
            if found is not None and client in self._answered:
                self._tell_member(client, dict(found))

    def _tell_totals(self) -> None:
        present, members = sum(self._present.values()), len(self._present)
        self.chronicle.table("totals", {**self._totals, "present": present, "members": members})
        summary = self.folder / "summary.json"
        if summary.exists():
            refused = dict(read_json(summary).get("refusals") or {})
            self.chronicle.table("reasons", {str(why): _count(times) for why, times in refused.items()})


def followed(places: Sequence[Path]) -> list[FollowedRun]:
    """Every run at or below these folders, finished or not, under names that tell them apart."""
    folders = list(dict.fromkeys(path.resolve() for place in places for path in _runs(place)))
    if len(folders) > MOST:
        raise SettingError(f"{len(folders)} runs are too many for one page", f"Name at most {MOST} runs")
    names = _names(folders)
    return [FollowedRun(folder, f"run{i}", names[i]) for i, folder in enumerate(folders)]


def _runs(place: Path) -> list[Path]:
    if not place.is_dir():
        raise NoRun(f"No such folder: {place}", "Name a folder that simulate wrote")
    if (place / "config.json").is_file():
        return [place]
    found = [path.parent for path in sorted(place.glob("**/config.json")) if (path.parent / "journal.jsonl").is_file()]
    if not found:
        raise NoRun(f"No run in the folder {place}", "Name one that simulate wrote")
    return found


def _names(folders: Sequence[Path]) -> list[str]:
    """The ends of paths, as long as they must be to differ."""
    for length in range(1, 6):
        names = ["/".join(folder.parts[-length:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _number(row: Row, column: str) -> float | None:
    try:
        value = float(row.get(column) or "nan")
    except ValueError:
        return None
    return value if isfinite(value) else None


def _time(told: Any) -> float:
    """A moment of a run, which every chart can show."""
    time = float(told)
    if not abs(time) < LATEST:
        raise ValueError("not a moment")
    return time


def _count(told: Any) -> int:
    count = int(told)
    if not 0 <= count < 1 << 53:
        raise ValueError("not a count")
    return count
