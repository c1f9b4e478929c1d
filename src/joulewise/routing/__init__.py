"""What should be chosen: how well each option would answer a query, learnt from outcomes."""
