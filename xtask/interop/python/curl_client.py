"""Client of HTTP/3 for `cargo xtask test interop`, on libcurl with ngtcp2."""

import asyncio
import io

from curl_cffi import AsyncCurl, Curl, CurlError, CurlHttpVersion, CurlInfo, CurlOpt, __curl_version__

from lane import ATTEMPTS, PATIENCE, PATIENCE_AGAIN, arguments, pattern, run_all

GIVEN = arguments()
NAME, HOST, PORT = GIVEN.name, GIVEN.host, GIVEN.port
# Type of data for a debug function: a text of libcurl itself.
TEXT = 0
# A session that libcurl reuses, in its own words.
REUSED = "SSL reusing session"


class Request:
    """A request by HTTP/3 alone. Requests with the same handle share its connections and its TLS sessions."""

    def __init__(self, path, body=None, curl=None):
        self.curl, self.response, self.said = curl or Curl(), io.BytesIO(), []
        # The body outlives its transfer: libcurl copies nothing.
        self.body = body
        self.curl.reset()
        for option, value in (
            (CurlOpt.URL, f"https://{NAME}:{PORT}{path}"),
            (CurlOpt.RESOLVE, [f"{NAME}:{PORT}:{HOST}"]),
            (CurlOpt.NOPROXY, "*"),
            (CurlOpt.CAINFO, GIVEN.roots),
            (CurlOpt.HTTP_VERSION, CurlHttpVersion.V3ONLY),
            # Requests wait for the connection of others instead of opening their own.
            (CurlOpt.PIPEWAIT, 1),
            (CurlOpt.TIMEOUT, PATIENCE),
            (CurlOpt.VERBOSE, 1),
            (CurlOpt.DEBUGFUNCTION, self.hear),
            (CurlOpt.WRITEDATA, self.response),
        ):
            self.curl.setopt(option, value)
        if body is not None:
            self.curl.setopt(CurlOpt.POSTFIELDS, body)
            self.curl.setopt(CurlOpt.POSTFIELDSIZE, len(body))

    def hear(self, kind, text):
        if kind == TEXT:
            self.said.append(text.decode(errors="replace"))

    def perform(self):
        # The connection speaks to the debug function until its end, and the binding would forget that.
        self.curl.heard = self.curl._debug_handle
        self.curl.perform()
        return self

    def check(self, expected):
        status, version = self.curl.getinfo(CurlInfo.RESPONSE_CODE), self.curl.getinfo(CurlInfo.HTTP_VERSION)
        assert (status, version) == (200, CurlHttpVersion.V3), f"answered {status} by version {version}"
        got = self.response.getvalue()
        assert got == expected, f"{len(got)} other bytes came"
        return self

    def new_connections(self):
        return self.curl.getinfo(CurlInfo.NUM_CONNECTS)


def echo(length, curl=None):
    return Request("/echo", pattern(length), curl).perform().check(pattern(length))


def get(length=1_000_000):
    Request(f"/size/{length}").perform().check(pattern(length))


def post():
    echo(1 << 20)


async def ask_at_once():
    multi = AsyncCurl()
    requests = [Request("/echo", pattern(number * 10)) for number in range(300)]
    try:
        await asyncio.gather(*(multi.add_handle(request.curl) for request in requests))
    finally:
        await multi.close()
    for number, request in enumerate(requests):
        request.check(pattern(number * 10))
    connections = sum(request.new_connections() for request in requests)
    # The server admits 128 streams of a connection at a time; libcurl opens another connection for more.
    assert connections <= 3, f"{connections} connections were opened"


def streams():
    asyncio.run(ask_at_once())


def early():
    first = Request("/early", pattern(4 << 20)).perform().check(b"early")
    again = echo(1000, first.curl)
    assert again.new_connections() == 0, "the connection did not go on"


def resumption():
    curl, resumed = Curl(), []
    for _ in range(3):
        request = Request("/echo", pattern(1000), curl)
        request.curl.setopt(CurlOpt.FRESH_CONNECT, 1)
        request.curl.setopt(CurlOpt.FORBID_REUSE, 1)
        request.perform().check(pattern(1000))
        resumed.append(any(REUSED in text for text in request.said))
    assert resumed == [False, True, True], f"resumed: {resumed}"


async def get_again(multi):
    for attempt in range(1, ATTEMPTS + 1):
        request = Request("/size/1000")
        for option, value in (
            (CurlOpt.PIPEWAIT, 0),
            (CurlOpt.FRESH_CONNECT, 1),
            (CurlOpt.FORBID_REUSE, 1),
            (CurlOpt.TIMEOUT, PATIENCE_AGAIN),
        ):
            request.curl.setopt(option, value)
        try:
            await multi.add_handle(request.curl)
            return request
        except CurlError:
            if attempt == ATTEMPTS:
                raise


async def connect_at_once(count):
    multi = AsyncCurl()
    try:
        return await asyncio.gather(*(get_again(multi) for _ in range(count)))
    finally:
        await multi.close()


def connections(count):
    for request in asyncio.run(connect_at_once(count)):
        request.check(pattern(1000))
        assert request.new_connections() == 1, f"{request.new_connections()} connections of a request"


def multiconnect():
    for _ in range(20):
        assert echo(1000).new_connections() == 1, "no new connection"


CASES = {
    case.__name__: case for case in (get, post, streams, early, resumption, multiconnect)
}
# The lane changes the server or the path to it.
CASES |= {"retry": get, "rebinding": post, "ipv6": get}
# Cases for paths with faults, by the word before their number.
ON_PATH = {"bytes": get, "connections": connections}

assert " ngtcp2/" in __curl_version__, f"another library of QUIC: {__curl_version__}"
run_all(GIVEN.cases, CASES, ON_PATH, lambda case: case())
