"""pypi sources with the real pip, against wheels made here."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from twospeed.config import Model
from twospeed.models.store import Progress, Store, StoreError

MakeWheel = Callable[[str, dict[str, bytes]], Path]
PARTS = [bytes([n]) * 50_000 for n in range(11)]
WHOLE = b"".join(PARTS)
SHA = hashlib.sha256(WHOLE).hexdigest()


def quiet(_: Progress) -> None:
    pass


def parts(first: int, last: int, **fields: object) -> Model:
    return Model.model_validate({"sources": [f"pypi:tiny-part{{{first}..{last}}}==1.0/data/part*.bin"], **fields})


def make_parts(make_wheel: MakeWheel, numbers: range) -> None:
    for n in numbers:
        make_wheel(f"tiny-part{n}", {f"tiny_part{n}/data/part{n:02}.bin": PARTS[n], "tiny/__init__.py": b""})


def test_one_wheel_with_the_whole_file(store: Store, make_wheel: MakeWheel) -> None:
    make_wheel("tiny-model", {"tiny_model/m.gguf": WHOLE, "tiny_model/__init__.py": b""})
    wanted = Model(sources=["pypi:tiny-model==1.0/tiny_model/m.gguf"], sha256=SHA, size=len(WHOLE))
    path = store.ensure("m", wanted, quiet)
    assert path.read_bytes() == WHOLE
    assert sorted(p.name for p in path.parent.iterdir()) == ["model.gguf", "model.json"]


def test_parts_are_joined_in_numeric_order_and_a_later_pull_goes_on_after_the_last_whole_one(
    store: Store, make_wheel: MakeWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_parts(make_wheel, range(8, 10))
    wanted = parts(8, 10, sha256=hashlib.sha256(b"".join(PARTS[8:])).hexdigest())
    with pytest.raises(StoreError, match=r"^m: pypi:.*: pip: No matching distribution found for tiny-part10==1.0") as e:
        store.ensure("m", wanted, quiet)
    assert "\n" not in str(e.value)
    assert store.entries({"m": wanted})[0].state == "partial"
    make_parts(make_wheel, range(10, 11))
    monkeypatch.setattr("twospeed.models.wheels._download", _only("tiny-part10==1.0"))
    assert store.ensure("m", wanted, quiet).read_bytes() == b"".join(PARTS[8:])


def _only(requirement: str) -> Callable[..., Path]:
    from twospeed.models.wheels import _download

    def download(asked: str, *rest: object) -> Path:
        assert asked == requirement
        return _download(asked, *rest)  # type: ignore[arg-type]

    return download


def test_a_wheel_whose_members_do_not_match_once_is_refused(store: Store, make_wheel: MakeWheel) -> None:
    make_wheel("tiny-model", {"a/one.gguf": b"1", "b/two.gguf": b"2"})
    for pattern, count in (("none.gguf", 0), ("*.gguf", 2)):
        with pytest.raises(StoreError, match=f"tiny_model-1.0-py3-none-any.whl has {count} members that match"):
            store.ensure("m", Model(sources=[f"pypi:tiny-model==1.0/{pattern}"], sha256=SHA), quiet)


def test_a_member_that_names_a_place_outside_is_written_inside(
    store: Store, make_wheel: MakeWheel, tmp_path: Path
) -> None:
    make_wheel("tiny-model", {"../../../escaped/m.gguf": WHOLE})
    path = store.ensure("m", Model(sources=["pypi:tiny-model==1.0/m.gguf"], sha256=SHA), quiet)
    assert path.is_relative_to(store.root)
    assert not list(tmp_path.rglob("escaped"))


def test_a_member_larger_than_the_file_should_be_stops_early(store: Store, make_wheel: MakeWheel) -> None:
    make_wheel("tiny-model", {"m.gguf": b"\0" * 20_000_000})
    with pytest.raises(StoreError, match="gives more than the expected 1000 bytes"):
        store.ensure("m", Model(sources=["pypi:tiny-model==1.0/m.gguf"], sha256=SHA, size=1000), quiet)
    assert not list(store.root.rglob("model.*"))


def test_a_damaged_wheel_is_one_line(store: Store, make_wheel: MakeWheel) -> None:
    wheel = make_wheel("tiny-model", {"m.gguf": hashlib.shake_128(b"x").digest(100_000)})
    with zipfile.ZipFile(wheel) as archive:
        at = archive.getinfo("m.gguf").header_offset + 2000
    raw = bytearray(wheel.read_bytes())
    raw[at : at + 64] = b"\xff" * 64
    wheel.write_bytes(raw)
    with pytest.raises(StoreError, match=r"^m: pypi:.*: tiny_model-1.0-py3-none-any.whl is damaged"):
        store.ensure("m", Model(sources=["pypi:tiny-model==1.0/m.gguf"], sha256=SHA), quiet)
