"""What member and leader share: effects, logs, records, messages, errors."""
