"""From formulas to machine code: the writer of LLVM instructions, functions on vectors, frames, threads."""
