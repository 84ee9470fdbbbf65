"""What the leader does: begins, collects and decides checkpoints, steers, keeps house."""
