"""Networks for programs without Python: what a network computes as plain arrays, and a writer for each format."""

from dagnn.export.program import Program

__all__ = ["Program"]
