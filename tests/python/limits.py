"""How long a test waits before it gives up. A guard against hanging: it asserts no speed."""

HANG = 600  # seconds
