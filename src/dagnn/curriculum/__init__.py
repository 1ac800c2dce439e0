"""Seven levels of symbolic mathematics: the language, the exact answers, the generator and the judge."""

from typing import TYPE_CHECKING

from dagnn import _loaded_on_first_use
from dagnn.errors import check_installed

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

check_installed("dagnn.curriculum", "dagnn[curriculum]", "numba", "scipy", "flint")

# `dagnn train --help` reads the configuration and does not wait for torch.
__getattr__, __dir__, __all__ = _loaded_on_first_use(
    __name__,
    {
        "dagnn.curriculum.config": "CurriculumConfig",
        "dagnn.curriculum.engine": "from_dag to_dag",
        "dagnn.curriculum.exact": "answer equivalent simplify",
        "dagnn.curriculum.exact.precise": "decimal_leaf decimal_of_digits same_decimal",
        "dagnn.curriculum.expression": "Expr bind to_text",
        "dagnn.curriculum.generator": "GenerationStats SPLITS Sample Split dataset make_sample split_of stream",
        "dagnn.curriculum.levels": "LEVELS LevelSpec level_of level_spec",
        "dagnn.curriculum.parsing": "from_infix parse",
        "dagnn.curriculum.verdict": "Verdict judge",
    },
)
