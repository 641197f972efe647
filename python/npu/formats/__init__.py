"""File formats: GGUF, safetensors, Q4NX, and what their readers and writers share."""
