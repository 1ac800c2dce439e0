"""Every error a user can cause. Each says what was given, what was expected and what to do.

DagnnError
├── GraphError (ValueError)         a graph that cannot be built, or a node that is not in it
│   └── CycleError                  the edges form a cycle; the message names it
├── DtypeError (TypeError)          a tensor or array of the wrong dtype
├── ExpressionError (ValueError)    text that is not an expression, or one without an answer
├── ConfigError (ValueError)        a setting that is unknown or out of range
│   └── UntranslatedError           a format lacks what a module computes; the message names those that do not
├── DataError (ValueError)          a dataset that cannot be read; names file and line
├── CheckpointError (ValueError)    a checkpoint that is damaged, foreign or newer than this version
│   └── StateDictError (RuntimeError) a state dict of a network with other edges; the message names them
├── RunError (RuntimeError)         a run directory that cannot be used or written
├── MissingPackageError (ImportError) a package of an extra is not installed; the message has the pip line
└── AccumulationError (RuntimeError) a window used out of order, or unequal weights left undeclared

Two warnings have a class of their own, so that you can filter them: AccumulationWarning and ConstantNodesWarning.
"""

import difflib
import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


class DagnnError(Exception):
    """Base of every error that dagnn raises on purpose."""


class GraphError(DagnnError, ValueError):
    """A graph that cannot be built, or a node that is not in it."""


class CycleError(GraphError):
    """The edges form a cycle; the message names one."""


class DtypeError(DagnnError, TypeError):
    """A tensor or array of the wrong dtype."""


class ExpressionError(DagnnError, ValueError):
    """Text that is not an expression, or an expression that has no answer."""


class ConfigError(DagnnError, ValueError):
    """A setting that is unknown, of the wrong type or out of range."""


class UntranslatedError(ConfigError):
    """A format lacks what a module computes; the message of an export names those that do not."""


class DataError(DagnnError, ValueError):
    """A dataset that cannot be read; the message names the file and the line."""


class CheckpointError(DagnnError, ValueError):
    """A checkpoint that is damaged, foreign or written by a newer version."""


class StateDictError(CheckpointError, RuntimeError):
    """A state dict of a network with other edges or biases. A RuntimeError too: ``load_state_dict`` raises those."""


class RunError(DagnnError, RuntimeError):
    """A run directory that is in use, cannot be written or holds no run."""


class MissingPackageError(DagnnError, ImportError):
    """A package that only a part of dagnn needs is not installed; the message names the extra and how to install it."""


class AccumulationError(DagnnError, RuntimeError):
    """An accumulation window used out of order, or unequal weights left undeclared."""


class ConstantNodesWarning(UserWarning):
    """Nodes of a network have no edges into them and are no inputs: the network learns a constant there."""


class AccumulationWarning(UserWarning):
    """The loop runs, but its result may differ from that of the full batch, or from what you meant.

    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", AccumulationWarning)  # a test that must not train on doubtful gradients
    """


_PACKAGE = str(Path(__file__).parent) + os.sep


def library(module: str, what: str, install: str) -> Any:
    """A module of an optional package, imported now.

    Args:
        what: what needs it, the subject of the message.
        install: what pip installs it by, such as ``"dagnn[plot]"``.

    Raises:
        MissingPackageError: it is not installed, or cannot be imported.

    >>> library("matplotlib.figure", "a picture", "dagnn[plot]").Figure.__name__
    'Figure'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        # What is missing may be what that module itself imports.
        raise _missing(what, error.name or module, install, error) from error


def check_installed(what: str, install: str, *modules: str) -> None:
    """Nothing where all of them are installed, of which none is imported; else a MissingPackageError for the first."""
    for module in modules:
        if module not in sys.modules and importlib.util.find_spec(module) is None:
            raise _missing(what, module, install, f"No module named {module!r}")


def _missing(what: str, module: str, install: str, reason: object) -> MissingPackageError:
    package = module.partition(".")[0]
    install = f'"{install}"' if "[" in install else install  # brackets are patterns of file names to a shell
    return MissingPackageError(f"{what} needs {package} ({reason}): pip install {install}.", name=package)


def closest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known word that ``word`` is most likely a misspelling of; None where none is at least ``cutoff`` alike."""
    nearest = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return nearest[0] if nearest else None


def did_you_mean(nearest: Sequence[str], otherwise: str) -> str:
    """The advice of an error about an unknown word: the nearest ones, or what else to do.

    >>> did_you_mean(["loss.gamma", "schedule.gamma"], "see --help.")
    'did you mean loss.gamma or schedule.gamma?'
    """
    return f"did you mean {' or '.join(nearest)}?" if nearest else otherwise


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the user's line: the innermost frame outside of dagnn."""
    level = 2
    # Python 3.12 has skip_file_prefixes for this; 3.11 counts frames by hand.
    while (frame := sys._getframe(level - 1)).f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        level += 1
    warnings.warn(message, category, stacklevel=level)
