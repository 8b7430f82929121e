"""The bytes of training: from pipes to files and to the terminal."""
