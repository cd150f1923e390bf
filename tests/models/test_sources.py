"""The source syntax: what parses, what is refused, and that nothing else than StoreError ever comes out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twospeed.models.job import StoreError
from twospeed.models.sources import FileSource, HfSource, HttpSource, PypiSource, parse_source

NAME = st.from_regex(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,8}[A-Za-z0-9])?", fullmatch=True)
SEGMENT = NAME


@given(NAME, NAME, st.lists(SEGMENT, min_size=1, max_size=4), st.none() | st.lists(SEGMENT, min_size=1, max_size=3))
def test_hf_source_round_trips(owner: str, repo: str, path: list[str], revision: list[str] | None) -> None:
    text = f"hf:{owner}/{repo}/{'/'.join(path)}" + (f"@{'/'.join(revision)}" if revision else "")
    source = parse_source(text)
    assert source == HfSource(f"{owner}/{repo}", "/".join(path), "/".join(revision) if revision else None)
    assert str(source) == text


@given(NAME, st.integers(0, 40), st.integers(0, 40), st.lists(SEGMENT, min_size=1, max_size=3))
def test_pypi_range_expands_in_numeric_order(package: str, first: int, more: int, member: list[str]) -> None:
    source = parse_source(f"pypi:{package}{{{first}..{first + more}}}==1.0/{'/'.join(member)}")
    assert isinstance(source, PypiSource)
    assert source.packages == tuple(f"{package}{n}" for n in range(first, first + more + 1))
    assert source.matches("top/" + "/".join(member))


@given(st.text() | st.builds("{}:{}".format, st.sampled_from(["hf", "pypi", "https", "file"]), st.text()))
def test_any_text_parses_or_is_a_store_error(text: str) -> None:
    try:
        source = parse_source(text)
    except StoreError:
        return
    if isinstance(source, PypiSource):
        assert not any(package.startswith("-") for package in source.packages)
    if isinstance(source, HfSource):
        assert ".." not in source.path.split("/")
    if isinstance(source, HttpSource):
        assert source.url.startswith("https://")
    if isinstance(source, FileSource):
        assert source.path.is_absolute()


@pytest.mark.parametrize(
    "text",
    [
        "hf:owner/repo",
        "hf:owner/repo/../secret",
        "hf:owner/repo/a@",
        "hf:owner/repo/a@../b",
        "pypi:name/member",
        "pypi:name==1.0",
        "pypi:--index-url==1.0/a",
        "pypi:name==-r/a",
        "pypi:n{3..1}==1.0/a",
        "pypi:n{0..1000}==1.0/a",
        "pypi:n{1..2}{1..2}==1.0/a",
        "pypi:name==1.0/../a",
        "pypi:name @ https://host/a",
        "http://host/file",
        "https:///file",
        "https://host:port/file",
        "https://host/file#part",
        "file:",
        "ftp://host/file",
        "https://host/\nfile",
    ],
)
def test_refused_sources(text: str) -> None:
    with pytest.raises(StoreError, match=r"^source "):
        parse_source(text)


def test_credentials_in_an_address_are_not_shown() -> None:
    assert str(parse_source("https://user:pass@host:8443/dir/file?token=1")) == "https://host:8443/dir/file"


def test_file_source_knows_the_home_folder() -> None:
    assert parse_source("file:~/m.gguf") == FileSource(Path.home() / "m.gguf")


def test_member_glob_stays_inside_its_segment() -> None:
    source = parse_source("pypi:p==1/data/part*.bin")
    assert isinstance(source, PypiSource)
    assert source.matches("p/data/part01.bin")
    assert source.matches("data/part01.bin")
    assert not source.matches("p/data/part/x.bin")
    assert not source.matches("p/other/part01.bin")
    assert not source.matches("part01.bin")
