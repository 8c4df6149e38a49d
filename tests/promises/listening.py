"""What a server process does while nobody looks: the audit events of Python itself, written to a file."""

from pathlib import Path

# runs in the server's process, before it serves
PRELUDE = """
import sys
HEARD = ("pickle.find_class", "marshal.loads", "exec", "compile", "os.system", "subprocess.Popen", "os.exec",
         "os.posix_spawn", "ctypes.dlopen", "open", "os.rename", "os.mkdir", "os.remove", "os.link", "os.symlink",
         "os.rmdir", "shutil.rmtree", "sqlite3.connect", "socket.connect")

def _listening():
    handles = {}
    def hook(event, args):
        path = os.environ.get("PROMISES_AUDIT")
        if path and event in HEARD:
            pid = os.getpid()
            if pid not in handles:
                handles[pid] = None  # while this file is opened, its own opening is not heard
                handles[pid] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            if handles[pid] is not None:
                shown = [a if isinstance(a, (str, int)) else repr(a)[:200] for a in args[:3]]
                os.write(handles[pid], (json.dumps([event, *shown]) + "\\n").encode())
    sys.addaudithook(hook)

_listening()
"""


def heard(path: Path, after: int = 0) -> list[list]:
    """The events since a size of the file."""
    import json

    return [json.loads(line) for line in path.read_bytes()[after:].decode().splitlines()]
