"""The only place that touches torch: feeds the step clock from hooks that are set once the script has imported it."""
