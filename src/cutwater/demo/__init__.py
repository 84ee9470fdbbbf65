"""Stories that show what Cutwater does, each with real processes that are really killed."""
