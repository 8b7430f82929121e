"""Pure: profiles of a run to findings on its performance. No I/O, no clock."""
