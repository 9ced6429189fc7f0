//! Policy for client certificates of a host. They are not verified here.

use std::{fmt, sync::Arc};

use rustls_pki_types::CertificateRevocationListDer;

use super::{Authorities, Pattern, Template};

/// Requirements on the certificates of one host's clients. They apply to the host as a whole, because the handshake
/// comes before any path is known.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientCertificates {
    pub authorities: Arc<Authorities>,
    /// Revocation lists of the authorities. If there are any, each certificate of a chain must be covered by one.
    pub revoked: Vec<CertificateRevocationListDer<'static>>,
    pub demand: Demand,
    /// Maximum number of certificates between the client's and an authority's. Default 1.
    pub depth: usize,
    /// Whether the certificate is forwarded to pods.
    pub passed: bool,
    /// The common name that certificates must have, as a whole; else 403. Default any.
    pub name: Option<Pattern>,
    /// Location that clients without a valid certificate are redirected to, with 302, instead of 400. Default none.
    pub error_page: Option<Template>,
}

/// Treatment of clients without a valid certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Demand {
    /// Refused with 400.
    #[default]
    Required,
    /// Admitted without a certificate; an invalid one gets 400.
    Optional,
    /// Admitted also with a certificate of an unknown authority; the pod decides.
    OfAnyIssuer,
}

impl fmt::Display for ClientCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { authorities, revoked, demand, depth, passed, name, error_page } = self;
        let demand = match demand {
            Demand::Required => "required",
            Demand::Optional => "optional",
            Demand::OfAnyIssuer => "of any issuer",
        };
        write!(f, "{demand} by {}, depth {depth}, {} revocation lists", authorities.origin, revoked.len())?;
        if *passed {
            f.write_str(", passed")?;
        }
        if let Some(name) = name {
            write!(f, ", named {}", name.as_str())?;
        }
        error_page.as_ref().map_or(Ok(()), |page| write!(f, ", else {page}"))
    }
}

impl fmt::Debug for ClientCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientCertificates({self})")
    }
}
