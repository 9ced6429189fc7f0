//! The state of a connection: quinn-proto's connection, HTTP/3's control streams, and the requests. The driver gives it
//! turns; requests use it between them.

use std::{
    cell::Cell,
    collections::VecDeque,
    rc::Rc,
    task::Waker,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use http::Request;
use ingress_http3::{Code, Error, Local, PeerStreams, Priority, Scope, UniEvent, UniStream, control};
use quinn_proto::{
    ConnectionError, Dir, Event, ReadError, StreamEvent, StreamId, VarInt, crypto::rustls::HandshakeData,
};

use crate::{
    admit::Share,
    allowance::Allowance,
    amplification::Unproven,
    body::RequestBody,
    config::Limits,
    conn::Conn,
    exchange::Exchange,
    held::Looked,
    lifetime::Vigil,
    shared::{Drain, Peer, PeerOrder, Shared, count},
};

/// A connection of QUIC, with the state of HTTP/3.
pub(crate) struct State {
    pub(crate) quic: quinn_proto::Connection,
    pub(crate) shared: Rc<Shared>,
    /// The limits when the connection was accepted.
    pub(crate) limits: Rc<Limits>,
    peer: Rc<Peer>,
    /// Number of transmissions that QUIC's timers wait for, since the path to the client has changed.
    pub(crate) awaited: u8,
    /// Number of datagrams that had come when the timers of QUIC last ended.
    pub(crate) heard: u64,
    /// The client's address, until it is proven.
    pub(crate) unproven: Option<Unproven>,
    /// The requests that have not ended, by their stream.
    pub(crate) requests: HashMap<StreamId, Exchange, RandomState>,
    /// Requests whose head is complete. The driver begins their tasks after the turn.
    pub(crate) begun: Vec<(StreamId, Request<RequestBody>)>,
    /// Streams whose head is awaited, in the order of their opening.
    pub(crate) heads: VecDeque<(Instant, StreamId)>,
    pub(crate) allowance: Allowance,
    pub(crate) stage: Stage,
    /// The share that the handshake counts for.
    share: Share,
    /// When the connection was accepted, then when the handshake ended, and then when the last request did.
    pub(crate) idle_since: Instant,
    /// The GOAWAY that was sent.
    pub(crate) goaway: GoAway,
    /// Whether the client still answers, since an end was announced.
    pub(crate) vigil: Option<Vigil>,
    /// The end of this connection alone, as its owner ordered it.
    finishing: Option<Drain>,
    unidirectional: HashMap<StreamId, UniStream, RandomState>,
    peer_streams: PeerStreams,
    /// Our control stream, and its bytes that are not written.
    control: Option<StreamId>,
    control_out: BytesMut,
    /// Index of the next stream that the client will open for a request.
    pub(crate) next_request: u64,
    /// Number of responses that are written to their end, and of which the client has not acknowledged all.
    pub(crate) unacknowledged: usize,
    /// Number of writes to streams of requests.
    pub(crate) writes: u64,
    /// Number of bytes written to streams of requests since the connection had nothing to send.
    pub(crate) written: usize,
    /// Number of responses that the client has acknowledged.
    pub(crate) finished: u64,
    /// The last look at the bytes that wait for the client.
    pub(crate) looked: Looked,
    /// When a response last began to wait for the client, or ended to.
    pub(crate) blocked_at: Instant,
    /// Whether a response may wait for the client: `false` spares a look at each request.
    pub(crate) may_have_writers: Cell<bool>,
    /// Number of STREAM frames that were sent when responses were last waited for.
    sent: u64,
    /// Whether a head may have come in part since the last turn.
    pub(crate) has_partial_head: bool,
    /// Tasks whose streams take bytes again, with the number of their last write.
    writable: Vec<(u64, Waker)>,
}

/// The stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Handshake,
    Serving,
    /// Closed by either side; packets of the closing period remain.
    Closed,
}

/// The end that was announced to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GoAway {
    None,
    /// An end will come; all requests are still taken.
    Soon,
    /// Requests on streams with this index and above are rejected.
    At(u64),
}

/// Time for the requests in flight of a connection that is told to finish. Each has limits of its own, so it is long.
const FINISHING_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// The largest stream that a client may open for a request (RFC 9114, 5.2: the value of a first GOAWAY).
const LAST_REQUEST: u64 = (1 << 62) - 4;

impl State {
    /// Returns whether the ClientHello, which may take some datagrams, is not complete.
    pub(crate) fn lacks_hello(&self) -> bool {
        self.stage == Stage::Handshake && self.quic.crypto_session().handshake_data().is_none()
    }

    /// Makes the state of a connection that was accepted. `unproven` is `None` if a token proves the client's address.
    pub(crate) fn new(
        quic: quinn_proto::Connection,
        shared: Rc<Shared>,
        peer: Rc<Peer>,
        unproven: Option<Unproven>,
        now: Instant,
    ) -> Self {
        Self {
            share: Share::of(quic.remote_address().ip(), unproven.is_none()),
            quic,
            limits: shared.limits(),
            shared,
            peer,
            awaited: 0,
            heard: 0,
            unproven,
            requests: HashMap::default(),
            begun: Vec::new(),
            heads: VecDeque::new(),
            allowance: Allowance::new(now),
            stage: Stage::Handshake,
            idle_since: now,
            goaway: GoAway::None,
            vigil: None,
            finishing: None,
            unidirectional: HashMap::default(),
            peer_streams: PeerStreams::default(),
            control: None,
            control_out: BytesMut::new(),
            next_request: 0,
            unacknowledged: 0,
            writes: 0,
            written: 0,
            finished: 0,
            looked: Looked::default(),
            blocked_at: now,
            may_have_writers: Cell::new(false),
            sent: 0,
            has_partial_head: false,
            writable: Vec::new(),
        }
    }

    /// Reacts to the events since the last turn.
    pub(crate) fn turn(&mut self, conn: &Rc<Conn>, now: Instant) {
        self.expire_quic(now);
        while let Some(event) = self.quic.poll() {
            match event {
                Event::HandshakeDataReady => self.take_server_name(conn),
                Event::Connected => self.begin(now),
                Event::ConnectionLost { reason } => self.lose(&reason),
                Event::Stream(event) => self.react(event, conn, now),
                Event::DatagramReceived | Event::DatagramsUnblocked => {}
            }
        }
        let current = self.quic.remote_address();
        if self.peer.current.replace(current) != current {
            count(&self.shared.counters.migrated);
            if self.stage == Stage::Serving {
                (self.shared.moved)(&self.peer);
            }
        }
        match self.peer.ordered.get() {
            PeerOrder::Serve => {}
            PeerOrder::Finish => _ = self.finishing.get_or_insert(Drain { begun: now, deadline: now + FINISHING_MAX }),
            PeerOrder::Close => self.close(Code::NoError, "the server closes the connection", now),
        }
        self.limit_heads(now);
        self.note_sent(now);
        self.expire(now);
        self.flush_control();
        // The first that runs may take all room. So the one that has waited longest is woken first.
        self.writable.sort_unstable_by_key(|(wrote, _)| *wrote);
        self.writable.drain(..).for_each(|(_, writer)| writer.wake());
        if self.requests.is_empty() && self.unacknowledged == 0 {
            self.written = 0;
        }
    }

    /// Counts the client as active while it lets the rest of complete responses be sent: quinn-proto sends as the client
    /// acknowledges and its windows permit. Repetitions to a client that is gone become ever rarer.
    fn note_sent(&mut self, now: Instant) {
        if self.unacknowledged > 0 && self.requests.is_empty() {
            let sent = self.quic.stats().frame_tx.stream;
            if std::mem::replace(&mut self.sent, sent) != sent {
                self.note_idle(|| now);
            }
        }
    }

    /// Returns the end of the connection, if one was ordered for it or its worker.
    pub(crate) fn ending(&self) -> Option<Drain> {
        match (self.shared.drain.get(), self.finishing) {
            (Some(all), Some(own)) => {
                Some(Drain { begun: all.begun.min(own.begun), deadline: all.deadline.min(own.deadline) })
            }
            (all, own) => all.or(own),
        }
    }

    fn take_server_name(&mut self, conn: &Conn) {
        let data = self.quic.crypto_session().handshake_data();
        let name = data.and_then(|data| data.downcast::<HandshakeData>().ok()?.server_name);
        if let Some(name) = name {
            // It comes once.
            let _first = conn.peer.server_name.set(name);
        }
    }

    /// Begins HTTP/3 after the handshake.
    fn begin(&mut self, now: Instant) {
        self.stage = Stage::Serving;
        self.unproven = None;
        self.idle_since = now;
        self.shared.end_handshake(self.share);
        count(&self.shared.counters.connected);
        match (self.shared.opened)(&self.peer) {
            Some(context) => _ = self.peer.context.replace(Some(context)),
            None => return self.close(Code::ExcessiveLoad, "there is no room for another connection", now),
        }
        let limits = &self.limits;
        let settings =
            Local { max_field_section_size: limits.section_max as u64, connect_protocol: limits.connect_protocol };
        let mut grease = [0; 8];
        // A constant would only be less useful to peers that should tolerate it.
        let _constant = aws_lc_rs::rand::fill(&mut grease);
        self.control_out.extend_from_slice(&settings.control_stream(u64::from_le_bytes(grease)));
    }

    fn lose(&mut self, reason: &ConnectionError) {
        tracing::debug!(remote = %self.quic.remote_address(), %reason, "a QUIC connection ends");
        self.end();
    }

    /// Ends all requests of a connection that is closed.
    pub(crate) fn end(&mut self) {
        if self.stage == Stage::Handshake {
            self.shared.end_handshake(self.share);
        }
        self.stage = Stage::Closed;
        self.unacknowledged = 0;
        for (_, exchange) in self.requests.drain() {
            exchange.cut();
        }
        self.heads.clear();
        self.unidirectional.clear();
        self.control_out.clear();
        drop(self.peer.context.take());
    }

    /// Closes the connection, and tells the client why.
    pub(crate) fn close(&mut self, code: Code, reason: &'static str, now: Instant) {
        if self.stage != Stage::Closed {
            tracing::debug!(remote = %self.quic.remote_address(), code = code.name(), reason, "a QUIC connection is closed");
            self.quic.close(now, wire(code), Bytes::from_static(reason.as_bytes()));
            self.end();
        }
    }

    /// Closes the connection for `error`, or resets the stream `id` if only that is concerned.
    pub(crate) fn fail(&mut self, id: StreamId, error: Error, now: Instant) {
        match error.scope {
            Scope::Connection => self.close(error.code, error.reason, now),
            Scope::Stream => {
                self.abandon(id, error.code, now);
                self.draw_reset(now);
            }
        }
    }

    /// Counts a stream that was reset.
    pub(crate) fn draw_reset(&mut self, now: Instant) {
        if !self.allowance.draw_reset(now) {
            self.close(Code::ExcessiveLoad, "too many streams are reset", now);
        }
    }

    fn react(&mut self, event: StreamEvent, conn: &Rc<Conn>, now: Instant) {
        match event {
            StreamEvent::Opened { dir: Dir::Bi } => {
                while let Some(id) = self.quic.streams().accept(Dir::Bi) {
                    self.open_request(id, conn, now);
                }
            }
            StreamEvent::Opened { dir: Dir::Uni } => {
                while let Some(id) = self.quic.streams().accept(Dir::Uni) {
                    self.unidirectional.insert(id, UniStream::default());
                    self.read_unidirectional(id, now);
                }
            }
            StreamEvent::Readable { id } if id.dir() == Dir::Uni => self.read_unidirectional(id, now),
            StreamEvent::Readable { id } => self.readable(id, conn, now),
            StreamEvent::Writable { id } => {
                if let Some(exchange) = self.requests.get_mut(&id)
                    && let Some(writer) = exchange.writer.take()
                {
                    self.writable.push((exchange.wrote, writer));
                    self.blocked_at = now;
                }
            }
            StreamEvent::Stopped { id, .. } if self.control == Some(id) => {
                self.close(Code::ClosedCriticalStream, "the control stream is stopped", now);
            }
            StreamEvent::Stopped { id, .. } => self.stopped(id, now),
            // Only streams of responses are finished.
            StreamEvent::Finished { .. } => {
                self.unacknowledged = self.unacknowledged.saturating_sub(1);
                self.finished += 1;
                self.note_idle(|| now);
            }
            StreamEvent::Available { .. } => {}
        }
    }

    /// Reads all that a unidirectional stream of the client has.
    fn read_unidirectional(&mut self, id: StreamId, now: Instant) {
        while let Some(mut stream) = self.unidirectional.remove(&id) {
            let read = {
                let mut receiver = self.quic.recv_stream(id);
                let Ok(mut chunks) = receiver.read(true) else { return };
                let read = chunks.next(usize::MAX);
                let _sent_by_this_turn = chunks.finalize();
                read
            };
            let taken = match read {
                Ok(Some(chunk)) => self.decode_unidirectional(id, &mut stream, chunk.bytes, now),
                Err(ReadError::Blocked) => {
                    self.unidirectional.insert(id, stream);
                    return;
                }
                Ok(None) | Err(ReadError::Reset(_)) => stream.finish().map(|()| false),
            };
            match taken {
                Ok(true) => self.unidirectional.insert(id, stream),
                Ok(false) => return,
                Err(error) => return self.close(error.code, error.reason, now),
            };
        }
    }

    /// Returns whether to read on.
    fn decode_unidirectional(
        &mut self,
        id: StreamId,
        stream: &mut UniStream,
        mut chunk: Bytes,
        now: Instant,
    ) -> Result<bool, Error> {
        while let Some(event) = stream.decode(&mut self.peer_streams, &mut chunk)? {
            match event {
                // We send few fields, and push nothing. A client that leaves closes the connection.
                UniEvent::Settings(_) | UniEvent::GoAway(_) => {}
                UniEvent::PriorityUpdate { stream, value } => self.update_priority(stream, &value)?,
                UniEvent::Ignored(_) => {
                    // It may have ended already.
                    let _ended = self.quic.recv_stream(id).stop(wire(Code::StreamCreationError));
                    self.draw_reset(now);
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn update_priority(&mut self, stream: u64, value: &[u8]) -> Result<(), Error> {
        let open = self.quic.streams().remote_open_streams(Dir::Bi);
        let end = (self.next_request + self.quic.max_concurrent_streams(Dir::Bi)).saturating_sub(open);
        if stream / 4 >= end {
            return Err(control::beyond_limit());
        }
        let id = VarInt::from_u64(stream).map(StreamId::from);
        if let Ok(id) = id
            && self.requests.contains_key(&id)
        {
            self.set_priority(id, Priority::parse(value));
        }
        Ok(())
    }

    /// Urgency 3 is the default of both sides. Streams of one urgency take turns.
    pub(crate) fn set_priority(&mut self, id: StreamId, priority: Priority) {
        // The stream may have been reset.
        let _gone = self.quic.send_stream(id).set_priority(3 - i32::from(priority.urgency));
    }

    /// Announces that requests from the one with `index` on are not taken.
    pub(crate) fn announce(&mut self, goaway: GoAway, now: Instant) {
        let id = match goaway {
            GoAway::None => return,
            GoAway::Soon => LAST_REQUEST,
            GoAway::At(index) => index * 4,
        };
        control::write_goaway(id, &mut self.control_out);
        self.goaway = goaway;
        self.watch(now);
    }

    /// Opens our control stream, and writes its bytes. The client's limits permit both at once, or soon.
    fn flush_control(&mut self) {
        if self.control_out.is_empty() || self.stage != Stage::Serving {
            return;
        }
        if self.control.is_none() {
            self.control = self.quic.streams().open(Dir::Uni);
            // No response may overtake it.
            if let Some(id) = self.control {
                let _opened = self.quic.send_stream(id).set_priority(i32::MAX);
            }
        }
        let Some(id) = self.control else { return };
        if let Ok(count) = self.quic.send_stream(id).write(&self.control_out) {
            let _written = self.control_out.split_to(count);
        }
    }
}

/// Returns `code` as QUIC encodes it.
pub(crate) fn wire(code: Code) -> VarInt {
    VarInt::from_u64(code.value()).unwrap_or(VarInt::MAX)
}
