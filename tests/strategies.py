"""What several properties draw from."""

from typing import Any

from hypothesis import strategies as st


def words(**sizes: Any) -> st.SearchStrategy[str]:
    """Text of all kinds of characters. (From the whole of Unicode, each process would first look at all of it.)"""
    return st.text("aZ0 _.\n\0\\'\"/\x7f\xff\u0301\u202e\u6f22\uffff\U0001f600\U0010ffff", **sizes)
