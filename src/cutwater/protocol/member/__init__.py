"""What a member does: follows the journal, hosts stages, captures, publishes."""
