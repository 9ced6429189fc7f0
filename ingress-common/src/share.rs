//! Share of the clients whose new TCP connections this ingress takes. The connections of other clients are left to
//! another listener of the same port, such as that of an ingress controller that is being replaced (ADR 0056).

use crate::{ClientKey, steer};

/// All clients, as a number of places: see [`place`].
pub const SHARE_ALL: u16 = 1 << 15;
/// Life of a share without renewal, in seconds. Afterwards all new connections are left.
pub const SHARE_LASTS_S: u32 = 300;

/// No share was ever set; all clients are taken, as by versions without a share.
pub const SHARE_UNSET: u16 = 0;
/// The process that owns the node renews the share.
pub const SHARE_KEPT: u16 = 1;
/// The command that watches the share renews it.
pub const SHARE_WATCHED: u16 = 2;

/// Value of [`crate::map::SHARE`]. Both sides read and write it as one word, so that no program sees half of a change,
/// and no process undoes the change of another.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Share {
    /// Second of `CLOCK_MONOTONIC` from which on no client is taken; 0 for a share that does not expire.
    pub expires_s: u32,
    /// Clients with a [`place`] below this number are taken; at most [`SHARE_ALL`].
    pub taken: u16,
    /// `SHARE_UNSET`, `SHARE_KEPT` or `SHARE_WATCHED`. The other fields are 0 with `SHARE_UNSET`.
    pub state: u16,
}

impl Share {
    /// Returns the share in a word of memory.
    #[must_use]
    #[inline(always)]
    pub const fn of(word: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
        Self {
            expires_s: u32::from_ne_bytes([a, b, c, d]),
            taken: u16::from_ne_bytes([e, f]),
            state: u16::from_ne_bytes([g, h]),
        }
    }

    /// Returns the word of memory that holds the share.
    #[must_use]
    pub const fn word(self) -> u64 {
        let Self { expires_s, taken, state } = self;
        let ([a, b, c, d], [e, f], [g, h]) = (expires_s.to_ne_bytes(), taken.to_ne_bytes(), state.to_ne_bytes());
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    }

    /// Returns `true` if new connections of the client at `addr` (IPv4 as v4-mapped) are taken at the time `now_ns`.
    ///
    /// A larger share takes the clients of each smaller one, so a change moves clients in one direction only.
    #[must_use]
    #[inline(always)]
    pub const fn takes(&self, addr: &[u8; 16], now_ns: u64) -> bool {
        if self.state == SHARE_UNSET {
            return true;
        }
        // All clients need no hash.
        (self.taken >= SHARE_ALL || place(addr) < self.taken) && !self.is_over(now_ns)
    }

    /// Returns `true` if the share has expired.
    #[must_use]
    #[inline(always)]
    pub const fn is_over(&self, now_ns: u64) -> bool {
        self.expires_s != 0 && now_ns >= self.expires_s as u64 * 1_000_000_000
    }
}

/// Returns the place of a client among [`SHARE_ALL`]: the same for each of its connections, on every node. All addresses
/// of an IPv6 /64 are one client.
#[must_use]
#[inline(always)]
pub const fn place(addr: &[u8; 16]) -> u16 {
    (steer::mixed(&ClientKey::of(addr).addr, 0) >> 1) as u16
}

const _: () = assert!(size_of::<Share>() == 8 && align_of::<Share>() == 8);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::v4_mapped;

    #[test]
    fn a_word_is_the_share() {
        let share = Share { expires_s: 0x0102_0304, taken: 0x0506, state: 0x0708 };
        assert_eq!(Share::of(share.word()), share);
        assert_eq!(Share::default().word(), 0);
    }

    /// Neighbours, of which a network has many, are spread like strangers.
    #[test]
    fn a_share_is_that_part_of_any_network() {
        let v4 = |n: u32| v4_mapped((0x0a00_0000 + n).to_be_bytes());
        let far = |n: u32| v4_mapped(n.rotate_right(16).to_be_bytes());
        let v6 = |n: u32| ((0x2001_0db8_u128 << 96) + (u128::from(n) << 64)).to_be_bytes();
        let customers = |n: u32| ((0x2001_0db8_u128 << 96) + (u128::from(n) << 72)).to_be_bytes();
        let families: [&dyn Fn(u32) -> [u8; 16]; 4] = [&v4, &far, &v6, &customers];
        for (number, address) in families.iter().enumerate() {
            for percent in [1, 10, 50, 90] {
                let taken = (u32::from(SHARE_ALL) * percent / 100) as u16;
                let share = Share { expires_s: 0, taken, state: SHARE_KEPT };
                let count = (0..20_000).filter(|n| share.takes(&address(*n), 1)).count() as u32;
                let expected = 200 * percent;
                assert!(count.abs_diff(expected) <= 60 + expected / 10, "{number}: {count} of {percent} %");
            }
        }
    }

    #[test]
    fn a_share_has_an_end_and_an_absent_one_takes_all() {
        let client = v4_mapped([192, 0, 2, 1]);
        assert!(Share::default().takes(&client, u64::MAX));
        let all = Share { expires_s: 5, taken: SHARE_ALL, state: SHARE_KEPT };
        assert!((0..=255).all(|n| all.takes(&v4_mapped([192, 0, 2, n]), 4_999_999_999)));
        assert!(!all.takes(&client, 5_000_000_000));
        let none = Share { expires_s: 0, taken: 0, state: SHARE_KEPT };
        assert!((0..=255).all(|n| !none.takes(&v4_mapped([192, 0, 2, n]), 0)));
    }
}
