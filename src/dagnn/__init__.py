"""dagnn: neural networks shaped like DAGs, trained with gradients you can trust."""

import importlib
from typing import TYPE_CHECKING, Any

from dagnn._version import __version__

if TYPE_CHECKING:
    from dagnn.errors import (
        AccumulationError as AccumulationError,
    )

# Public name -> the module that defines it. Loaded on first use (PEP 562), so that
# `dagnn --help` and `import dagnn.errors` do not wait for torch.
_MODULE_OF = {
    "AccumulationError": "dagnn.errors",
}

__all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dagnn' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
