"""A proxy that serves another server below a prefix, as an operator's own may do."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOP = {"connection", "transfer-encoding", "keep-alive", "content-length"}  # these are between two neighbours


class Forward(BaseHTTPRequestHandler):
    """One request, sent on without the prefix; the answer comes back piece by piece."""

    def __init__(self, port: int, prefix: str, *arguments) -> None:
        self.port, self.prefix = port, prefix
        super().__init__(*arguments)

    def forward(self) -> None:
        self.close_connection = True
        if not self.path.startswith(self.prefix):
            self.send_error(404)
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        kept = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        connection.request(self.command, self.path.removeprefix(self.prefix.rstrip("/")), body, kept)
        reply = connection.getresponse()
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.end_headers()
        try:
            while data := reply.read1(65536):
                self.wfile.write(data)
        except OSError:  # one of the two hung up
            pass
        finally:
            connection.close()

    do_GET = do_POST = forward  # noqa: N815

    def log_message(self, *arguments) -> None:
        pass


@contextmanager
def below(prefix: str, port: int) -> Iterator[str]:
    """The address of a server, below this prefix of another."""
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), partial(Forward, port, prefix))
    proxy.daemon_threads = True
    thread = threading.Thread(target=proxy.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_address[1]}{prefix}"
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
