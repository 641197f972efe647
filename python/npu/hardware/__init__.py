"""The real NPU: building configurations, running them, checking a machine."""
