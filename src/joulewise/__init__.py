"""Joulewise: measure, explain and cut the joules of LLM inference."""

__version__ = "0.1.0"
