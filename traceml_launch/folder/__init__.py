"""Where a node's files go."""
