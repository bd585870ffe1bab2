"""Reading of text files, which are untrusted input: their type, size, encoding, byte-order mark and line ends.

Scenarios, traces, schedules and maps are all read here, so that a file is text in the same sense for all of them. Every
error is one sentence without the file's name, which the caller puts before it.
"""

import codecs
import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from topologies.errors import format_value

ALLOWED = "text in UTF-8, or in UTF-16 or UTF-32 with a byte-order mark"

_MARKS = (  # the mark of UTF-32 begins with that of UTF-16
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_BEGINNINGS = {b"<\0": "utf-16-le", b"\0<": "utf-16-be"}  # of XML in UTF-16 without a mark
_DECLARATION = re.compile(rb"\s*<\?xml[^>]{0,200}?\?>")
_ENCODING = re.compile(rb"encoding\s*=\s*[\"']([A-Za-z][A-Za-z0-9._:-]{0,39})[\"']")
# Python knows others, some of which are not text or take quadratic time to decode.
_DECLARABLE = re.compile(
    r"ascii|utf-8|utf-16(-[bl]e)?|utf-32(-[bl]e)?|iso8859-\d+|cp\d{3,4}|koi8-[ru]|mac-roman|"
    r"shift_jis|euc_jp|iso2022_jp|euc_kr|gb2312|gbk|gb18030|big5"
)


def shown_path(path: object) -> str:
    """Return a file as messages name it: below the folder in which the command runs by its path from there, as it is
    typed; elsewhere by the path that is given."""
    text = str(path)
    with suppress(OSError):  # a folder that was deleted meanwhile
        return text.removeprefix(f"{Path.cwd()}/".replace("//", "/"))
    return text


def short_path(path: object) -> str:
    """Return a file as labels and notes name it: as `shown_path` does, but elsewhere by its name and its folder's, as
    others may have the same name."""
    text = shown_path(path)
    return text if not text.startswith("/") else "/".join(text.split("/")[-2:])


class TextFileError(ValueError):
    """Raised for a file that cannot be read as text; the message is one sentence without the file's name."""


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Return what differs once a file has been written again: its size, time of change and number. None without one."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None  # opening it fails with the reason
    return found.st_size, found.st_mtime_ns, found.st_ino


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading; raises TextFileError, also for errors of reading within the `with` block."""
    try:
        # Opening or reading a pipe or a device could block: open without blocking, and check the type before reading.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise TextFileError(f"it cannot be read: {error.strerror}") from None
    except ValueError:
        raise TextFileError("it cannot be read: the file's name has a null byte") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise TextFileError("it is not a regular file; allowed: a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    except OSError as error:
        raise TextFileError(f"it cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


@contextmanager
def opened_text(path: Path, *, most_bytes: int) -> Iterator[TextIO]:
    """Open a text file of up to `most_bytes`, as `read_text` reads it, for reading line by line.

    Raises TextFileError, also for a byte that is not text within the `with` block.
    """
    with opened(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > most_bytes:
            raise TextFileError(_too_large(size, most_bytes))
        mark, encoding = _mark(file.read(4))
        file.seek(len(mark))
        text = io.TextIOWrapper(file, encoding)
        try:
            yield text
        except UnicodeDecodeError:  # its position is that in a block
            file.seek(0)
            decode(file.read())
            raise TextFileError("it changed while it was read") from None
        finally:
            text.detach()  # or it would close the file


def read_bytes(path: Path, *, most_bytes: int) -> bytes:
    """Return the bytes of a regular file; raises TextFileError if it cannot be read or is larger than `most_bytes`."""
    with opened(path) as file:
        content = file.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise TextFileError(_too_large(os.fstat(file.fileno()).st_size, most_bytes))
    return content


def read_text(path: Path, *, most_bytes: int) -> str:
    """Return the text of a file of up to `most_bytes`; raises TextFileError.

    The text is in UTF-8 or in the encoding of the file's byte-order mark, which is left out; every line ends in "\\n",
    whether by "\\n", "\\r\\n" or "\\r" in the file.
    """
    return decode(read_bytes(path, most_bytes=most_bytes))


def decode(content: bytes) -> str:
    """Return the text that these bytes of a file are, as `read_text`; raises TextFileError."""
    mark, encoding = _mark(content)
    return _decoded(content[len(mark) :], encoding, ALLOWED)


def read_xml(path: Path, *, most_bytes: int) -> str:
    """Return the text of an XML file without its declaration, in the encoding of its byte-order mark or else the
    declared one or else UTF-8; raises TextFileError. Line numbers stay those of the file."""
    return decode_xml(read_bytes(path, most_bytes=most_bytes))


def decode_xml(content: bytes) -> str:
    """Return the text of an XML file with these bytes, as `read_xml`; raises TextFileError."""
    mark, encoding = _mark(content)
    content = content[len(mark) :]
    if not mark:
        encoding = _BEGINNINGS.get(content[:2]) or _declared(content)
    text = _decoded(content, encoding, f"XML in the encoding that it declares, or else {ALLOWED}")
    declaration_of_text = re.match(r"\s*<\?xml[^>]{0,200}?\?>", text)
    end = declaration_of_text.end() if declaration_of_text else 0
    return "\n" * text.count("\n", 0, end) + text[end:]


def _declared(content: bytes) -> str:
    """Return the encoding that the XML with these bytes, a superset of ASCII, declares; UTF-8 if it declares none."""
    declaration = _DECLARATION.match(content)
    found = _ENCODING.search(declaration[0]) if declaration else None
    if found is None:
        return "utf-8"
    name = found[1].decode("ascii")
    try:
        encoding = codecs.lookup(name).name
    except LookupError:
        encoding = ""
    if not _DECLARABLE.fullmatch(encoding):
        raise TextFileError(f"it declares the unknown encoding {format_value(name)}; allowed: UTF-8, UTF-16 and others")
    if encoding.startswith(("utf-16", "utf-32")):  # the declaration could be read as ASCII
        raise TextFileError(f"it declares {name}, but its bytes are not in {name}; allowed: the encoding that it has")
    return encoding


def _mark(content: bytes) -> tuple[bytes, str]:
    """Return the byte-order mark with which a file begins, b"" if there is none, and the file's encoding."""
    return next((one for one in _MARKS if content.startswith(one[0])), (b"", "utf-8"))


def _decoded(content: bytes, encoding: str, allowed: str) -> str:
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = _lines(content[: error.start], encoding)
        wrong = f"byte {error.start + 1:,} (0x{content[error.start]:02X}) is not {encoding.upper()}"
        raise TextFileError(f"line {line:,}: {wrong}; allowed: {allowed}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _lines(content: bytes, encoding: str) -> int:
    text = content.decode(encoding, errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1


def _too_large(size: int, most_bytes: int) -> str:
    return f"it is too large, {size:,} bytes; allowed: {most_bytes:,} bytes at most"
