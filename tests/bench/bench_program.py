"""Runs a bench as people and programs call it."""

import os
import pathlib
import subprocess

BIN_DIR = pathlib.Path(os.environ["ATTND_BIN_DIR"])
TIMEOUT_S = 120


def run(name, *arguments):
    return subprocess.run([BIN_DIR / name, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S)
