"""A server of one's own: `vgrpo serve` started in another environment, and ended with whoever started it.

The two speak over the child's standard input and output before they do over HTTP. The parent writes one line of JSON, the reward's
options, and keeps the pipe open: when it closes, the parent is gone, however it went, and the child ends. The child writes one
line, its port, when the reward is loaded.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import IO, Any

from vgrpo_core import PluginError, RunError

TOKEN = "VGRPO_SERVE_TOKEN"
KEPT_LINES = 30
GRACE = 5.0  # seconds to end by itself


@dataclass(eq=False)
class Child:
    """A server that runs as long as this object is used."""

    source: str
    process: subprocess.Popen[str]
    errors: deque[str]
    """The last lines that it wrote to stderr."""
    reader: threading.Thread
    token: str
    url: str = ""

    def check(self) -> None:
        """Raise a RunError, with its last words, if it has ended."""
        if self.process.poll() is not None:
            raise RunError(f"{self.source} has ended with exit code {self.process.returncode}; it said:\n{self.last_words()}")

    def last_words(self) -> str:
        """Return the end of what it wrote to stderr."""
        self.reader.join(1)  # what was written before it ended is still on its way
        return "".join(f"  {line}" for line in self.errors).rstrip() or "  nothing"


def start(python: str, reward: str, options: Mapping[str, Any], device: str, patience: float) -> Child:
    """Start a server with an interpreter and wait until it is ready; what it said is in the PluginError if it is not in time."""
    source = f'reward "{reward}" under {python}'
    program = shutil.which(os.path.expanduser(python))  # noqa: PTH111 - a bare name is looked for on the path
    if program is None:
        raise PluginError(f"{source}: there is no such program", fix="`python` is the interpreter of a virtual environment.")
    words = ["serve", reward, "--attached", "--port", "0", "--token-env", TOKEN, "--device", device]
    child = _spawn(source, [program, "-m", "vgrpo_cli", *words])
    assert child.process.stdin and child.process.stdout
    with suppress(BrokenPipeError):  # it has ended already: so says the line that is missing
        child.process.stdin.write(json.dumps(dict(options)) + "\n")
        child.process.stdin.flush()
    line = _first_line(child.process.stdout, patience)
    if line is None or not line.strip().isdecimal():
        _stop(child.process)
        what = f"was not ready after {patience:g} s" if line is None else "did not start"
        fix = 'It needs the plugin and "vgrpo[serve]" in its environment.'
        raise PluginError(f"{source} {what}; it said:\n{child.last_words()}", fix=fix)
    child.url = f"http://127.0.0.1:{int(line)}"
    return child


def _spawn(source: str, command: list[str]) -> Child:
    token = secrets.token_urlsafe()
    # Another interpreter has its own packages: these two would give it those of this one.
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    process = subprocess.Popen(
        command,
        env=kept | {TOKEN: token},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    assert process.stderr
    errors: deque[str] = deque(maxlen=KEPT_LINES)
    reader = threading.Thread(target=errors.extend, args=(process.stderr,), daemon=True)
    reader.start()
    child = Child(source, process, errors, reader, token)
    weakref.finalize(child, _stop, process)  # also when this program ends
    return child


def _first_line(stream: IO[str], patience: float) -> str | None:
    """Return a line, "" at the end of the stream, or None where nothing comes in time."""
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=lambda: lines.put(stream.readline()), daemon=True).start()
    try:
        return lines.get(timeout=patience)
    except Empty:
        return None


def _stop(process: subprocess.Popen[str]) -> None:
    """Close the pipe that keeps the child alive; kill it if that does not help."""
    assert process.stdin
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def attach() -> tuple[dict[str, Any], IO[str]]:
    """Be the child: return the options, and where to write the port; from now on the end of stdin is the end of this process.

    What plugins print goes to stderr, so that it is not taken for the port. Signals that stop a run, which go to all of its
    processes on some clusters, do not stop this one: the run needs it to finish an iteration.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # SIG_IGN would be handed on to programs that the reward starts
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    options = json.loads(sys.stdin.readline() or "{}")
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    return options, answer


def _end_with_stdin() -> None:
    while os.read(0, 1024):
        pass
    os._exit(0)  # an exception would end this thread alone; there is nothing to save
