"""Facts and stored measurements to `final_summary` and `failure_report`."""
