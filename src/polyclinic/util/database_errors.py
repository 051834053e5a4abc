"""What may be said of an error of the engine: where it stumbled and over what kind of thing, never over which value.

The engine quotes cells in many places and forms, and a cell may hold a quotation mark itself. So nothing is cut out of its
words: of errors that can quote a cell, only phrases that are known here are passed on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from duckdb import Error

FILE: Final = re.compile(r"""\b(in|of) file (["']).*?\2""")
HEAD: Final = re.compile(
    r"Could not convert string|Could not parse string|Failed to cast value|invalid \w+ field format"
    r"|\w+ field value out of range|CSV Error on Line: \d+|JSON transform error in its file, in line \d+"
    r"|Malformed JSON( in its file,)? at byte \d+( (of|in) \w+)?|Type \w+|Overflow in \w+ of \w+"
    r"|No magic bytes found at end of its file|Error when sniffing file"
)
PHRASES: Final = (
    r"Expected Number of Columns: \d+ Found: \d+",
    r"unterminated quote",
    r"Invalid unicode \(byte sequence mismatch\) detected",
    r"converting column \"[A-Za-z_]\w{0,62}\"",
    r"Maximum line size of \d+ bytes exceeded",
)
UNSAID: Final = "(what the cell holds is not shown)"


def said(e: Error) -> str:
    """The engine's words without a cell's.

    >>> import duckdb
    >>> try:
    ...     duckdb.sql("SELECT CAST('Smith' AS INTEGER)").fetchall()
    ... except duckdb.Error as e:
    ...     said(e)
    'Conversion Error: Could not convert string (what the cell holds is not shown)'
    """
    text = str(e)
    first = next((x.strip() for x in text.splitlines() if x.strip()), type(e).__name__)
    if _of_names(e):
        return first[:400]
    kind, _, message = first.partition(": ")
    head = HEAD.match(FILE.sub(r"\1 its file", message))
    phrases = [m[0] for p in PHRASES if (m := re.search(p, text))]
    words = ", ".join([*([head[0]] if head else []), *phrases])
    return f"{kind if kind.endswith(' Error') else type(e).__name__}{': ' if words else ''}{words} {UNSAID}"


def advice(e: Error) -> str:
    """What to do about it."""
    import duckdb

    if isinstance(e, duckdb.IOException):
        return "is the file there, whole, and may it be read?"
    if isinstance(e, duckdb.ParserException | duckdb.SyntaxException):
        return "the SQL of this source has a fault: try the query in DuckDB itself"
    if _of_names(e):
        return "a table or column is not named as this source expects"
    if isinstance(e, duckdb.ConversionException):
        return "a cell is not of the type that is asked of its column; read columns as text, then TRY_CAST"
    if "Invalid unicode" in str(e):
        return "the encoding of the file is not UTF-8 throughout: save it with the encoding UTF-8"
    return "check that the file is whole and of the named format"


def _of_names(e: Error) -> bool:
    """Whether the first line of this error has names in it, of columns, tables and files, and no cells."""
    import duckdb

    names = (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException, duckdb.SyntaxException)
    return isinstance(e, (*names, duckdb.IOException))
