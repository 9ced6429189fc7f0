//! Mirroring of requests to a second upstream.

use std::{fmt, num::NonZeroU32};

use http::HeaderValue;

use super::super::{Template, UpstreamKey, route::EvenSpread};

/// A second receiver of requests. Its responses are discarded. A rule may have several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    pub upstream: UpstreamKey,
    /// Value of `Host` for the mirror; `None` is the one that the pod gets.
    pub host: Option<HeaderValue>,
    /// Path and query of mirrored requests; `None` is the target that the pod gets.
    pub target: Option<Template>,
    /// Whether the body is mirrored, too.
    pub body: bool,
    /// Share of requests that are mirrored; `None` is all.
    pub share: Option<MirrorShare>,
}

/// A share of requests, spread evenly over them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorShare {
    numerator: u32,
    denominator: NonZeroU32,
    spread: EvenSpread,
}

// === impl Mirror, MirrorShare ===

impl Mirror {
    /// Returns whether the next request is mirrored.
    #[must_use]
    pub fn takes_next(&self) -> bool {
        self.share
            .as_ref()
            .is_none_or(|MirrorShare { numerator, denominator, spread }| spread.takes(*numerator, *denominator))
    }
}

impl MirrorShare {
    /// Returns a share of `numerator` out of `denominator` requests, or `None` if that is no share: the denominator is 0,
    /// or below the numerator.
    #[must_use]
    pub fn new(numerator: u32, denominator: u32) -> Option<Self> {
        let denominator = NonZeroU32::new(denominator).filter(|denominator| numerator <= denominator.get())?;
        Some(Self { numerator, denominator, spread: EvenSpread::new() })
    }
}

/// Formats the mirror, such as `default/shadow:80/$request_uri`.
impl fmt::Display for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { upstream, host: _, target, body, share } = self;
        write!(f, "{upstream}{}", target.as_ref().map_or("", Template::as_str))?;
        if !body {
            f.write_str(", without body")?;
        }
        match share {
            Some(MirrorShare { numerator, denominator, spread: _ }) => write!(f, ", {numerator}/{denominator}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_at_most_everything() {
        for (numerator, denominator, expect) in
            [(0, 1, true), (1, 1, true), (2, 1, false), (0, 0, false), (1, 100, true)]
        {
            assert_eq!(MirrorShare::new(numerator, denominator).is_some(), expect, "{numerator}/{denominator}");
        }
    }

    #[test]
    fn a_mirror_is_shown_with_its_share() {
        let upstream = UpstreamKey::new("default", "shadow", "80");
        let mirror = Mirror { upstream, host: None, target: None, body: true, share: MirrorShare::new(25, 50) };
        assert_eq!(mirror.to_string(), "default/shadow:80, 25/50");
        // The state of the sequence is no difference.
        let other = mirror.clone();
        let taken = (0..100).filter(|_| other.takes_next()).count();
        assert!((45..=55).contains(&taken), "{taken}");
        assert_eq!(mirror, other);
        let all = Mirror { body: false, share: None, ..mirror };
        assert_eq!(all.to_string(), "default/shadow:80, without body");
        assert!((0..100).all(|_| all.takes_next()));
    }
}
