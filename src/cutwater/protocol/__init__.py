"""The pure core: everything that decides, and nothing that acts.

No Spark, no network, no file, no thread, no clock is imported here, directly or through another module
of the package (`tests/protocol/test_purity.py` checks). The running system and the simulator use this same code.
"""
