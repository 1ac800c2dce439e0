"""Facts from answers: a cell's input gets the outputs that alone explain the answers which depend on it."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dagnn.answers.operation import Operation, Pair, lengths_of
from dagnn.answers.run import Run, Symbols
from dagnn.errors import DataError

WITNESSES = 16  # answers that are asked about one unknown at a time; that speak for a fact, when all are tried again
SEARCHED = 1024  # answers of equal lengths that are searched for those
SAMPLED = 4000  # answers of equal lengths among which unknown entries are looked for
VOTES = 3  # a fact needs so many answers ...
SHARE = 0.75  # ... and so large a part of those that decide: below 1, or one wrong answer could veto a fact
DEPTH = 8  # outputs that are assumed together to explain one answer
LEAVES = 20_000  # assumptions that are tried at once
ROUNDS = 12
CHANCE = 1e-3  # that answers which are wrong anywhere gather so at a fact of the operation that it is disputed
DISPUTED = 4  # facts of which it is tried whether two hidden symbols look like one
SHOWN = 10  # contradicted answers that are kept as examples


@dataclass
class Facts:
    """What answers have shown.

    Attributes:
        table: int32 ``[rows, ports]``, as `Run` reads it.
        support: row -> answers, of those asked, that this fact explains and the strongest alternative does not. A row
            without support is not learned.
        explained: answers that the facts give.
        contradicted: answers that they give otherwise.
        examples: some of them: question, answer, what the facts give.
        disputed: rows at which contradicted answers gather more than wrong ones would by chance, worst first.
        answers: answers that were read.
    """

    operation: Operation
    table: Symbols
    support: dict[int, int] = field(default_factory=dict)
    explained: int = 0
    contradicted: int = 0
    examples: list[tuple[tuple[str, ...], str, str]] = field(default_factory=list)
    disputed: list[int] = field(default_factory=list)
    answers: int = 0


class _Group:
    """Pairs of equal lengths."""

    def __init__(self, operation: Operation, pairs: Sequence[Pair]) -> None:
        self.operation, self.pairs, self.size = operation, pairs, len(pairs)
        self.parts = operation.encode_questions([question for question, _ in pairs])
        dry = operation.run(Run(operation.layout, operation.layout.empty(), 1), [part[:, :1] for part in self.parts])
        self.lengths = list(map(len, dry))
        padded = [operation.padded(answer, self.lengths) for _, answer in pairs]
        self.answers = np.ascontiguousarray(operation.encode(padded, operation.output).T)

    def run(
        self,
        table: Symbols,
        which: NDArray[np.int64],
        entries: NDArray[np.int32] | None = None,
        values: NDArray[np.int32] | None = None,
        note: bool = False,
    ) -> tuple[Symbols, NDArray[np.bool_]]:
        """Answers to some questions, ``[length, len(which)]``, and the rows they used."""
        run = Run(self.operation.layout, table, len(which), entries=entries, values=values, note=note)
        return np.concatenate(self.operation.run(run, [part[:, which] for part in self.parts])), run.used


class _Values:
    """Which values an entry may have: of hidden symbols that no fact has used, one is as good as another."""

    def __init__(self, operation: Operation) -> None:
        layout = operation.layout
        self.table_shape = (layout.rows, layout.ports)
        self.sizes = np.zeros(self.table_shape, np.int32)
        self.hidden = np.full(self.table_shape, -1, np.int32)  # number of the hidden alphabet
        numbers = {name: i for i, name in enumerate(sorted(operation.hidden))}
        for row, name in enumerate(layout.cell_of):
            for port, alphabet in enumerate(operation.cells[name].outputs):
                self.sizes[row, port] = len(operation.alphabets[alphabet])
                self.hidden[row, port] = numbers.get(alphabet, -1)
        self.highest = np.zeros(len(numbers), np.int32)  # symbol 0 counts as used, since flows begin with it

    def note(self, table: Symbols) -> None:
        """Reads off a table which hidden symbols are in use."""
        for number in range(len(self.highest)):
            self.highest[number] = table[self.hidden == number].max(initial=0)

    def count(
        self, entry: NDArray[np.int32], entries: NDArray[np.int32], values: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Per assumption, how many values (0, 1, ...) its next entry may have."""
        size, number = self.sizes.reshape(-1)[entry], self.hidden.reshape(-1)[entry]
        same = self.hidden.reshape(-1)[entries] == number[:, None]
        highest = np.where(same, values, 0).max(1, initial=0)
        in_use = np.maximum(highest, self.highest[number] if len(self.highest) else 0)
        return np.asarray(np.where(number < 0, size, np.minimum(size, in_use + 2)), np.int32)


def find_facts(operation: Operation, pairs: Sequence[Pair], given: Mapping[int, Sequence[int]], seed: int) -> Facts:
    """Reads facts off answers, short questions first.

    Where a question needs outputs that the table lacks, all values are assumed, one output more at a time, until some
    explain the answer. An output votes for its value if all that explain it agree. Later every fact is tried against
    all its alternatives again, with everything else known.

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
    search = _Search(facts, groups, frozenset(given), np.random.default_rng(seed))
    search.settle()
    while search.repair():
        pass
    return search.facts


@dataclass
class _Search:
    facts: Facts
    groups: Sequence[_Group]
    given: frozenset[int]
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self.values = _Values(self.facts.operation)

    def settle(self) -> None:
        """Learns, corrects and learns again until nothing changes; then compares with all answers."""
        self.learn()
        for _ in range(ROUNDS):
            changed = self.confirm()
            self.learn()
            if not changed:
                break
        self.confirm(takes_back=False)  # support is that of the table as it is now
        self.compare()

    def repair(self) -> bool:
        """Changes facts at which contradicted answers gather, together; True if more answers are explained then."""
        doubted = [row for row in self.facts.disputed if row not in self.facts.support]
        disputed = [row for row in self.facts.disputed if row not in self.given]
        return any(self.explains_more(rows, -1) for rows in (doubted, disputed)) or any(
            self.split(row) for row in self.facts.disputed[:DISPUTED]
        )

    def split(self, row: int) -> bool:
        """Gives a hidden symbol of a fact a name of its own, for good if more answers are explained then.

        Two symbols for which short answers need only one, as states of a machine that differ later, look like one.
        """
        self.values.note(self.facts.table)
        for port in np.flatnonzero(self.values.hidden[row] >= 0).tolist():
            fresh = self.values.highest[self.values.hidden[row, port]] + 1
            room = row not in self.given and fresh < self.values.sizes[row, port]
            if room and self.explains_more([row], int(fresh), port):
                return True
        return False

    def explains_more(self, rows: Sequence[int], value: int, port: int | None = None) -> bool:
        """Puts a value (-1: unknown) into rows of the table and settles again; as before if that explains no more."""
        if not rows:
            return False
        kept = self.facts
        self.facts = replace(kept, table=kept.table.copy())
        ports = [port] if port is not None else range(self.facts.table.shape[1])
        for each in ports:
            self.facts.table[rows, each] = np.where(self.values.sizes[rows, each] > 0, value, 0)
        self.settle()
        if self.facts.explained > kept.explained:
            return True
        self.facts = kept
        return False

    def compare(self) -> None:
        """Counts the answers that the facts do not give, and finds the rows at which they gather."""
        facts, operation = self.facts, self.facts.operation
        facts.contradicted, facts.explained, facts.examples = 0, 0, []
        # Answers that need a row, and of those the contradicted ones.
        needed = np.zeros(operation.layout.rows, np.int64)
        against = np.zeros_like(needed)
        symbols = np.array(list(operation.alphabets[operation.output]))
        for group in self.groups:
            for start in range(0, group.size, SAMPLED):
                which = np.arange(start, min(start + SAMPLED, group.size))
                found, used = group.run(facts.table, which, note=True)
                wrong = ((found != group.answers[:, which]) & (found >= 0)).any(0)
                facts.contradicted += int(wrong.sum())
                facts.explained += int((found == group.answers[:, which]).all(0).sum())
                needed += used.sum(0)
                against += used[wrong].sum(0)
                for i in np.flatnonzero(wrong & (found >= 0).all(0))[: SHOWN - len(facts.examples)].tolist():
                    text = "".join(symbols[found[:, i]])
                    ends = np.cumsum([0, *group.lengths]).tolist()
                    given = operation.text([text[a:b] for a, b in itertools.pairwise(ends)])
                    facts.examples.append((*group.pairs[start + i], given))
        share = facts.contradicted / facts.answers
        # Chernoff: so many of n answers are wrong, each by the share of all, with a chance below exp(-n divergence).
        with np.errstate(divide="ignore", invalid="ignore"):
            part = against / needed
            divergence = part * np.log(part / share) + (1 - part) * np.log(
                np.where(part < 1, (1 - part) / (1 - share), 1)
            )
            unlikely = needed * divergence > np.log(operation.layout.rows / CHANCE)
        rows = np.flatnonzero(unlikely & (part > share))
        facts.disputed = rows[np.argsort(-(needed * divergence)[rows], kind="stable")].tolist()

    def learn(self) -> None:
        """Until no answer adds a fact: short questions first, clear votes before others, single votes last.

        Of one shape there may be few answers, and one vote is enough to go on: `confirm` asks answers of all shapes,
        and what it does not confirm has no support.
        """
        stages = [(VOTES, True), (VOTES, False)]
        while self.facts.explained and any(self.add(group, VOTES, True) for group in self.groups):
            pass  # most is known, and long questions are as clear as short ones
        for last in range(1, len(self.groups) + 1):
            while any(self.add(group, *stage) for stage in stages for group in self.groups[:last]):
                pass
        stages += [(1, True), (1, False)]
        while any(self.add(group, *stage) for stage in stages for group in self.groups):
            pass

    def add(self, group: _Group, least: int, clear: bool) -> bool:
        """Adds what enough answers of a group vote for; True if there was something."""
        table = self.facts.table
        self.values.note(table)
        which = self.rng.permutation(group.size)[:SAMPLED]
        found, _ = group.run(table, which)
        open_ = ((found < 0) | (found == group.answers[:, which])).all(0) & (found < 0).any(0)
        causes = _last_unknown(found)
        by_cause: dict[int, list[int]] = defaultdict(list)
        for i in np.flatnonzero(open_).tolist():
            if len(by_cause[int(causes[i])]) < WITNESSES:
                by_cause[int(causes[i])].append(int(which[i]))
        if not by_cause:
            return False
        votes: dict[int, Counter[int]] = defaultdict(Counter)
        size: dict[int, int] = {}
        for agreed, assumed, is_clear in self.explain(group, np.array(list(itertools.chain(*by_cause.values())))):
            if is_clear or not clear:
                for entry, value in agreed:
                    votes[entry][value] += 1
                    size[entry] = min(assumed, size.get(entry, assumed))
        elected = {}
        for entry, counted in votes.items():
            value, count = counted.most_common(1)[0]
            if count >= least and count >= SHARE * counted.total():
                elected[entry] = value
        if not clear and elected:
            # Convenience, not evidence, speaks for it: the shortest explanations first, the others may then be clear.
            shortest = min(size[entry] for entry in elected)
            elected = {entry: value for entry, value in elected.items() if size[entry] == shortest}
        for entry, value in elected.items():
            table.reshape(-1)[entry] = value
        return bool(elected)

    def explain(self, group: _Group, which: NDArray[np.int64]) -> Iterable[tuple[set[tuple[int, int]], int, bool]]:
        """Per question that some assumptions explain, as few as possible: those that all explanations share, how many
        each makes, and whether the answer refutes all others."""
        question = np.sort(which)
        entries = values = np.zeros((len(question), 0), np.int32)
        for _ in range(DEPTH + 1):
            found, _ = group.run(self.facts.table, question, entries, values)
            alive = ((found < 0) | (found == group.answers[:, question])).all(0)
            question, entries, values, found = question[alive], entries[alive], values[alive], found[:, alive]
            done = (found >= 0).all(0)
            explained = np.unique(question[done])
            still = set(question[~done].tolist())
            for q in explained.tolist():
                leaves = np.flatnonzero(done & (question == q))
                sets = [set(zip(entries[i].tolist(), values[i].tolist(), strict=True)) for i in leaves]
                yield set.intersection(*sets), entries.shape[1], q not in still
            go_on = ~np.isin(question, explained)
            question, entries, values, found = question[go_on], entries[go_on], values[go_on], found[:, go_on]
            if not len(question):
                return
            entry = _last_unknown(found)
            count = self.values.count(entry, entries, values)
            # Whole questions as far as the room goes: a question with a part of its assumptions says nothing.
            _, first, of = np.unique(question, return_index=True, return_inverse=True)
            wanted = np.add.reduceat(count, first)
            room = np.empty(len(wanted), bool)
            order = np.argsort(wanted, kind="stable")
            room[order] = np.cumsum(wanted[order]) <= LEAVES
            kept = room[of]
            question, entries, values, entry, count = (
                question[kept], entries[kept], values[kept], entry[kept], count[kept],
            )  # fmt: skip
            if not len(question):
                return
            value = np.arange(count.sum(), dtype=np.int32) - np.repeat(np.cumsum(count) - count, count)
            entries = np.column_stack([np.repeat(entries, count, 0), np.repeat(entry, count)]).astype(np.int32)
            values = np.column_stack([np.repeat(values, count, 0), value]).astype(np.int32)
            question = np.repeat(question, count)

    def confirm(self, takes_back: bool = True) -> bool:
        """Tries every fact against its alternatives with all others known, counts what supports it, and corrects
        refuted ones if it ``takes_back``; True if there was one."""
        facts, layout = self.facts, self.facts.operation.layout
        self.values.note(facts.table)
        duels: dict[int, _Duel] = {}
        for group in self.groups:
            which = self.rng.permutation(group.size)[:SAMPLED]
            _, used = group.run(facts.table, which, note=True)
            for row in np.flatnonzero(used.any(0)).tolist():
                if row in self.given or (facts.table[row] < 0).any():
                    continue
                duel = duels.get(row)
                if duel is None:
                    duel = duels[row] = _Duel(self.outputs_of(row), facts.table[row], row * layout.ports)
                questions = which[used[:, row]][:SEARCHED]
                # Many answers need a fact without showing all of it: the last carry is read by no cell.
                for start in range(0, len(questions), WITNESSES):
                    if duel.support() >= WITNESSES:
                        break
                    duel.fight(group, facts.table, questions[start : start + WITNESSES])
        changed = False
        facts.support = dict.fromkeys(self.given, WITNESSES)
        for row, duel in duels.items():
            best = duel.winner()
            if best is None:
                continue  # neither confirmed nor refuted: without support, and so without a claim
            if best == duel.own:
                facts.support[row] = duel.support()
            elif takes_back:
                facts.table[row], changed = duel.outputs[best], True
        return changed

    def outputs_of(self, row: int) -> Symbols:
        """All that a cell may write for one input, in symbols that are in use: int32 ``[values, ports]``."""
        name, ports = self.facts.operation.layout.cell_of[row], self.facts.operation.layout.ports
        ranges = []
        for port in range(len(self.facts.operation.cells[name].outputs)):
            number = self.values.hidden[row, port]
            in_use = self.values.sizes[row, port] if number < 0 else self.values.highest[number] + 1
            ranges.append(range(int(in_use)))
        outputs = np.zeros((int(np.prod([len(r) for r in ranges])), ports), np.int32)
        outputs[:, : len(ranges)] = list(itertools.product(*ranges))
        return outputs


class _Duel:
    """All outputs that one input may have against each other, answer by answer."""

    def __init__(self, outputs: Symbols, own: Symbols, first_entry: int) -> None:
        self.outputs, self.first = outputs, first_entry
        self.own = int(np.flatnonzero((outputs == own).all(1))[0])
        self.wins = np.zeros((len(outputs), len(outputs)), np.int64)  # answers that one explains and the other does not

    def fight(self, group: _Group, table: Symbols, questions: NDArray[np.int64]) -> None:
        """Asks some questions with each of the outputs in the place of the fact."""
        count, ports = self.outputs.shape
        row = self.first // ports
        fact, table[row] = table[row].copy(), -1
        which = np.repeat(questions, count)
        entries = np.broadcast_to(np.arange(self.first, self.first + ports, dtype=np.int32), (len(which), ports))
        found, _ = group.run(table, which, np.ascontiguousarray(entries), np.tile(self.outputs, (len(questions), 1)))
        table[row] = fact
        refuted = ((found >= 0) & (found != group.answers[:, which])).any(0).reshape(-1, count)
        explained = (found == group.answers[:, which]).all(0).reshape(-1, count)
        self.wins += explained.astype(np.int64).T @ refuted

    def support(self) -> int:
        """Answers that speak for the fact against the strongest other."""
        return int(np.delete(self.wins[self.own], self.own).min(initial=WITNESSES))

    def winner(self) -> int | None:
        """Which outputs win against all others: by enough answers, and by a large part of those that decide."""
        beats = (self.wins >= VOTES) & (self.wins >= SHARE * (self.wins + self.wins.T))
        np.fill_diagonal(beats, True)
        winners = np.flatnonzero(beats.all(1))
        return int(winners[0]) if len(winners) else None


def _last_unknown(found: Symbols) -> NDArray[np.int32]:
    """The entry that the last unknown symbol of each answer waits for; anything where there is none."""
    last = len(found) - 1 - (found[::-1] < 0).argmax(0)
    return np.asarray(-1 - found[last, np.arange(found.shape[1])], np.int32)
