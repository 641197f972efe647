"""Language models: what all families share, sources of weights, and one folder per family."""
