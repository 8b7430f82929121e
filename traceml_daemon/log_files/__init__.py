"""Log files and the catalogue as the triage gets them: the I/O that it has none of."""
