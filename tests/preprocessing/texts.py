"""Texts that go wrong where a rule does: what ASCII, UTF-8 and whitespace have at their edges."""

from __future__ import annotations

import string

from hypothesis import strategies as st

from torch_distinput.preprocessing.strings.byte_rows import to_str

LONGEST = 96
"""No text has more bytes."""

_CHARACTERS = "éÉßσ—…\u2019日本\u00a0\u2003\u3000\u0085\ud7ff\ue000🙂\U0010ffff"
_WHOLE = [character.encode() for character in _CHARACTERS]
_CUT = sorted({part for whole in _WHOLE for at in range(1, 4) for part in (whole[:at], whole[at:])})
_NO_UTF8 = [b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff", b"\x80"]
_SINGLE = [bytes([byte]) for byte in (*range(0x21), *string.punctuation.encode(), 0x7F)]
_WORDS = [b"a", b"B", b"the", b"The", b"fox", b"Z", b"@", b"[", b"`", b"{", b" ", b"  ", b" "]
_PIECES = st.one_of(*(map(st.sampled_from, (_WORDS, _WORDS, _SINGLE, _WHOLE, _CUT, _NO_UTF8))))


def text():
    """A text, as a ``str``."""
    return st.lists(_PIECES, max_size=14).map(lambda pieces: to_str(b"".join(pieces)[:LONGEST]))


def texts(max_size=5):
    """A batch of texts, which may be empty."""
    return st.lists(text(), max_size=max_size)
