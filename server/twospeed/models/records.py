"""Where a model lies and what is known of it: a folder with the file and its record, a JSON of what was verified.

    ROOT/models/KEY/model.gguf      the file          ROOT/models/KEY/model.json      its record
    ROOT/models/KEY/model.partial   one on its way    ROOT/models/KEY/original.gguf   what is being requantised

KEY begins with the sha256 where the configuration gives one, so that two names of one file share it. Knows no network.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ..config import Model
from .job import disk_errors
from .partial import write_json


class Quantized(msgspec.Struct, frozen=True, kw_only=True):
    """What a locally requantised file was made of."""

    type: str
    from_sha256: str
    from_size: int


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A verified file. It is trusted without hashing while size, mtime and inode are those noted here."""

    name: str
    source: str
    sha256: str
    size: int
    mtime_ns: int
    inode: int
    verified_at: str
    own_path: str | None = None  # a file of the user's own, used in place
    quantized: Quantized | None = None
    damaged: bool = False  # a full check found other bytes than noted here


class Slot:
    """One model's folder."""

    def __init__(self, root: Path, name: str, model: Model) -> None:
        self.key = _key(name, model)
        self.folder = root / "models" / self.key
        self.file = self.folder / "model.gguf"
        self.original = self.folder / "original.gguf"
        self.lock = root / "locks" / f"{self.key}.lock"
        self._record = self.folder / "model.json"

    def read(self) -> Record | None:
        """The record; None if there is none that this version can read, which means: verify anew."""
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=Record)
        except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
            return None

    def write(self, record: Record) -> None:
        with disk_errors(self._record):
            write_json(self._record, record)

    def path(self, record: Record) -> Path:
        return Path(record.own_path) if record.own_path else self.file

    def intact(self, record: Record) -> bool:
        """Whether the file is the one that was verified, as far as the file system can tell."""
        stat = stat_file(self.path(record))
        seen = (record.size, record.mtime_ns, record.inode)
        return not record.damaged and stat is not None and (stat.st_size, stat.st_mtime_ns, stat.st_ino) == seen

    def unfinished(self) -> int | None:
        """Bytes of a file on its way here; None if there is none."""
        found = [stat_file(p) for p in (self.folder / "model.partial", self.original)]
        sizes = [stat.st_size for stat in found if stat is not None]
        return sum(sizes) if sizes else None


def stat_file(path: Path) -> os.stat_result | None:
    """The stat of `path` if it is a file that can be seen."""
    try:
        return path.stat() if path.is_file() else None
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None


def make_record(
    *,
    name: str,
    source: str,
    sha256: str,
    stat: os.stat_result,
    own_path: Path | None = None,
    quantized: Quantized | None = None,
) -> Record:
    """A record of a file just hashed. `stat` is from before the hashing: a change since then must show."""
    return Record(
        name=name,
        source=source,
        sha256=sha256,
        size=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
        inode=stat.st_ino,
        verified_at=datetime.now(UTC).isoformat(timespec="seconds"),
        own_path=str(own_path) if own_path else None,
        quantized=quantized,
    )


def refreshed(record: Record, new: Record) -> Record:
    """`record` after its file was hashed again and found right."""
    stat = {key: getattr(new, key) for key in ("size", "mtime_ns", "inode", "verified_at")}
    return msgspec.structs.replace(record, damaged=False, **stat)


def fits(record: Record, model: Model) -> bool:
    """Whether the recorded file is the one that the configuration asks for."""
    made_of = record.quantized
    sha256, size = (made_of.from_sha256, made_of.from_size) if made_of else (record.sha256, record.size)
    same = model.sha256 in (None, sha256) and model.size in (None, size)
    return same and model.quantize == (made_of.type if made_of else None)


def default_root() -> Path:
    """$TWOSPEED_HOME, else the platform's place for what can be fetched again."""
    if home := os.environ.get("TWOSPEED_HOME"):
        return Path(home).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "twospeed"
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "twospeed"


def _key(name: str, model: Model) -> str:
    if model.sha256:
        key = model.sha256[:16]  # `fits` compares the whole of it
    else:
        # Other sources are another file, so they get another folder. A relative path depends on where we are.
        where = [str(Path(s[5:]).expanduser().absolute()) if s.startswith("file:") else s for s in model.sources]
        digest = hashlib.sha256("\n".join([name, *where]).encode()).hexdigest()
        key = f"{re.sub(r'[^A-Za-z0-9._-]', '-', name)}-{digest[:12]}"
    return f"{key}-{model.quantize}" if model.quantize else key
