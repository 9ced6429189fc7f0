//! Whose certificates the clients of a host must show. It verifies none.

use std::{fmt, sync::Arc};

use rustls_pki_types::CertificateRevocationListDer;

use super::Authorities;

/// What holds for the certificates of one host's clients. It belongs to the host as a whole, because the handshake
/// knows no path.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientCertificates {
    pub authorities: Arc<Authorities>,
    /// What they have revoked. If there is any list, each certificate of a chain must be covered by one.
    pub revoked: Vec<CertificateRevocationListDer<'static>>,
    pub demand: Demand,
    /// Most certificates between that of a client and an authority. Default 1.
    pub depth: usize,
    /// Whether pods are told the certificate.
    pub passed: bool,
}

/// What becomes of clients without a valid certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Demand {
    /// They get 400.
    #[default]
    Required,
    /// They come in if they show none; one that is not valid gets 400.
    Optional,
    /// They come in also with one that no known authority has issued; the pod decides.
    OfAnyIssuer,
}

impl fmt::Display for ClientCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { authorities, revoked, demand, depth, passed } = self;
        let demand = match demand {
            Demand::Required => "required",
            Demand::Optional => "optional",
            Demand::OfAnyIssuer => "of any issuer",
        };
        write!(f, "{demand} by {}, depth {depth}, {} revocation lists", authorities.origin, revoked.len())?;
        if *passed { f.write_str(", passed") } else { Ok(()) }
    }
}

impl fmt::Debug for ClientCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientCertificates({self})")
    }
}
