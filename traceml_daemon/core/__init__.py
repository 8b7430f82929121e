"""Pure decisions: who is where, when a run is over, who is missing. No I/O, no clock; `now` is an argument."""
