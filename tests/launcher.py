"""A process that has imported everything, and runs commands by forking: a command then costs no imports.

It reads orders as lines of JSON and answers each with a line. When its input ends, so do the processes it made.
"""

import contextlib
import json
import os
import signal
import sys
import traceback
from functools import cache

import typer.main

from artesian.cli import app, main

typer.main.get_command = cache(typer.main.get_command)  # made once, before the forks: it costs more than most commands
typer.main.get_command(app)


def live(order: dict) -> None:
    """The life of a command: the command line, from here to its end."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, key in ((1, "out"), (2, "log")):
            os.dup2(os.open(order[key], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        sys.argv = ["artesian", *order["words"]]
        main()
        code = 0
    except SystemExit as error:
        code = error.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):  # a full disk is what some commands are tried on
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def obey() -> None:
    """Start what is asked for, and say how what was started ended."""
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


if __name__ == "__main__":  # worker processes of a command import this file again
    sys.path.pop(0)  # a command does not find the tests
    exec(os.environ.pop("LAUNCHER_PRELUDE", ""))  # what to import, a doctored server, or one that is listened to
    obey()
