"""The telemetry database: one writer, packed rows, recovery."""
