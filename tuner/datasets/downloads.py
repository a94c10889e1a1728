"""Fetch checked files from a cache, a local mirror or the network; resume broken transfers.

Every file is identified by its SHA-256, so its bytes may come from any source, or from several in
turn.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tuner.config.schema import DatasetConfig
from tuner.progress import ProgressCallback, no_progress
from tuner.values.addresses import without_password
from tuner.values.errors import ConfigError, DatasetUnavailable

if TYPE_CHECKING:
    import requests

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0
_MIRROR_VARIABLE = "TUNER_DATA_MIRROR"
_MAX_BYTES = 16 * 2**30  # of one file; only its end tells whether it is the right one
_CHUNK_BYTES = 1 << 18
_ATTEMPTS = 3

logger = logging.getLogger(__name__)


class _SourceFailed(Exception):
    """The source did not deliver the file; the message says why."""


class _BrokenOff(_SourceFailed):
    """The transfer began but ended early: the part received is kept and can be resumed."""


@dataclass
class Source:
    """A place that files come from.

    Attributes:
        name: As shown to the user and recorded: ``TUNER_DATA_MIRROR`` or the address.
        address: Folder or base address of the files, without a final slash.
        fault: Why it is no longer asked; empty while it is.
        reached: Whether a connection to it has succeeded.
    """

    name: str
    address: str
    fault: str = ""
    reached: bool = False

    @property
    def local(self) -> Path | None:
        """Its folder, ``None`` for an http address."""
        if self.address.startswith(("http://", "https://")):
            return None
        if self.address.startswith("file://"):
            return Path(unquote(urlsplit(self.address).path))
        return Path(self.address).expanduser()

    def __str__(self) -> str:
        shown = without_password(self.address)
        return shown if shown == self.name else f"{self.name} {shown}"


def find_sources(config: DatasetConfig) -> list[Source]:
    """Return the sources of a data set's files in the order in which they are asked.

    Raises:
        ConfigError: If ``TUNER_DATA_MIRROR`` is neither a folder nor an address of a known kind.
    """
    sources = []
    if own := os.environ.get(_MIRROR_VARIABLE, "").rstrip("/"):
        if "://" in own and not own.startswith(("http://", "https://", "file://")):
            raise ConfigError(
                f"{_MIRROR_VARIABLE} must be a folder, a file:// or an http(s):// address, "
                f"got {without_password(own)!r}"
            )
        sources.append(Source(_MIRROR_VARIABLE, f"{own}/{config.folder or config.name}"))
    mirrors = [mirror.rstrip("/") for mirror in config.mirrors]
    return sources + [Source(without_password(mirror), mirror) for mirror in mirrors]


def fetch_files(
    files: Mapping[str, str],
    folder: Path,
    sources: Sequence[Source],
    progress: ProgressCallback = no_progress,
) -> str:
    """Ensure that ``folder`` holds every file with the right contents.

    Existing files are checked and kept. A source that cannot be reached is not asked again, so
    without a network this ends within ``CONNECT_TIMEOUT_S`` per source.

    Args:
        files: SHA-256 of each file by name.
        folder: Where the files go; partial ones stay there as ``<name>.part``.
        sources: Asked in turn, again for each file.
        progress: Told the fraction of each file that has arrived.

    Returns:
        The names of the sources used; ``cache`` if there was nothing to fetch.

    Raises:
        DatasetUnavailable: If a file is unavailable; names every place where it was looked for.
        OSError: If ``folder`` cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = {name: sha for name, sha in files.items() if not _is_cached(folder / name, sha)}
    used = [_fetch(folder / name, sha, sources, progress) for name, sha in missing.items()]
    return " and ".join(dict.fromkeys(used)) or "cache"


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's contents, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_cached(target: Path, sha256: str) -> bool:
    if not target.exists():
        return False
    if file_sha256(target) == sha256:
        return True
    logger.warning("%s is corrupt (its SHA-256 is wrong); it is fetched again", target)
    target.unlink()
    return False


def _fetch(
    target: Path, sha256: str, sources: Sequence[Source], progress: ProgressCallback
) -> str:
    places = [f"{target.parent} (not there)"]
    for source in sources:
        try:
            _fetch_from(source, target, sha256, progress)
        except _SourceFailed as failure:
            level = logging.WARNING if source.name == _MIRROR_VARIABLE else logging.INFO
            logger.log(level, "%s of %s: %s", target.name, source, failure)
            places.append(f"{source} ({failure})")
        else:
            return source.name
    raise DatasetUnavailable(f"{target.name} was looked for in {', '.join(places)}")


def _fetch_from(source: Source, target: Path, sha256: str, progress: ProgressCallback) -> None:
    part = target.with_name(f"{target.name}.part")
    for attempt in range(_ATTEMPTS):
        try:
            resumed = _transfer(source, target.name, part, progress)
        except _BrokenOff:
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        if file_sha256(part) == sha256:
            part.replace(target)
            return
        part.unlink()
        # the older part of a resumed transfer may be wrong: retry from the start
        if not resumed:
            break
    logger.warning("%s/%s has the wrong SHA-256, expected %s", source, target.name, sha256)
    raise _SourceFailed("wrong SHA-256")


def _transfer(source: Source, name: str, part: Path, progress: ProgressCallback) -> bool:
    have = part.stat().st_size if part.exists() else 0
    with _open(source, name, have) as (start, total, chunks):
        done = start
        with part.open("ab" if start else "wb") as file:
            for chunk in chunks:
                done += len(chunk)
                if done > _MAX_BYTES:
                    raise _SourceFailed(f"sends more than {_MAX_BYTES // 2**30} GiB")
                file.write(chunk)
                progress(f"fetching {name}", min(1.0, done / total) if total else None)
    return start > 0


_Stream = tuple[int, int, Iterator[bytes]]
"""Offset of the first byte sent, size of the whole file (0 if unknown), and the chunks."""


def _open(source: Source, name: str, offset: int) -> contextlib.AbstractContextManager[_Stream]:
    if (folder := source.local) is not None:
        return _open_local(folder / name)
    return _open_http(source, name, offset)


@contextlib.contextmanager
def _open_local(path: Path) -> Iterator[_Stream]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise _SourceFailed(error.strerror or str(error)) from error
    with file:
        yield 0, path.stat().st_size, _read_chunks(file.fileno())


def _read_chunks(descriptor: int) -> Iterator[bytes]:
    try:
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            yield chunk
    except OSError as error:
        raise _SourceFailed(error.strerror or str(error)) from error


@contextlib.contextmanager
def _open_http(source: Source, name: str, offset: int) -> Iterator[_Stream]:
    _reach(source)
    with contextlib.closing(_request(source, f"{source.address}/{name}", offset)) as response:
        start = offset if response.status_code == 206 else 0
        length = response.headers.get("Content-Length", "")
        yield start, start + int(length) if length.isdecimal() else 0, _response_chunks(response)


def _request(source: Source, url: str, offset: int) -> requests.Response:
    import requests

    # no compression on top of the file's own
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={offset}-"} if offset else {})
    timeout = (CONNECT_TIMEOUT_S, READ_TIMEOUT_S)
    try:
        response = requests.get(url, headers=headers, stream=True, timeout=timeout)
    except requests.RequestException as error:
        source.fault = f"does not answer: {type(error).__name__}"
        raise _SourceFailed(source.fault) from error
    begin = response.headers.get("Content-Range", "")
    if offset and response.status_code in (206, 416) and not begin.startswith(f"bytes {offset}-"):
        response.close()
        return _request(source, url, 0)
    if response.status_code not in (200, 206):
        response.close()
        raise _SourceFailed(f"HTTP status {response.status_code}")
    return response


def _response_chunks(response: requests.Response) -> Iterator[bytes]:
    from urllib3.exceptions import HTTPError, ReadTimeoutError

    try:
        # undecoded: some servers declare a .gz file to be a content encoding
        yield from response.raw.stream(_CHUNK_BYTES, decode_content=False)
    except ReadTimeoutError as error:
        raise _SourceFailed(f"sent nothing for {READ_TIMEOUT_S:g} s") from error
    except (HTTPError, OSError) as error:
        raise _BrokenOff(f"broke off: {type(error).__name__}") from error


def _reach(source: Source) -> None:
    """Connect once; ``CONNECT_TIMEOUT_S`` covers name resolution and all addresses together.

    The timeout of an HTTP library covers neither: a machine without a network would wait for its
    resolver, or for every address of a large mirror in turn.
    """
    if not source.fault and not source.reached:
        outcome = [f"no answer within {CONNECT_TIMEOUT_S:g} s"]
        thread = threading.Thread(target=_connect, args=(source.address, outcome), daemon=True)
        thread.start()
        thread.join(CONNECT_TIMEOUT_S)
        source.fault = outcome[0]
        source.reached = not source.fault
    if source.fault:
        raise _SourceFailed(source.fault)


def _connect(address: str, outcome: list[str]) -> None:
    from requests.utils import get_environ_proxies, select_proxy

    proxy = select_proxy(address, get_environ_proxies(address))
    parts = urlsplit(proxy or address)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((parts.hostname or "", port), CONNECT_TIMEOUT_S / 2):
            outcome[0] = ""
    except (OSError, ValueError) as error:
        outcome[0] = f"cannot be reached: {getattr(error, 'strerror', None) or error}"
