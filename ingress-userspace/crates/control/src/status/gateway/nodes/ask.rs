//! Sends the questions of an [`Inquiry`] to the other replicas, and takes their answers. It decides nothing.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::StreamExt as _;
use kube::Client;
use socket2::SockRef;
use tokio::{
    net::UdpSocket,
    sync::Notify,
    time::{Instant, sleep},
};

use super::{
    answer::open,
    inquiry::{BOUND, Inquiry},
    pace::Pace,
    wire::{Answer, Item, LENGTH, Question},
};
use crate::{
    NODES_PORT,
    clock::expiry,
    status::{Options, address_watcher::WatchedObjects, addresses::PodFacts, replicas},
};

/// Most datagrams that are no answers to read in each window of [`Pace`]. While more come, answers wait, too, or are lost.
pub(super) const STRANGERS: u32 = 512;
/// Most datagrams that are read before the next questions.
const BATCH: usize = 256;

/// An [`Inquiry`] that the plan and the questions share.
#[derive(Debug, Default)]
pub(in crate::status::gateway) struct SharedInquiry {
    inquiry: Mutex<Inquiry>,
    /// Told when there are questions.
    asked: Notify,
    /// Told when there are verdicts.
    decided: Notify,
}

/// Questions that were sent and not answered yet, by their number.
#[derive(Debug, Default)]
struct Sent {
    questions: BTreeMap<u64, (IpAddr, Vec<Item>, Instant)>,
    random: RandomState,
    count: u64,
}

/// Asks the replicas of other nodes while there is something to ask, until the future is dropped. `own` is the address
/// of this replica.
pub(in crate::status::gateway) async fn ask_nodes(
    client: &Client,
    options: &Options,
    own: IpAddr,
    shared: &SharedInquiry,
) {
    while !shared.with(|inquiry| inquiry.has_questions()) {
        shared.asked.notified().await;
    }
    let mut is_warned = false;
    while let Err(error) = open((own, 0).into()) {
        warn_once(&mut is_warned, own, &error);
        shared.with(|inquiry| drop(inquiry.take_due(Instant::now())));
        sleep(BOUND).await;
    }
    let lost = "statuses of Gateways and routes do not say whether other nodes serve them";
    let mut pods = replicas::events(client, options, lost).boxed();
    let (mut known, mut asker) = (WatchedObjects::default(), Asker::new(own, NODES_PORT));
    loop {
        tokio::select! {
            event = pods.next() => {
                // The watch begins again by itself, and does not end.
                let Some(event) = event else { return std::future::pending().await };
                known.on(event);
                if let Some(pods) = known.known() {
                    shared.with(|inquiry| inquiry.set_peers(peers(pods, options, own), Instant::now()));
                }
            }
            () = asker.step(shared) => {}
        }
    }
}

/// Says why other nodes cannot be asked. Without it, they look silent.
fn warn_once(is_warned: &mut bool, own: IpAddr, error: &io::Error) {
    if !std::mem::replace(is_warned, true) {
        tracing::warn!(
            address = %own, %error,
            "cannot ask other nodes whether they serve an object, trying again; set `$POD_IP` to an address of this pod, \
             and check the limit of open files"
        );
    }
}

/// Returns the other nodes with a Ready replica.
fn peers(pods: &BTreeMap<String, PodFacts>, options: &Options, own: IpAddr) -> BTreeMap<IpAddr, Arc<str>> {
    let others = pods.iter().filter(|(name, pod)| **name != options.identity && pod.is_ready && !pod.is_leaving);
    let addressed = others.filter_map(|(name, pod)| {
        let node = pod.node.as_deref().unwrap_or(name);
        // Another replica of this node is an older process, or a younger one.
        Some((pod.address.filter(|address| *address != own)?, Arc::from(node)))
    });
    addressed.collect()
}

/// The questions of the leader on the way, and the socket for their answers.
#[derive(Debug)]
pub(super) struct Asker {
    own: IpAddr,
    /// Port of the replicas.
    port: u16,
    /// Open while questions are on the way, each time with another port, so that strangers have nothing to send to.
    socket: Option<UdpSocket>,
    sent: Sent,
    strangers: Pace,
    /// Whether the log has said that no socket opens.
    is_warned: bool,
}

// === impl Asker ===

impl Asker {
    /// Returns an asker at the address `own` for replicas at `port`.
    pub(super) fn new(own: IpAddr, port: u16) -> Self {
        Self { own, port, socket: None, sent: Sent::default(), strangers: Pace::new(STRANGERS), is_warned: false }
    }

    /// Sends the questions that are due, then waits for an answer, the next question, or a new one. Cancel-safe.
    pub(super) async fn step(&mut self, shared: &SharedInquiry) {
        let now = Instant::now();
        let (due, next) = shared.with(|inquiry| (inquiry.take_due(now), inquiry.next(now)));
        self.send(due, now);
        self.sent.questions.retain(|_, (_, _, at)| now < *at + BOUND);
        if self.sent.questions.is_empty() {
            self.socket = None;
        }
        tokio::select! {
            () = self.receive(shared) => {}
            () = expiry(next) => {}
            () = shared.asked.notified() => {}
        }
    }

    fn send(&mut self, due: BTreeMap<IpAddr, Vec<Item>>, now: Instant) {
        let Self { own, port, socket, sent, is_warned, strangers: _ } = self;
        if due.is_empty() {
            return;
        }
        if socket.is_none() {
            match open((*own, 0).into()) {
                Ok(opened) => (*socket, *is_warned) = (Some(opened), false),
                Err(error) => return warn_once(is_warned, *own, &error),
            }
        }
        let Some(socket) = socket else { return };
        for (address, items) in due {
            for (question, datagram) in Question::datagrams(items, || sent.number()) {
                // A new socket is not known to be writable yet, and one whose buffer is full loses the question.
                match SockRef::from(&*socket).send_to(&datagram, &SocketAddr::new(address, *port).into()) {
                    // As if it were lost.
                    Err(error) => tracing::debug!(%address, %error, "cannot ask a node"),
                    Ok(_) => drop(sent.questions.insert(question.nonce, (address, question.items, now))),
                }
            }
        }
    }

    /// Waits for datagrams, and takes those that are there.
    async fn receive(&mut self, shared: &SharedInquiry) {
        let Self { port, socket, sent, strangers, own: _, is_warned: _ } = self;
        let Some(socket) = socket else { return std::future::pending().await };
        strangers.ready().await;
        if let Err(error) = socket.readable().await {
            strangers.spend(STRANGERS);
            return tracing::debug!(%error, "cannot read answers of other nodes");
        }
        let mut buffer = [0; LENGTH + 1];
        for _ in 0..BATCH {
            match socket.try_recv_from(&mut buffer) {
                Ok((length, sender)) => {
                    let is_answer = buffer.get(..length).is_some_and(|bytes| sent.take(bytes, sender, *port, shared));
                    strangers.spend(u32::from(!is_answer));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    strangers.spend(1);
                    return tracing::debug!(%error, "cannot read answers of other nodes");
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn port(&self) -> Option<u16> {
        self.socket.as_ref().and_then(|socket| Some(socket.local_addr().ok()?.port()))
    }
}

// === impl Sent ===

impl Sent {
    /// Returns a number that others cannot guess.
    fn number(&mut self) -> u64 {
        self.count += 1;
        self.random.hash_one(self.count)
    }

    /// Takes a datagram if it is the answer to a question. Returns `false` for any other.
    fn take(&mut self, bytes: &[u8], sender: SocketAddr, port: u16, shared: &SharedInquiry) -> bool {
        let Some(Answer { nonce, serves }) = Answer::decode(bytes) else { return false };
        let Some((address, items, _)) = self.questions.get(&nonce) else { return false };
        let is_answer = (*address, port) == (sender.ip(), sender.port()) && items.len() == serves.len();
        if is_answer {
            shared.with(|inquiry| inquiry.hear(*address, items, &serves, Instant::now()));
            self.questions.remove(&nonce);
        }
        is_answer
    }
}

// === impl SharedInquiry ===

impl SharedInquiry {
    /// Calls `act`, and tells the other side if that leads to verdicts.
    fn with<T>(&self, act: impl FnOnce(&mut Inquiry) -> T) -> T {
        let mut inquiry = self.inquiry.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut inquiry);
        if inquiry.has_decided() {
            self.decided.notify_one();
        }
        result
    }

    /// Calls `act`, and tells the side that asks if that leads to questions.
    pub(in crate::status::gateway) fn ask<T>(&self, act: impl FnOnce(&mut Inquiry) -> T) -> T {
        let (result, has_questions) = self.with(|inquiry| (act(inquiry), inquiry.has_questions()));
        if has_questions {
            self.asked.notify_one();
        }
        result
    }

    /// Waits until there is a verdict.
    pub(in crate::status::gateway) async fn decided(&self) {
        self.decided.notified().await;
    }
}
