"""Networks that run in Triton kernels inside DistributedDataParallel, in Triton's interpreter, on the CPU."""

import os
import sys

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dagnn.graph import Dag, DagBatch
from dagnn.kernels import autograd, choose_path
from dagnn.nn import DagNN, DagSweep, GRUCell, WideDagNN

if "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"  # read once, when triton is imported
triton = pytest.importorskip("triton", reason="triton is not installed: make test-triton runs these tests")
if not triton.knobs.runtime.interpret:
    pytest.skip(
        "triton was imported for a GPU before: run these tests in a process of their own", allow_module_level=True
    )

from dagnn.kernels.gpu import network as gpu_network  # noqa: E402
from dagnn.kernels.gpu import sweep as gpu_sweep  # noqa: E402
from dagnn.kernels.gpu import wide as gpu_wide  # noqa: E402

DAG = Dag([(0, 2), (1, 2), (1, 3), (2, 3), (0, 4), (3, 4)])
X = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
CASES = {
    "network": (gpu_network, lambda: DagNN(DAG, activation="tanh"), (X,)),
    "wide": (gpu_wide.GpuWide, lambda: WideDagNN(DAG, width=3, normalise="batch"), (X,)),
    "sweep": (gpu_sweep.GpuSweep, lambda: DagSweep(GRUCell(2, 4)), (X, DagBatch.from_dags([DAG]))),
}


@pytest.fixture
def alone():
    """A process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", CASES)
def test_gradients_inside_the_wrapper_are_those_of_the_module_alone(name, alone, monkeypatch):
    runs_in, make, given = CASES[name]

    def gradients(*, wrapped: bool) -> torch.Tensor:
        torch.manual_seed(0)
        module = make().double()
        model = DistributedDataParallel(module) if wrapped else module
        for _ in range(2):  # the wrapper divides gradients into its buckets anew after the first pass
            model.zero_grad()
            model(*given).square().mean().backward()
        return torch.cat([parameter.grad.flatten() for parameter in module.parameters()])

    expected = gradients(wrapped=False)
    monkeypatch.setattr(choose_path, "_is_compiled", lambda *tensors: False)
    monkeypatch.setattr(choose_path, "_is_on_gpu", lambda *tensors: True)
    for module in (autograd, gpu_network, gpu_sweep):
        monkeypatch.setattr(module, "is_plain_on_gpu", autograd.is_plain)
    passes = []
    forward = runs_in.forward
    monkeypatch.setattr(runs_in, "forward", lambda *parts: passes.append(1) or forward(*parts))
    torch.testing.assert_close(gradients(wrapped=True), expected, rtol=1e-10, atol=1e-12)
    assert len(passes) == 2
