"""Term graphs that are rewritten window by window: what a step may see, what it may answer, and the machine."""

from dagnn.graph.rewriting.machine import Rewriter, RewritingMachine, Rewritten, RuleRewriter, Step, Steps
from dagnn.graph.rewriting.signature import Label, Signature
from dagnn.graph.rewriting.window import (
    LEAVE,
    Replacement,
    ReplacementTokens,
    Window,
    WindowTokens,
    encode_replacement,
    read_window,
    window_nodes,
)

__all__ = [
    "LEAVE",
    "Label",
    "Replacement",
    "ReplacementTokens",
    "Rewriter",
    "RewritingMachine",
    "Rewritten",
    "RuleRewriter",
    "Signature",
    "Step",
    "Steps",
    "Window",
    "WindowTokens",
    "encode_replacement",
    "read_window",
    "window_nodes",
]
