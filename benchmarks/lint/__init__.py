"""The linter on labelled loops: 125 public ones, and loops written here with planted mistakes."""
