"""How do figures leave? The running meter as metrics; a run's table and timeline as files."""
