"""A process that has imported everything, and makes server processes by forking: a restart then costs no imports.

It reads orders as lines of JSON and answers each with a line. When its input ends, so do the servers it made.
"""

import json
import os
import signal
import sys

import uvicorn  # noqa: F401

import artesian.server.serve  # noqa: F401
from artesian.algorithms import CDFL  # noqa: F401
from artesian.cli import main
from artesian.testing import ToyModel  # noqa: F401


def live(order: dict) -> None:
    """The life of a server: the command line, from here to its end."""
    code = 1
    try:
        os.close(0)
        os.dup2(os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
        os.dup2(2, 1)
        os.chdir(order["folder"])
        os.environ.update(order["environment"])
        sys.argv = ["artesian", *order["words"]]
        main()
        code = 0
    except SystemExit as error:
        code = error.code or 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def obey() -> None:
    alive: set[int] = set()
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "words" in order:
            pid = os.fork()
            if pid == 0:
                live(order)
            alive.add(pid)
            print(pid, flush=True)
            continue
        pid, status = os.waitpid(order["poll"], os.WNOHANG)
        alive.discard(pid)
        print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


exec(os.environ.get("PROMISES_PRELUDE", ""))  # a doctored server, or one that is listened to
obey()
