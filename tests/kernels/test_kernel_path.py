"""Which path runs: chosen in one place, forced by an environment variable."""

import pytest
import torch

from dagnn.errors import ConfigError
from dagnn.graph import Dag
from dagnn.kernels import kernel_path
from dagnn.nn import DagNN, DagSweep, GRUCell


@pytest.mark.parametrize(("value", "path"), [(None, "compiled"), ("", "compiled"), ("reference", "reference")])
def test_the_reference_path_can_be_forced(monkeypatch, value, path):
    monkeypatch.delenv("DAGNN_KERNELS", raising=False)
    if value is not None:
        monkeypatch.setenv("DAGNN_KERNELS", value)
    assert kernel_path() == path


@pytest.mark.parametrize("value", ["fast", "Reference", "0"])
def test_an_unknown_path_is_refused_by_every_sweep(monkeypatch, value):
    graph = Dag([(0, 1)])
    net, sweep = DagNN(graph), DagSweep(GRUCell(2, 2))
    monkeypatch.setenv("DAGNN_KERNELS", value)
    with pytest.raises(
        ConfigError, match=f"DAGNN_KERNELS='{value}' is not a kernel path: unset it, or set it to one of"
    ):
        net(torch.ones(1))
    with pytest.raises(ConfigError, match="DAGNN_KERNELS"):
        sweep(torch.ones(2, 2), graph)
