//! Writes an object of the archive, and reads it back.

use std::fs::{File, create_dir, rename};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

/// Bytes that are compared at once.
const BUFFER_BYTES: usize = 64 << 10;

/// The place of an object.
pub(super) struct ArchiveFile {
    /// Folder of the table.
    pub(super) folder: PathBuf,
    /// Name of the file.
    pub(super) name: String,
}

/// Writes lines to a new compressed file, and compares the file with them. The file has its final
/// name only when it is complete and on disk.
///
/// # Errors
///
/// The directory does not exist, the file cannot be written, or it reads differently.
pub(super) fn write_object(directory: &Path, file: &ArchiveFile, lines: &str) -> io::Result<()> {
    // A missing directory is an unmounted volume. Rows must not go to the container's own disk.
    if !directory.is_dir() {
        return Err(io::Error::new(ErrorKind::NotFound, "the directory does not exist"));
    }
    match create_dir(&file.folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let (path, unfinished) =
        (file.folder.join(&file.name), file.folder.join(format!("{}.unfinished", file.name)));
    let mut encoder = GzEncoder::new(File::create(&unfinished)?, Compression::default());
    encoder.write_all(lines.as_bytes())?;
    encoder.finish()?.sync_all()?;
    verify(&unfinished, lines)?;
    rename(&unfinished, &path)?;
    sync_folder(&file.folder)
}

/// Makes the new name durable. Mounted buckets have no folders to synchronise.
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidInput) => {
            Ok(())
        }
        result => result,
    }
}

/// Compares the content of a file with the lines. The decoder also checks its own checksum.
fn verify(path: &Path, lines: &str) -> io::Result<()> {
    let mut decoder = GzDecoder::new(File::open(path)?);
    let (mut rest, mut buffer) = (lines.as_bytes(), vec![0; BUFFER_BYTES]);
    loop {
        let length = decoder.read(&mut buffer)?;
        match rest.strip_prefix(&buffer[..length]) {
            Some([]) if length == 0 => return Ok(()),
            Some(after) if length > 0 => rest = after,
            Some(_) | None => {
                return Err(io::Error::new(ErrorKind::InvalidData, "the object reads differently"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_reads_differently_is_refused() {
        let directory =
            std::env::temp_dir().join(format!("walrelay-archive-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = ArchiveFile { folder: directory.join("public.app_outbox"), name: "1.gz".into() };
        let lines = "{}\n".repeat(100_000);
        write_object(&directory, &file, &lines).unwrap();
        let path = file.folder.join("1.gz");
        verify(&path, &lines).unwrap();
        let other = verify(&path, &lines.replacen("{}", "[]", 1)).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::InvalidData);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 9]).unwrap();
        assert!(verify(&path, &lines).is_err());
        std::fs::remove_dir_all(&directory).unwrap();
        let gone = write_object(&directory, &file, &lines).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
    }
}
