//! Certificates that clients of an Ingress's hosts must have. Hosts are unknown here: the demands hold for each host of
//! the Ingress.

use std::sync::Arc;

use super::{
    row::{Row, key},
    scope::{Refusal, Scope},
};
use crate::{
    change::Kind,
    outcome::Reason,
    translate::{
        certificate_secret::{authorities, revoked},
        values::{boolean, number, secret},
    },
};
use ingress_model::{ClientCertificates, Demand};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedClientCertificates>] = &[
    key(
        "auth-tls-pass-certificate-to-upstream",
        "whether pods get the client certificate in `ssl-client-cert`, as percent-encoded PEM",
    )
    .default("false")
    .reads(|value, parsed| boolean(value, &mut parsed.passed)),
    key(
        "auth-tls-secret",
        "a Secret with the authorities for client certificates in `ca.crt`, and optionally revocations in `ca.crl`. \
         It applies to all paths of the hosts, of any Ingress; if two Ingresses differ, the older one decides. Pods \
         get `ssl-client-verify` (`SUCCESS`, `NONE` or `FAILED:` and the reason), `ssl-client-subject-dn` and \
         `ssl-client-issuer-dn`",
    )
    .naming(Kind::Secret)
    .or_refuse()
    .reads(|value, parsed| secret(value, &mut parsed.secret)),
    key(
        "auth-tls-verify-client",
        "`on`: requests without a valid certificate get 400; `optional`: clients may omit the certificate; \
         `optional_no_ca`: its issuer may be unknown, too; `off`: the handshake requests none. Over plain HTTP, \
         requests get 403 or a redirect. The default is `on` with `auth-tls-secret`",
    )
    .or_refuse()
    .reads(|value, parsed| {
        parsed.verify = match value {
            "on" => Wish::On(Demand::Required),
            "optional" => Wish::On(Demand::Optional),
            "optional_no_ca" => Wish::On(Demand::OfAnyIssuer),
            "off" => Wish::Off,
            _ => return Err("`on`, `off`, `optional` or `optional_no_ca`".into()),
        };
        Ok(())
    }),
    key(
        "auth-tls-verify-depth",
        "largest number of certificates between the client's and the one in `ca.crt`; never more than 6",
    )
    .default("1")
    .or_refuse()
    .reads(|value, parsed| {
        number(value, 0..=100, &mut parsed.depth).ok_or("a number up to 100")?;
        Ok(())
    }),
];

/// Values as they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedClientCertificates {
    secret: Option<String>,
    verify: Wish,
    depth: usize,
    passed: bool,
}

/// The value of `auth-tls-verify-client`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// Not set: certificates are required if there is a Secret to verify them with.
    Unsaid,
    Off,
    On(Demand),
}

impl Default for ParsedClientCertificates {
    fn default() -> Self {
        Self { secret: None, verify: Wish::Unsaid, depth: 1, passed: false }
    }
}

/// The demands for the hosts of an Ingress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Clients {
    /// The Ingress demands nothing.
    #[default]
    Any,
    With(Arc<ClientCertificates>),
    /// The demand cannot be met, so all clients are refused.
    Refused,
}

// === impl ParsedClientCertificates ===

impl ParsedClientCertificates {
    /// Returns the demands, or the reason why they cannot be met.
    pub(super) fn build(self, scope: &mut Scope<'_, '_>) -> Result<Clients, Refusal> {
        let Self { secret, verify, depth, passed } = self;
        let demand = match (verify, &secret) {
            (Wish::Off, _) | (Wish::Unsaid, None) => return Ok(Clients::Any),
            (Wish::Unsaid, Some(_)) => Demand::Required,
            (Wish::On(demand), _) => demand,
        };
        let Some(value) = secret else {
            let message = "annotation `auth-tls-verify-client` requires client certificates, but no certificate authority is set; its rules answer 503, name a Secret with `ca.crt` in `auth-tls-secret`";
            return Err((Reason::InvalidAnnotation, message.to_owned()));
        };
        let name = scope.own("auth-tls-secret", &value, "Secret")?;
        let Some(stored) = scope.lookup.secret(&name) else {
            let message =
                format!("Secret `{name}` of `auth-tls-secret` does not exist; its rules answer 503, create it");
            return Err((Reason::SecretNotFound, message));
        };
        let broken = |reason: String| {
            let message =
                format!("Secret `{name}` of `auth-tls-secret`: {reason}; its rules answer 503, correct the Secret");
            (Reason::InvalidCertificate, message)
        };
        let authorities = Arc::new(authorities(&name, &stored.object).map_err(broken)?);
        let revoked = revoked(&stored.object).map_err(broken)?;
        Ok(Clients::With(Arc::new(ClientCertificates { authorities, revoked, demand, depth, passed })))
    }
}
