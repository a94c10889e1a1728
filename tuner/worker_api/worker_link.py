"""How the first workers of several nodes reach each other when they train in one group.

The very first listens on its node's address. Each other connects, proves by a token that it was
started for this group, and says where the workers of its node may listen; it is told the places of
all. From then on the first sends lines, and each other reads them and answers at a trial's end.

Whether the other side lives is what the kernel knows of the connection: it ends with the process,
and answers for one that is stopped. Nothing is encrypted.

Standard library only, Python 2.7 to 3.13; imports nothing of the host.
"""

import errno
import os
import socket
import time

LOST_S = 10  # for the other node's kernel to answer
_TRY_S = 0.05
_IDLE_S = 0.5
_HELLO_S = 5.0
_LONGEST = 65536  # bytes of what is said at first
_ESTABLISHED = 1  # state of a connection, see tcp_states.h
_USER_TIMEOUT = 18  # of tcp.h; unknown to Python 2.7
_GONE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)

clock = getattr(time, "monotonic", time.time)


class Link(object):
    """A connection to the first worker of another node; ``name`` is that worker's."""

    def __init__(self, line, name):
        self.name = name
        self._line, self._rest, self._lost = line, b"", False
        for level, option, value in (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, LOST_S // 2 - 1),
            (socket.IPPROTO_TCP, _USER_TIMEOUT, 1000 * LOST_S),
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        ):
            line.setsockopt(level, option, value)

    def say(self, text):
        """Send a line. A dead connection is ignored: ``fault`` tells that."""
        try:
            self._line.sendall((text + "\n").encode("ascii"))
        except EnvironmentError as error:
            self._note(error.errno)

    def lines(self, idle):
        """Yield what the other says until it ends; call ``idle()`` at times while it is silent."""
        self._line.settimeout(_IDLE_S)
        while True:
            line, end, rest = self._rest.partition(b"\n")
            if end:
                self._rest = rest
                yield line.decode("ascii")
                continue
            try:
                part = self._line.recv(4096)
            except socket.timeout:
                idle()
                continue
            except EnvironmentError as error:
                self._note(error.errno)
                return
            if not part:
                return
            self._rest += part

    def _note(self, code):
        """Note an error, which the kernel tells but once."""
        self._lost = self._lost or code in _GONE

    def first_line(self, limit_s):
        """Return the first line that is said; empty if there is none within so many seconds."""
        deadline = clock() + limit_s
        while b"\n" not in self._rest and len(self._rest) < _LONGEST and clock() < deadline:
            self._line.settimeout(max(_TRY_S, deadline - clock()))
            try:
                part = self._line.recv(4096)
            except EnvironmentError:  # socket.timeout too
                return ""
            if not part:
                return ""
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode("ascii", "replace")

    def fault(self):
        """Return in words why the other can no longer be reached; empty while it can."""
        try:
            state = self._line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
            if bytearray(state)[0] == _ESTABLISHED:
                return ""
            self._note(self._line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        except EnvironmentError:  # closed by this process
            return ""
        if self._lost:
            return "%s was lost: its node gave no answer for %d s" % (self.name, LOST_S)
        return "%s died" % self.name

    def close(self):
        """End the connection."""
        self._line.close()


def gather(control, token, nodes, own, name, limit_s):
    """Wait at ``control`` for the first workers of all other nodes.

    ``own`` are the places of this node's workers, ``name(rank, place)`` names another. Returns the
    links and the places of all workers in the order of their ranks. Raises an error if not all
    come within ``limit_s`` seconds.
    """
    where = _address(control)
    door = _socket(where[0])
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    places, links, deadline = {0: own}, [], clock() + limit_s
    try:
        door.bind(where)
        door.listen(nodes)
        while len(places) < nodes:
            door.settimeout(max(_TRY_S, deadline - clock()))
            try:
                line, _ = door.accept()
            except socket.timeout:
                late = "%d of %d nodes came within %d s" % (len(places), nodes, limit_s)
                raise RuntimeError(late)  # noqa: B904 - Python 2.7
            words = _hello(line)
            if len(words) < 3 or words[0] != token or not words[1].isdigit():
                line.close()
                continue
            rank = int(words[1])
            places[rank] = words[2:]
            links.append(Link(line, name(rank, words[2])))
    finally:
        door.close()
    everyone = [place for rank in sorted(places) for place in places[rank]]
    for link in links:
        link.say(" ".join(everyone))
    return links, everyone


def join(control, token, rank, own, name, limit_s):
    """Go to the very first worker at ``control``, which may not listen yet.

    ``rank`` is that of this node's first worker; for the others see ``gather``.
    """
    deadline = clock() + limit_s
    while True:
        try:
            line = socket.create_connection(_address(control), max(_TRY_S, deadline - clock()))
            break
        except EnvironmentError:
            if clock() > deadline:
                raise
            time.sleep(_TRY_S)
    link = Link(line, name(0, control))
    link.say(" ".join([token, str(rank)] + own))
    everyone = link.first_line(deadline - clock()).split()
    if not everyone:
        raise RuntimeError("%s did not answer within %d s" % (control, limit_s))
    return [link], everyone


def _hello(line):
    """Return the words with which somebody who connects introduces itself."""
    return Link(line, "").first_line(_HELLO_S).split()


def _address(place):
    host, _, port = place.rpartition(":")
    return host.strip("[]"), int(port)


def _socket(address):
    return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)


def free_places(address, count):
    """Return so many places at which nobody listens now: ``127.0.0.1:4000`` or ``[::1]:4000``."""
    doors = [_socket(address) for _ in range(count)]
    for door in doors:
        door.bind((address, 0))
    host = "[%s]" % address if ":" in address else address
    found = ["%s:%d" % (host, door.getsockname()[1]) for door in doors]
    for door in doors:
        door.close()
    return found


class Span(object):
    """What the host tells a worker of a group that spans nodes; of one node without it.

    ``control`` is where the very first listens, ``address`` and ``interface`` are this node's.
    """

    def __init__(self, environment=os.environ):
        self.nodes = int(environment.get("TUNER_NODES", "1"))
        self.control = environment.get("TUNER_CONTROL", "")
        self.token = environment.get("TUNER_TOKEN", "")
        self.address = environment.get("TUNER_ADDRESS", "127.0.0.1")
        self.interface = environment.get("TUNER_INTERFACE", "lo")
