"""Settings of all tests: few examples by default, no deadlines, the same examples on every CI run."""

import gc
import os

import torch
from hypothesis import HealthCheck, settings
from tqdm import tqdm

# Machines that run tests are slow and shared: a slow example says nothing about the code.
settings.register_profile(
    "default",
    max_examples=25,
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

torch.set_num_threads(1)
# Its thread outlives the bar, and a first gradient is kept in another way where other threads run.
tqdm.monitor_interval = 0


def pytest_collection_finish():
    """Thousands of tests and their modules stay to the end: no collection of garbage walks them again."""
    gc.collect()
    gc.freeze()
