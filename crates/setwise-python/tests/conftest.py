"""Fixtures of all tests."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import setwise

ROOT = Path(__file__).resolve().parents[3]


def _find_command():
    given = os.environ.get("SETWISE_COMMAND")
    if given:
        assert Path(given).is_file(), f"SETWISE_COMMAND: {given} is not a file"
        return str(Path(given).resolve())
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = [target / profile / "setwise" for profile in ("release", "debug")]
    return next((str(path) for path in built if path.is_file()), None) or shutil.which("setwise")


@pytest.fixture(scope="session")
def program():
    """Path of the command line."""
    found = _find_command()
    if found is None:
        pytest.skip("the command line is not built; run cargo build")
    return found


@pytest.fixture(scope="session")
def command(program):
    """Runs the command line and returns its JSON output."""

    def run(*arguments):
        done = subprocess.run([program, *map(str, arguments), "--json"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture
def samples():
    """P and Q of 120 and 90 rows in three dimensions."""
    rng = np.random.default_rng(5)
    return rng.normal(size=(120, 3)), 1.3 * rng.normal(size=(90, 3)) + 0.4


@pytest.fixture
def small():
    """A small model of two sets of two columns."""
    return setwise.Model.create("multi-set-transformer", dim=2, latent=8, hidden=16, blocks=1, seed=3)
