"""The reader of text files: encodings, byte-order marks, line ends, and what is refused with which reason."""

import codecs
import os
from xml.etree import ElementTree

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from topologies.text_files import TextFileError, decode, decode_xml, opened_text, read_bytes, read_text

TEXT = "a, b\nZürich, 1\n\n東京 – 2\n"
MARKED = ("utf-8-sig", "utf-16", "utf-32")  # Python writes these with a mark


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", *MARKED])
def test_the_same_text_is_read_with_every_mark_and_every_line_end(encoding, ends, tmp_path):
    path = tmp_path / "text"
    path.write_bytes(TEXT.replace("\n", ends).encode(encoding))
    assert read_text(path, most_bytes=1000) == TEXT
    with opened_text(path, most_bytes=1000) as lines:
        assert "".join(lines) == TEXT


@given(st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"])), st.sampled_from(MARKED))
def test_any_marked_text_is_read_as_it_was_written(text, encoding):
    assume(not text.startswith("\0"))  # in UTF-16 it would begin with the mark of UTF-32
    assert decode(text.encode(encoding)) == text


def test_marks_of_either_byte_order_are_known():
    for mark, encoding in ((codecs.BOM_UTF16_BE, "utf-16-be"), (codecs.BOM_UTF32_BE, "utf-32-be")):
        assert decode(mark + TEXT.encode(encoding)) == TEXT


DECLARED = ("UTF-8", "ISO-8859-1", "iso-8859-15", "windows-1252", "latin1", "macintosh", "UTF-16", "UTF-16BE")


@pytest.mark.parametrize("encoding", DECLARED)
def test_xml_is_read_in_the_encoding_that_it_declares(encoding):
    xml = f"<?xml version='1.0' encoding='{encoding}'?>\n<map>Zürich</map>"
    text = decode_xml(xml.encode(encoding))
    assert text == "\n<map>Zürich</map>"
    assert ElementTree.fromstring(text).text == "Zürich"


def test_the_mark_of_xml_goes_before_its_declaration_and_utf_8_is_the_default():
    assert decode_xml(codecs.BOM_UTF8 + b"<?xml version='1.0' encoding='ascii'?><a>\xc3\xbc</a>") == "<a>ü</a>"
    assert decode_xml("<a>ü</a>".encode()) == "<a>ü</a>"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a\r\nb\nZ\xfcrich", "line 3: byte 7 (0xFC) is not UTF-8; allowed: text in UTF-8, or in UTF-16"),
        (codecs.BOM_UTF16_LE + "a\nb".encode("utf-16-le") + b"\0", "line 2: byte 7 (0x00) is not UTF-16-LE"),
    ],
)
def test_a_byte_that_is_not_text_is_named_with_its_line(content, says, tmp_path):
    path = tmp_path / "text"
    path.write_bytes(content)
    for read in (lambda: decode(content), lambda: read_text(path, most_bytes=1000)):
        with pytest.raises(TextFileError) as refusal:
            read()
        assert says in str(refusal.value)
    with pytest.raises(TextFileError, match="line "), opened_text(path, most_bytes=1000) as lines:
        list(lines)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"<?xml version='1.0' encoding='klingon'?><a/>", 'unknown encoding "klingon"'),
        (b"<?xml version='1.0' encoding='punycode'?><a/>", 'unknown encoding "punycode"'),
        (b"<?xml version='1.0' encoding='zlib'?><a/>", 'unknown encoding "zlib"'),
        (b"<?xml version='1.0' encoding='UTF-16'?><a/>", "declares UTF-16, but its bytes are not in UTF-16"),
        (b"<?xml version='1.0' encoding='ascii'?><a>\xfc</a>", "line 1: byte 42 (0xFC) is not ASCII"),
    ],
)
def test_xml_in_another_encoding_than_it_declares_is_refused(content, says):
    with pytest.raises(TextFileError) as refusal:
        decode_xml(content)
    assert says in str(refusal.value)


def test_only_regular_files_of_the_allowed_size_are_read(tmp_path):
    (tmp_path / "large").write_bytes(b"x" * 11)
    os.mkfifo(tmp_path / "pipe")  # opening a pipe that nobody writes to must not block
    cases = {"large": "11 bytes; allowed: 10", "pipe": "not a regular file", "none": "No such file", "a\0": "null byte"}
    for name, says in cases.items():
        for read in (read_bytes, read_text):
            with pytest.raises(TextFileError, match=says):
                read(tmp_path / name, most_bytes=10)
        with pytest.raises(TextFileError, match=says), opened_text(tmp_path / name, most_bytes=10):
            pass
