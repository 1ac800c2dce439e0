"""Which path runs: chosen in one place, forced by an environment variable."""

import pytest
import torch

from dagnn.errors import ConfigError
from dagnn.graph import Dag
from dagnn.kernels import kernel_path
from dagnn.kernels.emit import native
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


@pytest.mark.fault("graphs_and_networks", 21)
@pytest.mark.parametrize(("value", "largest"), [(None, 64), ("", 64), ("16", 16), ("32", 32), ("64", 64)])
def test_vectors_are_as_wide_as_the_processor_and_the_user_allow(monkeypatch, value, largest):
    monkeypatch.delenv("DAGNN_VECTOR_BYTES", raising=False)
    own = native.host_target.__wrapped__()
    if value is not None:
        monkeypatch.setenv("DAGNN_VECTOR_BYTES", value)
    target = native.host_target.__wrapped__()
    assert target.vector_bytes == min(largest, own.vector_bytes)
    used = {name[1:] for name in target.features.split(",") if name.startswith("+")}
    wider = {16: ("avx", "fma"), 32: ("avx512",), 64: ("none",)}[largest]
    assert not any(name.startswith(wider) for name in used)


@pytest.mark.parametrize("value", ["8", "128", "sixteen", "16.0", " 16"])
def test_another_width_is_refused(monkeypatch, value):
    monkeypatch.setenv("DAGNN_VECTOR_BYTES", value)
    with pytest.raises(ConfigError, match=f"DAGNN_VECTOR_BYTES='{value}' is no size of a vector: unset it, or set it"):
        native.host_target.__wrapped__()
