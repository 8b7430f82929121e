"""From words, variables, files and the job's environment to one validated configuration."""
