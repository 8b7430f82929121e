"""The daemon as the launcher sees it: started, watched, fed and reaped."""
