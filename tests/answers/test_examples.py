"""Operations that are not arithmetic: learned from short answers, right on long questions, in few lines."""

import importlib.util
import random
from pathlib import Path

import pytest

from benchmarks.transfer import lines_of_code
from dagnn.answers import learn

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "answers", "longest", "inputs", "length"),
    [
        ("answers_binary", 400, 4, 8, 1000),
        ("answers_transducer", 2000, 6, 12, 1000),  # three states of the five that it may have
        ("answers_sort", 1000, 4, 36, 60),
    ],
)
def test_example_is_certified_and_right_on_long_questions(name, answers, longest, inputs, length):
    path = EXAMPLES / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rng = random.Random(5)
    asked = [module.question(rng, rng.randint(1, longest)) for _ in range(answers)]
    learned = learn(module.OPERATION, [(question, module.exact(*question)) for question in asked], seed=1)
    certificate = learned.certificate()
    assert certificate.holds, str(certificate)
    assert certificate.reachable == inputs
    long = [module.question(rng, length) for _ in range(100)]
    assert learned.answers(long) == [module.exact(*question) for question in long]
    assert lines_of_code(path.read_text(), {*module.JUDGE, "main"}) <= 40
