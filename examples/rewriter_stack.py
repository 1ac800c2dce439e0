"""Teaches a network a peephole optimiser of stack code: an instruction sees the two that follow it.

Code is a chain of instructions that ends with `halt`; numbers are counted modulo 4. The judge runs both codes on random
stacks, and knows the pairs that must be gone.
"""

import itertools
import random

from dagnn.rewriting import Label, RewritingTask, Signature

PUSH = ("push0", "push1", "push2", "push3")
NAMES = (*PUSH, "add", "mul", "neg", "swap", "dup", "drop")
SIGNATURE = Signature((Label("halt", 0), *(Label(name, 1, neighbourhood_depth=2) for name in NAMES)))


def rule(first):
    """One instruction and what follows; the rest of the code is optimised already."""
    second = first[0]
    rest = second[0] if second.children else None
    third = rest.kind if rest else ""
    match first.kind, second.kind:
        case (a, "neg") if a in PUSH:
            return (PUSH[-PUSH.index(a) % 4], rest)
        case (a, "dup") if a in PUSH:
            return (a, (a, rest))
        case ("push0", "add") | ("push1", "mul") | ("swap", "swap") | ("neg", "neg") | ("dup", "drop"):
            return rest
        case (a, "drop") if a in PUSH:
            return rest
        case ("push0", "mul"):
            return ("drop", ("push0", rest))
        case ("dup", "swap") | ("neg", "drop"):
            return (first.kind if first.kind == "dup" else "drop", rest)
        case ("swap", "add" | "mul"):
            return (second.kind, rest)
        case (a, b) if a in PUSH and b in PUSH and third in ("add", "mul"):
            x, y = PUSH.index(a), PUSH.index(b)
            return (PUSH[(x + y if third == "add" else x * y) % 4], rest[0])
        case (a, b) if a in PUSH and b in PUSH and third == "swap":
            return (b, (a, rest[0]))


def code(draw, depth):
    """A random program of `depth` instructions."""
    return (draw.choice(NAMES), code(draw, depth - 1)) if depth else "halt"


def listed(t):
    return [] if t == "halt" else [t[0], *listed(t[1])]


def run(names, stack):
    """The stack after a program; below the stack are 200 zeros."""
    stack = [0] * 200 + stack
    for name in names:
        a = stack.pop() if name not in PUSH else int(name[-1])
        if name == "dup":
            stack += [a, a]
        elif name == "neg":
            stack.append(-a % 4)
        elif name in ("add", "mul", "swap"):
            b = stack.pop()
            stack += [a, b] if name == "swap" else [(a + b) % 4 if name == "add" else a * b % 4]
        elif name != "drop":
            stack.append(a)
    return stack


STACKS = [[random.Random(seed).randrange(4) for _ in range(4)] for seed in range(8)]
GONE = {"swap swap", "neg neg", "dup drop", "dup swap", "swap add", "swap mul", "neg drop", "push0 add", "push1 mul"}


def is_right(before, after):
    """The same stacks, no longer than before, and none of the pairs that an optimiser must remove."""
    before, after = listed(before), listed(after)
    pairs = {f"{a} {b}" for a, b in itertools.pairwise(after)}
    same = all(run(before, stack) == run(after, stack) for stack in STACKS)
    return same and len(after) <= len(before) and not pairs & GONE


TASK = RewritingTask(SIGNATURE, rule, code, is_right, depth=8)
JUDGE = ("listed", "run", "is_right", "STACKS", "GONE")

if __name__ == "__main__":
    TASK.report()
