"""One DAG with a weight per edge: its plan, and its compiled forward and backward passes."""
