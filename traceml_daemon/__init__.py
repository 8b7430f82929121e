"""The aggregator: takes what ranks and launchers send, keeps it, decides when a run is over, writes the reports."""
