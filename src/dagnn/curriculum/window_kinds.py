"""What a window of the curriculum is about, and which windows an experiment keeps from training."""

from hashlib import blake2b

import numpy as np

from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.rules.registry import RULES
from dagnn.graph.rewriting import WindowTokens

# Kinds of windows. A fact of the last two, such as 7 * 8 + 5 or the sine of 0.3, can only be learned by seeing it.
SYMBOLIC, DIGITS, PRODUCTS, CONSTANTS = "symbolic", "digits", "digit products", "functions"
KINDS = (SYMBOLIC, DIGITS, PRODUCTS, CONSTANTS)

_KIND_OF_SUBJECT = {
    "numbers": DIGITS,
    "digits": DIGITS,
    "division": DIGITS,
    "rationals": DIGITS,
    "elementary": CONSTANTS,
    "fixed_point": CONSTANTS,
    "rounding": CONSTANTS,
}
_PARTS = 1 << 32


def kind_of(window: WindowTokens) -> str:
    """One of `KINDS`, by the file of the rule that rewrites the window.

    Symbolic are algebra, substitution, derivatives, integrals and equations; digits are the steps of rational
    arithmetic but for the product of two digits with a carry; functions are level 4's, with their constants.
    """
    label = SIGNATURE.shown[window[0]].kind
    if label == "times_digit":
        return PRODUCTS
    return _KIND_OF_SUBJECT.get(RULES[label].__module__.rpartition(".")[2], SYMBOLIC)


def is_held_out(window: WindowTokens, share: float) -> bool:
    """Whether the window is among this share of all windows, 0 .. 1: a pure function of both."""
    digest = blake2b(np.array(window, "<i2").tobytes(), digest_size=4).digest()
    return int.from_bytes(digest, "big") < share * _PARTS
