"""Linear programs by HiGHS, as a function and as a script.

SciPy cannot interrupt HiGHS, and a process cannot end while HiGHS runs in one of its threads: after Ctrl-C it would
wait for minutes. So a large program runs in a child process, which the parent can kill at any time. This file is the
child's script. It imports nothing of dagnn: that would take longer than most programs.
"""

import sys

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save
from scipy.optimize import linprog
from scipy.sparse import csr_array

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def marginals(
    cost: Floats, value: Floats, row: Ints, column: Ints, bound: Floats, equations: Ints, seconds: float | None = None
) -> Floats:
    """The change of the optimum per unit of each row's bound: float64 ``[rows]``, ``[0]`` if the solver gives up.

    Args:
        cost: float64 ``[columns]``, to be minimised; the variables are at least 0.
        value, row, column: the entries of the matrix.
        bound: float64 ``[rows]``; a row is at most its bound, and the last rows equal theirs.
        equations: int64 ``[1]``, the number of those last rows.
        seconds: the solver gives up after that long, more or less.
    """
    matrix = csr_array((value, (row, column)), shape=(len(bound), len(cost)))
    most = len(bound) - int(equations[0])
    solution = linprog(
        cost,
        A_ub=matrix[:most],
        b_ub=bound[:most],
        A_eq=matrix[most:] if most < len(bound) else None,
        b_eq=bound[most:] if most < len(bound) else None,
        method="highs-ipm",
        options={} if seconds is None else {"time_limit": max(seconds, 0.001)},
    )
    if solution.status != 0:
        return np.zeros(0)
    return np.concatenate([solution.ineqlin.marginals, solution.eqlin.marginals])


if __name__ == "__main__":
    sys.stdout.buffer.write(save({"marginals": marginals(**load(sys.stdin.buffer.read()), seconds=None)}))
