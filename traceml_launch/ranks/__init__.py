"""Workers: what they are given, how they end, and what they leave behind."""
