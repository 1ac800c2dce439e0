"""Kernels compiled for processors and systems that are not at hand: the assembly is read, not run."""

import re

import llvmlite.binding as llvm
import pytest

from dagnn.kernels import ACTIVATIONS
from dagnn.kernels.emit import native
from dagnn.kernels.emit.native import Target
from dagnn.kernels.network import Shape, compiled_plan
from dagnn.kernels.network.aggregation import BY_EDGE, SCALED

ARM = Target("cortex-a76", "+neon", vector_bytes=16, fma=True)
AVX2 = Target("haswell", "", vector_bytes=32, fma=True)
AVX512 = Target("skylake-avx512", "+prefer-256-bit,-prefer-256-bit", vector_bytes=64, fma=True)
# A fused multiply-add on a whole register of float32 and of float64.
FUSED = {
    ARM: (r"\bfml[as](?:\.4s\b|\s+v\d+\.4s)", r"\bfml[as](?:\.2d\b|\s+v\d+\.2d)"),
    AVX2: (r"\bvfn?m(add|sub)\w*ps\b.*%ymm", r"\bvfn?m(add|sub)\w*pd\b.*%ymm"),
    AVX512: (r"\bvfn?m(add|sub)\w*ps\b.*%zmm", r"\bvfn?m(add|sub)\w*pd\b.*%zmm"),
}
MACHINES = {
    "aarch64-unknown-linux-gnu": ARM,
    "arm64-apple-macosx14.0": ARM,
    "x86_64-pc-windows-msvc": AVX2,
    "x86_64-apple-macosx14.0": AVX2,
    "x86_64-unknown-linux-gnu": AVX512,
}


def assembly_for(triple: str, target: Target, module: str) -> str:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # Positions that a call names, where the large model of just-in-time code would call what a register holds.
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small"
    )
    parsed = llvm.parse_assembly(module)
    parsed.verify()
    return machine.emit_assembly(parsed)


# The systems of one kind of processor differ in how functions are called, which has nothing to do with the dtype.
@pytest.mark.parametrize(
    ("triple", "double"),
    [
        pytest.param(triple, double, marks=() if double == ("linux" in triple) else pytest.mark.slow)
        for triple in MACHINES
        for double in (False, True)
    ],
)
def test_the_passes_of_a_network_use_the_vectors_of_every_processor(monkeypatch, triple, double):
    target, modules = MACHINES[triple], []
    monkeypatch.setattr(compiled_plan, "compiled", lambda module, names, target: modules.append(module))
    shape = Shape(double, target, 32, tuple(sorted(ACTIVATIONS)), False, False, (SCALED, *BY_EDGE))
    for functions in (compiled_plan.tile_functions, compiled_plan.block_functions, compiled_plan.single_functions):
        functions.__wrapped__(shape)
    assembly = "\n".join(assembly_for(triple, target, module) for module in modules)
    assert len(re.findall(FUSED[target][double], assembly)) > 100
    # No library is called: what a compiler may turn into calls, such as a multiply-add or an exponential, stays inside.
    called = set(re.findall(r"^\s+(?:bl|callq?)\s+_?([A-Za-z]\w*)", assembly, re.MULTILINE))
    assert called == {"read_rows", "write_rows"}, called


def test_an_unknown_processor_is_one_with_the_least_registers(monkeypatch):
    def unknown():
        raise RuntimeError

    monkeypatch.setattr(native.llvm, "get_host_cpu_features", unknown)
    assert native.host_target.__wrapped__() == native.PLAIN
