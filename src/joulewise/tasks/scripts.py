"""Scripts that put no spaces between words: what stands beside their characters stands by itself."""

from __future__ import annotations

import re

_UNSPACED = r"\u0e00-\u0eff\u3005-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""Thai and Lao, Kana, Han, Hangul (whose particles follow without a space)."""
_ALONE = "A-Za-z0-9\uff10-\uff19"
_SEAM = re.compile(rf"(?<=[{_UNSPACED}])(?=[{_ALONE}])|(?<=[{_ALONE}])(?=[{_UNSPACED}])")


def apart(text: str) -> str:
    """The text with a space wherever a Latin letter or a digit touches such a character: ``答案是B`` is no one word."""
    return _SEAM.sub(" ", text)
