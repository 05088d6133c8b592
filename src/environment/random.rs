//! Random bytes of the system, for secrets.

use std::fs::File;
use std::io::{self, Read};

/// 256 bits that nobody can guess.
///
/// # Errors
/// The system's source of random bytes cannot be read.
pub fn secret() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn secrets_differ() {
        assert_ne!(super::secret().unwrap(), super::secret().unwrap());
    }
}
