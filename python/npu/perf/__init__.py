"""The performance study: simulated times, traces, tuning, plots and published measurements."""
