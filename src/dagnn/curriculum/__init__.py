"""Seven levels of symbolic mathematics: the language, the exact answers, the generator and the judge."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagnn.curriculum.config import CurriculumConfig as CurriculumConfig
    from dagnn.curriculum.engine import from_dag as from_dag
    from dagnn.curriculum.engine import to_dag as to_dag
    from dagnn.curriculum.exact import answer as answer
    from dagnn.curriculum.exact import equivalent as equivalent
    from dagnn.curriculum.exact import simplify as simplify
    from dagnn.curriculum.exact.precise import decimal_leaf as decimal_leaf
    from dagnn.curriculum.exact.precise import decimal_of_digits as decimal_of_digits
    from dagnn.curriculum.exact.precise import same_decimal as same_decimal
    from dagnn.curriculum.expression import Expr as Expr
    from dagnn.curriculum.expression import bind as bind
    from dagnn.curriculum.expression import to_text as to_text
    from dagnn.curriculum.generator import SPLITS as SPLITS
    from dagnn.curriculum.generator import GenerationStats as GenerationStats
    from dagnn.curriculum.generator import Sample as Sample
    from dagnn.curriculum.generator import Split as Split
    from dagnn.curriculum.generator import dataset as dataset
    from dagnn.curriculum.generator import make_sample as make_sample
    from dagnn.curriculum.generator import split_of as split_of
    from dagnn.curriculum.generator import stream as stream
    from dagnn.curriculum.levels import LEVELS as LEVELS
    from dagnn.curriculum.levels import LevelSpec as LevelSpec
    from dagnn.curriculum.levels import level_of as level_of
    from dagnn.curriculum.levels import level_spec as level_spec
    from dagnn.curriculum.parsing import from_infix as from_infix
    from dagnn.curriculum.parsing import parse as parse
    from dagnn.curriculum.verdict import Verdict as Verdict
    from dagnn.curriculum.verdict import judge as judge

# Loaded on first use (PEP 562): `dagnn train --help` reads the configuration and does not wait for torch.
_MODULE_OF = {
    "CurriculumConfig": "dagnn.curriculum.config",
    "Expr": "dagnn.curriculum.expression",
    "GenerationStats": "dagnn.curriculum.generator",
    "LEVELS": "dagnn.curriculum.levels",
    "LevelSpec": "dagnn.curriculum.levels",
    "SPLITS": "dagnn.curriculum.generator",
    "Sample": "dagnn.curriculum.generator",
    "Split": "dagnn.curriculum.generator",
    "Verdict": "dagnn.curriculum.verdict",
    "answer": "dagnn.curriculum.exact",
    "bind": "dagnn.curriculum.expression",
    "dataset": "dagnn.curriculum.generator",
    "decimal_leaf": "dagnn.curriculum.exact.precise",
    "decimal_of_digits": "dagnn.curriculum.exact.precise",
    "equivalent": "dagnn.curriculum.exact",
    "from_dag": "dagnn.curriculum.engine",
    "from_infix": "dagnn.curriculum.parsing",
    "judge": "dagnn.curriculum.verdict",
    "level_of": "dagnn.curriculum.levels",
    "level_spec": "dagnn.curriculum.levels",
    "make_sample": "dagnn.curriculum.generator",
    "parse": "dagnn.curriculum.parsing",
    "same_decimal": "dagnn.curriculum.exact.precise",
    "simplify": "dagnn.curriculum.exact",
    "split_of": "dagnn.curriculum.generator",
    "stream": "dagnn.curriculum.generator",
    "to_dag": "dagnn.curriculum.engine",
    "to_text": "dagnn.curriculum.expression",
}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dagnn.curriculum' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
