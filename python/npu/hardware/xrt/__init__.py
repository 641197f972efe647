"""Device ``xrt``: an AMD NPU through pyxrt, XRT's own Python module, which is found at run time.

Written against the documentation and the public sources of XRT and its NPU driver; never run on
hardware (docs/fidelity.md). ``backend.py`` is the device; nothing here is imported unless a machine
may have an NPU (``npu/devices.py``).
"""
