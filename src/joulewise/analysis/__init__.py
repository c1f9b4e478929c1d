"""What does it mean? Savings, costs, acceptance and lossless verdicts: pure functions of a table of Trials."""
