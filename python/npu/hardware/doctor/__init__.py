"""`npu doctor`: which layer between a program and the NPU is broken, and how to repair it.

``examine`` probes every layer of a ``System`` (this machine, or a recorded one) and returns a
``Diagnosis``; ``report`` prints it. Written from documentation and public reports of failures:
nothing here has been run on a machine with an NPU.
"""
