"""Real parts for tests: simulated ranks, the real daemon, the real launcher, all on loopback and all bounded."""
