"""One consistent cut across all your Spark streams."""
