"""Puts the project's root on the path: benchmarks are not installed with the package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
