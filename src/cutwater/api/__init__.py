"""What users call: pipelines, stages, options, and the tables of one epoch."""
