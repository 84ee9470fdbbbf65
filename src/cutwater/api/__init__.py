"""What users write: pipelines, stages, and the tables that belong to one epoch."""
