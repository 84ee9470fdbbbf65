"""Real pipelines that are killed, paused and restored, and checks of their tables afterwards."""
