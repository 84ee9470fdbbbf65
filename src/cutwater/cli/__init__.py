"""The `cutwater` command: one file per command or small group, assembled in `main.py`."""
