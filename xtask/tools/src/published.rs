//! The addresses at which the project is published. They are placeholders until there is a public place; pages,
//! manifests and the chart in the work tree name the same ones.

/// Registry of image and chart, in front of `/xdp-ingress` and `/charts/xdp-ingress`. `cargo xtask release --registry`
/// replaces it.
pub const REGISTRY: &str = "registry.example.com/xdp-ingress";
/// The site of the documentation, without a slash at the end.
pub const HOME: &str = "https://xdp-ingress.example.com";
/// The repository of the sources.
pub const SOURCES: &str = "https://git.example.com/xdp-ingress";
