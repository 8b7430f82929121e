"""The offline commands: they read run folders and logs, and start nothing."""
