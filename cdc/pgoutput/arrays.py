r"""Array literals as array_out prints them → JSON arrays (PostgreSQL manual, "Array Input and Output Syntax").

    {1,2,NULL}    {"a b","say \"hi\"",""}    {{1,2},{3,4}}    {}    [-2:0]={1,2,3}

An element is quoted if it is empty, spells NULL, or holds a brace, quote, backslash, white space or the delimiter;
inside quotes a backslash precedes each quote and backslash. Only an unquoted NULL is null. An array whose
subscripts do not start at 1 becomes a JSON string of PostgreSQL's text: a JSON array would lose them.
"""

import re
from collections.abc import Callable
from json.encoder import encode_basestring

from cdc.model.errors import MalformedValueError

DIMENSIONS_MAX = 6  # MAXDIM, the server's own limit

_SPACE = r" \t\n\r\v\f"  # the characters that array_isspace() accepts
_SUBSCRIPTED = re.compile(r"(?:\[-?[0-9]+:-?[0-9]+\]){1,6}=\{.*\}", re.DOTALL).fullmatch
_unescape = re.compile(r"\\(.)", re.DOTALL).sub


class ArrayEncoder:
    """Encodes array literals; `element` encodes an element's text.

    Raises MalformedValueError for text that is not an array literal, and any error of `element`.
    """

    def __init__(self, element: Callable[[str], str], delimiter: str) -> None:
        self._element = element
        self._delimiter = delimiter
        # Possessive repeats (++, *+): the matcher must not remember a position for each character of a long element.
        bare = rf"[^{{}}\"\\{_SPACE}{delimiter}]++"
        quoted = r"\"(?P<quoted>[^\"\\]*+(?:\\.[^\"\\]*+)*+)\""
        self._is_flat = re.compile(rf"\{{{bare}(?:{delimiter}{bare})*+\}}").fullmatch
        self._token = re.compile(rf"(?P<brace>[{{}}])|{quoted}|(?P<bare>{bare})|{delimiter}", re.DOTALL).match

    def __call__(self, text: str) -> str:
        if text == "{}":
            return "[]"
        if self._is_flat(text):
            return f"[{','.join(map(self._bare, text[1:-1].split(self._delimiter)))}]"
        if text.startswith("["):
            if not _SUBSCRIPTED(text):
                raise MalformedValueError("an array")
            return encode_basestring(text)
        return self._nested(text)

    def _bare(self, text: str) -> str:
        if text == "NULL":
            return "null"
        if len(text) == 4 and text.upper() == "NULL":  # would read as NULL, so array_out quotes it
            raise MalformedValueError("an array")
        return self._element(text)

    def _nested(self, text: str) -> str:
        out: list[str] = []
        counts = [0] * (DIMENSIONS_MAX + 1)  # items so far in the open array of each depth
        sizes = [0] * (DIMENSIONS_MAX + 1)  # items in every array of that depth, once one is closed
        depth = bottom = place = 0  # elements are at depth `bottom`, known from the first one
        complete = False  # an item ended here: a delimiter or a closing brace must follow
        while place < len(text):
            token = self._token(text, place)
            if token is None:
                raise MalformedValueError("an array")
            place = token.end()
            kind = token.lastgroup
            if token[0] == "{" and kind == "brace":
                if complete or depth == (bottom or DIMENSIONS_MAX):
                    raise MalformedValueError("an array")
                depth += 1
                counts[depth] = 0
                out.append("[")
            elif not depth or complete == (kind in ("quoted", "bare")):
                raise MalformedValueError("an array")
            elif kind == "brace":
                if sizes[depth] not in (0, counts[depth]):
                    raise MalformedValueError("an array")
                sizes[depth] = counts[depth]
                depth -= 1
                counts[depth] += 1
                out.append("]")
            elif kind is None:
                complete = False
                out.append(",")
            else:
                bottom = bottom or depth
                if depth != bottom:
                    raise MalformedValueError("an array")
                counts[depth] += 1
                complete = True
                bare = token["bare"]
                out.append(self._bare(bare) if bare else self._element(_unescape(r"\1", token["quoted"])))
        if depth or not complete:
            raise MalformedValueError("an array")
        return "".join(out)
