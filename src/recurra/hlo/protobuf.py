"""Read the fields of a protocol-buffers message, without a schema.

The encoding: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from recurra.errors import RecurraError


class HloError(RecurraError):
    """Bytes that are not a scheduled HLO module."""


class Message:
    """The fields of a message by number; each accessor reads one type."""

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[int | bytes]] = {}
        i = 0
        while i < len(data):
            key, i = _varint(data, i)
            value, i = _value(data, i, key & 7)
            self._fields.setdefault(key >> 3, []).append(value)

    def messages(self, number: int) -> list[Message]:
        """A repeated sub-message."""
        return [Message(x) for x in self._bytes(number)]

    def message(self, number: int) -> Message:
        """A sub-message, empty if it is missing."""
        return Message(self.data(number))

    def data(self, number: int) -> bytes:
        """The bytes of a sub-message or string, empty if it is missing."""
        return (self._bytes(number) or [b""])[-1]

    def text(self, number: int) -> str:
        """A string, empty if it is missing."""
        return self.data(number).decode("utf-8", "replace")

    def number(self, number: int) -> int:
        """A signed number, 0 if it is missing."""
        return (self.numbers(number) or [0])[-1]

    def numbers(self, number: int) -> list[int]:
        """Repeated signed numbers, packed or not."""
        values: list[int] = []
        for x in self._fields.get(number, []):
            if isinstance(x, int):
                values.append(_signed(x))
                continue
            i = 0
            while i < len(x):
                value, i = _varint(x, i)
                values.append(_signed(value))
        return values

    def _bytes(self, number: int) -> list[bytes]:
        values = self._fields.get(number, [])
        if any(isinstance(x, int) for x in values):
            raise HloError(f"malformed HLO: field {number} is a number, not a message")
        return [x for x in values if isinstance(x, bytes)]


def _value(data: bytes, index: int, kind: int) -> tuple[int | bytes, int]:
    if kind == 0:
        return _varint(data, index)
    if kind == 2:
        size, index = _varint(data, index)
    elif kind in (1, 5):
        size = 8 if kind == 1 else 4
    else:
        raise HloError(f"malformed HLO: byte {index} is of unknown kind {kind}")
    if index + size > len(data):
        raise HloError(
            "malformed HLO: it ends too early",
            facts=f"{index + size} bytes wanted, {len(data)} there",
        )
    return data[index : index + size], index + size


def _varint(data: bytes, index: int) -> tuple[int, int]:
    result = shift = 0
    while index < len(data) and shift < 70:
        byte = data[index]
        index += 1
        result |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return result, index
    raise HloError("malformed HLO: a number does not end", facts=f"at byte {index} of {len(data)}")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
