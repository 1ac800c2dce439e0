"""numba needs no place to write."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import dagnn.ged, dagnn.nn, dagnn.curriculum
from dagnn.numba_jit import jitted
print(jitted(lambda x: x + 1)(2))
"""


@pytest.mark.fault("graphs_and_networks", 22)
def test_an_installation_that_cannot_be_written_to_works():
    # The places where numba looks for one are left out: root may write everywhere.
    environment = {**os.environ, "NUMBA_CACHE_LOCATOR_CLASSES": "IPythonCacheLocator", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert (ran.stdout, ran.stderr) == ("3\n", "")
