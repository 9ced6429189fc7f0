//! Asks the own port of HTTP/3 whether it answers, as a client does: by a packet of a version that no server has, which
//! any server of QUIC answers with a list of its versions (RFC 9000, 6.1). It costs the server no connection.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::{net::UdpSocket, time::timeout};

/// Time between two questions while the port answers.
const STEADY: Duration = Duration::from_mins(1);
/// The same while it does not.
const AGAIN: Duration = Duration::from_secs(10);
/// Longest wait for an answer. Then the packet counts as lost, as one may be in a full socket.
const PATIENCE: Duration = Duration::from_secs(1);
/// Packets that may be lost.
const TRIES: usize = 3;

/// A version that is reserved for the exercise of negotiation (RFC 9000, 15).
const VERSION: u32 = 0x2a3a_4a5a;
/// Shortest datagram of a client that servers answer (RFC 9000, 14.1).
const LENGTH: usize = 1200;
/// QUIC version 1, which HTTP/3 needs.
const VERSION_1: u32 = 1;

/// Addresses that are never on a node (RFC 5737, RFC 3849). The route to them tells the address of the node.
const FAR: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];

/// The result of all questions so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// `None` before the first question.
    answers: Option<bool>,
    /// Whether the latest question to a port that answers was in vain. One is not enough: the packets of a question come to
    /// one worker, which may be busy for long, and browsers forget an offer that ends.
    is_doubted: bool,
}

/// A change that is worth a line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    Answers,
    Silent,
}

/// A reason for which the port counts as silent.
#[derive(Debug, thiserror::Error)]
pub(super) enum Silence {
    #[error("no answer came from {0}")]
    NoAnswer(SocketAddr),
    #[error("{0} refuses packets ({1})")]
    Refused(SocketAddr, io::Error),
    #[error("the node has no address")]
    NoAddress,
    #[error("there is no randomness")]
    NoRandomness,
}

/// The connection IDs of a question, by which its answer is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Question {
    destination: [u8; 8],
    source: [u8; 8],
}

// === impl Verdict ===

impl Verdict {
    /// Takes the result of a question. Returns it if the one before was different.
    pub(super) fn note(&mut self, answered: bool) -> Option<News> {
        self.is_doubted = !answered && self.answers() && !self.is_doubted;
        if self.is_doubted {
            return None;
        }
        let is_new = self.answers.replace(answered) != Some(answered);
        is_new.then_some(if answered { News::Answers } else { News::Silent })
    }

    /// Returns whether the port answers. It does not before the first question.
    pub(super) fn answers(self) -> bool {
        self.answers == Some(true)
    }

    /// Returns the time until the next question.
    pub(super) fn pause(self) -> Duration {
        if self.answers() && !self.is_doubted { STEADY } else { AGAIN }
    }
}

// === impl Question ===

impl Question {
    fn new() -> Result<Self, Silence> {
        let mut question = Self { destination: [0; 8], source: [0; 8] };
        for id in [&mut question.destination, &mut question.source] {
            aws_lc_rs::rand::fill(id).map_err(|_unspecified| Silence::NoRandomness)?;
        }
        Ok(question)
    }

    fn packet(&self) -> [u8; LENGTH] {
        let Self { destination, source } = self;
        let mut packet = [0; LENGTH];
        // A long header with the fixed bit (RFC 8999, 5.1).
        let head = [&[0xc0][..], &VERSION.to_be_bytes(), &[8], destination, &[8], source].concat();
        packet[..head.len()].copy_from_slice(&head);
        packet
    }

    /// Returns whether `packet` is the answer of a server with version 1 (RFC 9000, 17.2.1).
    fn is_answered_by(&self, packet: &[u8]) -> bool {
        let Self { destination, source } = self;
        let ids = [&[8][..], source, &[8], destination].concat();
        let Some((first, rest)) = packet.split_first() else { return false };
        let versions = rest.strip_prefix(&[0; 4]).and_then(|rest| rest.strip_prefix(ids.as_slice()));
        let is_listed = |versions: &[u8]| versions.chunks_exact(4).any(|version| version == VERSION_1.to_be_bytes());
        first & 0x80 != 0 && versions.is_some_and(is_listed)
    }
}

/// Asks `port` at an address of this node of each family.
///
/// # Errors
/// Fails at the first family without an answer.
pub(super) async fn probe(port: u16) -> Result<(), Silence> {
    let mut has_address = false;
    for far in FAR {
        let Some(socket) = facing(far, port).await else { continue };
        has_address = true;
        ask(&socket).await?;
    }
    if has_address { Ok(()) } else { Err(Silence::NoAddress) }
}

/// Returns a socket that is connected to `port` at the address of this node from which packets to `far` would leave, or
/// at the loopback address if none would; `None` if the node lacks the family.
async fn facing(far: IpAddr, port: u16) -> Option<UdpSocket> {
    let (any, loopback): (IpAddr, IpAddr) = match far {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::LOCALHOST.into()),
    };
    let socket = || UdpSocket::bind((any, 0));
    let scout = socket().await.ok()?;
    // A connected UDP socket has an address, and no packet has left.
    let own = scout.connect((far, 9)).await.and_then(|()| scout.local_addr()).map_or(loopback, |own| own.ip());
    let socket = socket().await.ok()?;
    socket.connect((own, port)).await.ok()?;
    Some(socket)
}

async fn ask(socket: &UdpSocket) -> Result<(), Silence> {
    let peer = socket.peer_addr().map_err(|_unconnected| Silence::NoAddress)?;
    let question = Question::new()?;
    let mut buffer = [0; LENGTH];
    for _ in 0..TRIES {
        let exchange = async {
            socket.send(&question.packet()).await?;
            loop {
                let length = socket.recv(&mut buffer).await?;
                if question.is_answered_by(&buffer[..length]) {
                    return io::Result::Ok(());
                }
            }
        };
        match timeout(PATIENCE, exchange).await {
            Ok(Ok(())) => return Ok(()),
            // A packet that netfilter drops on its way out.
            Ok(Err(error)) if error.kind() == ErrorKind::PermissionDenied => return Err(Silence::Refused(peer, error)),
            Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => {
                return Err(Silence::Refused(peer, error));
            }
            Ok(Err(_)) | Err(_) => {}
        }
    }
    Err(Silence::NoAnswer(peer))
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUESTION: Question = Question { destination: [1, 2, 3, 4, 5, 6, 7, 8], source: [9; 8] };

    /// A list of versions as a server sends it.
    fn answer(question: &Question, versions: &[u32]) -> Vec<u8> {
        let Question { destination, source } = question;
        let mut packet = [&[0x80 | 0x55][..], &[0; 4], &[8], source, &[8], destination].concat();
        packet.extend(versions.iter().flat_map(|version| version.to_be_bytes()));
        packet
    }

    #[test]
    fn an_answer_has_the_ids_of_its_question_and_version_1() {
        let whole = answer(&QUESTION, &[0x0a1a_2a3a, VERSION_1]);
        let with = |index: usize, byte: u8| {
            let mut packet = whole.clone();
            packet[index] = byte;
            packet
        };
        let other = Question { source: [7; 8], ..QUESTION };
        for (what, packet, is_answer) in [
            ("greased and version 1", whole.clone(), true),
            ("version 1", answer(&QUESTION, &[VERSION_1]), true),
            ("version 2 alone", answer(&QUESTION, &[0x6b33_43cf]), false),
            ("no version", answer(&QUESTION, &[]), false),
            ("half a version", whole[..whole.len() - 2].to_vec(), false),
            ("short header", with(0, 0x55), false),
            ("another packet type", with(4, 1), false),
            ("another client's", answer(&other, &[VERSION_1]), false),
            ("the question itself", QUESTION.packet().to_vec(), false),
            ("no byte", Vec::new(), false),
        ] {
            assert_eq!(QUESTION.is_answered_by(&packet), is_answer, "{what}");
        }
    }

    #[test]
    fn changes_are_said_once_and_silence_is_checked_more_often() {
        let mut verdict = Verdict::default();
        assert_eq!((verdict.answers(), verdict.pause()), (false, AGAIN), "nothing is offered before an answer");
        for (answered, news, answers, pause) in [
            (false, Some(News::Silent), false, AGAIN),
            (false, None, false, AGAIN),
            (true, Some(News::Answers), true, STEADY),
            (true, None, true, STEADY),
            // The second question in vain counts.
            (false, None, true, AGAIN),
            (true, None, true, STEADY),
            (false, None, true, AGAIN),
            (false, Some(News::Silent), false, AGAIN),
            (true, Some(News::Answers), true, STEADY),
        ] {
            assert_eq!(verdict.note(answered), news);
            assert_eq!((verdict.answers(), verdict.pause()), (answers, pause));
        }
    }

    #[tokio::test]
    async fn a_port_without_a_socket_is_silent() {
        let free = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await.expect("bound");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let silence = probe(port).await.expect_err("closed");
        assert!(matches!(silence, Silence::Refused(..)), "{silence}");
    }

    #[tokio::test]
    async fn a_lost_packet_is_sent_again() {
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bound");
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bound");
        client.connect(server.local_addr().expect("an address")).await.expect("connected");
        let served = async {
            let mut buffer = [0; 2 * LENGTH];
            for round in 0..2 {
                let (length, from) = server.recv_from(&mut buffer).await.expect("a question");
                assert_eq!(length, LENGTH);
                let id = |at: usize| <[u8; 8]>::try_from(&buffer[at..at + 8]).expect("an ID");
                let question = Question { destination: id(6), source: id(15) };
                if round > 0 {
                    server.send_to(&answer(&question, &[VERSION_1]), from).await.expect("sent");
                }
            }
        };
        let (asked, ()) = tokio::join!(ask(&client), served);
        asked.expect("an answer");
    }
}
