"""How good are open answers? A judge, any model behind an OpenAI-compatible address, grades a finished run's."""
