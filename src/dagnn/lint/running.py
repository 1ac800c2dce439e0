"""Runs a training loop in mind: statement by statement, with numbers for what is open, and notes its events.

A window of 5 micro-batches, an epoch of 12, two epochs: whatever form a loop has (``enumerate``, ``while``, counters,
helper functions, methods), the order of its backward passes, steps and zeroings then shows what it computes.
"""

import ast
import contextlib
import re
from collections.abc import Sequence
from typing import Any

from dagnn.lint.calls import Calls
from dagnn.lint.expressions import GiveUp, Reconsider
from dagnn.lint.source import AnyFunction, Root, Source, defines, stops
from dagnn.lint.values import (
    EPOCH,
    NOTHING,
    OUTER,
    WINDOW,
    Class,
    Function,
    Items,
    Scope,
    Trace,
    Unknown,
    is_number,
    is_open,
    kind_of,
    names_loader,
)

_MAX_RUNS, _MAX_ASSUMPTIONS, _MAX_DEPTH = 8, 12, 12
_PIECES = re.compile(r"micro|accum|\bchunks?\(|\.chunk|split\(", re.IGNORECASE)
_RELATED = re.compile(r"loss|optim|scaler|accum|grad", re.IGNORECASE)
_MAX_TURNS = 160  # of a loop whose length is a number in the code


class _Leave(Exception):
    """A loop or a function is left."""

    def __init__(self, how: str, value: Any = NOTHING) -> None:
        super().__init__(how)
        self.how, self.value = how, value


def explore(source: Source, root: Root, seen: set[int]) -> list[Trace]:
    """What happens from ``root`` on, a trace for each outcome of open conditions; ``seen`` gets the functions."""
    first, asked = _settled(source, root, {}, seen)
    traces = [first]
    choices = [{name: False} for name in asked] + ([dict.fromkeys(asked, False)] if len(asked) > 1 else [])
    for decisions in choices[: _MAX_RUNS - 1]:
        trace, _ = _settled(source, root, decisions, seen)
        traces.append(trace)
    return traces


def _settled(source: Source, root: Root, decisions: dict[str, bool], seen: set[int]) -> tuple[Trace, list[str]]:
    """A run whose assumptions suffice."""
    assumed: dict[str, float] = {}
    epoch = EPOCH
    for _ in range(_MAX_ASSUMPTIONS):
        run = _Run(source, assumed, decisions, epoch)
        run.seen = seen
        try:
            run.start(root)
        except Reconsider:
            continue
        except (GiveUp, RecursionError):
            run.trace.gave_up = True
            return run.trace, []
        windows = {WINDOW, *run.literals}
        fitting = next(e for e in range(max(EPOCH, 2 * max(windows) + 1), 10_000) if all(e % w for w in windows))
        if fitting == epoch:
            return run.trace, run.asked
        epoch = fitting
    run.trace.gave_up = True
    return run.trace, []


class _Run(Calls):
    """One run through a root."""

    seen: set[int]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.module = Scope()
        self._depth = 0
        self._entered: list[int] = []

    def start(self, root: Root) -> None:
        if root.function is None:
            with contextlib.suppress(_Leave):
                self._block(self.source.tree.body, self.module)
            return
        self._define(self.source.tree.body)
        owner = None
        if root.cls is not None:
            owner = Unknown("self", cls=root.cls)
            if (init := self.find(owner, "__init__")) and init.node is not root.function:
                self._quietly(init)
        function = Function(root.function, self.module, owner)
        has_loop = self.source.has_loop(root.function)
        if has_loop:
            for _ in range(OUTER):  # a caller may do so for each epoch
                self.enter(function, (), {})
            return
        self.trace.alone = root.function.name != "training_step"
        for _ in range(OUTER):
            for i in range(self.epoch):
                self.micro_batch += 1
                self.inside += 1
                self.store["self.trainer.is_last_batch"] = i + 1 == self.epoch
                self.enter(function, (), {"batch_idx": i, "batch_index": i})
                self.inside -= 1
            self.note("epoch", root.function, loops=self.epoch)

    def _define(self, statements: Sequence[ast.stmt]) -> None:
        """Names of the module that a function in it may use."""
        for statement in statements:
            if defines(statement) or isinstance(statement, (ast.Assign, ast.AnnAssign)):
                self._run(statement, self.module)
            elif isinstance(statement, (ast.If, ast.Try)):
                self._define(statement.body)
        self.trace.events.clear()

    def _quietly(self, function: Function) -> None:
        self.enter(function, (), {})
        self.trace.events.clear()
        self.trace.escaped = self.trace.touched = False

    def enter(self, function: Function, args: Sequence[Any], keywords: dict[str, Any]) -> Any:
        node = function.node
        if id(node) in self._entered or self._depth >= _MAX_DEPTH:
            return self.opaque(node, of_data=True)
        scope = Scope(function.scope)
        self._bind_arguments(function, scope, args, keywords)
        if isinstance(node, ast.Lambda):
            return self.evaluate(node.body, scope)
        self.seen.add(id(node))
        if self.source.yields(node):
            return Items(lambda i: self.computed(node, of_data=True), None, True)
        if not self.source.has_events(node) and node.name not in ("__init__",) and len(node.body) > 30:
            return self.computed(node, of_data=True)
        self._entered.append(id(node))
        self._depth += 1
        inside = self.inside
        try:
            self._block(node.body, scope)
        except _Leave as leave:
            return leave.value
        finally:
            self._depth -= 1
            self._entered.pop()
            self.inside = inside
        return NOTHING

    def _bind_arguments(self, function: Function, scope: Scope, args: Sequence[Any], keywords: dict[str, Any]) -> None:
        spec = function.node.args
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        given = list(args)
        static = any("staticmethod" in self.source.text(d) for d in getattr(function.node, "decorator_list", []))
        if function.owner is not None and not static:
            given.insert(0, function.owner)
        defaults = dict(zip(names[::-1], spec.defaults[::-1], strict=False))
        defaults |= {a.arg: d for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None}
        for place, name in enumerate([*names, *(a.arg for a in spec.kwonlyargs)]):
            if place < min(len(given), len(names)):
                value = given[place]
            elif name in keywords:
                value = keywords[name]
            elif name in defaults and self._depth and (args or keywords):
                value = self.evaluate(defaults[name], function.scope)
            else:
                value = Unknown(name, kind=kind_of(name))
            scope.set(name, value)
        if spec.vararg:
            scope.set(spec.vararg.arg, tuple(given[len(names) :]) or self.opaque(spec.vararg))
        if spec.kwarg:
            scope.set(spec.kwarg.arg, self.opaque(spec.kwarg))

    def _block(self, statements: Sequence[ast.stmt], scope: Scope) -> None:
        for statement in statements:
            self._run(statement, scope)

    def _run(self, node: ast.stmt, scope: Scope) -> None:
        method = getattr(self, f"_run_{type(node).__name__.lower()}", None)
        if method is not None:
            method(node, scope)

    def _run_functiondef(self, node: AnyFunction, scope: Scope) -> None:
        scope.set(node.name, Function(node, scope))

    _run_asyncfunctiondef = _run_functiondef

    def _run_classdef(self, node: ast.ClassDef, scope: Scope) -> None:
        scope.set(node.name, Class(node))

    def _run_import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            name = alias.name.replace("torch.nn.functional", "F")
            scope.set(alias.asname or alias.name.split(".")[0], Unknown(name if alias.asname else name.split(".")[0]))

    def _run_importfrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        for alias in node.names:
            name = f"{node.module or ''}.{alias.name}"
            if alias.asname is None and alias.name in ("trange", "range", "zip", "next"):
                continue
            scope.set(alias.asname or alias.name, Unknown(name))

    def _run_global(self, node: ast.Global | ast.Nonlocal, scope: Scope) -> None:
        scope.outer.update(node.names)

    _run_nonlocal = _run_global

    def _run_expr(self, node: ast.Expr, scope: Scope) -> None:
        self.evaluate(node.value, scope)

    def _run_assign(self, node: ast.Assign, scope: Scope) -> None:
        if any(isinstance(t, ast.Attribute) and t.attr == "grad" for t in node.targets):
            self._assign_gradient(node, scope)
            return
        value = self.evaluate(node.value, scope)
        for target in node.targets:
            self.bind(target, value, scope)

    def _assign_gradient(self, node: ast.Assign, scope: Scope) -> None:
        text = self.source.text(node.value)
        if text in ("None", "0", "0.0") or "zeros" in text:
            self.note("zero", node, target="*")
        else:
            self.trace.touched = True

    def _run_annassign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.bind(node.target, self.evaluate(node.value, scope), scope)

    def _run_augassign(self, node: ast.AugAssign, scope: Scope) -> None:
        if ".grad" in self.source.text(node.target):
            self.trace.touched = True
            return
        before = self.evaluate(node.target, scope)
        self.bind(node.target, self.combine(node, node.op, before, self.evaluate(node.value, scope)), scope)

    def _run_return(self, node: ast.Return, scope: Scope) -> None:
        raise _Leave("return", self.evaluate(node.value, scope))

    def _run_raise(self, node: ast.Raise, scope: Scope) -> None:
        raise _Leave("return")

    def _run_break(self, node: ast.Break, scope: Scope) -> None:
        raise _Leave("break")

    def _run_continue(self, node: ast.Continue, scope: Scope) -> None:
        raise _Leave("continue")

    def _run_with(self, node: ast.With | ast.AsyncWith, scope: Scope) -> None:
        for item in node.items:
            value = self.evaluate(item.context_expr, scope)
            if isinstance(value, Unknown) and value.name == "accumulate" and "accelerator" in value.options:
                self._accumulates(value.options["accelerator"])
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value, scope)
        self._block(node.body, scope)

    _run_asyncwith = _run_with

    def _accumulates(self, accelerator: Unknown) -> None:
        """Accelerate steps after every window and after the last micro-batch of a loader, also behind the block."""
        key = f"{accelerator.name}.turns"
        turns = self.store.get(key, 0) + 1
        length = self.number(accelerator.options.get("gradient_accumulation_steps")) or WINDOW
        if length > 1:
            self.literals.add(int(length))
        last = self._place + 1 == self.epoch
        self.synchronises = turns % length == 0 or last
        self.store[key] = 0 if last else turns
        self.store[f"{accelerator.name}.sync_gradients"] = self.synchronises

    _place = 0  # of the turn of the loop over a loader

    def _run_try(self, node: ast.Try, scope: Scope) -> None:
        self._block(node.body, scope)
        self._block(node.orelse, scope)
        self._block(node.finalbody, scope)

    def _run_if(self, node: ast.If, scope: Scope) -> None:
        guards = self.source.has_events(node)
        self.guards += guards
        try:
            test = self.evaluate(node.test, scope)
            if self.source.text(node.test).startswith("__name__"):
                test = True
            if is_open(test) and stops(node.body) and not node.orelse:
                self.trace.unsure_guard |= self._skips_rest(node, scope)
                return  # an early way out that a normal run does not take
            if is_open(test) and not self.source.may_matter([*node.body, *node.orelse]):
                return
            self.matters = guards or bool(_RELATED.search(self.source.text(node)))
            truth = self.truth(test)
        finally:
            self.guards -= guards
            self.matters = True
        both = [any(map(self.source.has_events, side)) for side in (node.body, node.orelse)]
        one_sided = is_open(test) and both[0] != both[1]
        self.open_guards += [id(node)] * one_sided
        self.guard_texts[id(node)] = self.source.text(node.test)
        try:
            self._block(node.body if truth else node.orelse, scope)
        finally:
            del self.open_guards[len(self.open_guards) - one_sided :]

    def _skips_rest(self, node: ast.If, scope: Scope) -> bool:
        """Whether it may leave out what would remain of an epoch, as ``if i >= last: continue`` does."""
        if not (isinstance(node.body[-1], ast.Continue) and isinstance(node.test, ast.Compare) and self.inside):
            return False
        sides = (node.test.left, *node.test.comparators)
        return any(is_number(self.evaluate(side, scope)) for side in sides if not isinstance(side, ast.Constant))

    def items(self, value: Any) -> Items:
        if isinstance(value, Items):
            return value
        if isinstance(value, (list, tuple)):
            return _from_list(list(value))
        if isinstance(value, dict):
            return _from_list(list(value))
        if isinstance(value, Unknown) and value.kind in ("optimizer", "scheduler"):
            return Items(lambda i: Unknown(f"{value.name}[]", kind=value.kind), 1)
        of_data = not (isinstance(value, Unknown) and value.of_data) or names_loader(value.name)
        name = value.name if isinstance(value, Unknown) else ""
        node = ast.Name(f"an item of {name}")
        return Items(lambda i: self.computed(node, of_data=True), None, of_data, "")

    def _run_for(self, node: ast.For | ast.AsyncFor, scope: Scope) -> None:
        found = self.items(self.evaluate(node.iter, scope))
        if not self.source.runs_backward(node):
            self._other_loop(node, found, scope)
            return
        innermost = not self.source.has_loop(node)
        if found.length is None and found.name and innermost and self.number(Unknown(found.name)) is not None:
            self.assume(found.name, WINDOW)
        if innermost and _PIECES.search(f"{self.source.text(node.target)} {self.source.text(node.iter)}"):
            self.trace.named_windows.add(self.source.text(node.iter))
        turns = self._turns(found, innermost)
        place, loops = self._place, 0
        for i in range(turns):
            self._place = i
            self.bind(node.target, found.element(i), scope)
            loops += 1
            if self._turn(node, scope, innermost):
                break
        self._place = place
        if innermost and found.of_data:
            self.note("epoch", node, loops=loops)
        self._block(node.orelse, scope)

    _run_asyncfor = _run_for

    def _turns(self, found: Items, innermost: bool) -> int:
        if not innermost:
            return OUTER if found.length is None else min(found.length, OUTER + 1)
        if found.length is None:
            return self.epoch
        return min(found.length, _MAX_TURNS)

    def _turn(self, node: ast.For | ast.AsyncFor | ast.While, scope: Scope, innermost: bool) -> bool:
        """One turn of a loop around a backward pass; whether it leaves the loop."""
        self.micro_batch += innermost
        self.inside += innermost
        try:
            self._block(node.body, scope)
        except _Leave as leave:
            if leave.how == "return":
                raise
            return leave.how == "break"
        finally:
            self.inside -= innermost
        return False

    def _other_loop(self, node: ast.For | ast.AsyncFor, found: Items, scope: Scope) -> None:
        """A loop without a backward pass: its first turn, or all if it is short."""
        turns = 1 if found.length is None else min(found.length, 8)
        for i in range(turns):
            self.bind(node.target, found.element(i), scope)
            try:
                self._block(node.body, scope)
            except _Leave as leave:
                if leave.how == "return":
                    raise
                if leave.how == "break":
                    break

    def _run_while(self, node: ast.While, scope: Scope) -> None:
        backward = self.source.runs_backward(node)
        innermost = backward and not self.source.has_loop(node)
        most = (_MAX_TURNS if innermost else OUTER) if backward else 1
        loops, ended = 0, False
        while not ended and loops < most:
            test = self.evaluate(node.test, scope)
            if not is_open(test) and not test:
                ended = True
                break
            if innermost and (is_open(test) or isinstance(node.test, ast.Constant)):
                most = self.epoch
            loops += 1
            self._place = loops - 1
            if self._turn(node, scope, innermost):
                break
        if innermost and ended and loops == self.epoch:
            self.note("epoch", node, loops=loops)


def _from_list(values: list[Any]) -> Items:
    return Items(lambda i: values[i] if i < len(values) else Unknown("nothing"), len(values))
