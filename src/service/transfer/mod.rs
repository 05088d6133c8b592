//! From one store to another: exports as files, and taking them in. `docs/export.md` is the format.

mod check;
mod export;
mod files;
mod import;
mod pack;
mod record;
mod unpack;

pub use check::check;
pub(super) use export::EXPORTS_AT_ONCE;
pub use export::ExportStream;
pub use record::{Contents, Header, Record, SentModel, VERSION};
pub use unpack::{BadExport, Entry, Piece, Reader};
