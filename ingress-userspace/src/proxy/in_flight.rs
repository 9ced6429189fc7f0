//! A request in flight: what it holds, and what happens when it is over.

use std::{net::IpAddr, rc::Rc, sync::atomic::Ordering::Relaxed};

use ingress_common::{HostL7Cell, StatusClass};

use crate::model::filter::Limit;

use super::{
    access_log::Line,
    conn::Conn,
    counters::Tally,
    forward::Held,
    limit::{Counted, Excess},
    offers::Stream,
};

/// A request in flight on a connection.
pub(super) struct InFlight {
    tally: Tally,
    /// What it takes up of its upstream.
    held: Held,
    /// Its line of the access log.
    line: Option<Line>,
    /// Counts for a limit of its client.
    counted: Option<Counted>,
    stream: Stream,
    conn: Rc<Conn>,
}

impl InFlight {
    pub(super) fn new(conn: Rc<Conn>, tally: Tally, stream: Stream) -> Self {
        Self { tally, held: Held::default(), line: None, counted: None, stream, conn }
    }

    pub(super) fn cell(&self) -> &'static HostL7Cell {
        self.tally.cell()
    }

    /// Keeps `held` for as long as the request is under way.
    pub(super) fn hold(&mut self, held: Held) {
        self.held = held;
    }

    /// Writes a line about it when it is over.
    pub(super) fn tell(&mut self, line: Line) {
        self.line = Some(line);
    }

    /// Bytes of the response's body go out.
    pub(super) fn sent(&mut self, count: usize) {
        if let Some(line) = &self.line {
            line.sent(count);
        }
    }

    /// Counts it for `limit` as a request of `client`.
    ///
    /// # Errors
    /// If it is one too many.
    pub(super) fn count(&mut self, limit: &Limit, client: IpAddr) -> Result<(), Excess> {
        let worker = &self.conn.worker;
        self.counted = worker.shared.limiter.admit(limit, client, worker.clock())?;
        Ok(())
    }

    pub(super) fn finish(&mut self, class: StatusClass) {
        self.tally.finish(class);
    }

    pub(super) fn is_http2(&self) -> bool {
        self.stream.is_http2()
    }

    /// A frame of the response is handed over.
    pub(super) fn offer(&mut self) {
        self.stream.offer(&self.conn.offers, self.conn.worker.now());
    }

    /// More of the response is asked for.
    pub(super) fn resume(&mut self) {
        self.stream.resume(&self.conn.offers);
    }

    /// The client stopped sending.
    pub(super) fn starved(&self) {
        self.conn.worker.shared.stats.timed_out.fetch_add(1, Relaxed);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(line) = self.line.take() {
            line.finish();
        }
        self.resume();
        self.conn.progress.end_request(self.conn.worker.now());
    }
}
