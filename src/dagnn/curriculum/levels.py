"""The seven levels, from the sum of two numbers to equations: what is drawn on each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dagnn.curriculum.draw import (
    PRESETS,
    Draws,
    Preset,
    draw_level_1,
    draw_level_2,
    draw_level_3,
    draw_level_4,
    draw_level_5,
    draw_level_6,
    draw_level_7,
)
from dagnn.curriculum.expression import FUNCTIONS, Expr, symbols_of, walk
from dagnn.curriculum.expression import depth as depth_of
from dagnn.errors import ConfigError

# Draws an expression, and its answer where the expression was built from it. Raises Dropped to be called again.
DrawLevel = Callable[[Draws, Preset, int | None], tuple[Expr, Expr | None]]

MAX_DRAWN_DEPTH = 12
MAX_DRAWN_DIGITS = 12


@dataclass(frozen=True, slots=True)
class LevelSpec:
    """One level of the curriculum.

    ``numeric`` marks level 4: its input ``(sin 0)`` is read as ``(approx (sin 0))``.
    ``has_depth`` says whether the depth of its expressions can be set: training at 3, testing at 5.
    ``has_digits`` says whether the length of its whole numbers can be set: training at 2, testing at 4.

    `level_spec` looks one up; `LEVELS` has all of them.

    >>> [spec.number for spec in LEVELS.values() if spec.has_digits]
    [1, 2, 3]
    """

    number: int
    name: str
    description: str
    example: str
    example_answer: str
    draw: DrawLevel = field(repr=False, compare=False)
    numeric: bool = False
    has_depth: bool = True
    has_digits: bool = False


LEVELS: Mapping[int, LevelSpec] = {
    spec.number: spec
    for spec in (
        LevelSpec(
            number=1,
            name="one operator",
            description="one of + - * / on whole numbers within 99; a quotient is a reduced fraction",
            example="(/ 84 -36)",
            example_answer="(/ -7 3)",
            has_depth=False,
            has_digits=True,
            draw=draw_level_1,
        ),
        LevelSpec(
            number=2,
            name="nested arithmetic",
            description="nested + - * / of depth 2 or 3 on whole numbers within 20; every value within 9999",
            example="(+ (/ (- 10 -6) (+ 10 -15)) (* -17 12))",
            example_answer="(/ -1036 5)",
            has_digits=True,
            draw=draw_level_2,
        ),
        LevelSpec(
            number=3,
            name="symbols with values",
            description="one to three symbols bound by subst in + - * / ^ of depth 1 to 3",
            example="(subst (^ (+ x 3) 2) x 5)",
            example_answer="64",
            has_digits=True,
            draw=draw_level_3,
        ),
        LevelSpec(
            number=4,
            name="functions",
            description="sin cos tan log exp sqrt mixed with + - * / ^, depth 1 to 3, to 3 significant digits",
            example="(* (log 9) (/ 12 (cos 19)))",
            example_answer="26.7",
            numeric=True,
            draw=draw_level_4,
        ),
        LevelSpec(
            number=5,
            name="derivatives",
            description="(derive E x) with every operator and function, depth 1 to 4",
            example="(derive (^ x 2) x)",
            example_answer="(* 2 x)",
            draw=draw_level_5,
        ),
        LevelSpec(
            number=6,
            name="integrals",
            description="definite integrals of polynomials, antiderivatives: powers, functions, by parts, substitution",
            example="(integrate (* 3 (^ x 2)) x 0 2)",
            example_answer="8",
            has_depth=False,
            draw=draw_level_6,
        ),
        LevelSpec(
            number=7,
            name="equations",
            description="(solve (= L R) x): nested, linear on both sides, quadratic with rational roots",
            example="(solve (= (+ (* -1 (^ x 2)) (* -3 x)) -10) x)",
            example_answer="(roots -5 2)",
            draw=draw_level_7,
        ),
    )
}


def level_spec(level: int) -> LevelSpec:
    """The level with this number.

    Raises:
        ConfigError: there is no such level; the message lists the levels.

    >>> level_spec(5).name, level_spec(5).example_answer
    ('derivatives', '(* 2 x)')
    """
    spec = LEVELS.get(level) if isinstance(level, int) and not isinstance(level, bool) else None
    if spec is None:
        raise ConfigError(f"level {level!r} does not exist: the levels are {', '.join(map(str, LEVELS))}.")
    return spec


def level_of(expr: Expr) -> int:
    """The lowest level that has such an expression, by its operators: 4 for functions, 5 for a derivative ...

    >>> level_of(("derive", ("^", "x", 2), "x")), level_of(("sin", 0)), level_of(("+", 2, 3))
    (5, 4, 1)
    """
    heads = {item[0] for item in walk(expr) if isinstance(item, tuple)}
    for head, level in (("solve", 7), ("integrate", 6), ("derive", 5)):
        if head in heads:
            return level
    if heads.intersection(FUNCTIONS) or "approx" in heads:
        return 4
    if symbols_of(expr) or "^" in heads:
        return 3
    return 1 if depth_of(expr) <= 1 else 2


def preset_of(name: str) -> Preset:
    """The preset with this name; ConfigError if there is none."""
    if name not in PRESETS:
        raise ConfigError(f"preset {name!r} does not exist: the presets are {', '.join(PRESETS)}.")
    return PRESETS[name]


def check_drawn(spec: LevelSpec, *, depth: int | None, digits: int | None) -> None:
    """Raise a ConfigError for a depth, or a length of whole numbers, that a level lacks or that is not in 1 .. 12."""
    for name, value, them, limit in (
        ("depth", depth, "one", MAX_DRAWN_DEPTH),
        ("digits", digits, "them", MAX_DRAWN_DIGITS),
    ):
        if value is None:
            continue
        if not getattr(spec, f"has_{name}"):
            able = ", ".join(str(other.number) for other in LEVELS.values() if getattr(other, f"has_{name}"))
            raise ConfigError(f"level {spec.number} ({spec.name}) has no {name} to set: levels {able} have {them}.")
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
            raise ConfigError(f"{name} must be a whole number from 1 to {limit}, got {value!r}.")
