"""Operations learned from questions and answers alone, with a certificate that covers every length."""

# ruff: noqa: E402 - what is missing is named before the first import fails
from dagnn.errors import check_installed

check_installed("dagnn.answers", "dagnn[answers]", "numba")

from dagnn.answers.learned import Certificate, Learned, learn
from dagnn.answers.operation import ARITHMETIC, Arithmetic, Operation
from dagnn.answers.run import Cell, Run, Wire

__all__ = ["ARITHMETIC", "Arithmetic", "Cell", "Certificate", "Learned", "Operation", "Run", "Wire", "learn"]
