"""Expressions of a training loop: numbers as Python has them, losses by what multiplies them, the rest by name."""

import ast
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from dagnn.lint.source import Source
from dagnn.lint.values import (
    NOTHING,
    WINDOW,
    Function,
    Items,
    Length,
    Scope,
    Term,
    Trace,
    Unknown,
    is_number,
    is_open,
    kind_of,
    names_window,
)

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_MASKED = re.compile(r"\.sum\(.*mask.*\.sum\(|mask.*\.sum\(.*mask|mask.*\.sum\(|sum\(.*mask", re.IGNORECASE | re.DOTALL)
_LITERAL_WINDOW = 64  # at most
_LONGEST, _LARGEST_POWER = 10_000, 64
BUDGET = 60_000  # expressions that one run may evaluate


class Reconsider(Exception):
    """An assumption was added: the run starts again with it."""


class GiveUp(Exception):
    """The code is too long to follow."""


class Expressions:
    """Values of expressions, in one run under fixed assumptions.

    Args:
        source: the file.
        assumed: name -> number, for values that a run must know as a number. Grows.
        decisions: condition -> truth, for conditions that only running the code would tell.
        epoch: batches of a loader.
    """

    def __init__(self, source: Source, assumed: dict[str, float], decisions: dict[str, bool], epoch: int) -> None:
        self.source, self.assumed, self.epoch = source, assumed, epoch
        self._decisions = dict(decisions)
        self.trace = Trace()
        self.asked: list[str] = []  # conditions in the order in which they came up
        self.literals: set[int] = set()  # windows that the code gives as a number
        self.bounds: set[str] = set()  # names of what `range` got
        self.store: dict[str, Any] = {}  # attributes by the object's name and theirs
        self.micro_batch = 0
        self.guards = 0  # conditions around gradients that are being evaluated
        self.matters = True  # what is decided may change what happens to gradients
        self.spent = 0
        self._origins = 0
        self._objects = 0

    def call(self, node: ast.Call, scope: Scope) -> Any:
        raise NotImplementedError

    def items(self, value: Any) -> Items:
        raise NotImplementedError

    def enter(self, function: Function, args: Sequence[Any], keywords: dict[str, Any]) -> Any:
        raise NotImplementedError

    def evaluate(self, node: ast.AST | None, scope: Scope) -> Any:
        """The value of ``node``: a number, text, list, tuple, dict, or one of ``dagnn.lint.values``."""
        self.spent += 1
        if self.spent > BUDGET:
            raise GiveUp
        if node is None:
            return NOTHING
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        return self.opaque(node) if method is None else method(node, scope)

    def opaque(self, node: ast.AST, *, of_data: bool = False, kind: str = "") -> Unknown:
        return Unknown(self.source.text(node), kind=kind, of_data=of_data)

    def computed(self, node: ast.AST, *, of_data: bool, tokens: bool = False, summed: bool = False) -> Unknown:
        """A tensor that a call gives: a summand of its own."""
        term = Term(self.new_origin(), tokens=tokens, summed=summed)
        return Unknown(self.source.text(node), (term,), of_data=of_data)

    def new_origin(self) -> int:
        self._origins += 1
        return self._origins

    def new_name(self, name: str) -> str:
        self._objects += 1
        return f"{name}#{self._objects}"

    def number(self, value: Any) -> float | None:
        """``value`` as a number, also one that was assumed; None if it is open."""
        if is_number(value):
            return value  # type: ignore[no-any-return]
        if not isinstance(value, Unknown) or value.of_data or value.terms:
            return None
        if value.name in self.assumed:
            counter = self.assumed[value.name] == 0
            self.trace.assumed_counter |= self.guards > 0 and counter
            return self.micro_batch if counter and self.trace.alone else self.assumed[value.name]
        if names_window(value.name) and "(" not in value.name:
            self.trace.named_windows.add(value.name)
            return WINDOW
        return None

    def assume(self, name: str, number: float) -> None:
        """Start again with ``number`` for ``name``."""
        self.assumed[name] = number
        raise Reconsider

    def truth(self, value: Any) -> bool:
        """The truth of ``value``, by decisions where it is open."""
        if not is_open(value):
            return bool(value)
        if not isinstance(value, Unknown):
            return True
        parts, how = value.options.get("parts", []), value.options.get("how")
        if how == "not":
            return not self.truth(parts[0])
        if how == "and":
            truths = [self.truth(part) for part in parts]  # all are asked
            return all(truths)
        if how == "or" and value.options["mixed"] and self.guards:
            self.trace.unsure_guard = True
            return False
        if how == "or":
            truths = [self.truth(part) for part in parts]
            return any(truths)
        if value.name not in self._decisions:
            self._decisions[value.name] = True
        if value.name not in self.asked and self.matters:
            self.asked.append(value.name)
        return self._decisions[value.name]

    def _constant(self, node: ast.Constant, scope: Scope) -> Any:
        if node.value is None:
            return NOTHING
        return node.value if isinstance(node.value, (int, float, str)) and _is_small(node.value) else self.opaque(node)

    def _name(self, node: ast.Name, scope: Scope) -> Any:
        value = scope.get(node.id)
        return Unknown(node.id, kind=kind_of(node.id)) if value is None else value

    def _tuple(self, node: ast.Tuple, scope: Scope) -> Any:
        return tuple(self.evaluate(each, scope) for each in node.elts)

    def _list(self, node: ast.List, scope: Scope) -> Any:
        return [self.evaluate(each, scope) for each in node.elts]

    def _dict(self, node: ast.Dict, scope: Scope) -> Any:
        values = [self.evaluate(value, scope) for value in node.values]
        if all(isinstance(key, ast.Constant) for key in node.keys):
            return {key.value: value for key, value in zip(node.keys, values, strict=True)}  # type: ignore[union-attr]
        return self.opaque(node, of_data=any(isinstance(v, Unknown) and v.of_data for v in values))

    def _lambda(self, node: ast.Lambda, scope: Scope) -> Any:
        return Function(node, scope)

    def _namedexpr(self, node: ast.NamedExpr, scope: Scope) -> Any:
        value = self.evaluate(node.value, scope)
        scope.set(node.target.id, value)
        return value

    def _await(self, node: ast.Await, scope: Scope) -> Any:
        return self.evaluate(node.value, scope)

    def _starred(self, node: ast.Starred, scope: Scope) -> Any:
        return self.evaluate(node.value, scope)

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        return self.call(node, scope)

    def _ifexp(self, node: ast.IfExp, scope: Scope) -> Any:
        chosen = node.body if self.truth(self.evaluate(node.test, scope)) else node.orelse
        return self.evaluate(chosen, scope)

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, scope: Scope) -> Any:
        inner = Scope(scope)
        for generator in node.generators:
            found = self.items(self.evaluate(generator.iter, inner))
            self.bind(generator.target, found.element(0), inner)
        element = self.evaluate(node.elt, inner)
        kind = element.kind if isinstance(element, Unknown) else ""
        terms = element.terms if isinstance(element, Unknown) else ()
        return Unknown(self.source.text(node), terms, kind, bool(terms))

    _generatorexp = _setcomp = _listcomp

    def bind(self, target: ast.AST, value: Any, scope: Scope) -> None:
        """Give ``value`` to what stands left of ``=``."""
        if isinstance(target, ast.Name):
            if value == 1 and is_plain(value) and names_window(target.id) and target.id not in self.source.counters:
                value = Unknown(target.id)  # a default that users change
            if isinstance(value, Unknown) and not value.kind and not value.of_data:
                value.kind = kind_of(target.id)
            scope.set(target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            if isinstance(value, (tuple, list)) and len(value) == len(target.elts):
                for each, part in zip(target.elts, value, strict=True):
                    self.bind(each, part, scope)
            else:
                self._bind_parts(target, value, scope)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, self.opaque(target, of_data=True), scope)
        elif isinstance(target, ast.Attribute):
            owner = self.evaluate(target.value, scope)
            if isinstance(owner, Unknown):
                if isinstance(value, Unknown) and not value.kind and not value.of_data:
                    value.kind = kind_of(target.attr)
                self.store[f"{owner.name}.{target.attr}"] = value
        elif isinstance(target, ast.Subscript):
            owner, key = self.evaluate(target.value, scope), self.evaluate(target.slice, scope)
            if isinstance(owner, dict) and isinstance(key, str):
                owner[key] = value

    def _bind_parts(self, target: ast.Tuple | ast.List, value: Any, scope: Scope) -> None:
        """Unpack something open: each part is what its name says, and depends on the batch if the whole does."""
        of_data = isinstance(value, Unknown) and value.of_data
        for each in target.elts:
            text = self.source.text(each)
            terms = (Term(self.new_origin()),) if of_data else ()
            name = text if of_data or not isinstance(value, Unknown) else f"{value.name}->{text}"
            self.bind(each, Unknown(name, terms, "" if of_data else kind_of(text), of_data), scope)

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        base = self.evaluate(node.value, scope)
        if node.attr == "grad":
            self.trace.touched = True
        if not isinstance(base, Unknown):
            return self.opaque(node, of_data=isinstance(base, (list, tuple)))
        name = f"{base.name}.{node.attr}"
        if name in self.store:
            return self.store[name]
        if node.attr in ("data", "shape", "grad"):
            return Unknown(name, of_data=base.of_data)
        terms = base.terms if base.of_data else ()
        return Unknown(name, terms, "" if base.of_data else kind_of(name), base.of_data)

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        base, key = self.evaluate(node.value, scope), self.evaluate(node.slice, scope)
        if isinstance(base, (list, tuple)) and isinstance(key, int) and -len(base) <= key < len(base):
            return base[key]
        if isinstance(base, dict):
            return base[key] if isinstance(key, (str, int)) and key in base else self.opaque(node, of_data=True)
        of_data = not isinstance(base, Unknown) or base.of_data
        if not isinstance(base, Unknown) or (not of_data and self._from_loop(key)):
            return self.computed(node, of_data=True)
        name = f"{base.name}[{self.source.text(node.slice)}]"
        return Unknown(name, base.terms, kind_of(base.name) if not of_data else "", of_data)

    def _from_loop(self, key: Any) -> bool:
        """Whether a key that is a number takes one item of a dataset."""
        return is_number(key) or (isinstance(key, Unknown) and key.of_data)

    def _unaryop(self, node: ast.UnaryOp, scope: Scope) -> Any:
        value = self.evaluate(node.operand, scope)
        if isinstance(node.op, ast.Not):
            if is_open(value):
                return Unknown(f"not {getattr(value, 'name', '')}", options={"how": "not", "parts": [value]})
            return not value
        number = self.number(value)
        if number is not None:
            return -number if isinstance(node.op, ast.USub) else number
        return value

    def _boolop(self, node: ast.BoolOp, scope: Scope) -> Any:
        both = isinstance(node.op, ast.And)
        opens: list[Any] = []
        for each in node.values:
            value = self.evaluate(each, scope)
            if is_open(value):
                opens.append(value)
            elif bool(value) is not both:
                return value  # False and ..., True or ...
        if not opens:
            return both if len(node.values) > 1 else value
        if not any(isinstance(o, Unknown) for o in opens):
            return True
        mixed = len(opens) < len(node.values)
        options = {"how": "and" if both else "or", "parts": opens, "mixed": mixed}
        return Unknown(self.source.text(node), options=options)

    def _compare(self, node: ast.Compare, scope: Scope) -> Any:
        left_node, right_node, comparison = node.left, node.comparators[0], type(node.ops[0])
        if isinstance(left_node, ast.Attribute) and left_node.attr == "grad":
            return True if comparison is ast.IsNot else False if comparison is ast.Is else self.opaque(node)
        left, right = self.evaluate(left_node, scope), self.evaluate(right_node, scope)
        if len(node.ops) > 1:
            return self.opaque(node)
        if comparison in (ast.Is, ast.IsNot) and NOTHING in (left, right):
            return self._compare_nothing(right if left is NOTHING else left, comparison is ast.Is)
        a, b = self.number(left), self.number(right)
        counts = comparison in (ast.Eq, ast.GtE, ast.Gt) and self._counts(left_node)
        if a is not None and b is not None and comparison in _COMPARISONS:
            if self.guards and counts and isinstance(right, int) and 1 < right <= _LITERAL_WINDOW and is_plain(right):
                self.literals.add(right)
            return _COMPARISONS[comparison](a, b)
        if isinstance(left, str) and isinstance(right, str) and comparison in (ast.Eq, ast.NotEq):
            return _COMPARISONS[comparison](left, right)
        if self.guards and a is not None and counts and can_be_assumed(right):
            self.assume(right.name, WINDOW)
        if isinstance(left, Unknown) and isinstance(right, (str, int, float)):
            return Unknown(f"{left.name} {self.source.text(node)}")
        return self.opaque(node)

    def _counts(self, node: ast.AST) -> bool:
        names = {self.source.text(n) for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute))}
        distance = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)
        return bool(names & self.source.counters) or self.source.text(node).startswith("len(") or distance

    def _compare_nothing(self, value: Any, wanted: bool) -> Any:
        if not isinstance(value, Unknown):
            return (value is NOTHING) is wanted
        if value.of_data:
            return not wanted
        made_here = value.cls is not None or "#" in value.name or value.terms
        if made_here:
            return not wanted
        there = Unknown(value.name, options=value.options if "how" in value.options else {})
        return there if not wanted else Unknown(f"not {value.name}", options={"how": "not", "parts": [there]})

    def _binop(self, node: ast.BinOp, scope: Scope) -> Any:
        return self.combine(node, node.op, self.evaluate(node.left, scope), self.evaluate(node.right, scope))

    def combine(self, node: ast.AST, op: ast.operator, left: Any, right: Any) -> Any:
        """``left op right``, where ``node`` is the code of it."""
        a, b = self.number(left), self.number(right)
        if isinstance(op, ast.Mod):
            self._take_remainder(left, right, a, b)
        if a is not None and b is not None:
            result = _arithmetic(op, a, b)
            return self.opaque(node) if result is None else result
        if isinstance(left, list) and isinstance(right, list):
            return left + right if len(left) + len(right) <= _LONGEST else self.opaque(node)
        if isinstance(op, (ast.Add, ast.Sub)):
            return self._added(node, left, right, a, b)
        if isinstance(op, (ast.Mult, ast.Div, ast.FloorDiv)):
            return self._scaled(node, op, left, right, a, b)
        of_data = any(isinstance(v, Unknown) and v.of_data for v in (left, right))
        return self.computed(node, of_data=True) if of_data else self.opaque(node)

    def _take_remainder(self, left: Any, right: Any, a: float | None, b: float | None) -> None:
        if isinstance(right, int) and is_plain(right) and 1 < right <= _LITERAL_WINDOW and a is not None:
            self.literals.add(right)
        if b is None and can_be_assumed(right):
            self.assume(right.name, WINDOW)
        if a is None and can_be_assumed(left):
            self.assume(left.name.split("|")[0], 0)

    def _added(self, node: ast.AST, left: Any, right: Any, a: float | None, b: float | None) -> Any:
        terms = (*_terms(left), *_terms(right))
        opens = [value for value in (left, right) if isinstance(value, Unknown)]
        if terms:
            of_data = any(value.of_data for value in opens)
            return Unknown(self.source.text(node), terms, of_data=of_data, scaler=any(v.scaler for v in opens))
        if isinstance(left, Unknown) and b is not None and not left.of_data:
            return Unknown(f"{left.name}|{self.source.text(node)}")
        return self.opaque(node, of_data=any(value.of_data for value in opens))

    def _scaled(self, node: ast.AST, op: ast.operator, left: Any, right: Any, a: float | None, b: float | None) -> Any:
        text = self.source.text(node)
        divides = not isinstance(op, ast.Mult)
        if divides and isinstance(left, Unknown) and isinstance(right, Unknown) and _MASKED.search(text):
            return self.computed(node, of_data=True, tokens=True)
        if divides and b is None and can_be_assumed(right) and right.name in self.bounds:
            self.assume(right.name, WINDOW)
        if divides and isinstance(right, Unknown) and right.name in self.bounds:
            self.trace.named_windows.add(right.name)
        terms = _terms(left)
        if isinstance(left, Unknown) and not terms and "loss" in left.name.lower():
            terms = (Term(self.new_origin()),)
        if terms and b is not None and b:
            return left.with_terms(tuple(t.times(1 / b if divides else b) for t in terms), text)
        if isinstance(right, Unknown) and right.terms and a is not None and not divides:
            return right.with_terms(tuple(t.times(a) for t in right.terms), text)
        found = tuple(t.times(None) for t in (*terms, *_terms(right)))
        of_data = any(isinstance(v, Unknown) and v.of_data for v in (left, right))
        return Unknown(text, found, of_data=of_data)


def _arithmetic(op: ast.operator, a: float, b: float) -> float | None:
    """``a op b``; None where it is no number, or one that loops do not count with: 10**10**10 never ends."""
    if isinstance(op, ast.Pow) and abs(b) > _LARGEST_POWER:
        return None
    try:
        result = _ARITHMETIC[type(op)](a, b)
    except (KeyError, ArithmeticError, TypeError, ValueError):
        return None
    return result if is_number(result) and _is_small(result) else None  # (-1) ** 0.5 is complex


def _is_small(value: Any) -> bool:
    return not isinstance(value, int) or abs(value) < 2**64


def can_be_assumed(value: Any) -> bool:
    """Whether ``value`` may be taken for a number that the caller or the user chooses."""
    return isinstance(value, Unknown) and not value.of_data and not value.terms and "how" not in value.options


def _terms(value: Any) -> tuple[Term, ...]:
    return value.terms if isinstance(value, Unknown) else ()


def is_plain(value: Any) -> bool:
    """Whether a number stands in the code as it is."""
    return not isinstance(value, (bool, Length))
