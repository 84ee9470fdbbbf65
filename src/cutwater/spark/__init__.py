"""Everything that touches Spark: sessions, plans, channels, queries."""
