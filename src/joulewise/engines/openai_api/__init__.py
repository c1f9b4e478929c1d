"""A client of OpenAI-compatible servers. Needs the extra ``endpoint``; import ``client`` only when it is used."""
