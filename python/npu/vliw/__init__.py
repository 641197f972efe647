"""The cores as machines: descriptions, a simulator of bundles, and a generator of kernels."""
