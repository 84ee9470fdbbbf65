"""What is known about a pipeline, as JSON documents: `--json` prints them, and `/api/v1` serves them."""
