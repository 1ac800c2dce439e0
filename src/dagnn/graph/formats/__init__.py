"""A Dag in other formats, for its methods `from_x` and `to_x`: JSON, NetworkX, PyTorch Geometric, Polish notation."""
