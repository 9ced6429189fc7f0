//! Answers the questions of the leader: does this node serve the object as the leader knows it? It changes nothing.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    net::UdpSocket,
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use super::{
    PORT,
    wire::{Answer, Item, LENGTH, Question, fingerprint},
};
use crate::status::input::StatusInput;

/// Most datagrams that are read in each [`WINDOW`]. Further ones wait in the socket, or are lost: a flood may not cost
/// more than a few per cent of a core.
const DATAGRAMS: u32 = 512;
const WINDOW: Duration = Duration::from_millis(100);

/// Pause after the port could not be opened, or could not be read.
const PAUSE: Duration = Duration::from_secs(30);
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Answers at [`PORT`] of `address` from the latest input, once there is an object to ask about, until the future is
/// dropped. Without an address it only waits.
pub(in crate::status) async fn answer(address: Option<IpAddr>, mut input: watch::Receiver<Arc<StatusInput>>) {
    let Some(address) = address else { return std::future::pending().await };
    // No port is open in a cluster without Gateway API.
    if input.wait_for(|input| !input.translation().statuses.is_empty()).await.is_err() {
        return std::future::pending().await;
    }
    let mut is_warned = false;
    loop {
        match open((address, PORT).into()) {
            Ok(socket) => serve(&socket, &input).await,
            Err(error) if !is_warned => {
                tracing::warn!(
                    %address, port = PORT, %error,
                    "cannot answer the questions of the leader, trying again; end other programs that use this UDP port"
                );
                is_warned = true;
            }
            Err(_again) => {}
        }
        sleep(PAUSE).await;
    }
}

/// Opens a socket for questions at `address`.
pub(super) fn open(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    // The processes of an update overlap. The newer one gets the questions.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    UdpSocket::from_std(socket.into())
}

/// Answers what arrives at `socket`, until the future is dropped.
pub(super) async fn serve(socket: &UdpSocket, input: &watch::Receiver<Arc<StatusInput>>) {
    let mut buffer = [0; LENGTH + 1];
    let (mut began, mut read) = (Instant::now(), 0);
    loop {
        if read >= DATAGRAMS {
            sleep_until(began + WINDOW).await;
        }
        let received = socket.recv_from(&mut buffer).await;
        if began.elapsed() >= WINDOW {
            (began, read) = (Instant::now(), 0);
        }
        read += 1;
        let (length, sender) = match received {
            Ok(received) => received,
            Err(error) => {
                tracing::debug!(%error, "cannot read questions of the leader");
                sleep(ERROR_PAUSE).await;
                continue;
            }
        };
        // A datagram that is too long is cut, and then no question.
        let Some(question) = buffer.get(..length).and_then(Question::decode) else { continue };
        let answer = input.borrow().reply(&question).encode();
        if let Err(error) = socket.try_send_to(&answer, sender) {
            tracing::debug!(%sender, %error, "cannot answer a question of the leader");
        }
    }
}

impl StatusInput {
    fn reply(&self, Question { nonce, items }: &Question) -> Answer {
        Answer { nonce: *nonce, serves: items.iter().map(|item| self.serves(item)).collect() }
    }

    /// Returns `true` if this node serves the object in this state.
    fn serves(&self, Item { id, fingerprint: asked }: &Item) -> bool {
        let bearer = self.bearer(id);
        let known = bearer.and_then(|bearer| Some(fingerprint(bearer.uid, bearer.wanted?)));
        known == Some(*asked)
    }
}
