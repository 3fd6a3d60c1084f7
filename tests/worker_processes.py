"""Scripts beside the tests that run in processes of their own, with a number of virtual devices, and print JSON."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

_FOLDER = Path(__file__).parent


def start(script, *arguments, devices):
    """A process that runs a script of this folder."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    path = os.pathsep.join([*sys.path, str(_FOLDER.parent)])
    command = [sys.executable, "-W", "error", str(_FOLDER / script), *map(str, arguments)]
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": path}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process):
    """What a process printed after RESULT."""
    output, errors = process.communicate(timeout=1500)
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    assert lines, errors
    return json.loads(lines[-1].removeprefix("RESULT "))


def free_port():
    """A port on which processes can meet."""
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]
