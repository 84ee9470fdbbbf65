"""The `cutwater` command: one file per command or small group, put together in `main.py`."""
