"""P2: the same upload is applied exactly once, however often it is sent, whatever becomes of the answers."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from promises.checks import history, lost_or_twice
from promises.federation import Process, draws, restored, trained, until

from artesian.server.messages import decode_task
from artesian.storage.codec import digest, encode, to_tree

pytestmark = pytest.mark.heavy

CLIENTS = 5


class Stubborn(threading.Thread):
    """Sends every upload four times: once without waiting for the answer, twice at once, and once more."""

    def __init__(self, server: Process, name: str, uploads: int) -> None:
        super().__init__()
        self.server, self.client, self.uploads, self.rng = server, name, uploads, draws("stubborn", name)
        self.secret = f"secret of {name} is long"
        self.sent: dict[int, str] = {}
        self.acknowledged: list[int] = []
        self.sends = self.conflicts = 0
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            task = self.insist(lambda: (200, self.server.join(self.client, self.secret)))
            with ThreadPoolExecutor(2) as pair:
                for _ in range(self.uploads):
                    task = self.one(task, pair)
        except BaseException as error:
            self.failed = error

    def one(self, task: bytes, pair: ThreadPoolExecutor) -> bytes:
        upload = trained(self.client, task)
        body = encode("upload", upload)
        self.sent[upload.number] = digest(to_tree(upload))
        self.drop_answer(upload.number, body)
        answers = list(pair.map(lambda _: self.attempt(upload.number, body), range(2)))
        reply = self.insist(lambda: self.attempt(upload.number, body))
        taken = {told for status, told in answers if status == 200}
        assert taken <= {reply}, f"upload {upload.number} of {self.client} was answered in two ways"
        assert decode_task(reply).number == upload.number + 1
        self.acknowledged.append(upload.number)
        if self.rng.random() < 0.1:
            other = encode("upload", {**to_tree(upload), "samples": upload.samples + 1})
            told = json.loads(self.insist(lambda: self.attempt(upload.number, other), 409))
            assert told["error"] == "Conflict"
            self.conflicts += 1
        return reply

    def attempt(self, number: int, body: bytes) -> tuple[int, bytes]:
        self.sends += 1
        try:
            status, told = self.server.request("PUT", self.path(number), self.secret, body)
        except OSError:
            return 0, b""  # the server was killed: taken or not, nobody knows
        assert status in (0, 200, 409, 429), (status, told)  # 429: one upload of a client at a time
        return status, told

    def insist(self, ask, wanted: int = 200) -> bytes:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            try:
                status, told = ask()
            except OSError:
                status = 0
            if status == wanted:
                return told
            assert status in (0, 429), (status, told)
            time.sleep(0.01)
        raise AssertionError("no answer in two minutes")

    def drop_answer(self, number: int, body: bytes) -> None:
        """Send, and hang up at once or a little later."""
        self.sends += 1
        head = f"PUT {self.path(number)} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self.secret}\r\n"
        try:
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=10) as link:
                link.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
                time.sleep(self.rng.choice([0.0, 0.002, 0.01]))
        except OSError:
            pass

    def path(self, number: int) -> str:
        return f"/v1/clients/{self.client}/uploads/{number}"


def test_every_upload_is_applied_exactly_once(tmp_path, promise, figure) -> None:
    identities = promise("identities")
    restarts = 2 if identities < 1000 else 50
    server = Process(tmp_path, "--set", "keep_uploads=true", "--set", "log=off")
    made = [Stubborn(server, f"c{i}", identities // CLIENTS) for i in range(CLIENTS)]
    for client in made:
        client.start()
    for restart in range(1, restarts + 1):
        share = restart * identities // (restarts + 1)
        until(lambda share=share: sum(len(c.acknowledged) for c in made) >= share or any(c.failed for c in made), 600)
        server.stop()
        server.start()
    for client in made:
        client.join()
    assert not [client.failed for client in made if client.failed]
    server.stop()
    sent, acknowledged = history(made)
    _, journal = restored(tmp_path / "store")
    assert lost_or_twice(sent, acknowledged, journal) == []
    assert len(journal) == identities == len(acknowledged)
    assert sum(client.sends for client in made) >= 4 * identities
    conflicts = sum(client.conflicts for client in made)
    figure(f"{sum(client.sends for client in made)} sends, {restarts} restarts, {conflicts} other bodies refused")
