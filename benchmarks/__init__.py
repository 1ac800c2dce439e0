"""One file per claim; each prints a ratio against a peer measured in the same run. See `harness`."""
