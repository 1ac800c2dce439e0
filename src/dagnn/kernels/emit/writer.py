"""`CodeWriter`: LLVM instructions for one compiled function, with loops, addresses and vectors."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

from dagnn.kernels.emit.native import FIELDS, PLACE, Target

I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
POINTER = ir.PointerType(I8)
_CACHE_LINE = 64
Value = Any  # an LLVM value: llvmlite has no types to offer


@dataclass(frozen=True)
class TargetShape:
    """What a set of compiled functions is made for; engines add what else their functions depend on."""

    double: bool
    target: Target

    @property
    def size(self) -> int:
        """Bytes of a number."""
        return 8 if self.double else 4

    @property
    def lanes(self) -> int:
        """Numbers of a vector."""
        return self.target.vector_bytes // self.size

    def writer(self, module: Value, name: str, num_arguments: int | None = None) -> "CodeWriter":
        return CodeWriter(
            module, name, double=self.double, lanes=self.lanes, target=self.target, num_arguments=num_arguments
        )


class CodeWriter:
    """Writes one function ``void name(i64 frame)``, or with other arguments, all i64, for the module's own use.

    Args:
        module: where the function goes.
        name: its name.
        double: numbers are float64, else float32.
        lanes: numbers in a vector.
        target: whether multiply-add is one instruction.
        num_arguments: of a function for the module's own use; they are in ``arguments``. None for a frame.
    """

    def __init__(
        self, module: Value, name: str, *, double: bool, lanes: int, target: Target, num_arguments: int | None = None
    ) -> None:
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * (num_arguments or 1)), name)
        if num_arguments is not None:
            function.linkage = "internal"
            function.attributes.add("noinline")  # compiled once, not once for every call of it
        self.arguments = function.args
        self.module, self.target, self.double, self.lanes = module, target, double, lanes
        self.number = ir.DoubleType() if double else ir.FloatType()
        self.size = 8 if double else 4
        self.vector = ir.VectorType(self.number, lanes)
        self.build = ir.IRBuilder(function.append_basic_block("entry"))
        self._frame = function.args[0]
        self._fields: dict[str, Value] = {}

    # ---- integers, addresses, loops ----

    def i64(self, value: int) -> Value:
        return ir.Constant(I64, value)

    def fields(self, *names: str) -> None:
        """Read these entries of the frame now; `field` gives them."""
        # At the start of the function, not where they are used: LLVM cannot know that no store changes the frame, and
        # would read them again in every loop.
        for name in names:
            assert name in FIELDS
            self._fields[name] = self.load(self.at(self._frame, self.i64(PLACE[name]), 8), I64)

    def field(self, name: str) -> Value:
        return self._fields[name]

    def ticket(self, counter: str) -> Value:
        """The value of a counter of the frame; the next worker gets one more."""
        address = self.at(self._frame, self.i64(PLACE[counter]), 8)
        # Monotonic suffices: a ticket has to be unique and promises nothing about memory. Where one piece reads what
        # another wrote, as in a sweep, `workers.write_wait` orders them.
        return self.build.atomic_rmw("add", self._pointer(address, I64), self.i64(1), "monotonic")

    def at(self, base: Value, index: Value, size: int) -> Value:
        """The address ``base + index * size``."""
        return self.build.add(base, self.build.mul(index, self.i64(size)))

    def offset(self, base: Value, stride: Value, index: Value) -> Value:
        """The address ``base + index * stride``."""
        return self.build.add(base, self.build.mul(index, stride))

    def index_at(self, base: Value, index: Value) -> Value:
        """Entry of an int32 array, as i64."""
        return self.build.sext(self.load(self.at(base, index, 4), I32), I64)

    def offset_at(self, base: Value, index: Value) -> Value:
        """Entry of an int64 array."""
        return self.load(self.at(base, index, 8), I64)

    def byte_at(self, base: Value, index: Value) -> Value:
        return self.load(self.build.add(base, index), I8)

    def load(self, address: Value, kind: Value, align: int | None = None) -> Value:
        value = self.build.load(self._pointer(address, kind))
        # Without ``align`` LLVM assumes that of the type: a whole vector. A load from elsewhere could crash.
        if align is not None:
            value.align = align
        return value

    def store(self, value: Value, address: Value, align: int | None = None) -> None:
        instruction = self.build.store(value, self._pointer(address, value.type))
        if align is not None:
            instruction.align = align

    def prefetch(self, address: Value, size: int) -> None:
        """Bring ``size`` bytes into the caches, to be read soon. An invalid address does no harm."""
        name = "llvm.prefetch.p0i8"
        function = self.module.globals.get(name)
        if function is None:
            kinds = [POINTER, I32, I32, I32]
            function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), kinds), name)
        read, keep, data = (ir.Constant(I32, value) for value in (0, 3, 1))
        for shift in range(0, size, _CACHE_LINE):
            line = self.build.inttoptr(self.build.add(address, self.i64(shift)), POINTER)
            self.build.call(function, [line, read, keep, data])

    def variable(self, kind: Value) -> Value:
        """A place for values of a kind; LLVM turns it into a register."""
        # In the entry block: LLVM promotes only those, and one inside a loop would take more stack in every turn.
        with self.build.goto_entry_block():
            return self.build.alloca(kind)

    @contextmanager
    def loop(self, start: Value, stop: Value, step: int = 1) -> Iterator[Value]:
        """Code that runs for ``start, start + step, ...`` below ``stop``."""
        build = self.build
        before = build.block
        head, body, done = (build.append_basic_block(name) for name in ("head", "body", "done"))
        build.branch(head)
        build.position_at_end(head)
        counter = build.phi(I64)
        counter.add_incoming(start, before)
        build.cbranch(build.icmp_signed("<", counter, stop), body, done)
        build.position_at_end(body)
        yield counter
        counter.add_incoming(build.add(counter, self.i64(step)), build.block)
        build.branch(head)
        build.position_at_end(done)

    @contextmanager
    def pieces(self) -> Iterator[Value]:
        """Code that runs for every piece of work that no other worker has taken."""
        # Tickets, not fixed shares: a worker that the system has put aside keeps nobody waiting for its share.
        build = self.build
        head, body, done = (build.append_basic_block(name) for name in ("take", "work", "finished"))
        build.branch(head)
        build.position_at_end(head)
        piece = self.ticket("next_piece")
        build.cbranch(build.icmp_signed("<", piece, self.field("pieces")), body, done)
        build.position_at_end(body)
        yield piece
        build.branch(head)
        build.position_at_end(done)

    def finish(self) -> None:
        self.build.ret_void()

    # ---- numbers and vectors ----

    def constant(self, value: float) -> Value:
        return ir.Constant(self.vector, [float(value)] * self.lanes)

    def splat(self, number: Value) -> Value:
        """The number in every lane."""
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.build.insert_element(undefined, number, ir.Constant(I32, 0))
        return self.build.shuffle_vector(first, undefined, self._lanes([0] * self.lanes))

    def lanes_below(self, count: Value) -> Value:
        """A condition for each lane: whether its number is below the i64 ``count``."""
        numbers = ir.Constant(ir.VectorType(I32, self.lanes), list(range(self.lanes)))
        undefined = ir.Constant(numbers.type, ir.Undefined)
        first = self.build.insert_element(undefined, self.build.trunc(count, I32), ir.Constant(I32, 0))
        return self.build.icmp_signed(
            "<", numbers, self.build.shuffle_vector(first, undefined, self._lanes([0] * self.lanes))
        )

    def switch(
        self,
        number: Value,
        names: Sequence[str],
        case: Callable[[str], None],
        otherwise: Callable[[], None] | None = None,
    ) -> None:
        """``case(name)`` for a byte that is 1 + the place of the name; ``otherwise`` for 0."""
        build = self.build
        blocks = [build.append_basic_block("case") for _ in names]
        rest, done = build.append_basic_block("otherwise"), build.append_basic_block("done")
        switch = build.switch(number, rest)
        for code, (name, block) in enumerate(zip(names, blocks, strict=True), start=1):
            switch.add_case(ir.Constant(I8, code), block)
            build.position_at_end(block)
            case(name)
            build.branch(done)
        build.position_at_end(rest)
        if otherwise is not None:
            otherwise()
        build.branch(done)
        build.position_at_end(done)

    def load_vector(self, address: Value) -> Value:
        return self.load(address, self.vector, self._row_alignment)

    def store_vector(self, value: Value, address: Value) -> None:
        self.store(value, address, self._row_alignment)

    @property
    def _row_alignment(self) -> int:
        # Rows are whole vectors, and PyTorch allocates at multiples of 64 bytes, the largest vector.
        return self.lanes * self.size

    def transposed(self, rows: Sequence[Value]) -> list[Value]:
        """The transpose of a square: as many vectors as a vector has lanes."""
        rest, step = list(rows), 1
        while step < self.lanes:
            # Exchanges lane bit and row bit ``step`` of every pair of rows that differ in it.
            low = [lane if not lane & step else self.lanes + lane - step for lane in range(self.lanes)]
            high = [lane + step if not lane & step else self.lanes + lane for lane in range(self.lanes)]
            for row in range(self.lanes):
                if not row & step:
                    one, other = rest[row], rest[row + step]
                    rest[row] = self.build.shuffle_vector(one, other, self._lanes(low))
                    rest[row + step] = self.build.shuffle_vector(one, other, self._lanes(high))
            step *= 2
        return rest

    def multiply_add(self, x: Value, y: Value, z: Value) -> Value:
        """``x * y + z``, fused where the processor can."""
        # Never the intrinsic without the instruction: LLVM would call libm for every number.
        if not self.target.fma:
            return self.build.fadd(self.build.fmul(x, y), z)
        return self.intrinsic("fma", x, y, z)

    def intrinsic(self, name: str, *arguments: Value) -> Value:
        """An LLVM intrinsic whose arguments and result have one type."""
        kind = arguments[0].type
        text = f"llvm.{name}.{_type_name(kind)}"
        function = self.module.globals.get(text)
        if function is None:
            function = ir.Function(self.module, ir.FunctionType(kind, [kind] * len(arguments)), text)
        return self.build.call(function, list(arguments))

    def sum(self, vector: Value) -> Value:
        """The sum of the lanes, halves onto halves: always in the same order, so always the same bits."""
        return self.build.extract_element(self._folded(vector, 1), ir.Constant(I32, 0))

    def sums(self, vectors: Sequence[Value]) -> Value:
        """The sums of several vectors as one vector; their number is a power of two, at most `lanes`.

        A butterfly: at every step two vectors become one that holds in alternating lanes parts of
        the first and of the second. 16 sums take 15 additions instead of 64.
        """
        step, rest = 1, list(vectors)
        while len(rest) > 1:
            even = [lane if not lane & step else self.lanes + lane - step for lane in range(self.lanes)]
            odd = [lane + step if not lane & step else self.lanes + lane for lane in range(self.lanes)]
            rest = [
                self.build.fadd(
                    self.build.shuffle_vector(one, other, self._lanes(even)),
                    self.build.shuffle_vector(one, other, self._lanes(odd)),
                )
                for one, other in zip(rest[::2], rest[1::2], strict=True)
            ]
            step *= 2
        return self._folded(rest[0], len(vectors))

    def _folded(self, vector: Value, width: int) -> Value:
        lanes = self.lanes
        while lanes > width:
            lanes //= 2
            low = self.build.shuffle_vector(vector, vector, self._lanes(range(lanes)))
            high = self.build.shuffle_vector(vector, vector, self._lanes(range(lanes, 2 * lanes)))
            vector = self.build.fadd(low, high)
        return vector

    def _lanes(self, lanes: Sequence[int]) -> Value:
        return ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))

    def _pointer(self, address: Value, kind: Value) -> Value:
        return self.build.inttoptr(address, ir.PointerType(kind))


def _type_name(kind: Value) -> str:
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{_type_name(kind.element)}"
    return "f64" if isinstance(kind, ir.DoubleType) else "f32"
