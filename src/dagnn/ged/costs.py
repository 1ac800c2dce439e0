"""What every edit costs."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from dagnn.errors import ConfigError

ElementCost: TypeAlias = "float | np.ndarray[Any, Any] | Callable[[Any], float]"
PairCost: TypeAlias = "float | np.ndarray[Any, Any] | Callable[[Any, Any], float]"


@dataclass(frozen=True, eq=False, kw_only=True)
class EditCosts:
    """Costs of turning a graph ``a`` into a graph ``b``, all at least 0.

    *Deletions* are charged for what only ``a`` has, *insertions* for what only ``b`` has. In a loss, ``a`` is
    the prediction and ``b`` the target.

    Each insertion or deletion is one of
        - a number, the same for every label;
        - an array ``[num_labels]``, indexed by labels that are integers from 0;
        - a callable ``label -> float``.

    Each substitution is one of
        - a number, charged when the labels differ (equal labels cost 0);
        - an array ``[num_labels, num_labels]``, indexed ``[label in a, label in b]``, its diagonal included;
        - a callable ``(label in a, label in b) -> float``, called for equal labels too.

    A cost is the float that it is given as, and sums of costs are compared exactly, whatever they span: 1e-9 counts
    beside 1e12. Any finite costs are handled right, metric or not: a substitution dearer than a deletion and an
    insertion is replaced by these. The distance is a metric only if the costs are one.

    Raises:
        ConfigError: a cost is no number, negative, NaN or infinite, or an array has the wrong number of dimensions.

    >>> EditCosts(node_substitution=0.5).node_substitution
    0.5
    """

    node_insertion: ElementCost = 1.0
    node_deletion: ElementCost = 1.0
    node_substitution: PairCost = 1.0
    edge_insertion: ElementCost = 1.0
    edge_deletion: ElementCost = 1.0
    edge_substitution: PairCost = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if callable(value):
                continue
            dimensions = 2 if field.name.endswith("substitution") else 1
            object.__setattr__(self, field.name, _checked(field.name, value, dimensions))

    def constant(self, name: str) -> float:
        """The cost ``name`` as one number.

        Raises:
            ConfigError: it depends on the label.
        """
        value = getattr(self, name)
        if not isinstance(value, float):
            raise ConfigError(
                f"{name} depends on the label, but the loss takes one number per kind of edit: give {name} a float."
            )
        return value


def _checked(name: str, value: Any, dimensions: int) -> "float | np.ndarray[Any, Any]":
    """``value`` as a float or a float64 array of ``dimensions`` dimensions, finite and at least 0."""
    try:
        # A copy: the costs stay what they were when they were checked.
        plain = value.detach().cpu() if isinstance(value, Tensor) else value
        if isinstance(plain, Tensor) and not plain.is_complex():
            plain = plain.double().numpy()
        array = None if is_no_number(plain) else np.array(plain, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        array = None
    except OverflowError:
        raise ConfigError(f"{name} is larger than any float: a cost must be finite and at least 0.") from None
    if array is None or value is None:
        raise ConfigError(f"{name} must be a number, an array or a callable, got {value!r}.")
    if array.ndim not in (0, dimensions):
        raise ConfigError(
            f"{name} must be a number or an array with {dimensions} dimension(s), got the shape {list(array.shape)}."
        )
    if dimensions == 2 and array.ndim == 2 and array.shape[0] != array.shape[1]:
        raise ConfigError(f"{name} must be a square matrix [num_labels, num_labels], got {list(array.shape)}.")
    check_cost(name, array)
    return float(array) if array.ndim == 0 else array


def is_no_number(value: Any) -> bool:
    """Whether it is text, a time or a complex number, which NumPy and `float` would take for a number."""
    if isinstance(value, Tensor):
        return value.is_complex()
    return isinstance(value, str | bytes | bytearray) or np.asarray(value).dtype.kind in "USMmc"


def check_cost(name: str, values: "np.ndarray[Any, Any]") -> None:
    """Raise ConfigError unless every value is finite and at least 0; the message prints the first bad one."""
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        where = f"{name}[{', '.join(map(str, index))}]" if index else name
        raise ConfigError(f"{where} is {values[index]}: a cost must be finite and at least 0.")


def returned_cost(name: str, value: Any, *labels: Any) -> float:
    """What the callable ``name`` returned for ``labels``, as a float.

    Raises:
        ConfigError: it is no number.
    """
    try:
        if not isinstance(value, int | float) and is_no_number(value):
            raise TypeError
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        given = ", ".join(repr(label) for label in labels)
        raise ConfigError(f"{name}({given}) returned {value!r}: it must return a finite number, at least 0.") from None


def checked_costs(costs: "EditCosts | None") -> "EditCosts":
    """``costs``, or unit costs for None.

    Raises:
        ConfigError: something else.
    """
    if costs is None:
        return UNIT_COSTS
    if not isinstance(costs, EditCosts):
        example = "EditCosts(**costs)" if isinstance(costs, dict) else "EditCosts(node_insertion=2)"
        raise ConfigError(f"costs must be an EditCosts, got {type(costs).__name__}: write {example}.")
    return costs


UNIT_COSTS = EditCosts()
"""What every comparison takes by default; made once, since checking six costs takes a tenth of a small search."""
