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
        values::{boolean, location, number, secret},
    },
};
use ingress_model::{ClientCertificates, Demand, Pattern, Template, Variable};

const INSTEAD: &str = "set `spec.tls.frontend` of the Gateway";

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedClientCertificates>] = &[
    key(
        "auth-tls-error-page",
        "URL that clients without a valid certificate are redirected to, with 302, instead of 400; with variables",
    )
    .differs("a path of the host is refused, and its rules answer 503")
    .or_refuse()
    .not_on_routes(INSTEAD).reads(|value, parsed| {
        let is_url = value.starts_with("https://") || value.starts_with("http://");
        let page = location(value)?;
        let has_group = page.variables().any(|variable| matches!(variable, Variable::Group(_)));
        parsed.error_page = Some(page).filter(|_| is_url && !has_group);
        parsed.error_page.is_some().then_some(()).ok_or_else(|| "a URL that begins with `https://` or `http://`".into())
    }),
    key(
        "auth-tls-match-cn",
        "`CN=EXPRESSION`: the regular expression for the common name of client certificates, as a whole; other clients get \
         403. Needs `auth-tls-secret`. With `auth-tls-verify-client: optional_no_ca`, any client can claim a name, as in nginx",
    )
    .differs(
        "the expression must match the whole common name, and sees no other part of the subject; look-around and back \
         references are refused, and its rules answer 503",
    )
    .or_refuse()
    .not_on_routes(INSTEAD).reads(|value, parsed| {
        let expression = value.strip_prefix("CN=").filter(|expression| !expression.is_empty());
        // Elsewhere, a comma would lead to the next part of the subject.
        let expression = expression.filter(|expression| !expression.contains(','));
        let expression = expression.ok_or("`CN=` and a regular expression without commas, as `CN=.*\\.a\\.test`")?;
        let name = Pattern::of_field(expression).map_err(|error| format!("`CN=` and a regular expression ({error})"))?;
        parsed.name = Some(name);
        Ok(())
    }),
    key(
        "auth-tls-pass-certificate-to-upstream",
        "whether pods get the client certificate in `ssl-client-cert`, as percent-encoded PEM",
    )
    .default("false")
    .not_on_routes(INSTEAD).reads(|value, parsed| boolean(value, &mut parsed.passed)),
    key(
        "auth-tls-secret",
        "a Secret with the authorities for client certificates in `ca.crt`, and optionally revocations in `ca.crl`. \
         It applies to all paths of the hosts, of any Ingress; if two Ingresses differ, the older one decides. Pods \
         get `ssl-client-verify` (`SUCCESS`, `NONE` or `FAILED:` and the reason), `ssl-client-subject-dn` and \
         `ssl-client-issuer-dn`",
    )
    .naming(Kind::Secret)
    .or_refuse()
    .not_on_routes(INSTEAD).reads(|value, parsed| secret(value, &mut parsed.secret)),
    key(
        "auth-tls-verify-client",
        "`on`: requests without a valid certificate get 400; `optional`: clients may omit the certificate; \
         `optional_no_ca`: its issuer may be unknown, too; `off`: the handshake requests none. Over plain HTTP, \
         requests get 403 or a redirect. The default is `on` with `auth-tls-secret`",
    )
    .or_refuse()
    .not_on_routes(INSTEAD).reads(|value, parsed| {
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
    .not_on_routes(INSTEAD).reads(|value, parsed| {
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
    name: Option<Pattern>,
    error_page: Option<Template>,
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
        Self { secret: None, verify: Wish::Unsaid, depth: 1, passed: false, name: None, error_page: None }
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
        let Self { secret, verify, depth, passed, name, error_page } = self;
        let demand = match (verify, &secret) {
            // Without a demand for certificates, no client would have the name.
            (Wish::Off, _) | (Wish::Unsaid, None) if name.is_some() => {
                let message = "annotation `auth-tls-match-cn` demands a name, but no certificates are requested; its rules \
                               answer 503, set `auth-tls-secret` and `auth-tls-verify-client: \"on\"`";
                return Err((Reason::InvalidAnnotation, message.to_owned()));
            }
            (Wish::Off, _) | (Wish::Unsaid, None) => return Ok(Clients::Any),
            (Wish::Unsaid, Some(_)) => Demand::Required,
            (Wish::On(demand), _) => demand,
        };
        let Some(value) = secret else {
            let message = "annotation `auth-tls-verify-client` requires client certificates, but no certificate authority is set; its rules answer 503, name a Secret with `ca.crt` in `auth-tls-secret`";
            return Err((Reason::InvalidAnnotation, message.to_owned()));
        };
        let secret = scope.own("auth-tls-secret", &value, "Secret")?;
        let Some(stored) = scope.lookup.secret(&secret) else {
            let message =
                format!("Secret `{secret}` of `auth-tls-secret` does not exist; its rules answer 503, create it");
            return Err((Reason::SecretNotFound, message));
        };
        let broken = |reason: String| {
            let message =
                format!("Secret `{secret}` of `auth-tls-secret`: {reason}; its rules answer 503, correct the Secret");
            (Reason::InvalidCertificate, message)
        };
        let authorities = Arc::new(authorities(&secret, &stored.object).map_err(broken)?);
        let revoked = revoked(&stored.object).map_err(broken)?;
        let clients = ClientCertificates { authorities, revoked, demand, depth, passed, name, error_page };
        Ok(Clients::With(Arc::new(clients)))
    }
}
