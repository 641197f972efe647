"""Operations of the model code: those on the device (linear.py) and those still on the host."""
