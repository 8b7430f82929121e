"""Is the diagnosed cause of a run still there? By looking at this machine; nothing from a log is ever executed."""
