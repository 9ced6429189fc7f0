use super::*;
use crate::daemon::kernel::announce::messages::{Hello, Serves};

const NOW_MS: u64 = 1_800_000_000_000;
const HELLO: Message = Message::Hello(Hello { pool: 7, node: [2, 0, 0, 0, 0, 1], leaves: false });
const SERVES: Message = Message::Serves(Serves { pool: 7, node: [2, 0, 0, 0, 0, 1], mac: [2, 0, 0, 0, 0, 9] });

/// A node with keys, by their secrets.
fn node(secrets: &[&str]) -> Authenticator {
    let keys = secrets.iter().map(|secret| Key::derive(secret.as_bytes()).expect("derived"));
    Authenticator::new(keys.collect()).expect("randomness")
}

fn verify(node: &mut Authenticator, bytes: &[u8], now_ms: u64) -> Result<Message, Refusal> {
    let datagram = Datagram::decode(bytes).expect("of this protocol");
    node.verify(&datagram, Some(4), now_ms).map(|()| datagram.message)
}

#[test]
fn nodes_with_the_same_key_hear_each_other() {
    let (mut sender, mut receiver) = (node(&["secret"]), node(&["secret"]));
    for message in [HELLO, SERVES] {
        let bytes = sender.sign(&message, NOW_MS);
        assert!(bytes.len() <= LONGEST_SIGNED);
        assert_eq!(verify(&mut receiver, &bytes, NOW_MS + 3), Ok(message));
    }
}

#[test]
fn every_flipped_bit_is_refused() {
    let (mut sender, mut receiver) = (node(&["secret"]), node(&["secret"]));
    for message in [HELLO, SERVES] {
        let bytes = sender.sign(&message, NOW_MS);
        for bit in 0..8 * bytes.len() {
            let mut altered = bytes.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            let counts =
                Datagram::decode(&altered).is_some_and(|datagram| receiver.verify(&datagram, None, NOW_MS).is_ok());
            assert!(!counts, "bit {bit} of {message:?}");
        }
        assert_eq!(verify(&mut receiver, &bytes, NOW_MS), Ok(message), "refused ones leave no trace");
    }
}

#[test]
fn cut_and_longer_datagrams_are_ignored() {
    let bytes = node(&["secret"]).sign(&SERVES, NOW_MS);
    for cut in 0..bytes.len() {
        let mut receiver = node(&["secret"]);
        let counts =
            Datagram::decode(&bytes[..cut]).is_some_and(|datagram| receiver.verify(&datagram, None, NOW_MS).is_ok());
        assert!(!counts, "{cut} bytes");
    }
    assert_eq!(Datagram::decode(&[&bytes[..], &[0]].concat()), None);
}

#[test]
fn a_datagram_counts_once() {
    let (mut sender, mut receiver) = (node(&["secret"]), node(&["secret"]));
    let sent: Vec<_> = (0..200).map(|_| sender.sign(&HELLO, NOW_MS)).collect();
    // Those of two sockets arrive out of order.
    for pair in sent.chunks(2) {
        assert_eq!(verify(&mut receiver, &pair[1], NOW_MS), Ok(HELLO));
        assert_eq!(verify(&mut receiver, &pair[0], NOW_MS), Ok(HELLO));
    }
    for bytes in &sent {
        assert_eq!(verify(&mut receiver, bytes, NOW_MS), Err(Refusal::Replayed));
    }
    // A far older one cannot be told from one that was heard.
    let (late, mut receiver) = (&sent[0], node(&["secret"]));
    assert_eq!(verify(&mut receiver, &sent[199], NOW_MS), Ok(HELLO));
    assert_eq!(verify(&mut receiver, late, NOW_MS), Err(Refusal::Replayed));
    // Another process begins anew.
    assert_eq!(verify(&mut receiver, &node(&["secret"]).sign(&HELLO, NOW_MS), NOW_MS), Ok(HELLO));
}

#[test]
fn each_of_two_interfaces_on_a_link_hears_a_datagram_once() {
    let (mut sender, mut receiver) = (node(&["secret"]), node(&["secret"]));
    let mut verify = |bytes: &[u8], interface| {
        receiver.verify(&Datagram::decode(bytes).expect("of this protocol"), interface, NOW_MS)
    };
    let sent: Vec<_> = (0..300).map(|_| sender.sign(&SERVES, NOW_MS)).collect();
    for bytes in &sent {
        for interface in [Some(4), Some(5)] {
            assert_eq!(verify(bytes, interface), Ok(()), "{interface:?}");
            assert_eq!(verify(bytes, interface), Err(Refusal::Replayed), "{interface:?}");
        }
        assert_eq!(verify(bytes, None), Err(Refusal::Replayed), "repeated over IPv4");
    }
    // An interface that has heard none yet takes none that is older than the window of the others.
    assert_eq!(verify(&sent[300 - 129], Some(6)), Err(Refusal::Replayed));
    assert_eq!(verify(&sent[300 - 128], Some(6)), Ok(()));
    let over_ipv4 = sender.sign(&SERVES, NOW_MS);
    assert_eq!(verify(&over_ipv4, None), Ok(()));
    for interface in [None, Some(4)] {
        assert_eq!(verify(&over_ipv4, interface), Err(Refusal::Replayed), "{interface:?}");
    }
}

#[test]
fn interfaces_that_are_gone_take_no_room() {
    let (mut sender, mut receiver) = (node(&["secret"]), node(&["secret"]));
    for interface in 0..1000 {
        let bytes = sender.sign(&SERVES, NOW_MS);
        receiver.verify(&Datagram::decode(&bytes).expect("of this protocol"), Some(interface), NOW_MS).expect("new");
    }
    assert!(receiver.heard.values().all(|process| process.heard.len() <= 128));
}

#[test]
fn a_datagram_counts_only_near_its_time() {
    for (sent_ms, expected) in [
        (NOW_MS - SKEW_MS, Ok(HELLO)),
        (NOW_MS + SKEW_MS, Ok(HELLO)),
        (NOW_MS - SKEW_MS - 1, Err(Refusal::WrongTime)),
        (NOW_MS + SKEW_MS + 1, Err(Refusal::WrongTime)),
        (0, Err(Refusal::WrongTime)),
        (u64::MAX, Err(Refusal::WrongTime)),
    ] {
        let bytes = node(&["secret"]).sign(&HELLO, sent_ms);
        assert_eq!(verify(&mut node(&["secret"]), &bytes, NOW_MS), expected, "{sent_ms}");
    }
}

#[test]
fn a_process_is_forgotten_only_when_its_datagrams_are_too_old() {
    let (mut sender, mut receiver) = (node(&["secret"]), node(&["secret"]));
    // From a clock that is ahead.
    let bytes = sender.sign(&HELLO, NOW_MS + SKEW_MS);
    assert_eq!(verify(&mut receiver, &bytes, NOW_MS), Ok(HELLO));
    let fill = |receiver: &mut Authenticator, now_ms| {
        let mut others = (0..2 * PROCESSES_MAX).map(|_| node(&["secret"]).sign(&HELLO, now_ms));
        others.find_map(|bytes| verify(receiver, &bytes, now_ms).err())
    };
    assert_eq!(fill(&mut receiver, NOW_MS), Some(Refusal::Crowded));
    assert_eq!(receiver.heard.len(), PROCESSES_MAX);
    assert_eq!(verify(&mut receiver, &sender.sign(&HELLO, NOW_MS), NOW_MS), Ok(HELLO), "a known one");
    let last_ms = NOW_MS + 2 * SKEW_MS;
    assert_eq!(fill(&mut receiver, last_ms), Some(Refusal::Crowded));
    assert_eq!(verify(&mut receiver, &bytes, last_ms), Err(Refusal::Replayed));
    // The renewed one stays; the others are gone.
    assert_eq!(verify(&mut receiver, &node(&["secret"]).sign(&HELLO, last_ms + 1), last_ms + 1), Ok(HELLO));
    assert_eq!(verify(&mut receiver, &bytes, last_ms + 1), Err(Refusal::WrongTime));
}

#[test]
fn nodes_without_the_key_are_told_apart() {
    let (plain, signed) = (node(&[]).sign(&HELLO, NOW_MS), node(&["secret"]).sign(&HELLO, NOW_MS));
    assert_eq!(verify(&mut node(&[]), &plain, NOW_MS), Ok(HELLO), "as all versions do");
    assert_eq!(verify(&mut node(&["secret"]), &plain, NOW_MS), Err(Refusal::Unsigned));
    assert_eq!(verify(&mut node(&["other"]), &signed, NOW_MS), Err(Refusal::UnknownKey));
    assert_eq!(verify(&mut node(&[]), &signed, NOW_MS), Err(Refusal::NoKey));
    assert_eq!(plain, HELLO.encode());
}

#[test]
fn keys_are_rolled_without_a_gap() {
    // Each step is on some of the nodes already, and not on the others.
    let steps = [&["old"][..], &["old", "new"], &["new", "old"], &["new"]];
    for pair in steps.windows(2) {
        for (from, to) in [(pair[0], pair[1]), (pair[1], pair[0])] {
            let bytes = node(from).sign(&HELLO, NOW_MS);
            assert_eq!(verify(&mut node(to), &bytes, NOW_MS), Ok(HELLO), "{from:?} → {to:?}");
        }
    }
    let mut receiver = node(&["old"]);
    let key = |secret: &str| Key::derive(secret.as_bytes()).expect("derived");
    assert!(!receiver.replace(vec![key("old")]) && receiver.replace(vec![key("new"), key("old")]));
    assert_eq!(verify(&mut receiver, &node(&["old"]).sign(&HELLO, NOW_MS), NOW_MS), Ok(HELLO));
}

#[test]
fn no_secret_is_shown() {
    let shown = format!("{:?}", node(&["hunter2hunter2"]));
    let Key { mac, id: _ } = Key::derive(b"hunter2hunter2").expect("derived");
    assert!(!shown.contains("hunter2"), "{shown}");
    assert!(format!("{mac:?}").len() < 60, "{mac:?}");
}

proptest::proptest! {
    #[test]
    fn no_bytes_of_strangers_count(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..120)) {
        for head in [&b""[..], b"xdpi\x01", b"xdpi\x02", &SIGNED] {
            let bytes = [head, &bytes].concat();
            let counts = Datagram::decode(&bytes)
                .is_some_and(|datagram| node(&["secret"]).verify(&datagram, None, NOW_MS).is_ok());
            proptest::prop_assert!(!counts);
        }
    }
}
