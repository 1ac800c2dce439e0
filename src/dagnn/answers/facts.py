"""Facts from answers: a cell's input gets the outputs that alone explain the answers which depend on it."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dagnn.answers.operation import Operation, Run, Symbols, lengths_of
from dagnn.errors import DataError

Pair = tuple[tuple[str, ...], str]
WITNESSES = 16  # answers that are asked about one fact at a time; opinions, when it is tried again
SEARCHED = 1024  # answers of equal lengths that are searched for those opinions
VOTES = 3  # a fact needs so many answers ...
SHARE = 0.75  # ... and so large a part of those that have an opinion: below 1, or one wrong answer could veto a fact


@dataclass
class Facts:
    """What answers have shown.

    Attributes:
        table: int32 ``[rows, ports]``, as `Run` reads it.
        support: row -> answers, of those asked, that only this fact explains. A row without support is not learned.
        contradicted: answers that the facts do not give.
        answers: answers that were read.
    """

    operation: Operation
    table: Symbols
    support: dict[int, int] = field(default_factory=dict)
    contradicted: int = 0
    answers: int = 0


class _Group:
    """Pairs of equal lengths."""

    def __init__(self, operation: Operation, pairs: Sequence[Pair]) -> None:
        self.operation = operation
        self.questions = [question for question, _ in pairs]
        length = operation.answers(Run(operation, operation.layout.empty()), self.questions[:1]).shape[1]
        answers = []
        for question, answer in pairs:
            padded = answer.rjust(length, operation.padding) if operation.padding is not None else answer
            if len(padded) != length:
                raise DataError(
                    f"{operation.name!r}: the answer {answer!r} to {question!r} has {len(answer)} symbols, the "
                    f"data flow "
                    f"gives {length}."
                )
            answers.append(padded)
        self.answers = operation.encode(answers, operation.output)
        self.unknown = len(operation.alphabets[operation.output])

    def run(self, table: Symbols) -> tuple[Symbols, Run]:
        run = Run(self.operation, table, note=True)
        return self.operation.answers(run, self.questions), run

    def guesses(
        self, table: Symbols, which: NDArray[np.int64], rows: NDArray[np.int64], value: Symbols
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Per question and guess: whether the answer refutes it, and how many symbols of the answer it gives."""
        run = Run(self.operation, table, row=rows, value=value)
        found = self.operation.answers(run, [self.questions[i] for i in which])
        known = found != self.unknown
        return (known & (found != self.answers[which])).any(1), known.sum(1)


def find_facts(operation: Operation, pairs: Sequence[Pair], given: Mapping[int, Sequence[int]], seed: int) -> Facts:
    """Reads facts off answers, short questions first.

    For the first input that a question needs and the table lacks, every output is tried. An answer votes for
    the one that
    it does not refute; where it refutes all but several, and only when no answer is clearer, for the one that
    gives most
    of the answer. Later every fact is tried against all its alternatives again, with everything else known.

    Args:
        given: facts of other operations with the same cells, row -> outputs.
        seed: of the order in which answers are asked.
    """
    if not pairs:
        raise DataError(f"{operation.name!r} got no pairs of question and answer: give some hundreds.")
    by_shape: dict[tuple[int, ...], list[Pair]] = defaultdict(list)
    for question, answer in pairs:
        by_shape[lengths_of(question)].append((question, answer))
    groups = [_Group(operation, by_shape[shape]) for shape in sorted(by_shape, key=lambda s: (sum(s), s))]
    facts = Facts(operation, operation.layout.empty(), answers=len(pairs))
    for row, outputs in given.items():
        facts.table[row, : len(outputs)] = outputs
    rng = np.random.default_rng(seed)

    _learn(facts, groups, rng)
    for _ in range(4):
        changed = _try_again(facts, groups, rng, frozenset(given))
        _learn(facts, groups, rng)
        if not changed:
            break
    _try_again(facts, groups, rng, frozenset(given), takes_back=False)  # support is that of the table as it is now
    for group in groups:
        found, _ = group.run(facts.table)
        facts.contradicted += int(((found != group.answers) & (found != group.unknown)).any(1).sum())
    return facts


def _learn(facts: Facts, groups: Sequence[_Group], rng: np.random.Generator) -> None:
    """Until no answer adds a fact: short questions first, clear votes before the others, single votes last.

    Of one shape there may be few answers, and one vote is enough to go on: `_try_again` asks answers of all shapes, and
    what it does not confirm has no support.
    """
    stages = [(votes, clear) for votes in (VOTES, 1) for clear in (True, False)]
    while any(_new_facts(facts, group, rng, votes, clear) for votes, clear in stages for group in groups):
        pass


def _new_facts(facts: Facts, group: _Group, rng: np.random.Generator, least: int, clear: bool) -> bool:
    _, run = group.run(facts.table)
    if run.missing is None or (run.missing < 0).all():
        return False
    missing = np.broadcast_to(run.missing, (len(group.questions),))
    witnesses = _sampled(missing[None], rng, WITNESSES)
    elected = _elect(facts, group, witnesses, least, clear)
    if (not clear or least < VOTES) and elected:
        # Convenience, not evidence, speaks for it: one at a time, since the next answers may then be clear.
        best = max(elected, key=lambda row: elected[row][1])
        elected = {best: elected[best]}
    for row, (value, _) in elected.items():
        facts.table[row] = value
    return bool(elected)


def _sampled(rows: NDArray[np.int64], rng: np.random.Generator, most: int) -> dict[int, list[int]]:
    """Row -> some of the questions that need it. ``rows``: int64 ``[calls, questions]``, -1 for none."""
    found: dict[int, list[int]] = defaultdict(list)
    order = rng.permutation(rows.shape[1])[:4000]
    for question, column in zip(order.tolist(), rows[:, order].T, strict=True):
        for row in set(column.tolist()):
            if row >= 0 and len(found[row]) < most:
                found[row].append(question)
    return {row: found[row] for row in sorted(found)}


def _values(facts: Facts, row: int) -> Symbols:
    """What a cell may write for one input; of hidden symbols that no fact has used, one is as good as another."""
    operation, layout = facts.operation, facts.operation.layout
    name = layout.cell_of[row]
    ranges = []
    for port, alphabet in enumerate(operation.cells[name].outputs):
        size = len(operation.alphabets[alphabet])
        ranges.append(range(size if alphabet not in operation.hidden else min(size, _fresh(facts, alphabet) + 1)))
        assert port < layout.ports
    values = np.zeros((int(np.prod([len(r) for r in ranges])), layout.ports), np.int32)
    values[:, : len(ranges)] = list(itertools.product(*ranges))
    return values


def _fresh(facts: Facts, alphabet: str) -> int:
    """The first hidden symbol that nothing has used; symbol 0 counts as used, since flows begin with it."""
    operation, layout = facts.operation, facts.operation.layout
    size, highest = len(operation.alphabets[alphabet]), 0
    for name, cell in operation.cells.items():
        first = layout.first[name]
        last = first + int(np.prod(layout.radices[name]))
        for port, written in enumerate(cell.outputs):
            if written == alphabet:
                column = facts.table[first:last, port]
                highest = max(highest, int(column[column < size].max(initial=0)))
    return highest + 1


def _elect(
    facts: Facts, group: _Group, witnesses: Mapping[int, Sequence[int]], least: int, clear: bool
) -> dict[int, tuple[Symbols, int]]:
    """Row -> the outputs that enough answers vote for, and their votes."""
    votes: dict[int, Counter[int]] = {}
    values = {row: _values(facts, row) for row in witnesses}
    for row, questions in witnesses.items():
        votes[row] = _votes(facts, group, row, questions, values[row], clear)
    elected = {}
    for row, counted in votes.items():
        if counted:
            best, count = counted.most_common(1)[0]
            if count >= least and count >= SHARE * counted.total():
                elected[row] = (values[row][best], count)
    return elected


def _votes(
    facts: Facts, group: _Group, row: int, questions: Sequence[int], values: Symbols, clear: bool
) -> Counter[int]:
    count = len(values)
    which = np.repeat(np.asarray(questions, np.int64), count)
    refuted, given = group.guesses(
        facts.table, which, np.full(len(which), row, np.int64), np.tile(values, (len(questions), 1))
    )
    votes: Counter[int] = Counter()
    for out, symbols in zip(refuted.reshape(-1, count), given.reshape(-1, count), strict=True):
        left = np.flatnonzero(~out)
        if not clear and len(left) > 1:
            left = left[symbols[left] == symbols[left].max()]
        if len(left) == 1:
            votes[int(left[0])] += 1
    return votes


def _try_again(
    facts: Facts, groups: Sequence[_Group], rng: np.random.Generator, given: frozenset[int], takes_back: bool = True
) -> bool:
    """Tries every fact against its alternatives with all others known, counts what supports it, and takes back refuted
    ones if it ``takes_back``; True if one was."""
    votes: dict[int, Counter[int]] = defaultdict(Counter)
    unknown = facts.operation.layout.empty()
    values: dict[int, Symbols] = {}
    for group in groups:
        _, run = group.run(facts.table)
        used = np.stack([np.broadcast_to(rows, (len(group.questions),)) for rows in run.used])
        for row, questions in _sampled(used.astype(np.int64), rng, SEARCHED).items():
            if row in given or (facts.table[row] == unknown[row]).all():
                continue
            values[row] = _values(facts, row)
            # Many answers need a fact without showing all of it: the last carry is read by no cell.
            for start in range(0, len(questions), WITNESSES):
                if votes[row].total() >= WITNESSES:
                    break
                votes[row] += _votes(facts, group, row, questions[start : start + WITNESSES], values[row], True)
    changed = False
    facts.support = dict.fromkeys(given, WITNESSES)
    for row, counted in votes.items():
        best, count = counted.most_common(1)[0] if counted else (0, 0)
        if count < VOTES or count < SHARE * counted.total():
            continue  # neither confirmed nor refuted: without support, and so without a claim
        if (values[row][best] == facts.table[row]).all():
            facts.support[row] = count
        elif takes_back:
            facts.table[row], changed = unknown[row], True
    return changed
