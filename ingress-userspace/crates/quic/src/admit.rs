//! The answer to a client's first packet. Each is accepted, answered with Retry, refused or ignored explicitly:
//! quinn-proto keeps state for it until then.

/// The state of a worker at a client's first packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Connections whose handshake is not complete.
    pub(crate) half_open: usize,
    /// Number of half-open connections that a worker may have.
    pub(crate) half_open_max: usize,
    /// Whether the worker has more connections or memory in use than it should.
    pub(crate) overloaded: bool,
    /// Whether the worker drains, and takes no connections.
    pub(crate) draining: bool,
    /// Whether a token has proven the client's address.
    pub(crate) validated: bool,
}

/// The answer to a client's first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Begin the handshake.
    Accept,
    /// Ask for proof of the address, which costs the client a round trip and the worker no state.
    Retry,
    /// Answer with CONNECTION_REFUSED.
    Refuse,
    /// Answer nothing, so that a forged address gets nothing.
    Ignore,
}

/// Decides about a client's first packet. From a quarter of the permitted half-open connections on, clients must prove
/// their address. From three quarters on, only clients that have done so get an answer.
pub(crate) fn decide(load: Load) -> Admission {
    let Load { half_open, half_open_max, overloaded, draining, validated } = load;
    let is_above = |quarters: usize| half_open.saturating_mul(4) >= half_open_max.saturating_mul(quarters);
    if draining {
        return Admission::Refuse;
    }
    match validated {
        true if is_above(4) => Admission::Refuse,
        true => Admission::Accept,
        false if is_above(3) => Admission::Ignore,
        false if overloaded || is_above(1) => Admission::Retry,
        false => Admission::Accept,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_open_connections_decide() {
        use Admission::{Accept, Ignore, Refuse, Retry};
        // Half-open connections of 1,024, and the answers without and with a token.
        for (half_open, without, with) in [
            (0, Accept, Accept),
            (255, Accept, Accept),
            (256, Retry, Accept),
            (767, Retry, Accept),
            (768, Ignore, Accept),
            (1023, Ignore, Accept),
            (1024, Ignore, Refuse),
            (usize::MAX, Ignore, Refuse),
        ] {
            for (validated, expected) in [(false, without), (true, with)] {
                let load = Load { half_open, half_open_max: 1024, overloaded: false, draining: false, validated };
                assert_eq!(decide(load), expected, "{load:?}");
                let draining = Load { draining: true, ..load };
                assert_eq!(decide(draining), Refuse, "{draining:?}");
            }
        }
    }

    #[test]
    fn an_overloaded_worker_asks_for_proof() {
        let load = Load { half_open: 0, half_open_max: 1024, overloaded: true, draining: false, validated: false };
        assert_eq!(decide(load), Admission::Retry);
        assert_eq!(decide(Load { validated: true, ..load }), Admission::Accept);
    }
}
