"""`dagnn answers`: an operation learned from questions and answers, with its certificate, and asked."""

import csv
import importlib.util
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from tyro.conf import Positional, arg

from dagnn.answers import ARITHMETIC, Learned, Operation, learn
from dagnn.answers.operation import Pair
from dagnn.commands import Command, dispatch, parsed, say
from dagnn.errors import ConfigError, DataError
from dagnn.training.log import printable

_WORDS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "gcd": "gcd"}


def run_answers(arguments: Sequence[str]) -> int:
    """`dagnn answers` with these arguments; returns the exit code."""
    return dispatch("dagnn answers", COMMANDS, arguments)


class _Subject(NamedTuple):
    """An operation, and where there are some its questions of a length and their exact answers."""

    operation: Operation
    question: Callable[[random.Random, int], tuple[str, ...]] | None
    exact: Callable[..., str] | None
    given: tuple[str, ...]


def _subject(name: str) -> _Subject:
    """What a word or a Python file declares."""
    if name in _WORDS or name in ARITHMETIC:
        arithmetic = ARITHMETIC[_WORDS.get(name, name)]
        return _Subject(
            arithmetic.operation,
            lambda rng, length: arithmetic.question(rng, (length, length)),
            arithmetic.exact,
            arithmetic.given,
        )
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        raise ConfigError(
            f"no operation {name!r}: give one of {', '.join(_WORDS)}, or a Python file that declares OPERATION."
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    operation = getattr(module, "OPERATION", None)
    if not isinstance(operation, Operation):
        raise ConfigError(f"{name} has no OPERATION of the kind dagnn.answers.Operation: declare one.")
    return _Subject(operation, getattr(module, "question", None), getattr(module, "exact", None), ())


def _read_pairs(path: str, operation: Operation) -> list[Pair]:
    """Lines of a CSV file: the parts of a question, and its answer."""
    parts = len(operation.inputs)
    pairs: list[Pair] = []
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.reader(file), 1):
                if not row:
                    continue
                if len(row) != parts + 1:
                    raise DataError(
                        f"{path}, line {number} has {len(row)} columns, expected {parts} for the question and one for "
                        f"the answer."
                    )
                pairs.append((tuple(row[:-1]), row[-1]))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}.") from None
    return pairs


def _generated(subject: _Subject, count: int, longest: int, wrong: float, seed: int) -> list[Pair]:
    if subject.question is None or subject.exact is None:
        raise ConfigError("the file declares no question(rng, length) and exact(*question): give answers with --pairs.")
    if count < 1 or longest < 1 or not 0 <= wrong <= 1:
        raise ConfigError(
            f"--count {count}, --longest {longest} and --wrong {wrong}: give numbers from 1, and a part from 0 to 1."
        )
    for arithmetic in ARITHMETIC.values():
        if arithmetic.operation is subject.operation:
            return arithmetic.pairs(count, longest=longest, seed=seed, wrong=wrong)
    if wrong:
        raise ConfigError("--wrong is for arithmetic: write wrong answers into a file of --pairs.")
    rng = random.Random(seed)
    questions = [subject.question(rng, rng.randint(1, longest)) for _ in range(count)]
    return [(question, subject.exact(*question)) for question in questions]


@dataclass(frozen=True)
class Learn:
    """Learns an operation from questions and answers, and says what is certain about it and how right it is.

    Exit code 0: the certificate holds and all answers to random questions are right. 1: not.
    """

    operation: Positional[Annotated[str, arg(metavar="OPERATION")]]
    """add, subtract, multiply, divide, gcd, or a Python file with OPERATION (and question, exact), which is run"""
    out: Positional[Annotated[str, arg(metavar="OUT")]]
    """file to write; dagnn answers ask reads it"""
    pairs: str | None = None
    """CSV file of questions and answers, 12,5,17; random ones are drawn without"""
    count: int = 12_000
    """random answers to learn from"""
    longest: int = 4
    """digits or symbols of the longest random question"""
    wrong: float = 0.0
    """part of the random answers in which one digit is wrong"""
    given: tuple[str, ...] = ()
    """files of learned operations whose cells this one has too; gcd learns divide and multiply first without"""
    lengths: tuple[int, ...] = (10, 100, 1000)
    """lengths of random questions that it is judged on"""
    questions: int = 100
    """how many of each length"""
    seed: int = 0
    """of all that is random"""


def _learn(arguments: Sequence[str]) -> int:
    given = parsed(Learn, "answers learn", arguments)
    torch.set_num_threads(1)
    subject = _subject(given.operation)
    if given.pairs is not None:
        pairs = _read_pairs(given.pairs, subject.operation)
    else:
        pairs = _generated(subject, given.count, given.longest, given.wrong, given.seed)
    known = [_load_given(path, "--given") for path in given.given]
    start = time.process_time()
    if not known:
        for name in subject.given:
            say(f"{name} first, whose cells {subject.operation.name} has")
            arithmetic = ARITHMETIC[name]
            known.append(learn(arithmetic.operation, arithmetic.pairs(given.count, seed=given.seed), seed=given.seed))
            say(str(known[-1].certificate()))
    learned = learn(subject.operation, pairs, given=known, seed=given.seed)
    learned.save(given.out)
    certificate = learned.certificate()
    for line in str(certificate).splitlines():
        say(printable(line))
    say(f"{len(pairs):,} answers used, {time.process_time() - start:.1f} CPU seconds")
    right = _judge(learned, subject, given.lengths, given.questions, given.seed)
    return 0 if certificate.holds and right else 1


def _load_given(path: str, argument: str) -> Learned:
    errors = []
    for arithmetic in ARITHMETIC.values():
        try:
            return Learned.load(path, arithmetic.operation)
        except DataError as error:
            errors.append(str(error))
    raise DataError(
        f"{argument} takes learned operations of arithmetic, as `dagnn answers learn` writes them: {errors[0]}"
    )


def _judge(learned: Learned, subject: _Subject, lengths: Sequence[int], count: int, seed: int) -> bool:
    """Prints accuracy at lengths; True if all answers are right."""
    if subject.question is None or subject.exact is None:
        return True
    all_right, rng = True, random.Random(f"judged {seed}")
    for length in lengths:
        questions = [subject.question(rng, length) for _ in range(count)]
        start = time.process_time()
        answers = learned.answers(questions)
        seconds = time.process_time() - start
        right = sum(
            answer == learned.operation.canonical(subject.exact(*question))
            for question, answer in zip(questions, answers, strict=True)
        )
        all_right = all_right and right == count
        say(f"length {length:,}: {right} of {count} right, {seconds:.1f} CPU seconds")
    return all_right


@dataclass(frozen=True)
class Ask:
    """Asks a learned operation one question."""

    file: Positional[Annotated[str, arg(metavar="FILE")]]
    """what dagnn answers learn wrote"""
    question: Positional[tuple[str, ...]]
    """its parts, such as 123 45"""
    operation: str | None = None
    """the Python file that declares it, which is run; not for arithmetic"""


def _ask(arguments: Sequence[str]) -> int:
    given = parsed(Ask, "answers ask", arguments)
    if given.operation is not None:
        learned = Learned.load(given.file, _subject(given.operation).operation)
    else:
        learned = _load_given(given.file, "ask")
    print(printable(learned.answer(*given.question)))
    return 0


COMMANDS = {
    "learn": Command("an operation from a file of questions and answers, or from random ones", _learn),
    "ask": Command("the answer of a learned operation", _ask),
}
