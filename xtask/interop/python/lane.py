"""Arguments and output of the clients in Python for `cargo xtask test interop`.

A client runs the cases that its arguments name, and writes a line for each: its name and `ok`, or the reason of its
failure. For paths with faults, `bytes-N` is one response of N bytes, and `connections-N` is N connections at once.
"""

import argparse
from functools import partial

# Longest time for a case or a request, in seconds.
PATIENCE = 60
# Time after which a waiting client sends a PING, in seconds. A server that cannot reach a new address of NAT needs it. It is
# longer than the silence of any path here, from which the server has to recover by itself.
KEEP_ALIVE = 5
# Attempts to connect on paths with faults, where handshakes may lose too much, and the longest time for each in seconds.
# The server ends a handshake after 10 seconds, or 20 once the address is proven, and its last packet may be lost.
ATTEMPTS = 3
PATIENCE_AGAIN = 15


def arguments():
    """Returns the arguments, with the server's `host` and `port` for its `address`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", help="library of QUIC, for a client that knows several")
    parser.add_argument("--address", required=True, help="an IPv4 address, or an IPv6 address in brackets, and a port")
    parser.add_argument("--name", required=True, help="name of the server")
    parser.add_argument("--roots", required=True, help="file with the certificate of the authority")
    parser.add_argument("cases", nargs="*")
    given = parser.parse_args()
    given.host, _, port = given.address.rpartition(":")
    given.port = int(port)
    return given


def pattern(length):
    return bytes(at % 251 for at in range(length))


def run_all(names, cases, on_path, run):
    """Runs the case of each name by `run`; an exception is a failure. `on_path` has cases that take a number."""
    for name in names:
        try:
            kind, _, number = name.partition("-")
            run(partial(on_path[kind], int(number)) if number else cases[name])
            print(name, "ok", flush=True)
        except Exception as error:
            print(name, type(error).__name__, error, flush=True)
