"""One run from its first file to its last, and the runs that a daemon holds."""
