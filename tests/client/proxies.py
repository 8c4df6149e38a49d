"""A proxy that misbehaves as a seed says: between a client and a real server, one fault for each request."""

import random
import socket
import struct
import threading

FAULTS = ("reset the request", "reset the answer", "lose the answer", "cut the answer", "garble", "delay", "429", "503")


class Proxy:
    """Relays HTTP to `upstream`; every request meets a fault with this chance."""

    def __init__(self, upstream: tuple[str, int], seed: int, chance: float = 0.5, faults=FAULTS) -> None:
        self.upstream, self.chance, self.faults = upstream, chance, faults
        self.rng, self.met = random.Random(seed), dict.fromkeys(faults, 0)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._turn, self._threads, self._closing = threading.Lock(), [], False
        self._start(self._accept)

    def close(self) -> None:
        self._closing = True
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in list(self._open):
            hang_up(connection)
        for thread in self._threads:
            thread.join()

    def _start(self, target, *args) -> None:
        thread = threading.Thread(target=target, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self._start(self._serve, connection)

    def _serve(self, client: socket.socket) -> None:
        self._open.add(client)
        try:
            with client.makefile("rb") as reading:
                while not self._closing and (request := message(reading)):
                    if not self._relay(client, request):
                        return
        except OSError:
            pass
        finally:
            self._open.discard(client)
            client.close()

    def _relay(self, client: socket.socket, request: bytes) -> bool:
        """One request; False if the connection is over."""
        with self._turn:
            fault = self.rng.choice(self.faults) if self.rng.random() < self.chance else "none"
            where = self.rng.random()
            self.met[fault] = self.met.get(fault, 0) + 1
        if fault in ("429", "503"):
            told = b"HTTP/1.1 %s Later\r\ncontent-length: 6\r\nretry-after: 1\r\n\r\n<html>" % fault.encode()
            client.sendall(told)
            return True
        with socket.create_connection(self.upstream) as server:
            self._open.add(server)
            try:
                return self._through(client, server, request, fault, where)
            finally:
                self._open.discard(server)

    def _through(self, client: socket.socket, server: socket.socket, request: bytes, fault: str, where: float) -> bool:
        if fault == "reset the request":
            server.sendall(request[: int(where * len(request))])
            hang_up(server)
            hang_up(client)
            return False
        server.sendall(request)
        with server.makefile("rb") as reading:
            answer = message(reading, bodiless=request.startswith(b"HEAD"))
        if fault == "delay":
            threading.Event().wait(0.05)
        if fault == "garble":
            answer = garbled(answer, where)
        if fault in ("reset the answer", "cut the answer", "lose the answer"):
            client.sendall(b"" if fault == "lose the answer" else answer[: int(where * len(answer))])
            if fault == "reset the answer":
                hang_up(client)
            return False
        client.sendall(answer)
        return True


def message(reading, bodiless: bool = False) -> bytes:
    """One HTTP message, head and body; nothing when the other side has gone."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = reading.readline()
        if not line:
            return b""
        head += line
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    length = int(lengths[0].split(b":")[1]) if lengths and not bodiless else 0
    return head + reading.read(length)


def garbled(answer: bytes, where: float) -> bytes:
    """One bit of the body is another."""
    start = answer.index(b"\r\n\r\n") + 4 if answer else 0
    if start == len(answer):
        return answer
    place = start + int(where * (len(answer) - start))
    return answer[:place] + bytes([answer[place] ^ 1]) + answer[place + 1 :]


def hang_up(connection: socket.socket) -> None:
    """Close at once, with a reset."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
