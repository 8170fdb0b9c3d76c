"""`vgrpo serve` as a process of its own."""

import subprocess
import sys
from contextlib import contextmanager


def command(*words):
    """Return its command line."""
    return [sys.executable, "-m", "vgrpo_cli", "serve", *map(str, words)]


@contextmanager
def started(words, env=None):
    """Start it, and yield the process and its address once it is ready."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            said = [process.stdout.readline()]
            while said[-1] and not said[-1].startswith("ready"):
                said.append(process.stdout.readline())
            assert said[-1], process.stderr.read()
            yield process, said[0].split(" at ")[1].split(": ")[0]
        finally:
            process.kill()
