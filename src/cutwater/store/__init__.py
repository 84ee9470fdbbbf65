"""The store: its contract, local folders, object stores, and reading one at rest."""
