"""The self-test of a device: results beside those of the emulated NPU, times beside simulated ones.

``checks.py``: what is computed and how far a result may be off. ``measure.py``: how long streams
take. ``report.py``: the one file in which both end up. ``npu selftest`` runs it, `npu
validate-model --report` reads the file.
"""
