"""One line of a dataset: an input, its answer, and where they belong."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagnn.graph import Dag

_KEYS = ("id", "level", "input", "answer", "split", "graphs")
_REQUIRED = ("id", "level", "input", "answer")


@dataclass(frozen=True, slots=True)
class Record:
    """An input with its answer.

    Attributes:
        id: names the record within its dataset; no two records share one.
        level: difficulty, at least 1; batches may be mixed by level.
        input: text of the question, such as ``(+ 2 3)``.
        answer: text of the answer, such as ``5``.
        split: ``train``, ``validation``, ``test``, or whatever the user calls it; empty when there is none.
        graphs: graphs that belong to the record, by name (``input``, ``answer``); None when there are none.
    """

    id: str
    level: int
    input: str
    answer: str
    split: str = ""
    graphs: "Mapping[str, Dag] | None" = None


class MalformedLine(ValueError):
    """A line that is not JSON at all: the last line of a file that was cut off looks like this."""


def record_to_line(record: Record) -> str:
    """The record as one line of JSON, without the newline. Keys in one order, so equal records give equal bytes."""
    fields: dict[str, Any] = {key: getattr(record, key) for key in _REQUIRED}
    if record.split:
        fields["split"] = record.split
    if record.graphs is not None:
        fields["graphs"] = {name: json.loads(dag.to_json()) for name, dag in record.graphs.items()}
    return json.dumps(fields, ensure_ascii=False, allow_nan=False)


def record_from_line(line: str) -> Record:
    """The record that a line of JSON holds.

    Raises:
        ValueError: the line holds none (`MalformedLine`: it is not JSON either); the message is the reason alone,
            since only the caller knows the file and the line number.
    """
    try:
        fields = json.loads(line, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise MalformedLine(f"not valid JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(fields, dict):
        raise ValueError(f"expected a JSON object, got {_type_name(fields)}")

    _check_keys(fields)
    for key in ("id", "input", "answer", "split"):
        if not isinstance(fields.get(key, ""), str):
            raise ValueError(f"{key!r} must be text, got {_type_name(fields[key])}")
    level = fields["level"]
    if type(level) is not int or level < 1:
        raise ValueError(f"'level' must be an integer from 1, got {level!r}")

    return Record(
        fields["id"],
        level,
        fields["input"],
        fields["answer"],
        fields.get("split", ""),
        _graphs(fields.get("graphs")),
    )


def _check_keys(fields: dict[str, Any]) -> None:
    missing = [key for key in _REQUIRED if key not in fields]
    if missing:
        raise ValueError(f"no {missing[0]!r}: a line has {', '.join(_REQUIRED)}")
    unknown = [key for key in fields if key not in _KEYS]
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}: a line has {', '.join(_KEYS)}")


def _graphs(value: Any) -> "Mapping[str, Dag] | None":
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError(f"'graphs' must map names to graphs, got {_type_name(value)}")
    # Imported here: it loads torch, which a dataset of text does not need.
    from dagnn.graph import Dag

    graphs = {}
    for name, graph in value.items():
        try:
            graphs[name] = Dag.from_json(json.dumps(graph))
        except (ValueError, TypeError) as error:
            raise ValueError(f"graph {name!r}: {error}") from None
    return graphs


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _type_name(value: Any) -> str:
    if value is None:
        return "null"
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names[type(value)]
