"""Client of HTTP/3 for `cargo xtask test interop`, on aioquic, or on qh3, which has the same interfaces."""

import asyncio
import itertools
from contextlib import suppress
from importlib import import_module

from lane import ATTEMPTS, KEEP_ALIVE, PATIENCE, PATIENCE_AGAIN, arguments, pattern, run_all

GIVEN = arguments()
LIBRARY, NAME = GIVEN.library, GIVEN.name


def names_of(module, *names):
    return (getattr(import_module(f"{LIBRARY}.{module}"), name) for name in names)


(connect,) = names_of("asyncio.client", "connect")
(QuicConnectionProtocol,) = names_of("asyncio.protocol", "QuicConnectionProtocol")
(H3Connection,) = names_of("h3.connection", "H3Connection")
DataReceived, HeadersReceived = names_of("h3.events", "DataReceived", "HeadersReceived")
(QuicConfiguration,) = names_of("quic.configuration", "QuicConfiguration")
ConnectionTerminated, HandshakeCompleted, ProtocolNegotiated, StreamReset = names_of(
    "quic.events", "ConnectionTerminated", "HandshakeCompleted", "ProtocolNegotiated", "StreamReset"
)
CipherSuite, Epoch = names_of("tls", "CipherSuite", "Epoch")


class Response:
    def __init__(self):
        self.head, self.body, self.trailers = None, bytearray(), None
        self.done = asyncio.get_running_loop().create_future()

    def fail(self, reason):
        if not self.done.done():
            self.done.set_exception(ConnectionError(reason))


class Client(QuicConnectionProtocol):
    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.http, self.responses, self.resumed = None, {}, None

    def quic_event_received(self, event):
        if isinstance(event, ProtocolNegotiated):
            self.http = H3Connection(self._quic)
        if isinstance(event, HandshakeCompleted):
            self.resumed = event.session_resumed
        if isinstance(event, ConnectionTerminated):
            for response in self.responses.values():
                response.fail(f"closed with {event.error_code:#x} {event.reason_phrase}")
        if isinstance(event, StreamReset) and event.stream_id in self.responses:
            self.responses[event.stream_id].fail(f"reset with {event.error_code:#x}")
        for received in self.http.handle_event(event) if self.http else ():
            response = self.responses.get(getattr(received, "stream_id", None))
            if response is None:
                continue
            if isinstance(received, HeadersReceived) and response.head is None:
                response.head = dict(received.headers)
            elif isinstance(received, HeadersReceived):
                response.trailers = dict(received.headers)
            elif isinstance(received, DataReceived):
                response.body += received.data
            if received.stream_ended and not response.done.done():
                response.done.set_result(None)

    async def ask(self, method, path, body=b"", trailers=None):
        # qh3 refuses streams beyond the server's limit, where aioquic waits.
        while LIBRARY == "qh3" and (
            self._quic.get_next_available_stream_id() // 4 >= self._quic.max_concurrent_bidi_streams
        ):
            await asyncio.sleep(0.001)
        stream = self._quic.get_next_available_stream_id()
        response = self.responses[stream] = Response()
        fields = [(b":method", method), (b":scheme", b"https"), (b":authority", NAME.encode()), (b":path", path)]
        if body:
            fields.append((b"content-length", str(len(body)).encode()))
        is_last = not body and trailers is None
        self.http.send_headers(stream, fields, end_stream=is_last)
        if not is_last:
            self.http.send_data(stream, body, end_stream=trailers is None)
        if trailers is not None:
            self.http.send_headers(stream, trailers, end_stream=True)
        self.transmit()
        await self.keep_alive(response.done)
        assert response.head[b":status"] == b"200", response.head
        return response

    async def keep_alive(self, done):
        """Waits for a response. If NAT changes the address meanwhile, the server may need another packet from the client."""
        for uid in itertools.count():
            if (await asyncio.wait([done], timeout=KEEP_ALIVE))[0]:
                return await done
            self._quic.send_ping(uid)
            self.transmit()

    async def echo(self, sent):
        response = await self.ask(b"POST", b"/echo", sent)
        assert response.body == sent, f"{len(response.body)} other bytes came back"

    async def change_port(self):
        self._transport.close()
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: self, local_addr=("::", 0))

    def key_phase(self):
        """Returns the key phase in which packets of the server are decrypted. aioquic changes it with its own update."""
        if LIBRARY == "qh3":
            return self._quic._core.receive_key_phase
        return self._quic._cryptos[Epoch.ONE_RTT].recv.key_phase

    def cipher(self):
        return self._quic.get_cipher() if LIBRARY == "qh3" else self._quic.tls.key_schedule.cipher_suite


def session(tickets=None, **options):
    """Connects with `options` of a configuration; `tickets` gets those of the server."""
    configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"], server_name=NAME, **options)
    configuration.load_verify_locations(cafile=GIVEN.roots)
    keep = tickets.append if tickets is not None else None
    return connect(
        GIVEN.host.strip("[]"),
        GIVEN.port,
        configuration=configuration,
        create_protocol=Client,
        session_ticket_handler=keep,
    )


async def get(length=1_000_000):
    async with session() as client:
        response = await client.ask(b"GET", b"/size/%d" % length)
        assert response.body == pattern(length), f"{len(response.body)} other bytes came"


async def get_again():
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await asyncio.wait_for(get(1000), PATIENCE_AGAIN)
        except (ConnectionError, asyncio.TimeoutError):
            if attempt == ATTEMPTS:
                raise


async def connections(count):
    await asyncio.gather(*(get_again() for _ in range(count)))


# Cases for paths with faults, by the word before their number.
ON_PATH = {"bytes": get, "connections": connections}


async def post():
    async with session() as client:
        await client.echo(pattern(1 << 20))


async def streams():
    async with session() as client:
        await asyncio.gather(*(client.echo(pattern(number * 10)) for number in range(300)))


async def trailers():
    async with session() as client:
        response = await client.ask(b"POST", b"/h2/echo", pattern(5000), [(b"x-sum", b"42")])
        assert response.body == pattern(5000), f"{len(response.body)} other bytes came back"
        assert response.trailers == {b"x-sum": b"42"}, response.trailers


async def early():
    async with session() as client:
        await client.ask(b"POST", b"/early", pattern(4 << 20))
        await client.echo(pattern(1000))


async def resumption():
    tickets = []
    async with session(tickets) as client:
        await client.echo(pattern(1000))
        assert client.resumed is False, "resumed without a ticket"
    assert tickets, "no ticket came"
    async with session(session_ticket=tickets[-1]) as client:
        await client.echo(pattern(1000))
        assert client.resumed is True, "not resumed"


async def migration():
    """The client goes on from another port, with another connection ID."""
    async with session() as client:
        for _ in range(5):
            await client.echo(pattern(100_000))
            await client.change_port()
            client.change_connection_id()
        await client.echo(pattern(100_000))


async def update_keys(client):
    """Updates the keys. qh3 refuses until the server has acknowledged a packet with the current ones (RFC 9001, 6.1)."""
    for _ in range(10):
        with suppress(ValueError):
            return client.request_key_update()
        await client.echo(pattern(1000))
    raise TimeoutError("the server acknowledges no packet with the current keys")


async def keys():
    async with session() as client:
        await client.echo(pattern(100_000))
        phases = [client.key_phase()]
        for _ in range(3):
            await update_keys(client)
            await client.echo(pattern(100_000))
            phases.append(client.key_phase())
        # The server updates its keys once of its own accord, unless the client is first.
        assert phases in ([0, 1, 0, 1], [1, 0, 1, 0]), f"key phases of the server: {phases}"


async def chacha20():
    async with session(cipher_suites=[CipherSuite.CHACHA20_POLY1305_SHA256]) as client:
        await client.echo(pattern(100_000))
        assert client.cipher() == CipherSuite.CHACHA20_POLY1305_SHA256, client.cipher()


async def multiconnect():
    for _ in range(20):
        async with session() as client:
            await client.echo(pattern(1000))


CASES = {
    case.__name__: case
    for case in (get, post, streams, trailers, early, resumption, migration, keys, chacha20, multiconnect)
}
# The lane changes the server or the path to it.
CASES |= {"retry": get, "rebinding": post, "ipv6": get}

run_all(GIVEN.cases, CASES, ON_PATH, lambda case: asyncio.run(asyncio.wait_for(case(), PATIENCE)))
