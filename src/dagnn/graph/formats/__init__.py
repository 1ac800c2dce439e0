"""A Dag in other forms, called by its `from_x` and `to_x`: JSON, NetworkX, PyTorch Geometric, Polish notation."""
