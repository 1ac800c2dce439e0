"""What may name a node: the one form of every name, and an order that no process and no hash seed changes.

A name is None, a number, a str, bytes, or a tuple or frozenset of names. Names that are equal in Python have one form:
NumPy's scalars are Python's, ``True`` is 1, ``2.0`` is 2, a named tuple is its tuple, and a member of an enum of str or
int is that str or int. All else is refused: its text may hold an address of memory, and equal values may read unlike.
"""

from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from operator import index
from typing import Any, Never

import numpy as np
from torch import Tensor

from dagnn.errors import DtypeError

PLAIN = frozenset({int, str, bytes, type(None)})
"""Types whose values are names in their one form already."""


def canonical_names(names: Iterable[Any], where: Callable[[int], str] = "names[{}] is".format) -> tuple[Hashable, ...]:
    """Every name in its one form; ``where`` begins the error for the name at a place.

    Raises:
        DtypeError: something that cannot be a name; says which.
    """
    given = tuple(names)
    # Their types first, as a set: a million names take 15 ms that way, and ten times as long one by one.
    if set(map(type, given)) <= PLAIN:
        return given
    forms = list[Hashable]()
    for place, name in enumerate(given):
        try:
            forms.append(canonical(name))
        except DtypeError as error:
            raise DtypeError(f"{where(place)} {error}") from None
    return tuple(forms)


def canonical(name: Any) -> Hashable:
    """The one form of ``name``: two names are equal if, and only if, their forms are of one type and one text.

    Raises:
        DtypeError: no name; the message is the rest of a sentence that says where it stands.

    >>> canonical((np.int64(3), np.str_("a"), 2.0, True))
    (3, 'a', 2, 1)
    """
    return name if type(name) in PLAIN else _reader(type(name))(name)  # type: ignore[arg-type]


@lru_cache(256)
def _reader(kind: type) -> Callable[[Any], Hashable]:
    """What brings a name of this type into its one form."""
    # Not str and int for their subclasses, which may answer something else there.
    readers: tuple[tuple[type, Callable[[Any], Hashable]], ...] = (
        (np.timedelta64, _refuse),  # to NumPy an integer
        (np.longdouble, _refuse),
        (np.integer, index),
        (np.bool_, int),
        (np.floating, lambda name: _number(name.item())),
        (str, str.__str__),
        (int, int.__index__),  # bool too
        (float, _number),
        (bytes, bytes),
        (tuple, _tuple),
        (frozenset, lambda name: frozenset(map(canonical, name))),
    )
    return next((read for base, read in readers if issubclass(kind, base)), _refuse)


def _tuple(name: tuple[Any, ...]) -> tuple[Hashable, ...]:
    if type(name) is tuple and PLAIN.issuperset(map(type, name)):
        return name
    return tuple(map(canonical, name))


def _number(name: float) -> int | float:
    if name != name:
        _refuse(name)
    return int(name) if name.is_integer() else float.__float__(name)


def sort_key(name: Hashable) -> tuple[str, Any, str]:
    """What names in their one form are sorted by: type, then ints by value, str by character, the rest by text."""
    if type(name) is int:
        return ("int", name, "")
    return (type(name).__name__, 0, name if type(name) is str else _text(name))


def _text(name: Hashable) -> str:
    """What ``repr`` says; but a frozenset lists its members in an order of the process, so here they are sorted."""
    if isinstance(name, tuple):
        members = ", ".join(map(_text, name))
        return f"({members},)" if len(name) == 1 else f"({members})"
    if isinstance(name, frozenset):
        members = ", ".join(map(_text, sorted(name, key=sort_key)))
        return f"frozenset({{{members}}})" if name else "frozenset()"
    return repr(name)


def _refuse(name: Any) -> Never:
    if isinstance(name, Tensor | np.ndarray):
        raise DtypeError(f"{name!r}, which cannot name a node: take the number out of it, with .item() or .tolist().")
    if isinstance(name, float):
        raise DtypeError("nan, which cannot name a node, because it does not equal itself: find where it comes from.")
    raise DtypeError(
        f"{name!r}, which cannot name a node: only str, int, float, bytes, None, and tuples and frozensets of those "
        "sort alike in every process. Give the node a str or a number of its own (for dates and the like, str of it)."
    )
