"""Devices of vendors other than NVIDIA, live: one file a vendor.

Where a maintained Python library exists (amdsmi, mthreads-ml-py) it is asked every second; else the
vendor's command is run every 30 s or more, one call at a time, and read by the same parsers as captures.
Importing this package imports nothing.
"""
