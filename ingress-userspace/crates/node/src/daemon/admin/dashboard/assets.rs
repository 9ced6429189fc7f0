//! Files that pages load: the style, the script and the icon. They are part of the binary.

use http::{HeaderValue, Response, StatusCode, header};
use ingress_control::fnv;

use super::super::body::AdminBody;

/// A file of the dashboard.
struct Asset {
    name: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
    /// Entity tag, made of the contents: a browser asks for a file again only after an update.
    tag: u64,
}

const ASSETS: [Asset; 3] = [
    asset("dashboard.css", "text/css; charset=utf-8", include_bytes!("assets/dashboard.css")),
    asset("dashboard.js", "text/javascript; charset=utf-8", include_bytes!("assets/dashboard.js")),
    asset("icon.svg", "image/svg+xml", include_bytes!("assets/icon.svg")),
];

const fn asset(name: &'static str, content_type: &'static str, bytes: &'static [u8]) -> Asset {
    Asset { name, content_type, bytes, tag: fnv(bytes) }
}

/// Returns the asset `name`, or 304 if the client holds it; `None` if there is no such asset.
pub(super) fn answer(name: &str, held: Option<&HeaderValue>) -> Option<Response<AdminBody>> {
    let Asset { content_type, bytes, tag, .. } = ASSETS.iter().find(|asset| asset.name == name)?;
    let tag = HeaderValue::from_str(&format!("\"{tag:016x}\"")).ok()?;
    let mut response = Response::new(AdminBody::fixed(bytes));
    if held == Some(&tag) {
        response = Response::new(AdminBody::fixed(&[]));
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::ETAG, tag);
    Some(response)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    #[test]
    fn assets_are_small() {
        let zipped = |bytes: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(bytes).expect("memory");
            encoder.finish().expect("memory").len()
        };
        assert!(ASSETS.iter().map(|asset| zipped(asset.bytes)).sum::<usize>() <= 60 * 1024);
        let script = ASSETS.iter().find(|asset| asset.name == "dashboard.js").expect("there");
        assert!(script.bytes.len() <= 15 * 1024);
    }

    #[test]
    fn a_held_asset_is_not_sent_again() {
        let first = answer("dashboard.css", None).expect("there");
        let tag = &first.headers()[header::ETAG];
        assert_eq!(answer("dashboard.css", Some(tag)).expect("there").status(), 304);
        assert_eq!(answer("dashboard.js", Some(tag)).expect("there").status(), 200, "the tag is of another file");
        assert!(answer("other.css", None).is_none());
    }

    #[test]
    fn assets_ask_for_nothing_elsewhere() {
        for Asset { name, bytes, .. } in ASSETS {
            let text = std::str::from_utf8(bytes).expect("text").replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("://") && !text.contains("@import") && !text.contains("eval("), "{name}");
        }
    }
}
