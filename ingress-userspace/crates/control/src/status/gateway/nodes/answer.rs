//! Answers the questions of the leader: does this node serve the object as the leader knows it? It changes nothing.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::{net::UdpSocket, sync::watch, time::sleep};

use super::{
    pace::Pace,
    wire::{Answer, Item, LENGTH, Question, fingerprint},
};
use crate::{
    NODES_PORT,
    object_status::{ObjectStatus, StatusBody},
    status::input::StatusInput,
};

/// Most work in each window of [`Pace`], about 3 ms: each datagram counts, each object in it, and each listener or parent
/// of an object that is known. The sender of a flood may know names of large objects.
pub(super) const WORK: u32 = 4096;

/// Pause after the port could not be opened, or could not be read.
const PAUSE: Duration = Duration::from_secs(30);
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Answers at [`NODES_PORT`] of `address` from the latest input, once there is an object to ask about, until the future is
/// dropped. Without an address it only waits.
pub(in crate::status) async fn answer(address: Option<IpAddr>, mut input: watch::Receiver<Arc<StatusInput>>) {
    let Some(address) = address else { return std::future::pending().await };
    // No port is open in a cluster without Gateway API.
    if input.wait_for(|input| !input.translation().statuses.is_empty()).await.is_err() {
        return std::future::pending().await;
    }
    let mut is_warned = false;
    loop {
        match open((address, NODES_PORT).into()) {
            Ok(socket) => serve(&socket, &input).await,
            Err(error) if !is_warned => {
                let remedy = match error.kind() {
                    io::ErrorKind::AddrInUse => "end other programs that use this UDP port",
                    io::ErrorKind::AddrNotAvailable => "set `$POD_IP` to an address of this pod",
                    _ => "check the limit of open files, and what may keep this pod from opening sockets",
                };
                tracing::warn!(
                    %address, port = NODES_PORT, %error,
                    "cannot answer the leader whether this node serves an object, trying again; statuses do not \
                     confirm this node until then; {remedy}"
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
    let mut pace = Pace::new(WORK);
    loop {
        pace.ready().await;
        let (length, sender) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                tracing::debug!(%error, "cannot read questions of the leader");
                sleep(ERROR_PAUSE).await;
                continue;
            }
        };
        pace.spend(1);
        // A datagram that is too long is cut, and then no question.
        let Some(question) = buffer.get(..length).and_then(Question::decode) else { continue };
        let (answer, work) = input.borrow().reply(&question);
        pace.spend(work);
        if let Err(error) = socket.try_send_to(&answer.encode(), sender) {
            tracing::debug!(%sender, %error, "cannot answer a question of the leader");
        }
    }
}

impl StatusInput {
    /// Returns the answer, and the work that it took.
    fn reply(&self, Question { nonce, items }: &Question) -> (Answer, u32) {
        let mut work = 0;
        let serves = items.iter().map(|item| self.serves(item, &mut work)).collect();
        (Answer { nonce: *nonce, serves }, work)
    }

    /// Returns `true` if this node serves the object in this state. Adds the work that it took.
    fn serves(&self, Item { id, fingerprint: asked }: &Item, work: &mut u32) -> bool {
        *work += 1;
        let Some(bearer) = self.bearer(id) else { return false };
        let Some(wanted) = bearer.wanted else { return false };
        *work = work.saturating_add(parts(wanted));
        fingerprint(bearer.uid, wanted) == *asked
    }
}

/// Returns the number of parts that a fingerprint reads.
fn parts(status: &ObjectStatus) -> u32 {
    let count = match &status.body {
        StatusBody::Gateway { listeners, addresses, .. } => listeners.len() + addresses.len(),
        StatusBody::ListenerSet { listeners, .. } => listeners.len(),
        StatusBody::Route { parents } | StatusBody::Policy { ancestors: parents } => parents.len(),
        StatusBody::GatewayClass { .. } => 0,
    };
    u32::try_from(count).unwrap_or(u32::MAX)
}
