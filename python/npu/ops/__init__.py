"""Operations: those of the device, and host operations of the model code (host.py)."""
