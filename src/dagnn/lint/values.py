"""What the linter knows about a value: numbers and texts exactly, of everything else where it comes from."""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# The numbers that stand for what a source leaves open. A window of 5 and an epoch of 12 leave two micro-batches.
WINDOW, EPOCH, OUTER = 5, 12, 2

_KINDS = {
    "scaler": re.compile(r"GradScaler$|(^|[._])(grad_?|amp_|loss_)?scaler$", re.IGNORECASE),
    "scheduler": re.compile(
        r"[Ss]ched|LambdaLR|StepLR|CosineAnnealing|OneCycleLR|LinearLR|WarmRestarts|Plateau|(^|_)lr_?s"
    ),
    "accelerator": re.compile(r"(^|[._])accelerator$", re.IGNORECASE),
    "optimizer": re.compile(
        r"(^|_|[a-z](?=O))([Oo]ptimizers?|[Oo]ptim|[Oo]pts?)([A-Z]\w{0,2}|_?\d|_v\d|_[a-zA-Z])?$|"
        r"Optimizer(?!\w*(Param|Config|Arg|State))|Adam|SGD|RMSprop|Adagrad|Adadelta|LBFGS|Adafactor|\bLion"
    ),
    "criterion": re.compile(r"\w+Loss$"),
}
_ACCUMULATION = re.compile(r"accum|grad_?acc|(^|[._])acc_steps|update_freq|iter_size", re.IGNORECASE)


class Term(NamedTuple):
    """One summand of a tensor: a value that some call gave, and the known numbers that multiply it."""

    origin: int
    factors: tuple[float, ...] = ()
    exact: bool = True  # nothing unknown multiplies it
    tokens: bool = False  # a mean over those labels that are not ignored
    summed: bool = False  # a sum over items

    def times(self, factor: float | None) -> "Term":
        if factor is None:
            return self._replace(exact=False)
        return self if factor in (1, 1.0) else self._replace(factors=(*self.factors, float(factor)))


@dataclass(eq=False)
class Unknown:
    """A value that only running the code would tell.

    Attributes:
        name: the code that gives it, in terms of the names of the function that was entered first.
        terms: its summands, if it is taken for a tensor.
        kind: ``"optimizer"``, ``"scheduler"``, ``"scaler"``, ``"accelerator"``, ``"criterion"`` or ``""``.
        of_data: it depends on the batch.
        cls: the class in the same file that it is an instance of.
        scaler: the loss scaler that multiplied it.
        options: the arguments by name of the call that made it.
    """

    name: str
    terms: tuple[Term, ...] = ()
    kind: str = ""
    of_data: bool = False
    cls: ast.ClassDef | None = None
    scaler: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def with_terms(self, terms: tuple[Term, ...], name: str | None = None) -> "Unknown":
        return Unknown(name or self.name, terms, self.kind, self.of_data, None, self.scaler)


@dataclass(eq=False)
class Items:
    """Something to iterate over: ``element(i)``, and how many there are, or None if that is open.

    Attributes:
        of_data: it is a loader, which ends after an epoch.
        name: the value that gives the number, for ``range``.
    """

    element: Callable[[int], Any]
    length: int | None = None
    of_data: bool = False
    name: str = ""


@dataclass(eq=False)
class Function:
    """A function of the same file, with the scope that it was defined in and the object that it is bound to."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: "Scope"
    owner: Unknown | None = None


@dataclass(eq=False)
class Class:
    """A class of the same file."""

    node: ast.ClassDef


class Length(int):
    """The number of batches of a loader."""


class Scope:
    """Names of a function, and of those around it."""

    def __init__(self, parent: "Scope | None" = None) -> None:
        self.names: dict[str, Any] = {}
        self.outer: set[str] = set()  # declared global or nonlocal
        self._parent = parent

    def get(self, name: str) -> Any:
        """The value, or None if there is none: ``None`` itself is held as the constant ``NOTHING``."""
        if name in self.names:
            return self.names[name]
        return self._parent.get(name) if self._parent else None

    def set(self, name: str, value: Any) -> None:
        if name in self.outer and self._parent:
            scope: Scope = self._parent
            while name not in scope.names and scope._parent:
                scope = scope._parent
            scope.names[name] = value
        else:
            self.names[name] = value


class _Nothing:
    """Python's None, as a value that a name can have."""

    def __bool__(self) -> bool:
        return False


NOTHING = _Nothing()


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def is_open(value: Any) -> bool:
    """Whether only running the code would tell its truth."""
    return isinstance(value, (Unknown, Items, Function, Class))


def kind_of(name: str) -> str:
    """What an object is, by the name of what made it or by its own; ``""`` if the name does not tell."""
    last = re.sub(r"[\(\[].*", "", name).split(".")[-1] if not name.startswith("torch.optim.") else name
    if name.startswith("torch.optim.") and "lr_scheduler" not in name:
        return "optimizer"
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(last)), "")


def names_loader(name: str) -> bool:
    """Whether a name, or the call that gave a value, speaks of a loader or a dataset."""
    return bool(re.search(r"load|dataset|(^|_)dl$|iterator", name, re.IGNORECASE))


def names_window(name: str) -> bool:
    """Whether a name speaks of the number of micro-batches."""
    return bool(_ACCUMULATION.search(name))


class Event(NamedTuple):
    """Something that a loop does to gradients.

    Attributes:
        kind: ``"backward"``, ``"zero"``, ``"step"``, ``"clip"``, ``"unscale"``, ``"schedule"`` or ``"epoch"``, which
            is the end of a loop over a loader.
        node: the call.
        micro_batch: counts the turns of the innermost loop around a backward pass.
        inside: a turn of that loop is under way.
        target: the name of the optimizer, of the scheduler, or of the model whose gradients go.
        terms: of a backward pass, what its loss is a sum of.
        scaler: a loss scaler is in use, or does it.
        loops: of an epoch, the turns it took.
        guards: the open conditions that it depends on.
    """

    kind: str
    node: ast.AST
    micro_batch: int
    inside: bool
    target: str = ""
    terms: tuple[Term, ...] = ()
    scaler: bool = False
    loops: int = 0
    guards: frozenset[int] = frozenset()


@dataclass
class Trace:
    """What one run through a function did, and what could not be followed.

    Attributes:
        escaped: code that cannot be seen gets hold of an optimizer, so it may step and zero.
        touched: the code reads or writes ``.grad``.
        unsure_guard: whether a step happens also depends on something open.
        assumed_counter: a counter that comes from elsewhere started at 0.
        alone: no loop is around the backward pass, so it was run as if a caller had one.
        gave_up: the code is too long to follow.
        named_windows: names of the numbers of micro-batches that divide losses.
    """

    events: list[Event] = field(default_factory=list)
    escaped: bool = False
    touched: bool = False
    unsure_guard: bool = False
    assumed_counter: bool = False
    alone: bool = False
    gave_up: bool = False
    named_windows: set[str] = field(default_factory=set)
    windows_by_library: bool = False
