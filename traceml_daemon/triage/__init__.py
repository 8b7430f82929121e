"""The diagnosis of a failed torchrun job from log text: bytes to attributed lines to observations to blame. Pure."""
