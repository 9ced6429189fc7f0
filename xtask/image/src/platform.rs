//! The platforms of published images, and what this machine needs to build for another one.

use std::env::consts::ARCH;
use std::path::Path;

use anyhow::{Result, bail};
use xtask_setup::{packages, system};

/// C compiler of Debian's package for arm64.
const ARM64_GCC: &str = "aarch64-linux-gnu-gcc";
/// The C library for arm64, in the package that the compiler only recommends.
const ARM64_LIBC: &str = "/usr/aarch64-linux-gnu/lib/libc.a";

/// An architecture of Linux for which the product is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Platform {
    /// 64-bit x86.
    Amd64,
    /// 64-bit Arm.
    Arm64,
}

// === impl Platform ===

impl Platform {
    /// Returns the platform of this machine.
    ///
    /// # Errors
    /// Fails if the product is not published for it.
    pub fn this_machine() -> Result<Self> {
        match ARCH {
            "x86_64" => Ok(Self::Amd64),
            "aarch64" => Ok(Self::Arm64),
            other => bail!("images are published for amd64 and arm64, and not for this machine's `{other}`"),
        }
    }

    /// Returns the name in the OCI image specification.
    #[must_use]
    pub fn oci(self) -> &'static str {
        super::oci::architecture(self.rust())
    }

    /// Returns the name in Rust's targets.
    #[must_use]
    pub fn rust(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// Returns `true` if programs for the platform are built without a cross compiler.
    #[must_use]
    pub fn is_this_machine(self) -> bool {
        self.rust() == ARCH
    }

    /// Returns the C compiler and linker for the platform on another machine; installs it if it is missing.
    pub(super) fn cross_tools(self) -> Result<String> {
        match self {
            Self::Arm64 => {
                packages(&["gcc-aarch64-linux-gnu"], "release")?;
                if !Path::new(ARM64_LIBC).is_file() {
                    system::install(&["libc6-dev-arm64-cross"])?;
                }
                Ok(ARM64_GCC.to_owned())
            }
            Self::Amd64 => bail!("amd64 is built on amd64 machines only; use one of these"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_have_the_names_of_oci_and_of_rust() {
        let names = [Platform::Amd64, Platform::Arm64].map(|platform| (platform.oci(), platform.rust()));
        assert_eq!(names, [("amd64", "x86_64"), ("arm64", "aarch64")]);
    }
}
