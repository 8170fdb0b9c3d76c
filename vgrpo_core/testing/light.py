"""Importing a plugin costs next to nothing: `vgrpo check` and `vgrpo plugins` import every plugin that is installed."""

from __future__ import annotations

import os
import subprocess
import sys

from .plugin import expect

HEAVY = (
    "accelerate", "cv2", "datasets", "diffusers", "jax", "matplotlib", "numpy", "onnxruntime", "open_clip", "pandas", "peft", "PIL",
    "scipy", "skimage", "sklearn", "tensorflow", "timm", "torch", "torchvision", "transformers", "ultralytics",
)  # fmt: skip
PROGRAM = """
import importlib, sys
before = set(sys.modules)
importlib.import_module(sys.argv[1])
print(*sorted((sys.modules.keys() - before) & set(sys.argv[2:])))
"""


def check_light(module_name: str) -> None:
    """Check that a fresh interpreter with the same path imports no heavy library, such as torch or numpy, along with a module."""
    command = [sys.executable, "-c", PROGRAM, module_name, *HEAVY]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    last = (done.stderr.strip().splitlines() or [""])[-1]
    expect(done.returncode == 0, f'module "{module_name}" can not be imported by itself: {last}')
    found = done.stdout.splitlines()[-1]  # the module may print
    expect(not found, f'importing "{module_name}" imports {", ".join(found.split())}: import it where the plugin is loaded')
