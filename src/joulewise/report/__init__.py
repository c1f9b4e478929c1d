"""How is it shown? One summary, in a terminal, on a page, as JSON."""
