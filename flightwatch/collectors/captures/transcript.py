"""Text in which commands and what they printed follow one another: shell sessions, bug reports.

A person pastes `root@host:~# nvidia-smi -q` with its output, a script writes a heading before each command, the
vendor's bug report rules off its parts. Each part is a capture of its own; the command line, prompts and rules
are nobody's output and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, cast

from flightwatch.collectors.captures.base import SteadyStream, encoding_of

#: Longest command line looked at, in bytes.
_COMMAND_LIMIT = 16384
#: Comment lines held back until it is known whether they are the heading of the next command.
_HELD_LIMIT = 40
_TITLE_LIMIT = 80
_CHUNK = 1 << 16
#: Commands whose name alone says that a line is a command.
_TOOLS = (
    rb"nvidia-smi(?:\.exe)?|dcgmi|rocm-smi|amd-smi|npu-smi|hccn_tool|mthreads-gmi|mx-smi|cnmon|ixsmi|hy-smi|xpu-smi|"
    rb"xpumcli|rdma|ethtool|perfquery|ibswinfo|ibstat|ibstatus|ibv_devinfo|iblinkinfo|ibnetdiscover|ibdiagnet|mlxlink|"
    rb"nicctl|ipmitool|ras-mc-ctl|edac-util|nfsiostat|mmpmon|lctl|beegfs-ctl|scontrol|sinfo|squeue|py-spy|ncclras|dmesg|"
    rb"journalctl|kubectl|lspci|lscpu|lsmod|dmidecode|numactl|sensors|ip (?:-s )?(?:link|addr)"
)
_OTHERS = rb"cat|zcat|curl|grep|tail|head|ls|uname|hostname|date|uptime|free|df|top|ps|sysctl|docker|python3?|srun|ssh"
_PROMPT = re.compile(
    rb"(?:\([^)\s]{1,60}\) ?)?(?:[\w.+-]{1,64}@[\w.-]{1,253}:[^\s#$]{1,200} ?[#$]|"
    rb"\[[\w.+-]{1,64}@[\w.-]{1,253} [^\]]{1,200}\] ?[#$%]|(?:PS )?[A-Z]:\\[^>]{0,200}>)(?: *| +(\S.*))"
)
_MARKED = re.compile(
    rb"(?:# ?)?(?:[$+] (?:sudo )?((?:/\S{0,200}/)?(?:" + _TOOLS + rb"|" + _OTHERS + rb")(?:\s.*)?))|"
    rb"[#>] (?:sudo )?((?:/\S{0,200}/)?(?:" + _TOOLS + rb")(?: +[-a-z|].*)?)|"
    rb"[=#*-]{2,} ?((?:" + _TOOLS + rb")(?: +-\S.{0,200}?)?) ?[=#*:-]{0,200}"
)
_BARE = re.compile(
    rb"(?:sudo )?((?:/\S{0,200}/)?(?:" + _TOOLS + rb")(?: +(?:info|dump|stat|metric|static|topo|nvlink|dmon|link|show|"
    rb"statistic|sdr|sensor|dcmi|get_param|diag|health)(?= |$)){0,3}(?: +(?:-[\w.,:=/-]*|(?<=-[a-zA-Z] )[\w.,:/-]+))*)"
)
#: nvidia-bug-report rules its parts off and writes a file's name before its contents; `script` says when it was on.
_RULED_OFF = re.compile(rb"_{20,}|\*{3} (/\S{1,400})|Script (?:started|done)(?:,| on\b).{0,300}")
_SCRIPT = b"Script started"
_RULE = re.compile(rb"#{5,}|\*{3} ls: .*")
_FOLDER = re.compile(rb"^/\S{0,200}/(?=[^/\s])")
_COMMENT = re.compile(rb"#(?! (?:HELP|TYPE|UNIT|EOF))(?: .*)?")
_TRIGGER = re.compile(rb"(?m)^[^\n]{0,300}?(?:" + _TOOLS + rb"|[#$%>] *\r?$|[#$%>] |Script started)")


def holds_commands(head: bytes) -> bool:
    """Say whether the first bytes of a capture show commands among their output."""
    if encoding_of(head) != "utf-8-sig" or b"\0" in head or not _TRIGGER.search(head):
        return False
    return head.lstrip().startswith(_SCRIPT) or any(_command(line) for line in head.split(b"\n"))


def parts(stream: BinaryIO) -> Iterator[tuple[str, BinaryIO]]:
    """Split a transcript.

    Yields (command, what it printed); the command is empty for text before the first one. A part that was
    not read to its end is skipped when the next one is asked for. Memory is bounded by one chunk and one line.
    """
    cutter, title = _Cutter(stream), ""
    while True:
        part = SteadyStream(b"", cutter.read)
        yield title, cast(BinaryIO, part)
        while cutter.read(_CHUNK):
            pass
        if cutter.title is None:
            return
        title, cutter.title = cutter.title, None


def _command(line: bytes) -> str | None:
    """Return the command of a command line ("" for a prompt without one and for a rule), None for other lines."""
    line = line.rstrip(b"\r\n ")
    if not line or len(line) > _COMMAND_LIMIT:
        return None
    found = _RULED_OFF.fullmatch(line) or _PROMPT.fullmatch(line) or _MARKED.fullmatch(line) or _BARE.fullmatch(line)
    if found is None:
        return None
    command = next((group for group in found.groups() if group), b"")
    if not line.startswith(b"***"):
        command = _FOLDER.sub(b"", command)
    return command.decode("utf-8", "replace").strip()[:_TITLE_LIMIT]


class _Cutter:
    """Hands out the bytes of one part after another.

    Attributes
    ----------
    title: the command that ended the part, None while it goes on and at the end of the text.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._buffer = b""
        self._held: list[bytes] = []
        self._in_line = False
        self.title: str | None = None

    def read(self, size: int) -> bytes:
        """Return some bytes of this part, b"" at its end."""
        out: list[bytes] = []
        total = 0
        while total < size and self.title is None:
            line = self._line(bool(out))
            if not line:
                break
            for piece in self._sorted_out(line):
                out.append(piece)
                total += len(piece)
        if self.title is None and not out and self._held:
            out, self._held = self._held, []
        return b"".join(out)

    def _sorted_out(self, line: bytes) -> list[bytes]:
        """Take one line (or a piece of a long one): what of it and of the held lines belongs to the part."""
        whole, self._in_line = not self._in_line, not line.endswith(b"\n")
        if whole:
            bare = line.rstrip(b"\r\n ")
            command = _command(line)
            if command is not None:
                self._held.clear()
                self.title = command
                return []
            if _RULE.fullmatch(bare):
                return []
            if _COMMENT.fullmatch(bare) and len(self._held) < _HELD_LIMIT:
                self._held.append(line)
                return []
        held, self._held = self._held, []
        return [*held, line]

    def _line(self, has_output: bool) -> bytes:
        """Return the next line, or a chunk of one that is longer; b"" when there is no more for now."""
        end = self._buffer.find(b"\n")
        while end < 0 and len(self._buffer) < _CHUNK:
            if has_output and self._buffer == b"":
                # What was sorted out is handed on before more is read: an error below must not swallow it.
                return b""
            more = self._stream.read(_CHUNK)
            if not more:
                break
            self._buffer += more
            end = self._buffer.find(b"\n")
        cut = end + 1 if end >= 0 else len(self._buffer)
        line, self._buffer = self._buffer[:cut], self._buffer[cut:]
        return line
