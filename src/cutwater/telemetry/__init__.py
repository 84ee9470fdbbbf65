"""What monitoring sees of a member: metrics, health, traces. Nothing here decides anything; nobody waits for it."""
