//! Serves requests.
