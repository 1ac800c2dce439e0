"""`DagNN`: the network, its parameters by name, structure that changes, and files."""
