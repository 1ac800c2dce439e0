"""Formulas: on tensors and compiled the same, derivatives as autograd's, and errors that quote a line."""

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import ir
from torch import Tensor

from dagnn.errors import ConfigError
from dagnn.kernels.emit.expressions import Expr, Graph, over
from dagnn.kernels.emit.formula import Formula, ancestors, gradients, record
from dagnn.kernels.emit.functions import Registers
from dagnn.kernels.emit.native import PLAIN, Frame, Target, compiled, host_target
from dagnn.kernels.emit.writer import CodeWriter

EPS = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
FLOATS = [torch.float32, torch.float64]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, math.inf, -math.inf, math.nan, 1e-3, -1e-3, 30.0, -30.0]


def run_compiled(formula: Formula, *given: Tensor, target: Target | None = None) -> list[Tensor]:
    """The outputs of a formula as machine code, for inputs ``[n]``."""
    target = target or host_target()
    double, size = given[0].dtype == torch.float64, given[0].element_size()
    lanes = target.vector_bytes // size
    n = -(-len(given[0]) // lanes) * lanes
    x = torch.stack([torch.nn.functional.pad(one, (0, n - len(one))) for one in given]).contiguous()
    y = x.new_empty(len(formula.outputs), n)
    module = ir.Module("test")
    code = CodeWriter(module, "formula", double=double, lanes=lanes, target=target)
    code.fields("x", "y", "batch")
    with code.loop(code.i64(0), code.field("batch"), lanes) as index:

        def row(field: str, number: int) -> ir.Value:
            start = code.build.mul(code.i64(number), code.field("batch"))
            return code.at(code.field(field), code.build.add(start, index), size)

        known = {one: code.load(row("x", k), code.vector, size) for k, one in enumerate(formula.inputs)}
        registers = Registers(code, known)
        for k, one in enumerate(formula.outputs):
            code.store(registers.value(one), row("y", k), size)
    code.finish()
    function = compiled(str(module), ("formula",), target)["formula"]
    frame = Frame()
    frame.set(x=x.data_ptr(), y=y.data_ptr(), batch=n)
    function(frame.address)
    return [one[: len(given[0])] for one in y]


ONE = {
    "exp": (lambda z: torch.exp(z), 3),
    "log": (lambda z: z.log(), 3),
    "tanh": (lambda z: torch.tanh(z), 8),
    "sigmoid": (lambda z: z.sigmoid(), 5),
    "relu": (lambda z: torch.nn.functional.relu(z), 0),
    "sqrt": (lambda z: z.sqrt(), 0),
    "sin": (lambda z: torch.sin(z), 3),
    "cos": (lambda z: torch.cos(z), 3),
    "abs": (lambda z: abs(z), 0),
    "square": (lambda z: z**2 + 0 * z, 1),
    "silu": (lambda z: torch.nn.functional.silu(z), 6),
    "clamp": (lambda z: z.clamp(-1, 2), 0),
    "reciprocal": (lambda z: 1 / z, 0),
}
TWO = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: 2 - (x - y),
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "fused": lambda x, y: torch.addcmul(x, x, y),
    "maximum": lambda x, y: torch.maximum(x, y),
    "minimum": lambda x, y: torch.minimum(x, y),
    "less": lambda x, y: torch.where(x < y, x, 1.0),
    "equal": lambda x, y: torch.where(x == y, x * 2, y),
    "clamp": lambda x, y: torch.clamp(x, min=y),
    "below": lambda x, y: x.clamp(max=y),
    "conditions": lambda x, y: torch.where((x <= y) & ~(y > 1) | (x != x), x, -y),
}


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_are_as_exact_as_their_dtype_allows(dtype):
    z = torch.cat([torch.linspace(-80, 80, 4001), torch.logspace(-30, 7, 400), -torch.logspace(-30, 7, 400)])
    z = torch.cat([z.to(dtype), torch.nextafter(torch.ones(2), torch.tensor([0.0, 2.0])).to(dtype)])
    all_of_them = run_compiled(record(lambda z: tuple(function(z) for function, _ in ONE.values())), z)
    for (name, (function, ulps)), ours in zip(ONE.items(), all_of_them, strict=True):
        theirs = function(z.double())
        # Large results overflow float32, and below the normal numbers exp gives 0; the language promises normal ones.
        fits = (theirs.abs() < torch.finfo(dtype).max) & (theirs.abs() > torch.finfo(dtype).tiny)
        error = ((ours.double() - theirs) / theirs).abs()[fits] / EPS[dtype]
        extra = 0 if dtype == torch.float32 else 6  # the reference itself is off by as much
        assert error.max() <= 2 * (ulps + 1) + extra, (name, z[fits][error.argmax()], error.max())


@pytest.mark.parametrize("target", [host_target(), PLAIN], ids=["host", "plain"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", [1, 2])
def test_special_values_and_gradients_are_pytorchs(count, dtype, target):
    functions = [function for function, _ in ONE.values()] if count == 1 else list(TWO.values())
    values = torch.tensor(SPECIAL, dtype=dtype)
    given = [one.flatten() for one in torch.meshgrid(*[values] * count, indexing="ij")]
    ones = torch.ones_like(given[0])
    # All in one module each way: compiling one for every function would take many seconds.
    together = record(lambda *z: tuple(function(*z) for function in functions), count)
    compiled_values = run_compiled(together, *given, target=target)
    backs = [record(function, count).pullback() for function in functions]

    def all_gradients(*z: Expr) -> tuple[Expr, ...]:
        graph, results = z[0].graph, list[Expr]()
        for function in functions:
            y = function(*z[:-1])
            total = gradients({y: z[-1]})
            results += [total.get(one, graph.number(0)) for one in z[:-1]]
        return tuple(results)

    compiled_grads = run_compiled(record(all_gradients, count + 1), *given, ones, target=target)
    tight = {"rtol": 4e-7, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 2e-15, "atol": 1e-15}
    for k, function in enumerate(functions):
        leaves = [one.clone().requires_grad_() for one in given]
        y = function(*leaves)
        grads = torch.autograd.grad(y.sum(), leaves, materialize_grads=True)
        for one in (record(function, count)(*given), compiled_values[k]):
            torch.testing.assert_close(one, y.detach(), **tight, equal_nan=True)
        for ours in (backs[k].values(*given, ones), compiled_grads[count * k : count * (k + 1)]):
            for one, theirs in zip(ours, grads, strict=True):
                torch.testing.assert_close(one, theirs, **tight, equal_nan=True)


@st.composite
def formulas(draw: st.DrawFn) -> Formula:
    """Of two inputs, by random operations whose results stay in a range that every operation takes."""
    seed = draw(st.lists(st.tuples(st.sampled_from(sorted(_STEPS)), *[st.integers(0, 50)] * 3), min_size=1, max_size=8))
    number = draw(st.floats(-2, 2, width=32))

    def function(x: Expr, y: Expr) -> Expr:
        values = [x, y, x * number + y]
        for op, *places in seed:
            values.append(_STEPS[op](*(values[place % len(values)] for place in places)))
        return values[-1] + values[-2]

    return record(function, ["x", "y"])


_STEPS = {
    "tame sum": lambda a, b, c: torch.tanh(a * b + c),
    "difference": lambda a, b, c: (a - b * c).sigmoid(),
    "quotient": lambda a, b, c: a / (b * b + 1) - c,
    "exp": lambda a, b, c: torch.exp(-torch.abs(a)) * b,
    "log": lambda a, b, c: torch.log(1 + a * a),
    "root": lambda a, b, c: torch.sqrt(a * a + b * b + 0.25),
    "waves": lambda a, b, c: torch.sin(a) * torch.cos(b) + c,
    "choice": lambda a, b, c: torch.where(a < b, b, c.relu()),
    "ends": lambda a, b, c: torch.maximum(a, b) - torch.minimum(b, c),
}


@settings(max_examples=12)
@given(formulas(), st.integers(0, 2**31))
def test_compiled_formulas_and_derivatives_are_those_of_autograd(formula, seed):
    x, y, g = torch.randn(3, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    leaves = [x.requires_grad_(), y.requires_grad_()]
    value = formula(*leaves)
    grads = torch.autograd.grad(value, leaves, g, materialize_grads=True)
    back = formula.pullback()
    scale = max(1.0, *(float(one.detach().abs().max()) for one in (value, *grads)))
    given = [x.detach(), y.detach()]
    torch.testing.assert_close(run_compiled(formula, *given)[0], value.detach(), rtol=0, atol=1e-11 * scale)
    for one, other, theirs in zip(back.values(*given, g), run_compiled(back, *given, g), grads, strict=True):
        torch.testing.assert_close(one, theirs, rtol=0, atol=1e-11 * scale)
        torch.testing.assert_close(other, theirs, rtol=0, atol=1e-11 * scale)
    again = Formula.unpack(formula.pack())
    assert torch.equal(again(*given), formula(*given)) and again.pack() == formula.pack()


@pytest.mark.parametrize("name", sorted(_STEPS))
def test_first_and_second_derivatives_by_differences(name):
    formula = record(_STEPS[name], 3)
    back = formula.pullback()
    given = [(0.3 + torch.rand(4, dtype=torch.float64)).requires_grad_() for _ in range(3)]
    assert torch.autograd.gradcheck(formula, given)
    assert torch.autograd.gradgradcheck(formula, given)
    assert torch.autograd.gradcheck(lambda *tensors: back.values(*tensors), [*given, given[0]])


def test_equal_expressions_are_one_and_products_commute():
    graph = Graph()
    x, y = graph.add("input", name="x"), graph.add("input", name="y")
    assert x * y is y * x and x + y is x + y and x - y is not y - x
    assert graph.number(0.0) is not graph.number(-0.0)


def test_the_slope_of_a_sigmoid_needs_its_value_only():
    formula = record(torch.sigmoid)
    (z,), (y,) = formula.inputs, formula.outputs
    slope = gradients({y: z.graph.number(1)})[z]
    assert z not in set(ancestors([slope], lambda one: one is y))


def test_a_value_that_is_repeated_gets_the_sum():
    graph = Graph()
    node, edge = graph.add("input", name="node"), graph.add("input", name="edge", level=2)
    total = over(node * edge)
    seed = graph.add("input", name="seed")
    assert total.level == 0
    assert gradients({total: seed})[node] is over(seed * edge)


def test_torch_compile_traces_a_formula():
    formula = record(lambda z: z * torch.sigmoid(z) + 2)
    z = torch.linspace(-3, 3, 7)
    compiled_one = torch.compile(lambda one: formula(one), fullgraph=True, backend="eager")
    assert torch.equal(compiled_one(z), formula(z))


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda z: torch.erf(z), "formulas have no torch.erf: line"),
        (lambda z: z if z > 0 else -z, "Write torch.where"),
        (lambda z: math.sin(z), "PyTorch's functions for those of math"),
        (lambda z: z**2.7, "the powers -1, 0.5, 1, 2, 3 and 4, got 2.7"),
        (lambda z: z + "1", "its values and numbers, got str"),
        (lambda z: z > 0, "must return a value made of its inputs"),
        (lambda z: 1.0, "must return a value made of its inputs, got 1.0"),
        (lambda z: torch.cat([z, z]), "as arguments by place only"),
        (lambda z: torch.where(z, z, 1.0), "where needs a comparison"),
        (lambda z: z + torch.ones(3), "formulas have no torch.add"),
        (lambda z: torch.relu_(z) + z, "cannot change a value in place, as torch.relu_ does: line"),
        (lambda z: torch.nn.functional.relu(z, inplace=True) + z, "in place, as torch.relu does: line"),
        (lambda z: torch.maximum(z, other=z * z), "as arguments by place only"),
        (lambda z: z.add(z, alpha=2), ".add in a formula does not take these arguments: line"),
        (lambda z: ((z > 0) + (z > -1)) * z, "joined with & | ~, not with + and -: line"),
        (lambda z: z // 2, r"a formula has \+ - .*, and changes no value: line"),
        (lambda z: 2**z, r"a formula has \+ - .*, and changes no value: line"),
        (lambda z: torch.where((z > 0) ^ (z < 1), z, 0), r"a formula has \+ - .*, and changes no value: line"),
        (lambda z: z.__setitem__(0, 1) or z, r"a formula has \+ - .*, and changes no value: line"),
        (lambda z: z**z, "the powers -1, 0.5, 1, 2, 3 and 4, got <a value of line"),
        (lambda z: np.arctan(z), "has PyTorch's functions, not numpy.arctan: line"),
        (lambda z: np.ones(3) * z, "has PyTorch's functions, not numpy.multiply: line"),
        (lambda z: z * np.ones(3), "its values and numbers, got ndarray: line"),
        (lambda z: np.asarray(z), "no truth, number or entries yet: line"),
        (lambda z: z * 10**400, "must fit into a float: line"),
        (lambda z: z.clamp(), ".clamp in a formula does not take these arguments: line"),
    ],
)
def test_what_a_formula_cannot_say_is_refused_with_its_line(function, text):
    with pytest.raises(ConfigError, match=text) as caught:
        record(function)
    if "line" in str(caught.value):
        assert "test_formula.py" in str(caught.value)


@pytest.mark.parametrize("name", ["erf", "item", "shape", "typo"])
def test_a_method_that_values_lack_is_named_with_its_line(name):
    with pytest.raises(AttributeError, match=f"a value of a formula has no .{name}.*: line .*test_formula.py"):
        record(lambda z: z + getattr(z, name)())
    with pytest.raises(AttributeError, match=r"no \.erf; torch\.erf may take it: line"):
        record(lambda z: z.erf())


def test_numbers_of_numpy_are_numbers():
    formula = record(lambda z: np.float64(2) * z + np.float32(0.5) - np.int64(3) / (z * z + np.float64(1)))
    z = torch.randn(5, dtype=torch.float64)
    torch.testing.assert_close(formula(z), 2 * z + 0.5 - 3 / (z * z + 1))
    assert record(lambda z: np.tanh(z)).pack() == record(torch.tanh).pack()


def test_a_product_less_what_it_is_in_is_exact():
    """Multiplied and subtracted at once, it left its rounding error, and a comparison with 0 chose the other side."""
    functions = [
        lambda x, y: x * y - x * y,
        lambda x, y: torch.maximum(x * y, x - 9) - x * y,
        lambda x, y: torch.where(torch.relu(x * y + 9) - 9 - x * y == 0, x, y) * 0,
        lambda x, y: torch.where(abs(x * y) - x * y > 0, x, y),
    ]
    x, y = torch.rand(2, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together = record(lambda *z: tuple(function(*z) for function in functions), 2)
    for found, function in zip(run_compiled(together, x, y), functions, strict=True):
        assert torch.equal(found, function(x, y))


def test_arguments_by_name_and_zeros_among_them():
    functions = [
        lambda z: torch.clamp(z, min=0),  # 0 equals False, and is not off
        lambda z: torch.clamp(z, -1, max=0.0),
        lambda z: z.clamp(max=0),
        lambda z: z.clamp(min=-0.5, max=0.25),
        lambda z: (z > 0) * 1,
        lambda z: +z,
    ]
    z = torch.linspace(-2, 2, 9, dtype=torch.float64)
    for function in functions:
        assert torch.equal(record(function)(z), function(z).to(z.dtype))


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [["outputs", None]],
        [["input", "z"], ["eval", None, 0], ["outputs", None, 1]],
        [["input", "z"], ["add", None, 0, 5], ["outputs", None, 1]],
        [["input", "z"], ["where", None, 0, 0, 0], ["outputs", None, 1]],
        [["input", "z"], ["torch", "os.system", 0], ["outputs", None, 1]],
        [["input", "z"], ["number", "x"], ["outputs", None, 1]],
    ],
)
def test_rows_that_are_no_formula_are_refused(rows):
    with pytest.raises(ConfigError, match="no formula"):
        Formula.unpack(rows)


def test_numbers_survive_a_pack():
    formula = record(lambda z: z * 0.1 + struct.unpack("<f", b"\x01\x00\x00\x00")[0])
    z = torch.randn(5, dtype=torch.float64)
    assert torch.equal(Formula.unpack(formula.pack())(z), formula(z))
