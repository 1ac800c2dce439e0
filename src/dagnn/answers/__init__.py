"""Operations learned from questions and answers alone, with a certificate that covers every length."""

from dagnn.answers.arithmetic import ARITHMETIC, Arithmetic
from dagnn.answers.learned import Certificate, Learned, learn
from dagnn.answers.operation import Operation
from dagnn.answers.run import Cell, Run, Wire

__all__ = ["ARITHMETIC", "Arithmetic", "Cell", "Certificate", "Learned", "Operation", "Run", "Wire", "learn"]
