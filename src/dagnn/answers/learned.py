"""A learned operation: networks for its cells, the facts they were trained on, and the certificate."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional

from dagnn.answers.facts import Facts, find_facts
from dagnn.answers.operation import Operation, Pair, lengths_of
from dagnn.answers.run import Run, Symbols
from dagnn.errors import ConfigError, DataError
from dagnn.files import replace_file

CONTRADICTED = 0.1  # part of the answers above which there is no claim
BATCH = 512  # questions that run together
LEAD = 4.0  # logits by which every fact must win before the training of a cell ends


class CellNetwork(nn.Module):
    """A cell as a network: one-hot inputs, one hidden layer of ``width``, logits for every output."""

    def __init__(self, inputs: Sequence[int], outputs: Sequence[int], width: int = 128) -> None:
        super().__init__()
        self.sizes, self.outputs = tuple(inputs), tuple(outputs)
        self.hidden = nn.Linear(sum(inputs), width)
        self.inner = nn.Linear(width, width)
        self.logits = nn.Linear(width, sum(outputs))

    def forward(self, symbols: Tensor) -> tuple[Tensor, ...]:
        """int64 ``[batch, inputs]`` to one float ``[batch, symbols]`` per output."""
        hot = [functional.one_hot(symbols[:, i], size) for i, size in enumerate(self.sizes)]
        state = functional.relu(self.hidden(torch.cat(hot, 1).to(self.hidden.weight.dtype)))
        logits: Tensor = self.logits(functional.relu(self.inner(state)))
        return torch.split(logits, list(self.outputs), 1)


@dataclass(frozen=True)
class Certificate:
    """What holds for questions of every length, if the answers that were learned from are right.

    The claim is relative to the table of facts: each fact was confirmed with all others as learned. That no other table
    as a whole explains the answers is not proved.

    Attributes:
        holds: every input that any length can ask a cell about was learned from answers, and the network answers it so.
        reachable: how many such inputs there are.
        least_lead: least difference of the two highest logits over all of them.
        missing: those that too few answers show, with all other facts as learned.
        wrong: those that the network answers otherwise than the facts.
        contradicted, answers: answers that the facts do not give, of all. The claim is that these are wrong.
        examples: some of them, and what the facts give.
        disputed: inputs at which contradicted answers gather, as they would not if they were wrong by chance: then the
            data flow cannot be that of the answers. They, and contradicted answers above a tenth, end every claim.
        given: reachable inputs whose facts came from other operations.
    """

    operation: str
    holds: bool
    reachable: int
    least_lead: float
    missing: tuple[str, ...]
    wrong: tuple[str, ...]
    disputed: tuple[str, ...]
    contradicted: int
    answers: int
    examples: tuple[str, ...]
    given: int

    def __str__(self) -> str:
        given = f", {self.given} of them given by other operations" if self.given else ""
        lines = [
            f"{self.operation}: {self.reachable} cell inputs can occur at any length{given}; least logit lead "
            f"{self.least_lead:.2f}; {self.contradicted} of {self.answers} answers contradict the facts"
        ]
        if self.holds:
            wrong = f", the {self.contradicted} contradicted answers are wrong" if self.contradicted else ""
            lines += [
                f"right for every length, if the data flow is right{wrong} and the facts are those of the operation;",
                "answers confirm each fact with all others as learned: that no other table as a whole explains them is "
                "not proved",
            ]
        else:
            lines.append("no claim:")
            lines += [f"  not learned: {len(self.missing)}: {', '.join(self.missing[:10])}"] if self.missing else []
            lines += [f"  answered wrong: {len(self.wrong)}: {', '.join(self.wrong[:10])}"] if self.wrong else []
            if self.disputed:
                lines.append(
                    f"  contradicted more often than by chance: {len(self.disputed)}: {', '.join(self.disputed[:10])}"
                )
            if self.contradicted > CONTRADICTED * self.answers:
                lines.append(f"  more than {CONTRADICTED:.0%} of the answers are contradicted: they, or the data flow")
        lines += [f"  contradicted: {example}" for example in self.examples[:3]]
        return "\n".join(lines)


class Learned:
    """Networks that answer questions of any length. `learn` makes one.

    Attributes:
        operation: what was learned.
        facts: what the answers have shown.
        networks: cell -> its network, for ``state_dict`` and ``parameters``.
    """

    def __init__(self, operation: Operation, facts: Facts, networks: nn.ModuleDict, given: frozenset[int]) -> None:
        self.operation, self.facts, self.networks, self._given = operation, facts, networks, given
        self.responses, self._leads = self._respond()

    def _respond(self) -> tuple[Symbols, dict[int, float]]:
        """Every cell's network on all its inputs: what it writes, and by how many logits the winner leads."""
        layout, leads = self.operation.layout, {}
        largest = max(map(max, layout.outputs.values()))
        table = np.zeros((layout.rows, layout.ports), np.uint8 if largest <= 256 else np.int32)
        sizes = {name: len(symbols) for name, symbols in self.operation.alphabets.items()}
        for name, cell in self.operation.cells.items():
            inputs = list(product(*(range(sizes[alphabet]) for alphabet in cell.inputs)))
            with torch.no_grad():
                logits = self.networks[name](torch.tensor(inputs))
            written = torch.stack([port.argmax(1) for port in logits], 1).numpy()
            lead = torch.stack([_lead(port) for port in logits], 1).amin(1).tolist()
            for i, symbols in enumerate(inputs):
                row = layout.row(name, symbols)
                table[row, : written.shape[1]] = written[i]
                leads[row] = lead[i]
        return table, leads

    def answer(self, *question: str) -> str:
        """The answer to one question, without its padding; see `answers`."""
        return self.answers([question])[0]

    def answers(self, questions: Sequence[tuple[str, ...]]) -> list[str]:
        """The networks' answers. Those of equal lengths run together.

        A cell has finitely many inputs, so each network runs once on all of them and the flow looks its answers up: the
        result is that of running it at every cell, and the facts play no part.

        Raises:
            DataError: a question with another number of parts, an empty part, or a symbol that its alphabet lacks.
        """
        by_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for i, question in enumerate(questions):
            by_shape[lengths_of(question)].append(i)
        found = [""] * len(questions)
        symbols = np.array(list(self.operation.alphabets[self.operation.output]))
        for group in by_shape.values():
            for start in range(0, len(group), BATCH):
                some = group[start : start + BATCH]
                run = Run(self.operation.layout, self.responses, len(some))
                parts = self.operation.run(run, self.operation.encode_questions([questions[i] for i in some]))
                texts = [["".join(column) for column in symbols[part.T]] for part in parts]
                for i, answer in zip(some, zip(*texts, strict=True), strict=True):
                    found[i] = self.operation.text(answer)
        return found

    def certificate(self) -> Certificate:
        """Asks the networks about every cell input that questions of any length can need.

        The set is a closure. A wire of an alphabet carries a symbol of a question, a constant, or what some
        cell writes to
        such a wire; a cell reads any combination of what its wires can carry. The closure contains all symbols
        of visible
        alphabets, the first symbol of hidden ones, and what the networks write on inputs in it. By induction along the
        flow no question leaves it, whatever its length: `Run.cell` refuses wires of other alphabets and runs, and
        `Run.constant` refuses hidden symbols but the first.
        """
        operation, layout, facts = self.operation, self.operation.layout, self.facts
        carried = {
            name: set(range(len(symbols))) if name not in operation.hidden else {0}
            for name, symbols in operation.alphabets.items()
        }
        reached: set[int] = set()
        grown = True
        while grown:
            grown = False
            for name, cell in operation.cells.items():
                for inputs in product(*(sorted(carried[alphabet]) for alphabet in cell.inputs)):
                    row = layout.row(name, inputs)
                    grown = grown or row not in reached
                    reached.add(row)
                    for port, alphabet in enumerate(cell.outputs):
                        carried[alphabet].add(int(self.responses[row, port]))
        missing = [layout.text(row) for row in sorted(reached) if row not in facts.support]
        wrong = [
            layout.text(row)
            for row in sorted(reached)
            if row in facts.support and (facts.table[row] != self.responses[row]).any()
        ]
        disputed = [layout.text(row) for row in facts.disputed if row in reached]
        return Certificate(
            operation=operation.name,
            holds=not (missing or wrong or disputed or facts.contradicted > CONTRADICTED * facts.answers),
            reachable=len(reached),
            least_lead=min((self._leads[row] for row in reached), default=inf),
            missing=tuple(missing),
            wrong=tuple(wrong),
            disputed=tuple(disputed),
            contradicted=facts.contradicted,
            answers=facts.answers,
            examples=tuple(f"{' '.join(q)} -> {answer}, the facts give {own}" for q, answer, own in facts.examples),
            given=len(reached & self._given),
        )

    def save(self, path: str | Path) -> None:
        """Writes networks and facts, not the data flow, as a safetensors file.

        Raises:
            OSError: the disk is full, there is no such folder, ...
        """
        facts = self.facts
        tensors = {f"networks.{name}": value.contiguous() for name, value in self.networks.state_dict().items()}
        tensors["facts.table"] = torch.from_numpy(facts.table)
        tensors["facts.support"] = torch.tensor(sorted(facts.support.items())).reshape(-1, 2)
        tensors["facts.given"] = torch.tensor(sorted(self._given), dtype=torch.int64)
        text = {
            "operation": _description(self.operation),
            **{name: getattr(facts, name) for name in ("answers", "explained", "contradicted", "examples", "disputed")},
        }
        replace_file(Path(path), safetensors.torch.save(tensors, {"dagnn.answers": json.dumps(text)}))

    @classmethod
    def load(cls, path: str | Path, operation: Operation) -> "Learned":
        """What `save` wrote. The data flow is not in the file: it comes with the operation, and the certificate is
        about that one.

        Raises:
            DataError: no such file, or one of another operation: other alphabets, cells, inputs or outputs.
        """
        try:
            with safetensors.safe_open(str(path), "pt") as file:
                text = json.loads((file.metadata() or {})["dagnn.answers"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            facts = Facts(operation, tensors["facts.table"].numpy(), dict(tensors["facts.support"].tolist()))
            for name in ("answers", "explained", "contradicted", "disputed"):
                setattr(facts, name, text[name])
            facts.examples = [(tuple(question), answer, own) for question, answer, own in text["examples"]]
            saved = text["operation"]
        except (OSError, KeyError, ValueError, TypeError, safetensors.SafetensorError) as error:
            raise DataError(f"{path} is no learned operation that Learned.save wrote: {error}.") from None
        if saved != json.loads(json.dumps(_description(operation))):
            raise DataError(
                f"{path} holds {saved.get('name')!r} with cells {saved.get('cells')}, not the operation "
                f"{operation.name!r} with {_description(operation)['cells']}: load it with its own."
            )
        networks = _networks(operation)
        networks.load_state_dict({name[9:]: value for name, value in tensors.items() if name.startswith("networks.")})
        return cls(operation, facts, networks, frozenset(tensors["facts.given"].tolist()))


def _description(operation: Operation) -> dict[str, object]:
    """All that is declared of an operation but its flow, for JSON."""
    return {
        "name": operation.name,
        "alphabets": dict(operation.alphabets),
        "cells": {name: [list(cell.inputs), list(cell.outputs)] for name, cell in operation.cells.items()},
        "inputs": list(operation.inputs),
        "output": operation.output,
        "padding": operation.padding,
        "separator": operation.separator,
    }


def _networks(operation: Operation) -> nn.ModuleDict:
    sizes = {name: len(symbols) for name, symbols in operation.alphabets.items()}
    return nn.ModuleDict(
        {
            name: CellNetwork([sizes[a] for a in cell.inputs], [sizes[a] for a in cell.outputs])
            for name, cell in operation.cells.items()
        }
    )


def learn(
    operation: Operation, pairs: Sequence[Pair], *, given: Sequence[Learned] = (), seed: int = 0, steps: int = 2000
) -> Learned:
    """Learns the cells of an operation from questions and answers.

    First facts: for each input of a cell the outputs that alone explain the answers: against each alternative `VOTES`
    answers or more, and three quarters of those that decide between the two. Then one network per cell
    learns its facts by gradient descent. The same arguments give the same networks.

    Args:
        operation: whose data flow is given.
        pairs: ``((part, ...), answer)``, texts.
        given: learned operations; cells of the same name and alphabets begin with their facts.
        seed: of the order of the answers and of the networks' first weights.
        steps: of Adam per cell, at most.

    Raises:
        DataError: no pairs, a symbol that an alphabet lacks, or an answer of another length than the flow gives.
        ConfigError: ``steps`` below 1.

    >>> from dagnn.answers import Cell
    >>> def flow(run, text):
    ...     return [run.cell("other", symbol)[0] for symbol in text]
    >>> flip = Operation("not", {"bit": "01"}, {"other": Cell(("bit",), ("bit",))}, ("bit",), "bit", flow)
    >>> learned = learn(flip, [(("0",), "1"), (("1",), "0")] * 3)
    >>> learned.answer("00010"), learned.certificate().holds
    ('11101', True)
    """
    if steps < 1:
        raise ConfigError(f"steps must be at least 1, got {steps}.")
    start = _given_facts(operation, given)
    facts = find_facts(operation, pairs, start, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = _networks(operation)
    for name, cell in operation.cells.items():
        rows = [row for row in facts.support if operation.layout.cell_of[row] == name]
        if rows:
            inputs = torch.tensor([operation.layout.inputs(row) for row in rows])
            targets = torch.from_numpy(facts.table[rows, : len(cell.outputs)]).long()
            _train(networks[name], inputs, targets, steps)
    return Learned(operation, facts, networks, frozenset(start))


def _given_facts(operation: Operation, given: Sequence[Learned]) -> Mapping[int, Sequence[int]]:
    found: dict[int, list[int]] = {}
    for learned in given:
        other = learned.operation
        for row in learned.facts.support:
            name = other.layout.cell_of[row]
            cell = operation.cells.get(name)
            if cell is None:
                continue
            used = {*cell.inputs, *cell.outputs}
            if cell != other.cells[name] or any(operation.alphabets[a] != other.alphabets.get(a) for a in used):
                raise ConfigError(
                    f"cell {name!r} of {operation.name!r} and of {other.name!r} differ in what they read or "
                    f"write: rename one."
                )
            outputs = learned.facts.table[row, : len(cell.outputs)].tolist()
            found[operation.layout.row(name, other.layout.inputs(row))] = outputs
    return found


def _lead(logits: Tensor) -> Tensor:
    """How far the highest logit is above the second: ``[batch, symbols]`` to ``[batch]``."""
    if logits.shape[1] == 1:
        return torch.full((len(logits),), inf)
    first, second = logits.topk(2, 1).values.unbind(1)
    return first - second


def _train(network: nn.Module, inputs: Tensor, targets: Tensor, steps: int) -> None:
    optimizer = torch.optim.Adam(network.parameters(), lr=0.005)
    for _ in range(steps):
        logits = network(inputs)
        with torch.no_grad():
            right = [port.gather(1, targets[:, i : i + 1])[:, 0] for i, port in enumerate(logits)]
            leads = [
                own - port.scatter(1, targets[:, i : i + 1], -inf).amax(1)
                for i, (port, own) in enumerate(zip(logits, right, strict=True))
            ]
            if min(float(lead.min()) for lead in leads) >= LEAD:
                return
        loss = sum((functional.cross_entropy(port, targets[:, i]) for i, port in enumerate(logits)), torch.zeros(()))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
