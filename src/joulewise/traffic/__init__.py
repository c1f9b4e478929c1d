"""How is a server asked? Requests at due times, many at once; what of it was steady; how long answers took."""
