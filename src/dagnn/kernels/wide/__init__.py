"""One DAG whose nodes hold several units, a block of weights an edge: its plan, its reference, its compiled passes."""
