//! Authenticates and authorizes the client of a request: passwords, JSON Web Tokens, client certificates, and
//! external authorization.

pub(crate) mod authenticate;
pub(crate) mod authz_cache;
pub(crate) mod ext_authz;
pub(crate) mod failure_log;
pub(crate) mod fair_queue;
pub(crate) mod hmac_cache;
pub(crate) mod jwt;
pub(crate) mod md5_crypt;
pub(crate) mod passwords;
