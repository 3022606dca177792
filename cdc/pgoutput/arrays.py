r"""Array literals as array_out prints them → JSON arrays (PostgreSQL manual, "Array Input and Output Syntax").

    {1,2,NULL}    {"a b","say \"hi\"",""}    {{1,2},{3,4}}    {}    [-2:0]={1,2,3}

An element is quoted if it is empty, spells NULL, or holds a brace, quote, backslash, white space or the delimiter;
inside quotes a backslash stands before each quote and backslash. Only an unquoted NULL is null.
"""

import re
from collections.abc import Callable
from json.encoder import encode_basestring

DIMENSIONS_MAX = 6  # MAXDIM, the server's own limit

_SPACE = r" \t\n\r\v\f"  # what array_isspace() counts
_SUBSCRIPTED = re.compile(r"(?:\[-?[0-9]+:-?[0-9]+\]){1,6}=\{.*\}", re.DOTALL).fullmatch
_unescape = re.compile(r"\\(.)", re.DOTALL).sub


def array_encoder(
    element: Callable[[str], str], delimiter: str, malformed: Callable[[], Exception]
) -> Callable[[str], str]:
    """Make the encoder of array literals whose elements are encoded by `element`.

    It raises what `malformed()` makes for text that is no array literal, and what `element` raises.
    """
    bare = rf"[^{{}}\"\\{_SPACE}{delimiter}]++"
    is_flat = re.compile(rf"\{{{bare}(?:{delimiter}{bare})*+\}}").fullmatch
    # Possessive repeats (++, *+): the matcher must not remember a place for each character of a long element.
    quoted = r"\"(?P<quoted>[^\"\\]*+(?:\\.[^\"\\]*+)*+)\""
    next_token = re.compile(rf"(?P<brace>[{{}}])|{quoted}|(?P<bare>{bare})|{delimiter}", re.DOTALL).match

    def encode_bare(text: str) -> str:
        if text == "NULL":
            return "null"
        if len(text) == 4 and text.upper() == "NULL":  # would read as NULL, so array_out quotes it
            raise malformed()
        return element(text)

    def encode_nested(text: str) -> str:
        out: list[str] = []
        counts = [0] * (DIMENSIONS_MAX + 1)  # items so far in the open array of each depth
        sizes = [0] * (DIMENSIONS_MAX + 1)  # items in every array of that depth, once one is closed
        depth = bottom = place = 0  # elements stand at depth `bottom`, known from the first one
        complete = False  # an item ended here: a delimiter or a closing brace must follow
        while place < len(text):
            token = next_token(text, place)
            if token is None:
                raise malformed()
            place = token.end()
            if token[0] == "{" and token.lastgroup == "brace":
                if complete or depth == (bottom or DIMENSIONS_MAX):
                    raise malformed()
                depth += 1
                counts[depth] = 0
                out.append("[")
            elif not depth or complete == (token.lastgroup in ("quoted", "bare")):
                raise malformed()
            elif token.lastgroup == "brace":
                if sizes[depth] not in (0, counts[depth]):
                    raise malformed()
                sizes[depth] = counts[depth]
                depth -= 1
                counts[depth] += 1
                out.append("]")
            elif token.lastgroup is None:
                complete = False
                out.append(",")
            else:
                bottom = bottom or depth
                if depth != bottom:
                    raise malformed()
                counts[depth] += 1
                complete = True
                out.append(
                    encode_bare(token["bare"])
                    if token["bare"] is not None
                    else element(_unescape(r"\1", token["quoted"]))
                )
        if depth or not complete:
            raise malformed()
        return "".join(out)

    def encode(text: str) -> str:
        if text == "{}":
            return "[]"
        if is_flat(text):
            return f"[{','.join(map(encode_bare, text[1:-1].split(delimiter)))}]"
        if text.startswith("["):
            if not _SUBSCRIPTED(text):
                raise malformed()
            return encode_basestring(text)
        return encode_nested(text)

    return encode
