//! Debian's packages of the peers with HTTP/3, and of the libraries that they need. This file is data; it fetches
//! nothing.

use xtask_setup::debian::Recorded;

/// The package of trixie itself is from 2022. Debian has this one for amd64 only.
const CADDY: Recorded<'_> = Recorded {
    name: "caddy",
    suite: "trixie-backports",
    version: "2.11.2-1~bpo13+1",
    sha256: &[("amd64", "e11c13b0e0e62ec7b28a04add94b9af276c27fa8e7ee6c0da6165fb7cb8c3989")],
};
const NGINX_ITSELF: Recorded<'_> = stable(
    "nginx",
    "1.26.3-3+deb13u10",
    &[
        ("amd64", "222f1f296cb91a67323fdca0e37c4f34a7be78d14de043f15b2f76acdd8750a9"),
        ("arm64", "3c437f0c988bd93a5222d4ecd52e4de2c0af1a2fcba2453a619a73908dbcf04e"),
    ],
);
const HAPROXY_ITSELF: Recorded<'_> = stable(
    "haproxy",
    "3.0.11-1+deb13u4",
    &[
        ("amd64", "4649521efe386e6c2957cb034bbf82412cd6eced55b98b9dada1b933c2c4b81a"),
        ("arm64", "c924852ed8ce828695e334de5c9ce93fccc0a6bb7f83b4b6a27d71158feb3fcb"),
    ],
);
const LIBC: Recorded<'_> = stable(
    "libc6",
    "2.41-12+deb13u5",
    &[
        ("amd64", "b59b0625cd1a791375d40dab23a4d5d3d0641e3d0a773501becdc3725b7f99cf"),
        ("arm64", "0966fc3da1a26cc57647c68b5736f791b6e7eb498173a7993f63b6c89b4ed4f5"),
    ],
);
const CRYPT: Recorded<'_> = stable(
    "libcrypt1",
    "1:4.4.38-1",
    &[
        ("amd64", "0ebc144d662e3197982d1bf3a7b8b35ca845e54c68811de0328b1f0d7c67585c"),
        ("arm64", "b9aaa808aa3812b3de3e54eb5dfb16762c1779db032604abef2354c02fdc29b8"),
    ],
);
const PCRE: Recorded<'_> = stable(
    "libpcre2-8-0",
    "10.46-1~deb13u3",
    &[
        ("amd64", "e226f661d918f04daf38cdbc4806b7ed7d6ef95c7eb0ade692fc350e31970040"),
        ("arm64", "1a02b7129990690ea095fd35d7ace6853742923d158019e1fb4ef27efd2c51a7"),
    ],
);
const OPENSSL: Recorded<'_> = stable(
    "libssl3t64",
    "3.5.9-1~deb13u1",
    &[
        ("amd64", "ffefb9af363e0e4592251b2533eb06453c8e470f7772e40263c4b2129251a6d5"),
        ("arm64", "18edc2b123e8e81efcc14ea5502454b4505285aa9d3325c22315e9304acb25ca"),
    ],
);
const ZLIB: Recorded<'_> = stable(
    "zlib1g",
    "1:1.3.dfsg+really1.3.1-1+deb13u1",
    &[
        ("amd64", "8c27c342230503b73dfde629642c3b352e87b554e06d60cf58772f236a305ceb"),
        ("arm64", "0e41b3d7ad8ad7fcd36dd4d61ca91a70018478fc4af652e044f4be770784ddff"),
    ],
);
const ZSTD: Recorded<'_> = stable(
    "libzstd1",
    "1.5.7+dfsg-1",
    &[
        ("amd64", "2f6a2aeacfc925eba8b00ac9139bc4bfccf8cacb09eb93de067074b26948eef9"),
        ("arm64", "924540bd59fdbfa77a0604360efdaca54411a43daf11c7e002a3c64791b67448"),
    ],
);
const JEMALLOC: Recorded<'_> = stable(
    "libjemalloc2",
    "5.3.0-3",
    &[
        ("amd64", "e7d64919e620e8ea46960104efe1e9c977d751e5b610a5d89b0b51aeae9530d7"),
        ("arm64", "437c48a6d591579bc812fc583ff0f28ac34a7d5c36b7d4e9f4f8809650430f3e"),
    ],
);
const LUA: Recorded<'_> = stable(
    "liblua5.4-0",
    "5.4.7-1+b2",
    &[
        ("amd64", "3456e23667f21a5bea4f2182ec878621bf4c47fbc9819fdaad8835d6d1ee6247"),
        ("arm64", "56c90caee447f0c9bc9390f822cb1d8ffd37e44041c736e2d8d86040c23547d8"),
    ],
);
const TRACING: Recorded<'_> = stable(
    "libopentracing-c-wrapper0t64",
    "1.1.3-3.1+b1",
    &[
        ("amd64", "6012776c16169e77fe08e0e0771ccb2e6b1b597b29e34b232c2de1d46a0d7353"),
        ("arm64", "b31f50a181d196dbeec63b14c263ccddfdb43df0a40b665075ac073a06d254a2"),
    ],
);
const TRACING_CORE: Recorded<'_> = stable(
    "libopentracing1",
    "1.6.0-4+b2",
    &[
        ("amd64", "451786b60ca9724e1b2a85fe99ced3a4210629eb91d1e7e055d0d29b3d791b95"),
        ("arm64", "8bc2849d789e2ea3d494dc18c158a889bd0f2d8891fa39aa0b67257a4831e421"),
    ],
);
const STDCXX: Recorded<'_> = stable(
    "libstdc++6",
    "14.2.0-19",
    &[
        ("amd64", "ab1fa05837aa7a92aae748fd07a18a35f7d18bb4a71c4724fe2bbf0e32089de0"),
        ("arm64", "6669b0c52a2e7c6af9adfdabce3ff6e286065cdfbc7b85280862b5f799daebee"),
    ],
);
const GCC: Recorded<'_> = stable(
    "libgcc-s1",
    "14.2.0-19",
    &[
        ("amd64", "3c71917b490d1a17aed43196a2787a256ecf060526cdb20216a74bedc061b150"),
        ("arm64", "1108bc87879833d6d9a145f22a4a15cddb34e065b4b5f4b97bee586adbac2851"),
    ],
);

/// Caddy and its libraries.
pub(super) const WITH_CADDY: [Recorded<'_>; 2] = [CADDY, LIBC];
/// nginx and its libraries.
pub(super) const NGINX: [Recorded<'_>; 7] = [NGINX_ITSELF, LIBC, CRYPT, PCRE, OPENSSL, ZLIB, ZSTD];
/// HAProxy and its libraries.
pub(super) const HAPROXY: [Recorded<'_>; 13] =
    [HAPROXY_ITSELF, LIBC, CRYPT, PCRE, OPENSSL, ZLIB, ZSTD, JEMALLOC, LUA, TRACING, TRACING_CORE, STDCXX, GCC];

const fn stable(
    name: &'static str,
    version: &'static str,
    sha256: &'static [(&'static str, &'static str)],
) -> Recorded<'static> {
    Recorded { name, suite: "trixie", version, sha256 }
}
