"""Seven levels of symbolic mathematics: the language, the exact answers, the generator and the judge."""

from dagnn.curriculum.engine import from_dag, to_dag
from dagnn.curriculum.exact import answer, equivalent, simplify
from dagnn.curriculum.exact.precise import decimal_leaf, decimal_of_digits, same_decimal
from dagnn.curriculum.expression import Expr, bind, parse, to_text
from dagnn.curriculum.generator import GenerationStats, Sample, dataset, make_sample, stream
from dagnn.curriculum.infix import from_infix
from dagnn.curriculum.judge import Verdict, judge
from dagnn.curriculum.levels import LEVELS, LevelSpec, level_of, level_spec
from dagnn.curriculum.splits import SPLITS, Split, split_of

__all__ = [
    "LEVELS",
    "SPLITS",
    "Expr",
    "GenerationStats",
    "LevelSpec",
    "Sample",
    "Split",
    "Verdict",
    "answer",
    "bind",
    "dataset",
    "decimal_leaf",
    "decimal_of_digits",
    "equivalent",
    "from_dag",
    "from_infix",
    "judge",
    "level_of",
    "level_spec",
    "make_sample",
    "parse",
    "same_decimal",
    "simplify",
    "split_of",
    "stream",
    "to_dag",
    "to_text",
]
