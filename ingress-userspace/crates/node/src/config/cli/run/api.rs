//! Options of the heading "API": access to `/api/v1` for people who are not on the node.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

#[derive(Debug, Args)]
#[command(next_help_heading = "API")]
pub(crate) struct ApiArgs {
    /// Address for the API over TLS, for authenticated clients only. Default: the API is on the admin address, for
    /// clients on loopback.
    #[arg(long, value_name = "ADDR:PORT", requires_all = ["api_tls_cert_file", "api_tls_key_file"])]
    pub(crate) api_addr: Option<SocketAddr>,

    /// Certificate of --api-addr in PEM form, followed by its intermediates. New contents are used within 10 seconds.
    #[arg(long, value_name = "PATH", requires = "api_addr")]
    pub(crate) api_tls_cert_file: Option<PathBuf>,

    /// Private key of that certificate in PEM form.
    #[arg(long, value_name = "PATH", requires = "api_addr")]
    pub(crate) api_tls_key_file: Option<PathBuf>,

    /// Authorities in PEM form; clients with a certificate of one of them may read the API.
    #[arg(long, value_name = "PATH", requires = "api_addr")]
    pub(crate) api_client_ca_file: Option<PathBuf>,

    /// Accept bearer tokens of users who may `get` the nonResourceURL `/xdp-ingress/api`. The API server decides; the
    /// service account needs `create` on `tokenreviews` and `subjectaccessreviews`.
    #[arg(long, requires = "api_addr", conflicts_with = "manifests")]
    pub(crate) api_token_review: bool,
}
