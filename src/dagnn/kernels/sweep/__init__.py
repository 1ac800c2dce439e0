"""Many DAGs, one cell: the plan of a sweep, its compiled passes, and the cells."""
