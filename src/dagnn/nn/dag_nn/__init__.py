"""`DagNN`: the network, its parameters by name, changes of its structure, and its file."""
