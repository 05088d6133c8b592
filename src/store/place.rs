//! Where a store is: in a file of SQLite, or in a database of a PostgreSQL server.

use super::{PostgresOptions, Result, SqlStore, SqliteOptions};
use std::fmt;
use std::path::{Path, PathBuf};

/// Where a store is. Its text is for people: a password is not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePlace {
    File(PathBuf),
    Server(ServerUrl),
}

/// The URL of a database, with its password if it has one, which is never told.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerUrl(String);

/// How a store is opened, wherever it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreOptions {
    pub sqlite: SqliteOptions,
    pub postgres: PostgresOptions,
}

impl StorePlace {
    const SQLITE: &'static str = "sqlite:";
    const SERVERS: [&'static str; 2] = ["postgres://", "postgresql://"];

    /// Reads `postgres://...`, `sqlite:PATH` or a path; `None` for a URL of another kind.
    pub fn parse(text: &str) -> Option<Self> {
        if Self::SERVERS.iter().any(|start| text.starts_with(start)) {
            return Some(Self::Server(ServerUrl(text.to_owned())));
        }
        let path = match text.strip_prefix(Self::SQLITE) {
            Some(path) => path.strip_prefix("//").unwrap_or(path),
            None if text.contains("://") => return None,
            None => text,
        };
        (!path.is_empty()).then(|| Self::File(path.into()))
    }

    /// The file, of a store that is in one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(file) => Some(file),
            Self::Server(_) => None,
        }
    }

    /// Whether there is no store, and opening it makes one; of a server that is known only once it was asked.
    pub fn is_missing(&self) -> bool {
        self.file().is_some_and(|file| !file.exists())
    }

    /// Opens the store, or makes it.
    ///
    /// # Errors
    /// See [`SqlStore::open_with`] and [`SqlStore::connect`].
    pub async fn open(&self, how: StoreOptions) -> Result<SqlStore> {
        match self {
            Self::File(file) => SqlStore::open_with(file, how.sqlite).await,
            Self::Server(url) => SqlStore::connect(&url.0, how.postgres).await,
        }
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or_default();
        // Parameters may name a password, too.
        let (place, parameters) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
        if parameters.contains('@') {
            // Of a password with such a character, which is not written as it should be, nothing tells where it ends.
            return write!(f, "{scheme}://...");
        }
        let place = place.rsplit('@').next().unwrap_or_default();
        let (host, database) = place.split_once('/').unwrap_or((place, ""));
        write!(f, "{scheme}://{host}/{database}")
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => file.display().fmt(f),
            Self::Server(url) => url.fmt(f),
        }
    }
}

impl From<&Path> for StorePlace {
    fn from(file: &Path) -> Self {
        Self::File(file.to_owned())
    }
}

impl From<&PathBuf> for StorePlace {
    fn from(file: &PathBuf) -> Self {
        Self::File(file.clone())
    }
}

impl From<&StorePlace> for StorePlace {
    fn from(place: &StorePlace) -> Self {
        place.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::StorePlace;
    use std::path::Path;

    #[test]
    fn a_place_is_read_and_told_without_its_password() {
        for (text, file) in [
            ("sqlite:///var/lib/a.db", "/var/lib/a.db"),
            ("sqlite:a.db", "a.db"),
            ("b/a.db", "b/a.db"),
        ] {
            assert_eq!(StorePlace::parse(text).unwrap().file(), Some(Path::new(file)));
        }
        for text in ["mysql://a/b", "sqlite://", "s3://bucket", ""] {
            assert_eq!(StorePlace::parse(text), None, "{text}");
        }
        for (text, told) in [
            (
                "postgres://me:geheim@host:5432/tuning?sslmode=require",
                "postgres://host:5432/tuning",
            ),
            ("postgresql://me:ge/h@eim@host/tuning", "postgresql://host/tuning"),
            ("postgres:///tuning?host=/run&password=geheim", "postgres:///tuning"),
            ("postgres://me:geheim@host", "postgres://host/"),
            ("postgres://me:geheim/x@host", "postgres://host/"),
            ("postgres://me:x/geheim@host/tuning", "postgres://host/tuning"),
            ("postgres://me:geheim?x@host/tuning", "postgres://..."),
            ("postgres://me:x#geheim@host/tuning", "postgres://..."),
            ("postgres://host/tuning?password=x@geheim", "postgres://..."),
        ] {
            let place = StorePlace::parse(text).unwrap();
            assert_eq!(place.to_string(), told);
            assert!(!format!("{place:?}").contains("geheim"));
            assert!(place.file().is_none() && !place.is_missing());
        }
    }
}
