"""Calls in a training loop: which of them make, use, clip or zero gradients, and what the others give."""

import ast
import math
import re
from collections.abc import Sequence
from typing import Any

from dagnn.lint.expressions import Expressions, can_be_assumed
from dagnn.lint.values import (
    NOTHING,
    WINDOW,
    Class,
    Event,
    Function,
    Items,
    Length,
    Scope,
    Term,
    Unknown,
    is_number,
    kind_of,
    names_loader,
)

# Calls that get an optimizer and neither step nor zero it.
_HARMLESS = re.compile(
    r"sched|(^|_)lr|learning_rate|save|checkpoint|ckpt|log|print|resume|load|prepare|initialize|distributed|ddp|"
    r"broadcast|state|ema|^str$|^len$|isinstance|scale|setup|wrap|clip|append|param|freeze|momentum|warmup|decay|^id$|"
    r"^type$|hasattr|getattr|setattr|^dict$|^list$|^tuple$|summary|report|display|plot|inf_checks",
    re.IGNORECASE,
)
_ZEROES = re.compile(r"zero_?(the_)?grad|clear_grad|reset_grad", re.IGNORECASE)
_CHANGES_GRADIENTS = re.compile(r"(scale|multiply|divide|average|normali[sz]e)_(the_)?grad|grad_scaler$", re.IGNORECASE)
_CLIPS = re.compile(r"^clip_grad|^clip_gradient|^gradient_clip", re.IGNORECASE)
_ABOUT_CLIPPING = re.compile(r"clip|norm", re.IGNORECASE)
_KEEPS = {  # methods whose result is the same loss
    *("mean", "float", "to", "cuda", "cpu", "double", "half", "bfloat16", "squeeze", "unsqueeze", "type", "type_as"),
    *("clone", "view", "reshape", "contiguous", "requires_grad_", "flatten", "nanmean"),
}
_NUMBERS = {"item", "tolist", "numpy", "detach", "size", "numel"}
_LOOKS = {"norm", "abs", "isnan", "isfinite", "isinf", "any", "all", "max", "min", "mean", "sum", "item", "detach_"}
_TOKEN_LOSSES = ("cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss")
_LIBRARIES = re.compile(r"^(self|fabric|manual|optim\w*|amp|runner|strategy)\b|fabric$|optimizer")


class Calls(Expressions):
    """Expressions with calls. Adds events to the trace."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.inside = 0  # loops around the backward pass that run
        self.guard_texts: dict[int, str] = {}
        self.open_guards: list[int] = []  # open conditions whose other side has no such events
        self.synchronises: bool | None = None  # inside `accelerator.accumulate`: whether this turn steps
        self._engines: set[str] = set()  # what runs backward passes in a way of its own

    def note(self, kind: str, node: ast.AST, **more: Any) -> None:
        if self.synchronises is False and kind in ("zero", "step", "schedule"):
            return  # Accelerate passes these over
        # Whether clipping is on, or how far it goes, does not make it right or wrong.
        open_guards = [g for g in self.open_guards if kind != "clip" or not _ABOUT_CLIPPING.search(self.guard_texts[g])]
        guards = frozenset(open_guards)
        self.trace.events.append(Event(kind, node, self.micro_batch, bool(self.inside), guards=guards, **more))

    def escape(self, node: ast.AST) -> None:
        """Code that cannot be seen may do anything to the optimizer."""
        self.trace.escaped = True

    def call(self, node: ast.Call, scope: Scope) -> Any:
        if isinstance(node.func, ast.Attribute):
            if (found := self._on_gradients(node, node.func, scope)) is not None:
                return found
            base = self.evaluate(node.func.value, scope)
            return self._method(node, node.func, base, *self._arguments(node, scope))
        callee = self.evaluate(node.func, scope)
        args, keywords = self._arguments(node, scope)
        if isinstance(callee, Function):
            return self.enter(callee, args, keywords)
        if isinstance(callee, Class):
            return self._instance(callee.node, args, keywords)
        if isinstance(callee, Unknown) and callee.cls is not None and (inner := self.find(callee, "__call__")):
            return self.enter(inner, args, keywords)
        if isinstance(node.func, ast.Name) and scope.get(node.func.id) is None:
            built_in = getattr(self, f"_built_in_{node.func.id}", None)
            if built_in is not None:
                return built_in(node, args, keywords)
        return self._unseen(node, callee, args, keywords)

    def _arguments(self, node: ast.Call, scope: Scope) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        for each in node.args:
            value = self.evaluate(each, scope)
            if isinstance(each, ast.Starred) and isinstance(value, (tuple, list)):
                args += value
            else:
                args.append(value)
        return args, {key.arg or "**": self.evaluate(key.value, scope) for key in node.keywords}

    def _on_gradients(self, node: ast.Call, func: ast.Attribute, scope: Scope) -> Any:
        """Calls on ``.grad``: zeroing, and looking at it."""
        text = self.source.text(func.value)
        if not re.search(r"\.grad(\.data)?\b", text):
            return None
        if func.attr in ("zero_", "fill_"):
            self.note("zero", node, target="*")
            return self.opaque(node)
        if func.attr in _LOOKS:
            return self.opaque(node, of_data=True)
        self.trace.touched = True
        return self.opaque(node, of_data=True)

    def _instance(self, cls: ast.ClassDef, args: Sequence[Any], keywords: dict[str, Any]) -> Unknown:
        made = Unknown(self.new_name(cls.name), kind=kind_of(cls.name), cls=cls, options=dict(keywords))
        if init := self.find(made, "__init__"):
            self.enter(init, args, keywords)
        return made

    def find(self, owner: Unknown, name: str) -> Function | None:
        """The method of the class of ``owner``, or of its base classes in the same file."""
        waiting, seen = [owner.cls], set()
        while waiting:
            cls = waiting.pop(0)
            if cls is None or cls.name in seen:
                continue
            seen.add(cls.name)
            for each in cls.body:
                if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and each.name == name:
                    return Function(each, self.module, owner)
            waiting += [self.source.classes.get(self.source.text(base)) for base in cls.bases]
        return None

    module: Scope

    def _method(self, node: ast.Call, func: ast.Attribute, base: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
        name = func.attr
        if isinstance(base, list):
            return self._on_list(node, base, name, args)
        if isinstance(base, dict):
            values = tuple(base.values())
            if name == "items":
                return list(base.items())
            return list(values) if name == "values" else list(base) if name == "keys" else self.opaque(node)
        if is_number(base) and name == "item":
            return base
        if not isinstance(base, Unknown):
            return self.opaque(node)
        if isinstance(stored := self.store.get(f"{base.name}.{name}"), Function):
            return self.enter(stored, args, keywords)
        if base.cls is not None and (method := self.find(base, name)):
            return self.enter(method, args, keywords)
        known = getattr(self, f"_method_{name}", None)
        if known is not None and (found := known(node, func, base, args, keywords)) is not None:
            return found
        if _CLIPS.search(name):
            self.note("clip", node, target=base.name)
            return self.opaque(node, of_data=True)
        if name in _KEEPS and base.of_data and not (args and isinstance(args[0], list)):
            average = base.options.get("stacked") if name == "mean" else None
            return base.with_terms(tuple(t.times(1 / average) for t in base.terms) if average else base.terms)
        if name in _NUMBERS and base.of_data:
            return self.opaque(node, of_data=True)
        callee = self.store.get(f"{base.name}.{name}") or Unknown(
            f"{base.name}.{name}", base.terms, kind_of(f"{base.name}.{name}"), base.of_data
        )
        if callee.cls is not None and (inner := self.find(callee, "__call__")):
            return self.enter(inner, args, keywords)
        return self._unseen(node, callee, args, keywords)

    def _on_list(self, node: ast.Call, base: list[Any], name: str, args: list[Any]) -> Any:
        if name == "append" and args:
            base.append(args[0])
        elif name == "extend" and args and isinstance(args[0], list):
            base.extend(args[0])
        elif name == "clear":
            base.clear()
        elif name == "pop" and base:
            return base.pop()
        return NOTHING if name in ("append", "extend", "clear") else self.opaque(node, of_data=True)

    def _is_optimizer(self, func: ast.Attribute, base: Unknown) -> bool:
        return base.kind == "optimizer" or (not base.kind and self.source.text(func.value) in self.source.optimizers)

    def _method_backward(self, node: ast.Call, func: ast.Attribute, base: Unknown, args: list[Any], kw: Any) -> Any:
        by_library = bool(args) and isinstance(args[0], Unknown) and not base.of_data and not base.terms
        loss = args[0] if by_library else base
        if base.name == "torch.autograd" and args and isinstance(args[0], (list, tuple)):
            loss = next((a for a in args[0] if isinstance(a, Unknown)), base)
        plain = "loss" in loss.name.lower() and not re.search(r"[*/]", loss.name)
        terms = loss.terms or (Term(self.new_origin(), exact=plain),)
        if by_library and base.kind == "accelerator":
            self.trace.windows_by_library = self.trace.windows_by_library or self.synchronises is not None
            set_by = base.options.get("gradient_accumulation_steps")
            if isinstance(set_by, Unknown) and self.number(set_by) is None and can_be_assumed(set_by):
                self.assume(set_by.name, WINDOW)
            divides = 1 if set_by is None and "made_by" in base.options else self.number(set_by)
            divides = WINDOW if divides is None and self.synchronises is not None else divides
            terms = tuple(t.times(1 / divides if divides else None) for t in terms) if divides != 1 else terms
        elif by_library and not _LIBRARIES.search(base.name):
            self._engines.add(base.name)
            terms = tuple(t.times(None) for t in terms)
        self.note("backward", node, terms=terms, scaler=loss.scaler)
        return NOTHING

    def _method_manual_backward(self, node: ast.Call, func: ast.Attribute, base: Unknown, args: Any, kw: Any) -> Any:
        if args and isinstance(args[0], Unknown):
            terms = args[0].terms or (Term(self.new_origin()),)
            self.note("backward", node, terms=terms)
        return NOTHING

    def _method_zero_grad(self, node: ast.Call, func: ast.Attribute, base: Unknown, args: Any, kw: Any) -> Any:
        self.note("zero", node, target=base.name if self._is_optimizer(func, base) else "*")
        return NOTHING

    def _method_step(self, node: ast.Call, func: ast.Attribute, base: Unknown, args: list[Any], kw: Any) -> Any:
        if base.kind == "scaler" and args and isinstance(args[0], Unknown):
            self.note("step", node, target=args[0].name, scaler=True)
        elif base.kind == "scheduler":
            if not args and not kw:
                self.note("schedule", node, target=base.name)
        elif base.name in self._engines:
            self.escape(node)
        elif self._is_optimizer(func, base):
            if any(isinstance(a, Unknown) for a in args):
                self.escape(node)  # a distributed optimizer, whose gradients are no .grad
            closure = next((a for a in (*args, *kw.values()) if isinstance(a, Function)), None)
            if closure is not None:
                self.enter(closure, (), {})
            self.note("step", node, target=base.name)
            if kw.get("zero_grad") is True:
                self.note("zero", node, target=base.name)
        else:
            return None
        return NOTHING

    def _method_optimizer_step(self, node: ast.Call, func: ast.Attribute, base: Unknown, args: Any, kw: Any) -> Any:
        if args and isinstance(args[0], Unknown) and args[0].kind == "optimizer":
            self.note("step", node, target=args[0].name)
            return NOTHING
        return None

    def _method_unscale_(self, node: ast.Call, func: ast.Attribute, base: Unknown, args: Any, kw: Any) -> Any:
        self.note("unscale", node)
        return NOTHING

    _method_unscale_gradients = _method_unscale_

    def _method_scale(self, node: ast.Call, func: ast.Attribute, base: Unknown, args: list[Any], kw: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], Unknown) and base.kind == "scaler":
            scaled = args[0].with_terms(args[0].terms or (Term(self.new_origin()),))
            scaled.scaler, scaled.of_data = True, True
            return scaled
        return None

    def _method_scale_loss(self, node: ast.Call, func: ast.Attribute, base: Unknown, args: list[Any], kw: Any) -> Any:
        return args[0] if args and isinstance(args[0], Unknown) else None

    def _method_prepare(self, node: ast.Call, func: ast.Attribute, base: Unknown, args: list[Any], kw: Any) -> Any:
        return None if not args else tuple(args) if len(args) > 1 else args[0]

    _method_setup = _method_initialize = _method_setup_dataloaders = _method_prepare

    def _method_optimizers(self, node: ast.Call, func: ast.Attribute, base: Unknown, args: Any, kw: Any) -> Any:
        return Unknown(f"{base.name}.optimizers()", kind="optimizer")

    def _method_lr_schedulers(self, node: ast.Call, func: ast.Attribute, base: Unknown, args: Any, kw: Any) -> Any:
        return Unknown(f"{base.name}.lr_schedulers()", kind="scheduler")

    def _method_accumulate(self, node: ast.Call, func: ast.Attribute, base: Unknown, args: Any, kw: Any) -> Any:
        return Unknown("accumulate", options={"accelerator": base}) if base.kind == "accelerator" else None

    def _method_mul_(self, node: ast.Call, func: ast.Attribute, base: Unknown, args: list[Any], kw: Any) -> Any:
        number = self.number(args[0]) if args else None
        inverse = func.attr.startswith(("div", "true_div"))
        factor = None if not number else 1 / number if inverse else number
        scaled = tuple(t.times(factor) for t in base.terms)
        if func.attr.endswith("_"):
            base.terms = scaled
            return base
        return base.with_terms(scaled)

    _method_div_ = _method_mul = _method_div = _method_true_divide = _method_mul_

    def _method_sum(self, node: ast.Call, func: ast.Attribute, base: Unknown, args: list[Any], kw: Any) -> Any:
        """``x.sum()`` and ``torch.sum(x)``."""
        what = args[0] if args and not base.of_data else base
        parts = what if isinstance(what, list) else [what]
        terms = tuple(t for part in parts if isinstance(part, Unknown) for t in part.terms)
        summed = isinstance(what, Unknown) and "stacked" not in what.options
        found = Unknown(self.source.text(node), tuple(t._replace(summed=t.summed or summed) for t in terms))
        found.of_data = True
        return found

    def _method_mean(self, node: ast.Call, func: ast.Attribute, base: Unknown, args: list[Any], kw: Any) -> Any:
        if not base.of_data and args and isinstance(args[0], Unknown):
            return args[0].with_terms(args[0].terms)
        return None

    def _method_stack(self, node: ast.Call, func: ast.Attribute, base: Unknown, args: list[Any], kw: Any) -> Any:
        if args and isinstance(args[0], list) and args[0] and all(isinstance(a, Unknown) for a in args[0]):
            terms = tuple(t for a in args[0] for t in a.terms)
            return Unknown(self.source.text(node), terms, of_data=True, options={"stacked": len(args[0])})
        return None

    def _may_step(self, values: list[Any], last: str, name: str) -> bool:
        """Whether code that cannot be seen may step or zero an optimizer among ``values``, or run a closure."""
        gets_optimizer = any(_is(v, "optimizer") for v in values)
        if gets_optimizer and not _HARMLESS.search(last) and not kind_of(name):
            return True
        return any(isinstance(v, Function) and self.source.has_events(v.node) for v in values)

    def _unseen(self, node: ast.Call, callee: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
        """What a call gives whose function is not in this file."""
        values = [*args, *keywords.values()]
        name = callee.name if isinstance(callee, Unknown) else self.source.text(node.func)
        last = re.sub(r"\[.*", "", name).split(".")[-1].split("#")[0]
        if isinstance(callee, Unknown) and callee.kind == "scaler" and any(_is(v, "optimizer") for v in values):
            self.trace.escaped = True  # timm's NativeScaler and its like: backward, clip and step in one call
        if _CHANGES_GRADIENTS.search(last):
            self.trace.touched = True
        if _ZEROES.search(last):
            self.note("zero", node, target="*")
        elif _CLIPS.search(last):
            self.note("clip", node)
        elif self._may_step(values, last, name):
            self.escape(node)
        if args and isinstance(args[0], Items):
            return args[0]  # a progress bar, or another wrapper
        of_data = any(isinstance(v, Unknown) and v.of_data for v in values) or getattr(callee, "of_data", False)
        if kind_of(name) and not isinstance(callee, (Function, Class)) and getattr(callee, "kind", "") != "criterion":
            made = Unknown(self.new_name(self.source.text(node)), kind=kind_of(name), options=dict(keywords))
            made.options["made_by"] = last
            return made
        if isinstance(callee, Unknown) and callee.kind == "criterion" and "made_by" not in callee.options:
            made = Unknown(self.new_name(self.source.text(node)), kind="criterion", options=dict(keywords))
            made.options["made_by"] = last
            if not of_data:
                return made
        if not of_data:
            return Unknown(self.source.text(node), kind=kind_of(name), options=dict(keywords))
        options = callee.options if isinstance(callee, Unknown) and callee.kind == "criterion" else keywords
        reduction = options.get("reduction", "mean")
        named = last if last in _TOKEN_LOSSES else options.get("made_by", "")
        tokens = named in _TOKEN_LOSSES and "ignore_index" in options and reduction == "mean"
        return self.computed(node, of_data=True, tokens=tokens, summed=reduction == "sum")

    def _built_in_range(self, node: ast.Call, args: list[Any], keywords: Any) -> Any:
        numbers = [self.number(a) for a in args]
        if len(args) > 3 or (len(args) == 3 and not numbers[2] and numbers[2] is not None):  # an error as it runs
            return self.opaque(node)
        if all(isinstance(n, int) for n in numbers) and args:
            span = range(*[int(n) for n in numbers if n is not None])
            length = max(0, -((span.start - span.stop) // span.step))  # len() holds no 10**19
            of_data = isinstance(args[0 if len(args) == 1 else 1], Length)
            return Items(
                lambda i: span[i] if i < length else span.start, length, of_data, getattr(args[-1], "name", "")
            )
        end = args[0 if len(args) == 1 else 1] if args else None
        name = end.name if isinstance(end, Unknown) and not end.of_data else ""
        self.bounds.add(name)
        start = _whole(numbers[0]) if len(args) > 1 else 0
        return Items(lambda i: start + i, None, "len(" in name, "" if "len(" in name else name)

    _built_in_trange = _built_in_range

    def _built_in_len(self, node: ast.Call, args: list[Any], keywords: Any) -> Any:
        value = args[0] if args else None
        if isinstance(value, (list, tuple, dict, str)):
            return len(value)
        if isinstance(value, Items) and value.length is not None:
            return value.length
        if isinstance(value, Items) or (isinstance(value, Unknown) and (not value.of_data or names_loader(value.name))):
            return Length(self.epoch)
        return self.opaque(node, of_data=True)

    def _built_in_enumerate(self, node: ast.Call, args: list[Any], keywords: dict[str, Any]) -> Any:
        start = args[1] if len(args) > 1 else keywords.get("start", 0)
        inner, first = self.items(args[0] if args else None), self.number(start)
        number = _whole(first)
        self.trace.assumed_counter |= first is None
        return Items(lambda i: (number + i, inner.element(i)), inner.length, inner.of_data, inner.name)

    def _built_in_zip(self, node: ast.Call, args: list[Any], keywords: Any) -> Any:
        parts = [self.items(a) for a in args]
        lengths = [p.length for p in parts if p.length is not None]
        of_data = any(p.of_data for p in parts)
        return Items(lambda i: tuple(p.element(i) for p in parts), min(lengths, default=None), of_data)

    def _built_in_list(self, node: ast.Call, args: list[Any], keywords: Any) -> Any:
        if not args:
            return []
        value = args[0]
        return list(value) if isinstance(value, (list, tuple)) else value

    _built_in_tuple = _built_in_iter = _built_in_reversed = _built_in_sorted = _built_in_list

    def _built_in_dict(self, node: ast.Call, args: list[Any], keywords: dict[str, Any]) -> Any:
        return dict(keywords) if not args else args[0]

    def _built_in_next(self, node: ast.Call, args: list[Any], keywords: Any) -> Any:
        return self.computed(node, of_data=True)

    def _built_in_int(self, node: ast.Call, args: list[Any], keywords: Any) -> Any:
        number = self.number(args[0]) if args else 0
        if number is not None:
            return float(number) if isinstance(node.func, ast.Name) and node.func.id == "float" else _whole(number)
        return args[0] if isinstance(args[0], Unknown) else self.opaque(node)

    _built_in_float = _built_in_round = _built_in_int

    def _built_in_max(self, node: ast.Call, args: list[Any], keywords: Any) -> Any:
        numbers = [self.number(a) for a in args]
        if args and all(n is not None for n in numbers):
            chosen = max if isinstance(node.func, ast.Name) and node.func.id == "max" else min
            return chosen(n for n in numbers if n is not None)
        opens = [a for a in args if isinstance(a, Unknown)]
        if len(opens) == 1 and len(args) == 2 and 1 in numbers:
            return opens[0]  # max(1, x)
        return self.opaque(node, of_data=any(o.of_data for o in opens))

    _built_in_min = _built_in_max

    def _built_in_sum(self, node: ast.Call, args: list[Any], keywords: Any) -> Any:
        values = args[0] if args and isinstance(args[0], (list, tuple)) else args[:1]
        terms = tuple(t for v in values if isinstance(v, Unknown) for t in v.terms)
        if values and all(is_number(v) for v in values):
            return sum(values)
        return Unknown(self.source.text(node), terms, of_data=bool(terms))

    def _built_in_print(self, node: ast.Call, args: list[Any], keywords: Any) -> Any:
        return NOTHING

    def _built_in_super(self, node: ast.Call, args: list[Any], keywords: Any) -> Any:
        return Unknown("super")

    def _built_in_getattr(self, node: ast.Call, args: list[Any], keywords: Any) -> Any:
        if len(args) > 1 and isinstance(args[0], Unknown) and isinstance(args[1], str):
            name = f"{args[0].name}.{args[1]}"
            return self.store.get(name, Unknown(name, kind=kind_of(name)))
        return self.opaque(node)


def _whole(number: float | None) -> int:
    """``number`` without its decimals; 0 for none, infinity and NaN."""
    return int(number) if number is not None and math.isfinite(number) else 0


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, Unknown) and value.kind == kind
