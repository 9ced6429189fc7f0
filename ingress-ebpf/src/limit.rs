//! Checks a packet against the limits of its client, and computes the tokens to take from the client's buckets. Counts
//! nothing and changes nothing.
//!
//! A bucket is represented by the time at which it is full (GCRA, ITU-T I.371, virtual scheduling), and a token is a
//! span of time. The program therefore needs no division and no refill. Taking a token is an addition, which several
//! CPUs can make at once without losing one.

use ingress_common::{Bucket, ClientEntry, LimitBuckets};

/// The limit that a packet exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limited {
    /// A SYN for which the SYN bucket had no token.
    Syn,
    /// A packet of any kind for which the packet bucket had no token.
    Packet,
}

/// Draws of a packet within the limits from both buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draws {
    pub syns: Draw,
    pub packets: Draw,
}

/// Change of the time at which a bucket is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// No change.
    Leave,
    /// Add this span.
    Add(u64),
    /// Replace the time with this one, because it has passed.
    Set(u64),
}

/// Takes a token from each bucket that `limits` has for such a packet, or none at all.
///
/// # Errors
/// Fails with the limit if a bucket is empty.
#[inline(always)]
pub fn limit(limits: &LimitBuckets, client: &ClientEntry, is_request: bool, now_ns: u64) -> Result<Draws, Limited> {
    let syns = if is_request { draw(&limits.syns, client.syns_full_ns, now_ns) } else { Some(Draw::Leave) };
    let syns = syns.ok_or(Limited::Syn)?;
    let packets = draw(&limits.packets, client.packets_full_ns, now_ns).ok_or(Limited::Packet)?;
    Ok(Draws { syns, packets })
}

/// Returns the draw of one token; `None` if the bucket is empty.
#[inline(always)]
const fn draw(bucket: &Bucket, full_ns: u64, now_ns: u64) -> Option<Draw> {
    if !bucket.is_limit() {
        return Some(Draw::Leave);
    }
    let lacking_ns = full_ns.saturating_sub(now_ns);
    if lacking_ns.saturating_add(bucket.token_ns) > bucket.whole_ns {
        None
    } else if lacking_ns == 0 {
        Some(Draw::Set(now_ns.saturating_add(bucket.token_ns)))
    } else {
        Some(Draw::Add(bucket.token_ns))
    }
}

#[cfg(test)]
mod tests {
    use ingress_common::{ClientKey, flow::v4_mapped};

    use super::*;

    const NOW: u64 = 100_000_000_000;
    const SECOND: u64 = 1_000_000_000;

    impl Draw {
        fn apply(self, full_ns: &mut u64) {
            match self {
                Self::Leave => {}
                Self::Add(token_ns) => *full_ns += token_ns,
                Self::Set(ns) => *full_ns = ns,
            }
        }
    }

    fn limits(syns: (u32, u32), packets: (u32, u32)) -> LimitBuckets {
        let bucket = |(per_second, burst)| Bucket::new(per_second, burst);
        LimitBuckets { syns: bucket(syns), packets: bucket(packets), ..LimitBuckets::default() }
    }

    /// Does the same as the program, on one CPU.
    fn send(limits: &LimitBuckets, client: &mut ClientEntry, is_request: bool, now_ns: u64) -> Result<(), Limited> {
        let Draws { syns, packets } = limit(limits, client, is_request, now_ns)?;
        syns.apply(&mut client.syns_full_ns);
        packets.apply(&mut client.packets_full_ns);
        Ok(())
    }

    /// Returns how many of `count` packets pass at one time.
    fn passing(bucket: &Bucket, full_ns: &mut u64, now_ns: u64, count: usize) -> usize {
        let takes = |_: &usize| draw(bucket, *full_ns, now_ns).map(|draw| draw.apply(full_ns)).is_some();
        (0..count).filter(takes).count()
    }

    #[test]
    fn a_bucket_holds_its_burst_and_refills_at_its_rate() {
        // Rate, burst; then steps of time since the previous one, each with the number of packets that pass out of a
        // hundred.
        type Case = (u32, u32, &'static [(u64, usize)]);
        let cases: [Case; 8] = [
            (10, 10, &[(0, 10), (0, 0), (SECOND / 10, 1), (0, 0), (SECOND / 10 - 1, 0), (1, 1)]),
            (10, 3, &[(0, 3), (SECOND, 3), (SECOND, 3), (SECOND / 5, 2), (SECOND / 20, 0), (SECOND / 20, 1)]),
            (1, 5, &[(0, 5), (2 * SECOND, 2), (3 * SECOND, 3), (1000 * SECOND, 5)]),
            (1, 1, &[(0, 1), (SECOND - 1, 0), (1, 1), (0, 0)]),
            (1_000_000, 50, &[(0, 50), (1000, 1), (10_000, 10), (999, 0), (1, 1)]),
            // The burst exceeds the tokens of a second.
            (10, 60, &[(0, 60), (SECOND, 10), (SECOND / 2, 5), (600 * SECOND, 60)]),
            // A rate that does not divide a second; the time is rounded down, so no token arrives late.
            (3, 3, &[(0, 3), (SECOND, 3), (SECOND, 3)]),
            // Idle for 146 years, twice.
            (100, 7, &[(0, 7), (u64::MAX / 4, 7), (u64::MAX / 4, 7), (SECOND / 100, 1)]),
        ];
        for (rate, burst, steps) in cases {
            let bucket = Bucket::new(rate, burst);
            let (mut now, mut full) = (NOW, 0);
            for &(pause, expect) in steps {
                now += pause;
                assert_eq!(passing(&bucket, &mut full, now, 100), expect, "{rate}/s, {burst}, after {pause} ns");
            }
        }
    }

    #[test]
    fn evenly_spaced_packets_pass_at_the_full_rate() {
        let bucket = Bucket::new(1000, 20);
        let mut full = 0;
        for packet in 0..50_000_u64 {
            assert_eq!(passing(&bucket, &mut full, NOW + packet * SECOND / 1000, 1), 1, "packet {packet}");
        }
        // At twice the rate half of the packets pass, plus the burst.
        let mut full = 0;
        let passed: usize =
            (0..50_000).map(|packet| passing(&bucket, &mut full, NOW + packet * SECOND / 2000, 1)).sum();
        assert!((25_000..=25_020).contains(&passed), "{passed}");
    }

    #[test]
    fn refused_packets_cost_no_tokens() {
        let limits = limits((1, 2), (10, 4));
        let mut client = ClientEntry::default();
        assert_eq!([(); 3].map(|()| send(&limits, &mut client, true, NOW)), [Ok(()), Ok(()), Err(Limited::Syn)]);
        // The refused SYN has taken no packet token: two of four are left.
        assert_eq!([(); 3].map(|()| send(&limits, &mut client, false, NOW)), [Ok(()), Ok(()), Err(Limited::Packet)]);
        // There is a token for a SYN now, but none for a packet: the SYN token stays.
        let later = NOW + SECOND;
        let drained = ClientEntry { packets_full_ns: later + SECOND, ..client };
        assert_eq!(limit(&limits, &drained, true, later), Err(Limited::Packet));
        assert_eq!(send(&limits, &mut client, true, later), Ok(()));
    }

    #[test]
    fn buckets_without_limit_are_not_changed() {
        let full = ClientEntry { syns_full_ns: u64::MAX, packets_full_ns: u64::MAX, ..ClientEntry::default() };
        let left = Draws { syns: Draw::Leave, packets: Draw::Leave };
        for (limits, is_request, expect) in [
            (limits((0, 0), (0, 0)), true, Ok(left)),
            (limits((0, 5), (5, 0)), true, Ok(left)),
            (limits((5, 5), (0, 0)), false, Ok(left)),
            (limits((5, 5), (0, 0)), true, Err(Limited::Syn)),
            (limits((0, 0), (5, 5)), true, Err(Limited::Packet)),
            (limits((0, 0), (5, 5)), false, Err(Limited::Packet)),
            (limits((5, 5), (5, 5)), true, Err(Limited::Syn)),
        ] {
            assert_eq!(limit(&limits, &full, is_request, NOW), expect, "{limits:?}");
        }
    }

    #[test]
    fn concurrent_draws_add_up() {
        // Both CPUs look at the bucket before either has taken a token.
        let bucket = Bucket::new(10, 5);
        let mut full = 0;
        assert_eq!(passing(&bucket, &mut full, NOW, 4), 4);
        let both = [draw(&bucket, full, NOW), draw(&bucket, full, NOW)];
        both.into_iter().flatten().for_each(|draw| draw.apply(&mut full));
        assert_eq!(full, NOW + 6 * SECOND / 10, "one more than it holds, which is owed");
        assert_eq!(passing(&bucket, &mut full, NOW + SECOND / 10, 1), 0, "the token that comes pays for it");
        assert_eq!(passing(&bucket, &mut full, NOW + 2 * SECOND / 10, 2), 1);
        // A CPU with a clock that is behind sees a slightly emptier bucket.
        assert_eq!(draw(&bucket, NOW + 10, NOW), Some(Draw::Add(SECOND / 10)));
        assert_eq!(draw(&bucket, u64::MAX, 0), None);
    }

    #[test]
    fn rates_are_converted_to_token_times() {
        for (rate, burst, token_ns, whole_ns) in [
            (1, 1, SECOND, SECOND),
            (1000, 50, 1_000_000, 50_000_000),
            (3, 2, 333_333_333, 666_666_666),
            (1_000_000, 1_000_000, 1000, SECOND),
            (1, 1_000_000, SECOND, 1_000_000 * SECOND),
            (u32::MAX, 1, 1, 1),
        ] {
            let expect = Bucket { token_ns, whole_ns, per_second: rate, burst };
            assert_eq!(Bucket::new(rate, burst), expect);
            assert!(expect.is_limit());
        }
        for (rate, burst) in [(0, 0), (0, 9), (9, 0)] {
            assert_eq!(Bucket::new(rate, burst), Bucket::default());
            assert!(!Bucket::new(rate, burst).is_limit());
        }
    }

    #[test]
    fn a_client_key_is_an_ipv4_address_or_an_ipv6_64() {
        let v4 = v4_mapped([192, 0, 2, 1]);
        assert_eq!(ClientKey::of(&v4).addr, v4);
        assert_ne!(ClientKey::of(&v4), ClientKey::of(&v4_mapped([192, 0, 2, 2])));
        let v6 = |subnet, host| [0x20, 1, 0xd, 0xb8, 0, 0, 0, subnet, 9, 8, 7, 6, 5, 4, 3, host];
        assert_eq!(ClientKey::of(&v6(1, 1)), ClientKey::of(&v6(1, 2)));
        assert_ne!(ClientKey::of(&v6(1, 1)), ClientKey::of(&v6(2, 1)));
        assert_eq!(ClientKey::of(&v6(1, 1)).addr, [0x20, 1, 0xd, 0xb8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        let keys = [ClientKey::of(&v4), ClientKey::of(&v6(1, 1)), ClientKey::of(&v6(2, 1))];
        for key in keys {
            assert!(!keys.contains(&key.open()), "open connections have an entry of their own: {key:?}");
            assert_eq!((key.open().client(), key.client()), (key, key));
        }
    }
}
