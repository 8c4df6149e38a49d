"""The live page: what it costs a server with many clients, and how soon a browser shows it.

Run `python benchmarks/page.py`; `--quick` tries it out and writes nothing. A fresh `artesian serve digits-4` is joined
by 500 clients, who upload five times a second in all, over loopback, without training: each sends its task's model
back, moved a little. The server's processor time is read from the system over equal stretches: while nobody watches,
and while one watcher follows the page's stream, in turn; and on a server without a page. A headless Chromium then
opens the page.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from artesian.core import Task, Upload, generator
from artesian.dashboard.assets import assets
from artesian.params import seal
from artesian.storage.codec import decode, encode

HERE = Path(__file__).resolve().parent
TOKEN = re.compile(r"artesian_(?:enrol|admin)_\S+")
SETTINGS = ("log=off", "uploads_per_minute=0", "joins_per_minute=1e9")
GOAL = 2.0  # percent of one core
SECRET = "the secret of {} is long enough"


@dataclass
class Served:
    """A server process, and its clients: each with the task it has."""

    pid: int
    port: int
    enrol: str
    admin: str
    tasks: dict[str, bytes] = field(default_factory=dict)

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, body, headers)
        return connection.getresponse()

    def join(self, clients: int) -> None:
        for i in range(clients):
            name = f"c{i:03d}"
            body = json.dumps({"samples": 50, "secret": SECRET.format(name)}).encode()
            reply = self.request("PUT", f"/v1/clients/{name}", body, authorization=f"Bearer {self.enrol}")
            self.tasks[name] = checked(reply)

    def upload(self, name: str) -> None:
        """The task's model, moved a little: nobody trains here."""
        task = decode("task", self.tasks[name], Task)
        rng = generator(0, "page benchmark", name, task.number)
        models = {k: seal(p + rng.normal(0, 1e-3, p.size).astype(np.float32)) for k, p in task.models.items()}
        metrics = {"score_before": 0.8, "score_after": 0.8 + float(rng.normal(0, 0.05)), "drift": 0.0}
        body = encode("upload", Upload(name, task.number, 50, models, metrics=metrics))
        path, secret = f"/v1/clients/{name}/uploads/{task.number}", SECRET.format(name)
        self.tasks[name] = checked(self.request("PUT", path, body, authorization=f"Bearer {secret}"))

    def spent(self) -> float:
        """Seconds of processor time so far."""
        parts = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")

    def sign_in(self) -> str:
        """The cookie of a session."""
        body, origin = json.dumps({"token": self.admin}).encode(), f"http://127.0.0.1:{self.port}"
        reply = self.request("POST", "/page/login", body, origin=origin)
        checked(reply)
        return (reply.getheader("set-cookie") or "").partition(";")[0]


def checked(reply: http.client.HTTPResponse) -> bytes:
    body = reply.read()
    if reply.status != 200:
        sys.exit(f"the server answered {reply.status}: {body[:200]!r}")
    return body


@contextmanager
def served(folder: Path, page: bool) -> Iterator[Served]:
    folder.mkdir()
    log = folder / "log"
    words = ["serve", "digits-4", "--store", str(folder / "store"), "--port", "0", "--show-token"]
    for setting in (*SETTINGS, f"page={str(page).lower()}"):
        words += ["--set", setting]
    with log.open("w") as said:
        server = subprocess.Popen([sys.executable, "-m", "artesian.cli", *words], stderr=said, stdout=said)
    try:
        while not (address := re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())):
            if server.poll() is not None:
                sys.exit(log.read_text())
            time.sleep(0.1)
        enrol, admin = TOKEN.findall(log.read_text())
        yield Served(server.pid, int(address[1]), enrol, admin)
    finally:
        server.terminate()
        server.wait(timeout=30)


class Watcher(threading.Thread):
    """Follows the page's stream, and counts its bytes and messages."""

    def __init__(self, server: Served) -> None:
        super().__init__(daemon=True)
        self.first = self.later = self.messages = 0
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        self._connection.request("GET", "/page/events", headers={"cookie": server.sign_in()})
        self._socket, self._reply = self._connection.sock, self._connection.getresponse()

    def run(self) -> None:
        with suppress(http.client.HTTPException, OSError):
            self._follow()

    def _follow(self) -> None:
        while line := self._reply.readline():
            if self.messages < 2 and not self.later:
                self.first += len(line)
            else:
                self.later += len(line)
            self.messages += line.startswith(b"event: facts")

    def end(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self.join()
        self._connection.close()


def stretch(server: Served, seconds: float, rate: float) -> float:
    """Percent of one core that the server takes while clients upload at this rate."""
    names, began, before = list(server.tasks), time.monotonic(), server.spent()
    for i in range(round(seconds * rate)):
        time.sleep(max(0.0, began + i / rate - time.monotonic()))
        server.upload(names[int(generator(0, "turn", i).integers(len(names)))])
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    return 100 * (server.spent() - before) / (time.monotonic() - began)


def measure(folder: Path, clients: int, seconds: float, rate: float, repeats: int) -> dict[str, Any]:
    found: dict[str, Any] = {"quiet": [], "watched": [], "bytes": [], "snapshot": [], "off": []}
    with served(folder / "on", page=True) as server:
        server.join(clients)
        stretch(server, min(10.0, seconds), rate)  # warm
        for turn in range(repeats):
            found["quiet"].append(stretch(server, seconds, rate))
            watcher = Watcher(server)
            watcher.start()
            found["watched"].append(stretch(server, seconds, rate))
            watcher.end()
            found["bytes"].append(watcher.later / seconds)
            found["snapshot"].append(watcher.first)
            print(f"turn {turn + 1}: " + ", ".join(f"{k} {v[-1]:.2f}" for k, v in found.items() if v), flush=True)
        found |= paint(folder / "profile", server)
    with served(folder / "off", page=False) as server:
        server.join(clients)
        stretch(server, min(10.0, seconds), rate)
        found["off"] = [stretch(server, seconds, rate) for _ in range(repeats)]
    return found


def paint(profile: Path, server: Served, times: int = 5) -> dict[str, Any]:
    """Milliseconds until a signed-in browser shows anything, and until it shows the clients; medians of reloads."""
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        return {}
    sys.path.insert(0, str(HERE.parent / "tools"))
    from screenshots import browser, sign_in

    shown = "return document.body.dataset.mark ? performance.now() : 0"
    painted = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime || 0"
    found: dict[str, list[float]] = {"paint": [], "facts": []}
    with browser(profile) as driver:
        sign_in(driver, f"http://127.0.0.1:{server.port}", server.admin)
        for _ in range(times):
            time.sleep(1.5)
            driver.refresh()
            found["facts"].append(_until(driver, shown))
            found["paint"].append(_until(driver, painted))
    return found


def _until(driver: Any, script: str) -> float:
    end = time.monotonic() + 20
    while not (value := driver.execute_script(script)) and time.monotonic() < end:
        time.sleep(0.005)
    return float(value)


def page_text(found: dict[str, Any], clients: int, seconds: float, rate: float, repeats: int) -> str:
    middle = {name: statistics.median(values) for name, values in found.items() if values}
    extra, hook = middle["watched"] - middle["quiet"], middle["quiet"] - middle["off"]
    plain = sum(len(asset.body) for asset in assets().values())
    small = sum(len(gzip.compress(asset.body)) for asset in assets().values())
    spread = {name: f"{min(values):.1f} to {max(values):.1f}" for name, values in found.items() if values}
    rows = [
        ("processor, without a page (`page=false`)", f"{middle['off']:.2f}% of a core", spread["off"]),
        ("processor, nobody watches", f"{middle['quiet']:.2f}% of a core", spread["quiet"]),
        ("processor, one watcher", f"{middle['watched']:.2f}% of a core", spread["watched"]),
        ("**one watcher takes**", f"**{extra:.2f}% of a core** (goal: below {GOAL:g}%)", ""),
        ("noting events takes", f"{hook:.2f}% of a core", ""),
        ("stream, after the first message", f"{middle['bytes'] / 1000:.2f} kB/s", ""),
        ("first message, all clients", f"{middle['snapshot'] / 1000:.0f} kB", ""),
        ("files of the page", f"{plain / 1000:.0f} kB plain, {small / 1000:.0f} kB if a proxy compresses them", ""),
    ]
    if "paint" in middle:
        rows.append(("first contentful paint, headless Chromium", f"{middle['paint']:.0f} ms", spread["paint"]))
        rows.append(("clients and charts shown", f"{middle['facts']:.0f} ms", spread["facts"]))
    about = f"{platform.machine()}, {os.cpu_count()} cores; load at the end {os.getloadavg()[0]:.1f}"
    lines = [
        "# The live page",
        "",
        f"{date.today()}, `python benchmarks/page.py`. {about}. Python {platform.python_version()}.",
        "",
        f"`artesian serve digits-4` with {clients} clients that upload {rate:g} times a second in all, over loopback. "
        f"{repeats} stretches of {seconds:g} s each, with and without a watcher in turn; medians. "
        "The last column is their smallest and largest.",
        "",
        "| what | figure | spread |",
        "|---|---|---|",
        *(f"| {what} | {figure} | {wide} |" for what, figure, wide in rows),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--rate", type=float, default=5.0, help="uploads a second, of all clients together")
    parser.add_argument("--seconds", type=float, default=60.0, help="of every stretch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="try it out, and write nothing")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.clients, chosen.seconds, chosen.repeats = 40, 5.0, 1
    own = (chosen.clients, chosen.seconds, chosen.rate, chosen.repeats)
    with tempfile.TemporaryDirectory() as folder:
        text = page_text(measure(Path(folder), *own), *own)
    print(text)
    if not chosen.quick:
        (HERE / "results" / "page.md").write_text(text)


if __name__ == "__main__":
    main()
