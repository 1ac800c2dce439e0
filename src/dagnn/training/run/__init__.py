"""A run on disk: its directory, its checkpoints, and everything that a resume needs."""
