"""The contract that rank, launcher and daemon share: messages, framing, the flight recorder's layout, the manifest.

The only part of the client that the other two packages import. It does no network I/O and knows no torch.
"""
