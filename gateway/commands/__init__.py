"""One module for each command of `gateway`: `add_arguments` describes it, `run` runs it and returns the exit code."""
