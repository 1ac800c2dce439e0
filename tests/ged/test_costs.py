import numpy as np
import pytest

from dagnn.errors import ConfigError
from dagnn.ged import EditCosts


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"node_insertion": float("nan")}, "node_insertion is nan"),
        ({"edge_deletion": -1}, "edge_deletion is -1.0"),
        ({"edge_substitution": float("inf")}, "edge_substitution is inf"),
        ({"node_deletion": np.array([1.0, -2.0])}, r"node_deletion\[1\] is -2.0"),
        ({"node_substitution": np.array([[0, 1], [np.nan, 0]])}, r"node_substitution\[1, 0\] is nan"),
        ({"node_substitution": np.ones(3)}, r"2 dimension\(s\), got the shape \[3\]"),
        ({"node_substitution": np.ones((2, 3))}, r"square matrix \[num_labels, num_labels\], got \[2, 3\]"),
        ({"node_insertion": "cheap"}, "must be a number, an array or a callable, got 'cheap'"),
    ],
)
def test_bad_costs_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        EditCosts(**options)


def test_constants_become_floats():
    assert EditCosts(node_insertion=2).constant("node_insertion") == 2.0
    with pytest.raises(ConfigError, match="node_deletion depends on the label"):
        EditCosts(node_deletion=np.ones(2)).constant("node_deletion")
